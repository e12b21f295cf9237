//! A WebSocket server and client: async-tungstenite.
//!
//! Usage: `websocket server ADDRESS` or `websocket client ADDRESS`
//!
//! The server returns each message. The client sends messages, and prints the length of the messages that come back.

use std::error::Error;

use anello::net::{TcpListener, TcpStream};
use async_tungstenite::tungstenite::Message;
use async_tungstenite::{accept_async, client_async};
use futures_util::StreamExt;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    anello::Runtime::new()?.block_on(run())
}

async fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().ok_or("missing argument: server or client")?;
    let address = arguments.next().ok_or("missing argument: ADDRESS")?;
    if mode == "client" {
        return exchange(&address, TcpStream::connect(&address).await?).await;
    }
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let stream = listener.accept().await?;
        anello::spawn(async move {
            if let Err(error) = echo(stream).await {
                eprintln!("connection failed: {error}");
            }
        })
        .detach();
    }
}

async fn echo(stream: TcpStream) -> Result<()> {
    let mut socket = accept_async(stream).await?;
    while let Some(message) = socket.next().await.transpose()? {
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

async fn exchange(address: &str, stream: TcpStream) -> Result<()> {
    let (mut socket, _response) = client_async(format!("ws://{address}/echo"), stream).await?;
    for bytes in [0, 5, 125, 126, 65_535, 65_536, 1 << 20] {
        socket.send(Message::text("m".repeat(bytes))).await?;
        let reply = socket.next().await.ok_or("the connection is closed")??;
        println!("text {}", reply.into_text()?.len());
    }
    socket.send(Message::binary(vec![7; 10])).await?;
    println!("binary {}", socket.next().await.ok_or("the connection is closed")??.into_data().len());
    socket.close(None).await?;
    while socket.next().await.transpose()?.is_some() {}
    println!("closed");
    Ok(())
}

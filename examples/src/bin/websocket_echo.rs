//! A WebSocket server that sends all messages back: `websocket_echo [ADDRESS]`, by default on `127.0.0.1:9001`.
//!
//! Libraries for tokio's I/O traits run on anello's streams with the feature `compat-tokio`; here `tokio-tungstenite`.
//! One worker per core accepts connections from its own socket. The tasks need no `Send`.

#![forbid(unsafe_code)]

use std::io;

use anello::Workers;
use anello::net::{TcpListener, TcpStream};
use anello::server::ListenerGroup;
use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::accept_async_with_config;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

/// Maximum size of a message in bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9001".to_owned());
    let address = address.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let group = ListenerGroup::<TcpListener>::bind(address, Workers::builder().worker_count()?)?;
    println!("listening on {}", group.sockets()?[0].local_addr()?);
    let workers = Workers::builder().start(move |worker| {
        let member = group.clone();
        async move {
            let member = member.join(worker.index);
            while let Some(stream) = member.accept().await? {
                anello::spawn(async move {
                    if let Err(error) = echo(stream).await {
                        eprintln!("connection failed: {error}");
                    }
                })
                .detach();
            }
            Ok::<(), io::Error>(())
        }
    })?;
    workers.join()?.into_iter().collect()
}

async fn echo(stream: TcpStream) -> Result<(), Error> {
    let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE_BYTES));
    let mut socket = accept_async_with_config(stream, Some(config)).await?;
    while let Some(message) = socket.next().await {
        match message? {
            message @ (Message::Text(_) | Message::Binary(_)) => socket.send(message).await?,
            // The library responds to pings and close frames.
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => {}
        }
    }
    Ok(())
}

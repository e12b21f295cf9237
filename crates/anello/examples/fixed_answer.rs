//! Answers every HTTP/1.1 request with the same 13 bytes, looking only for where it ends: so cheap a server that HTTP
//! clients are the limit, and can be compared. Requests with a body are not understood.
//!
//! usage: `fixed_answer [ADDRESS]`; it says where it listens and serves until it is ended.

use std::{env, io};

use anello::Runtime;
use anello::net::{TcpListener, TcpStream};

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
/// How a request ends.
const END: &[u8] = b"\r\n\r\n";

fn main() -> io::Result<()> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(address)?;
        println!("fixed_answer ready addr={}", listener.local_addr()?);
        loop {
            anello::spawn(answer_all(listener.accept().await?)).detach();
        }
    })
}

async fn answer_all(mut stream: TcpStream) -> io::Result<()> {
    // How much of the end of a request has come.
    let mut matched = 0;
    while let Some(chunk) = stream.recv().await? {
        let mut requests = 0;
        for &byte in &chunk[..] {
            matched = if byte == END[matched] { matched + 1 } else { usize::from(byte == END[0]) };
            if matched == END.len() {
                (requests, matched) = (requests + 1, 0);
            }
        }
        match requests {
            0 => {}
            1 => stream.send(ANSWER).await?,
            _ => stream.send(ANSWER.repeat(requests)).await?,
        }
    }
    Ok(())
}

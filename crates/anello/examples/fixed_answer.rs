//! An HTTP/1.1 server that answers every request with the same 13-byte body. It only searches for the end of each
//! request, so that the client is the bottleneck in benchmarks of HTTP clients. Request bodies are not supported.
//!
//! Usage: `fixed_answer [ADDRESS]`
//!
//! Prints its address and serves until it is terminated.

use std::{env, io};

use anello::Runtime;
use anello::net::{TcpListener, TcpStream};

const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
/// End of the header section of a request.
const END: &[u8] = b"\r\n\r\n";

fn main() -> io::Result<()> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(address)?;
        println!("fixed_answer ready addr={}", listener.local_addr()?);
        loop {
            anello::spawn(serve_connection(listener.accept().await?)).detach();
        }
    })
}

async fn serve_connection(mut stream: TcpStream) -> io::Result<()> {
    // Number of bytes of `END` that have been matched.
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
            1 => stream.send(RESPONSE).await?,
            _ => stream.send(RESPONSE.repeat(requests)).await?,
        }
    }
    Ok(())
}

//! The example `redis` on tokio's current-thread runtime: `tokio-redis [ADDRESS]`. Requests and the store are those of
//! the example.

#[path = "../../../../examples/src/bin/redis/resp.rs"]
mod resp;
#[path = "../../../../examples/src/bin/redis/store.rs"]
mod store;

use std::io;
use std::rc::Rc;

use resp::{Replies, parse};
use store::Store;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};

/// Size of the receive buffer of anello.
const BUFFER_BYTES: usize = 16 * 1024;

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6379".to_owned());
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(address.as_str()).await?;
        println!("ready addr={}", listener.local_addr()?);
        let store = Rc::new(Store::default());
        loop {
            let (stream, _peer) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let store = Rc::clone(&store);
            spawn_local(async move {
                if let Err(error) = serve(stream, &store).await {
                    eprintln!("connection failed: {error}");
                }
            });
        }
    })
}

async fn serve(mut stream: TcpStream, store: &Store) -> io::Result<()> {
    // The start of a request that has not arrived completely.
    let mut incomplete = Vec::new();
    let mut replies = Replies::default();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let chunk = &buffer[..length];
        let is_last = if incomplete.is_empty() {
            let (executed, is_last) = execute_all(chunk, store, &mut replies);
            incomplete.extend_from_slice(&chunk[executed..]);
            is_last
        } else {
            incomplete.extend_from_slice(chunk);
            let (executed, is_last) = execute_all(&incomplete, store, &mut replies);
            incomplete.drain(..executed);
            is_last
        };
        stream.write_all(&replies.0).await?;
        replies.0.clear();
        if is_last {
            return Ok(());
        }
    }
}

/// Executes all complete requests in the input. Returns their length, and whether the connection is to be closed.
fn execute_all(input: &[u8], store: &Store, replies: &mut Replies) -> (usize, bool) {
    let (mut length, mut request) = (0, Vec::new());
    loop {
        match parse(&input[length..], &mut request) {
            Ok(None) => return (length, false),
            Ok(Some(request_bytes)) => {
                length += request_bytes;
                if request.first().is_some_and(|name| name.eq_ignore_ascii_case(b"QUIT")) {
                    replies.simple("OK");
                    return (length, true);
                }
                store.execute(&request, replies);
            }
            Err(error) => {
                replies.error(&format!("Protocol error: {error}"));
                return (input.len(), true);
            }
        }
    }
}

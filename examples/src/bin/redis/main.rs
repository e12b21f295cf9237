//! An in-memory server for the Redis protocol: `redis [ADDRESS]`, by default on `127.0.0.1:6379`.
//!
//! Like Redis, it executes all commands on one thread, so the store needs no lock: it is shared through an `Rc`. All
//! requests that have arrived together are executed before their replies are sent together.

#![forbid(unsafe_code)]

mod resp;
mod store;

use std::io;
use std::rc::Rc;
use std::time::Duration;

use anello::DriverOptions;
use anello::net::{TcpListener, TcpStream};

use resp::{Replies, parse};
use store::Store;

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6379".to_owned());
    // With many active clients, several requests are handled per wake-up.
    let options = DriverOptions::default().max_batch_delay(Duration::from_micros(200));
    anello::Runtime::builder().options(options).build()?.block_on(async {
        let listener = TcpListener::bind_host(address.as_str()).await?;
        println!("listening on {}", listener.local_addr()?);
        let store = Rc::new(Store::default());
        loop {
            let stream = listener.accept().await?;
            let store = Rc::clone(&store);
            anello::spawn(async move {
                if let Err(error) = serve(stream, &store).await {
                    eprintln!("connection failed: {error}");
                }
            })
            .detach();
        }
    })
}

async fn serve(mut stream: TcpStream, store: &Store) -> io::Result<()> {
    // The start of a request that has not arrived completely.
    let mut incomplete = Vec::new();
    let mut replies = Replies::default();
    while let Some(chunk) = stream.recv().await? {
        // Nearly always, a chunk contains whole requests, and they are executed without copying them.
        let executed = if incomplete.is_empty() {
            let executed = execute_all(&chunk, store, &mut replies);
            incomplete.extend_from_slice(&chunk[executed.length..]);
            executed
        } else {
            incomplete.extend_from_slice(&chunk);
            let executed = execute_all(&incomplete, store, &mut replies);
            incomplete.drain(..executed.length);
            executed
        };
        // Return the buffer to the runtime before waiting.
        drop(chunk);
        stream.write_all(&replies.0).await?;
        replies.0.clear();
        if executed.is_last {
            return stream.flush().await;
        }
    }
    Ok(())
}

/// The requests that have been executed.
struct Executed {
    length: usize,
    /// The connection is to be closed.
    is_last: bool,
}

/// Executes all complete requests in the input.
fn execute_all(input: &[u8], store: &Store, replies: &mut Replies) -> Executed {
    let (mut length, mut request) = (0, Vec::new());
    loop {
        match parse(&input[length..], &mut request) {
            Ok(None) => return Executed { length, is_last: false },
            Ok(Some(request_bytes)) => {
                length += request_bytes;
                if request.first().is_some_and(|name| name.eq_ignore_ascii_case(b"QUIT")) {
                    replies.simple("OK");
                    return Executed { length, is_last: true };
                }
                store.execute(&request, replies);
            }
            Err(error) => {
                replies.error(&format!("Protocol error: {error}"));
                return Executed { length: input.len(), is_last: true };
            }
        }
    }
}

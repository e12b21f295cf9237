//! What clients cost that take nothing, or are gone: memory and descriptors of this process. Alone in its program, and one
//! test after the other: both belong to all of a process.

mod common;

use std::fs;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use anello::time::sleep;
use anello_http::{Body, Request, Response, ServerOptions};
use bytes::Bytes;
use futures_core::Stream;

use common::{Client, for_each_driver, real_drivers, serve, wait_until};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const CLIENTS: usize = 100;

const DOWNLOAD_BYTES: usize = 100 << 20;

/// What an answer that nobody reads may hold of this process: the send queue, the piece behind it, and as much again.
const HELD_BYTES: usize = 512 << 10;

/// Pieces that are made when they are asked for, and never twice.
struct Fresh(usize);

impl Stream for Fresh {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let piece = self.0.min(100_000);
        self.0 -= piece;
        Poll::Ready((piece > 0).then(|| Ok(Bytes::from(vec![b'x'; piece]))))
    }
}

/// Memory of this process that is there (`/proc/self/statm`).
fn resident_bytes() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").expect("a file");
    pages.split(' ').nth(1).expect("a second number").parse::<usize>().expect("a number") * 4096
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("a folder").count()
}

#[test]
fn fault_20_downloads_that_nobody_reads_take_bounded_memory() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for_each_driver(real_drivers(), async |kind| {
        let (server, address) = serve(ServerOptions::default(), async |_: Request| {
            Response::new(200).with_body(Body::stream(Fresh(DOWNLOAD_BYTES)))
        });
        let before = resident_bytes();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let mut client = Client::connect(address).await;
            client.stream.set_recv_buffer_size(64 << 10).expect("a buffer");
            // More wait behind the first one.
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(10)).await;
            clients.push(client);
        }
        wait_until(|| server.connections() == CLIENTS).await;
        // Until nothing more goes.
        let mut resident = resident_bytes();
        loop {
            sleep(Duration::from_millis(200)).await;
            let still = resident_bytes();
            if still <= resident {
                break;
            }
            resident = still;
        }
        let held = resident.saturating_sub(before);
        assert!(held <= CLIENTS * HELD_BYTES, "{kind}: {held} bytes for {CLIENTS} clients");
    });
}

#[test]
fn fault_22_clients_that_reset_leave_no_descriptor_behind() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for_each_driver(real_drivers(), async |kind| {
        let large = Bytes::from(vec![b'x'; 8 << 20]);
        let (server, address) =
            serve(ServerOptions::default(), async move |_: Request| Response::text(large.clone()));
        let mut before = None;
        for number in 0..200 {
            let mut client = Client::connect(address).await;
            client.stream.set_linger(Some(Duration::ZERO)).expect("an option");
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            if number % 2 == 0 {
                client.stream.recv().await.expect("bytes");
            }
            client.stream.abort();
            if number == 0 {
                // What is opened once is open now.
                wait_until(|| server.connections() == 0).await;
                before = Some(descriptors());
            }
        }
        wait_until(|| server.connections() == 0).await;
        let before = before.expect("a count");
        wait_until(|| descriptors() <= before).await;
        let mut client = Client::connect(address).await;
        assert_eq!(client.get("/").await.body.len(), 8 << 20, "{kind}");
    });
}

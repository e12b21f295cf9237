//! Resources used by clients that do not read or that disconnect: memory and file descriptors. Both are measured for
//! the whole process, so each of these tests has its own.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::spawn;
use anello::sync::CancellationToken;
use anello::time::sleep;
use anello_http::{Body, Request, Response, ServerOptions};
use anello_test::{in_own_process, main_drivers, run_on_each};
use bytes::Bytes;
use futures_core::Stream;

use crate::common::versions::{VERSIONS, with_all_versions};
use crate::common::{Client, serve, wait_until, with_long_timeouts};

const CLIENTS: usize = 100;

const DOWNLOAD_BYTES: usize = 100 << 20;

/// Maximum memory per response that the client does not read: twice the total size of the send queue and the next
/// chunk.
const MAX_UNREAD_RESPONSE_BYTES: usize = 512 << 10;

/// A body stream that allocates each chunk when it is polled. The value is the number of remaining bytes.
struct ChunkStream(usize);

impl Stream for ChunkStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let chunk_bytes = self.0.min(100_000);
        self.0 -= chunk_bytes;
        Poll::Ready((chunk_bytes > 0).then(|| Ok(Bytes::from(vec![b'x'; chunk_bytes]))))
    }
}

/// Returns the resident memory of this process (`/proc/self/statm`).
fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("read statm");
    statm.split(' ').nth(1).expect("resident pages").parse::<usize>().expect("number of pages") * 4096
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("list descriptors").count()
}

/// Returns the maximum size of the kernel's send buffer for a connection.
fn max_kernel_send_buffer() -> usize {
    let sizes = fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").expect("read tcp_wmem");
    sizes.split_whitespace().next_back().expect("three sizes").parse().expect("a size")
}

#[test]
fn fault_20_unread_downloads_use_bounded_memory() {
    in_own_process(|| {
        run_on_each(main_drivers(), async |setup| {
            let (server, address) = serve(ServerOptions::default(), async |_: Request| {
                Response::new(200).with_body(Body::stream(ChunkStream(DOWNLOAD_BYTES)))
            });
            let before = resident_bytes();
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                let mut client = Client::connect(address).await;
                client.stream.set_recv_buffer_size(64 << 10).expect("set receive buffer size");
                // Further requests are pipelined after the first one.
                client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(10)).await;
                clients.push(client);
            }
            wait_until(|| server.connections() == CLIENTS).await;
            // Wait until the memory usage no longer grows.
            let mut resident = resident_bytes();
            loop {
                sleep(Duration::from_millis(200)).await;
                let current = resident_bytes();
                if current <= resident {
                    break;
                }
                resident = current;
            }
            let growth = resident.saturating_sub(before);
            // What the kernel sends without a copy stays in the memory of the process.
            let kernel_bytes = if setup.name == "uring-zero-copy" { max_kernel_send_buffer() } else { 0 };
            assert!(
                growth <= CLIENTS * (MAX_UNREAD_RESPONSE_BYTES + kernel_bytes),
                "{setup}: {growth} bytes for {CLIENTS} clients"
            );
        });
    });
}

/// Memory of the process after a burst of requests, beyond that before it.
const MAX_RETAINED_BYTES: usize = 24 << 20;

#[test]
fn fault_20_memory_of_requests_is_returned_while_connections_are_open() {
    in_own_process(|| {
        run_on_each(main_drivers(), async |setup| {
            for &version in VERSIONS {
                let (answered, waiting) = (CancellationToken::new(), Rc::new(Cell::new(0)));
                let (released, requests, kept) =
                    (answered.clone(), Rc::clone(&waiting), RefCell::new(Vec::new()));
                let options = with_all_versions(with_long_timeouts());
                let (server, address) = serve(options, async move |_: Request| {
                    let blocks: Vec<_> = (0..64).map(|_| vec![b'x'; 16 << 10]).collect();
                    // Behind the freed blocks, so that the allocator cannot simply shorten the heap.
                    kept.borrow_mut().push(Box::new([b'x'; 64]));
                    requests.set(requests.get() + 1);
                    released.cancelled().await;
                    Response::text(format!("{} blocks", blocks.len()))
                });
                let before = resident_bytes();
                let requests = (0..CLIENTS).map(|_| {
                    spawn(async move {
                        let mut client = version.connect(address).await;
                        let response = client.get("/").await;
                        (client, response)
                    })
                });
                let requests: Vec<_> = requests.collect();
                wait_until(|| waiting.get() == CLIENTS).await;
                let growth = resident_bytes().saturating_sub(before);
                assert!(growth >= 2 * MAX_RETAINED_BYTES, "{setup}: {version:?}: {growth} bytes");
                answered.cancel();
                let mut clients = Vec::new();
                for request in requests {
                    let (client, response) = request.await.expect("the request does not panic");
                    assert_eq!(response.text(), "64 blocks");
                    clients.push(client);
                }
                wait_until(|| resident_bytes() <= before + MAX_RETAINED_BYTES).await;
                assert_eq!(server.connections(), CLIENTS, "{setup}: {version:?}");
                for client in &mut clients {
                    assert_eq!(client.get("/").await.status, 200);
                }
            }
        });
    });
}

#[test]
fn fault_22_reset_connections_leak_no_descriptors() {
    in_own_process(|| {
        run_on_each(main_drivers(), async |setup| {
            for version in VERSIONS {
                let large = Bytes::from(vec![b'x'; 8 << 20]);
                let options = with_all_versions(ServerOptions::default());
                let (server, address) = serve(options, async move |_: Request| Response::text(large.clone()));
                let mut before = None;
                for number in 0..100 {
                    let mut client = Client::connect(address).await;
                    client.stream.set_linger(Some(Duration::ZERO)).expect("set linger");
                    client.send(version.whole_get()).await;
                    if number % 2 == 0 {
                        client.stream.recv().await.expect("receive");
                    }
                    client.stream.abort();
                    if number == 0 {
                        // Descriptors that are opened only once, such as those of the runtime, are open by now.
                        wait_until(|| server.connections() == 0).await;
                        before = Some(descriptors());
                    }
                }
                wait_until(|| server.connections() == 0).await;
                let before = before.expect("descriptor count");
                wait_until(|| descriptors() <= before).await;
                let mut client = Client::connect(address).await;
                client.send(version.whole_get()).await;
                assert_eq!(version.read_body_bytes(&mut client).await, 8 << 20, "{setup}: {version:?}");
            }
        });
    });
}

//! Half-close: once the write direction is shut down or its owner is dropped, a FIN follows the accepted bytes.
//!
//! Shared by all stream families. Each test program defines its family as `super::family`.

use std::cell::Cell;
use std::io;
use std::sync::LazyLock;

use anello::net::OwnedWriteHalf;
use anello::{spawn, yield_now};
use bytes::Bytes;

use super::family::{SEND_AFTER_RESET, SHUTDOWN_AFTER_RESET, Stream, on_every_setup, pair};
use crate::common::{Flag, LARGE, TURNS, bytes_of_owner, pattern, poll_at_most};

/// Larger than what the kernel accepts while the peer is not reading.
static MESSAGE: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(pattern(13, LARGE)));

/// Returns an empty message, and one for each send path: in the next turn, immediately, and only as the peer reads.
fn messages() -> [Bytes; 4] {
    [0, 100, 20_000, MESSAGE.len()].map(|length| MESSAGE.slice(..length))
}

/// Reads to EOF and compares the bytes.
async fn assert_reads(stream: &mut Stream, expected: &[u8]) {
    let mut left = expected;
    while let Some(chunk) = stream.recv().await.unwrap() {
        let (next, rest) = left.split_at_checked(chunk.len()).expect("no more bytes than were sent");
        assert!(chunk[..] == *next, "wrong bytes, {} bytes before EOF", left.len());
        left = rest;
    }
    assert!(left.is_empty(), "EOF {} bytes too early", left.len());
}

/// Waits until only `count` sockets are open.
async fn wait_for_socket_count(count: u64) {
    while anello::current_driver_metrics().unwrap().sockets > count {
        yield_now().await;
    }
}

/// Returns a connection whose client has sent the message and shut down its write direction.
async fn shut_down_pair(message: &Bytes) -> (Stream, Stream) {
    let (mut client, server) = pair().await.unwrap();
    client.send(message.clone()).await.unwrap();
    client.shutdown().await.unwrap();
    (client, server)
}

#[test]
fn shutdown_of_unread_stream_returns_and_fin_follows_bytes() {
    on_every_setup(|setup| {
        for message in messages() {
            setup.run(async {
                // No task is reading yet.
                let (mut client, mut server) = shut_down_pair(&message).await;
                client.shutdown().await.unwrap();
                let late = client.write(b"late").await.unwrap_err();
                assert_eq!(late.kind(), io::ErrorKind::BrokenPipe, "{late}");
                // The other direction stays open, and the task that called `shutdown` does nothing more for its own
                // direction.
                let reading = spawn(async move {
                    let answer = client.recv().await.unwrap().map(|chunk| chunk.to_vec());
                    (answer, client)
                });
                assert_reads(&mut server, &message).await;
                server.write_all(b"x").await.unwrap();
                assert_eq!(reading.await.unwrap().0.as_deref(), Some(&b"x"[..]));
            });
        }
    });
}

#[test]
fn flush_after_shutdown_waits_until_all_bytes_are_taken() {
    on_every_setup(|setup| {
        for message in messages() {
            setup.run(async {
                let (mut client, mut server) = shut_down_pair(&message).await;
                if message.len() == LARGE {
                    assert!(poll_at_most(1, client.flush()).await.is_none());
                }
                let flushing = spawn(async move { client.flush().await });
                assert_reads(&mut server, &message).await;
                flushing.await.unwrap().unwrap();
            });
        }
    });
}

#[test]
fn stream_dropped_after_shutdown_sends_all_bytes() {
    on_every_setup(|setup| {
        for message in messages() {
            setup.run(async {
                let base = anello::current_driver_metrics().unwrap().sockets;
                let (client, mut server) = shut_down_pair(&message).await;
                drop(client);
                assert_reads(&mut server, &message).await;
                drop(server);
                wait_for_socket_count(base).await;
            });
        }
    });
}

#[test]
fn dropped_owned_write_half_sends_fin_after_bytes() {
    on_every_setup(|setup| {
        for message in messages() {
            for is_shut_down in [false, true] {
                setup.run(async {
                    let base = anello::current_driver_metrics().unwrap().sockets;
                    let (client, mut server) = pair().await.unwrap();
                    let (mut reader, mut writer) = client.into_split();
                    writer.send(message.clone()).await.unwrap();
                    if is_shut_down {
                        writer.shutdown().await.unwrap();
                    }
                    drop(writer);
                    let reading = spawn(async move { reader.read_exact(&mut [0; 3]).await });
                    assert_reads(&mut server, &message).await;
                    server.write_all(b"bye").await.unwrap();
                    reading.await.unwrap().unwrap();
                    // Both halves have been dropped.
                    drop(server);
                    wait_for_socket_count(base).await;
                });
            }
        }
    });
}

#[test]
fn owned_write_half_dropped_last_sends_all_bytes() {
    on_every_setup(|setup| {
        for message in messages() {
            setup.run(async {
                let base = anello::current_driver_metrics().unwrap().sockets;
                let (client, mut server) = pair().await.unwrap();
                let (reader, mut writer) = client.into_split();
                writer.send(message.clone()).await.unwrap();
                drop(reader);
                drop(writer);
                assert_reads(&mut server, &message).await;
                drop(server);
                wait_for_socket_count(base).await;
            });
        }
    });
}

#[test]
fn forgotten_write_half_sends_no_fin_until_stream_is_closed() {
    on_every_setup(|setup| {
        setup.run(async {
            let (client, mut server) = pair().await.unwrap();
            let (mut reader, mut writer) = client.into_split();
            writer.write_all(b"a").await.unwrap();
            OwnedWriteHalf::forget(writer);
            let mut byte = [0];
            server.read_exact(&mut byte).await.unwrap();
            server.write_all(b"b").await.unwrap();
            reader.read_exact(&mut byte).await.unwrap();
            for _ in 0..TURNS {
                yield_now().await;
            }
            assert!(poll_at_most(1, server.recv()).await.is_none(), "{}: unexpected FIN", setup.name);
            drop(reader);
            assert!(server.recv().await.unwrap().is_none());
        });
    });
}

#[test]
fn dropped_borrowed_write_half_keeps_stream_open() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            {
                let (_reader, mut writer) = client.split();
                writer.write_all(b"a").await.unwrap();
            }
            client.write_all(b"b").await.unwrap();
            drop(client);
            assert_reads(&mut server, b"ab").await;
        });
    });
}

#[test]
fn dropping_owned_write_half_of_broken_stream_succeeds() {
    on_every_setup(|setup| {
        setup.run(async {
            let (client, server) = pair().await.unwrap();
            let shutdown_handle = client.shutdown_handle();
            let (mut reader, mut writer) = client.into_split();
            server.abort();
            // The loop ends when the kernel reports the error or this side has closed the connection.
            while writer.write_all(b"x").await.is_ok() && writer.flush().await.is_ok() {
                yield_now().await;
            }
            drop(writer);
            shutdown_handle.reset();
            assert!(reader.recv().await.is_err());
        });
    });
}

/// The driver drops sent bytes, whose owner then drops the write half of another stream.
#[test]
fn write_half_dropped_by_driver_sends_fin() {
    thread_local! {
        static WRITER: Cell<Option<OwnedWriteHalf<Stream>>> = const { Cell::new(None) };
    }

    on_every_setup(|setup| {
        setup.run(async {
            let (client, mut server) = pair().await.unwrap();
            let (_reader, mut writer) = client.into_split();
            writer.write_all(b"last").await.unwrap();
            let (mut other, mut other_server) = pair().await.unwrap();
            WRITER.set(Some(writer));
            other.send(bytes_of_owner(|| drop(WRITER.take()))).await.unwrap();
            other.flush().await.unwrap();
            let mut bytes = [0; 11];
            other_server.read_exact(&mut bytes).await.unwrap();
            assert_reads(&mut server, b"last").await;
        });
    });
}

#[test]
fn write_after_shutdown_of_idle_stream_fails() {
    on_every_setup(|setup| {
        setup.run(async {
            for flushed in [&b""[..], b"before"] {
                let (mut client, mut server) = pair().await.unwrap();
                client.write_all(flushed).await.unwrap();
                client.flush().await.unwrap();
                client.shutdown().await.unwrap();
                let late = client.write(b"late").await.unwrap_err();
                assert_eq!(late.kind(), io::ErrorKind::BrokenPipe, "{late}");
                assert_reads(&mut server, flushed).await;
            }
        });
    });
}

/// The call that a task makes between a reset by its peer and the shutdown.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    Nothing,
    Receive,
    Write,
    Flush,
}

/// With and without a receive that is in flight on io_uring.
const BEFORE_SHUTDOWN: [(Before, bool); 8] = [
    (Before::Nothing, false),
    (Before::Nothing, true),
    (Before::Receive, false),
    (Before::Receive, true),
    (Before::Write, false),
    (Before::Write, true),
    (Before::Flush, false),
    (Before::Flush, true),
];

/// Returns the error number of a result.
fn errno(result: io::Result<()>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn shutdown_after_reset_returns_same_result_on_every_driver() {
    on_every_setup(|setup| {
        setup.run(async {
            for (before, is_receiving) in BEFORE_SHUTDOWN {
                let (mut stream, mut peer) = pair().await.unwrap();
                if is_receiving {
                    peer.write_all(b"1").await.unwrap();
                    stream.recv().await.unwrap();
                }
                stream.write_all(b"never read").await.unwrap();
                stream.flush().await.unwrap();
                if before == Before::Flush {
                    stream.send(MESSAGE.clone()).await.unwrap();
                }
                // A Unix socket that is closed with unread bytes resets the connection.
                peer.abort();
                let handle = stream.shutdown_handle();
                while !handle.is_broken() {
                    yield_now().await;
                }
                let failed = match before {
                    Before::Nothing => Ok(()),
                    Before::Receive => stream.recv().await.map(drop),
                    Before::Write => loop {
                        match stream.write(b"x").await {
                            Ok(_) => yield_now().await,
                            Err(error) => break Err(error),
                        }
                    },
                    Before::Flush => stream.flush().await,
                };
                let results = [failed, stream.shutdown().await, stream.shutdown().await].map(errno);
                let expected = match before {
                    Before::Nothing => [None, SHUTDOWN_AFTER_RESET, SHUTDOWN_AFTER_RESET],
                    Before::Receive => [Some(libc::ECONNRESET), SHUTDOWN_AFTER_RESET, SHUTDOWN_AFTER_RESET],
                    // The error of a send is also that of the following calls.
                    Before::Write | Before::Flush => [Some(SEND_AFTER_RESET); 3],
                };
                assert_eq!(results, expected, "{}: {before:?}, {is_receiving}", setup.name);
            }
        });
    });
}

/// The driver drops sent bytes in a turn that is about to block.
#[test]
fn task_woken_by_owner_of_sent_bytes_runs_immediately() {
    on_every_setup(|setup| {
        setup.run(async {
            let flag = Flag::default();
            let waits = flag.clone();
            let woken = spawn(async move { waits.wait().await });
            yield_now().await;
            let (client, _server) = pair().await.unwrap();
            let (_reader, mut writer) = client.into_split();
            writer.send(bytes_of_owner(move || flag.raise())).await.unwrap();
            drop(writer);
            // No other event is due: if the task does not run, the runtime waits for ever.
            woken.await.unwrap();
        });
    });
}

//! Streams and listeners: bytes arrive once and in order with every combination of calls, on every driver.
//!
//! Shared by all stream families. Each test program defines its family as `super::family`.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use crate::common::echo;
use anello::net::SendBuf;
use anello::time::sleep;
use anello::{spawn, yield_now};
use bytes::Bytes;

use super::family::{Stream, connect, listen, on_every_setup, pair};
use crate::common::{
    LARGE, Rng, Setup, assert_same_bytes, exchange, file_of, join, on_both_drivers, pattern, poll_at_most,
};

/// Message sizes: a few bytes, and sizes around those of receive buffers, memory size classes and the send queue.
const SIZES: [usize; 16] =
    [1, 2, 63, 64, 65, 1000, 4095, 4096, 4097, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 1 << 20];

/// Sends a message to an echo peer and reads it back. Does both concurrently, because a large message does not fit into
/// any buffer.
async fn echo_once(client: Stream, message: Vec<u8>) -> io::Result<Stream> {
    let (mut reader, mut writer) = client.into_split();
    let length = message.len();
    let sent = message.clone();
    let writing = spawn(async move {
        writer.write_all(&sent).await?;
        Ok::<_, io::Error>(writer)
    });
    let mut response = vec![0; length];
    reader.read_exact(&mut response).await?;
    drop(writing.await.unwrap()?);
    assert_same_bytes(&response, &message);
    // Dropping the last half closes the connection.
    drop(reader);
    pair().await.map(|(client, _)| client)
}

#[test]
fn echo_of_many_sizes() {
    on_every_setup(|setup| {
        setup.run(async {
            for size in SIZES {
                let (client, mut server) = pair().await.unwrap();
                let echoing = spawn(async move { echo(&mut server).await });
                echo_once(client, pattern(size as u64, size)).await.unwrap();
                let echoed = echoing.await.unwrap();
                assert_eq!(echoed.ok(), Some(size as u64), "{}: {size} bytes", setup.name);
            }
        });
    });
}

#[test]
fn echo_of_varying_sizes_on_one_connection() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let echoing = spawn(async move { echo(&mut server).await });
            let mut random = Rng::with_seed(7);
            for round in 0..300 {
                let size = match round % 3 {
                    0 => 1 + random.usize(..100),
                    1 => 1 + random.usize(..5000),
                    _ => 1 + random.usize(..30_000),
                };
                exchange(&mut client, &pattern(round, size)).await;
            }
            // After many small messages, the driver uses the buffer ring again, if there is one.
            for round in 0..200u8 {
                client.write_all(&[round]).await.unwrap();
                assert_eq!(client.recv().await.unwrap().as_deref(), Some(&[round][..]));
            }
            drop(client);
            echoing.await.unwrap().unwrap();
        });
    });
}

/// More buffers than one system call takes, so that some are queued, and short ones, which are copied.
#[test]
fn vectored_sends_of_many_buffers_arrive_in_order() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            client.send_vectored([SendBuf::from(""), Vec::new().into()]).await.unwrap();
            client.send_vectored(Vec::<Bytes>::new()).await.unwrap();
            let mut expected = Vec::new();
            let mut batches: Vec<Vec<SendBuf>> = Vec::new();
            for (seed, count, length) in
                [(1, 3, 10), (2, 2500, 40), (3, 1, 300_000), (4, 40, 5000), (5, 7, 1)]
            {
                let bytes = pattern(seed, count * length);
                batches.push(bytes.chunks(length).map(|part| part.to_vec().into()).collect());
                expected.extend_from_slice(&bytes);
            }
            let sending = spawn(async move {
                for batch in batches {
                    client.send_vectored(batch).await.unwrap();
                }
                // A future that is dropped while the queue is full has accepted nothing.
                client.flush().await.unwrap();
                while poll_at_most(1, client.send(vec![0; 100_000])).await.is_some() {}
                assert!(poll_at_most(1, client.send_vectored(["lost", "lost"])).await.is_none());
                client
            });
            let mut received = vec![0; expected.len()];
            server.read_exact(&mut received).await.unwrap();
            assert_same_bytes(&received, &expected);
            let mut client = sending.await.unwrap();
            let reading = spawn(async move {
                let mut rest = Vec::new();
                while let Some(chunk) = server.recv().await.unwrap() {
                    rest.extend_from_slice(&chunk);
                }
                rest
            });
            client.send_vectored(["the ", "end"]).await.unwrap();
            client.shutdown().await.unwrap();
            assert_eq!(
                client.send_vectored(["too ", "late"]).await.unwrap_err().kind(),
                io::ErrorKind::BrokenPipe
            );
            let rest = reading.await.unwrap();
            let (zeros, end) = rest.split_at(rest.len() - 7);
            assert!(zeros.iter().all(|byte| *byte == 0) && end == b"the end");
        });
    });
}

#[test]
fn mixed_calls_keep_byte_order() {
    on_every_setup(|setup| {
        for seed in 0..8 {
            setup.run(mixed_calls(seed));
        }
    });
}

/// Writes and reads with randomly chosen calls, sizes and pauses.
async fn mixed_calls(seed: u64) {
    let expected = pattern(seed, 200_000);
    let (mut client, mut server) = pair().await.unwrap();
    let message = expected.clone();
    let file = file_of(&message);
    let writing = spawn(async move {
        let mut random = Rng::with_seed(seed);
        let mut left = &message[..];
        while !left.is_empty() {
            let max_length = [10, 1000, 20_000][random.usize(..3)];
            let (part, rest) = left.split_at((1 + random.usize(..max_length)).min(left.len()));
            let mut accepted = part.len();
            match random.usize(..9) {
                8 => {
                    let (one, other) = part.split_at(random.usize(..part.len()));
                    let buffers = [SendBuf::from(one.to_vec()), Bytes::new().into(), other.to_vec().into()];
                    client.send_vectored(buffers).await.unwrap();
                }
                7 => {
                    let (one, other) = part.split_at(random.usize(..part.len()));
                    let slices = [IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(other)];
                    accepted = client.write_vectored(&slices).await.unwrap();
                }
                6 => {
                    let (offset, length) = ((message.len() - left.len()) as u64, part.len() as u64);
                    assert_eq!(client.send_file(&file, offset, length).await.unwrap(), length);
                }
                0 => client.send(part.to_vec()).await.unwrap(),
                1 => client.send(Bytes::copy_from_slice(part)).await.unwrap(),
                2 => accepted = client.write(part).await.unwrap(),
                3 => client.write_all(part).await.unwrap(),
                4 => {
                    client.flush().await.unwrap();
                    accepted = 0;
                }
                _ => {
                    yield_now().await;
                    accepted = 0;
                }
            }
            left = if accepted == part.len() { rest } else { &left[accepted..] };
        }
        client.shutdown().await.unwrap();
        client
    });
    let mut random = Rng::with_seed(!seed);
    let mut bytes_read = Vec::new();
    loop {
        match random.usize(..5) {
            0 => yield_now().await,
            1 => {
                let mut buffer = vec![0; 1 + random.usize(..10_000)];
                match server.read(&mut buffer).await.unwrap() {
                    0 => break,
                    count => bytes_read.extend_from_slice(&buffer[..count]),
                }
            }
            2 => {
                let mut buffer = vec![0; (1 + random.usize(..300)).min(expected.len() - bytes_read.len())];
                server.read_exact(&mut buffer).await.unwrap();
                bytes_read.extend_from_slice(&buffer);
            }
            3 => drop(poll_at_most(1, server.read(&mut [])).await),
            _ => match server.recv().await.unwrap() {
                Some(chunk) => bytes_read.extend_from_slice(&chunk),
                None => break,
            },
        }
    }
    assert_same_bytes(&bytes_read, &expected);
    assert!(server.recv().await.unwrap().is_none(), "EOF is permanent");
    drop(writing.await.unwrap());
}

#[test]
fn futures_dropped_at_any_poll_lose_no_bytes() {
    on_every_setup(|setup| {
        for seed in 100..104 {
            setup.run(drop_futures_at_random(seed));
        }
    });
}

/// Drops most futures before they complete. Only the results indicate which bytes were accepted.
async fn drop_futures_at_random(seed: u64) {
    let expected = pattern(seed, 60_000);
    let (mut client, mut server) = pair().await.unwrap();
    let message = expected.clone();
    let writing = spawn(async move {
        let mut random = Rng::with_seed(seed);
        let mut sent = 0;
        while sent < message.len() {
            let part = &message[sent..(sent + 1 + random.usize(..3000)).min(message.len())];
            let polls = random.usize(..3);
            if random.usize(..2) == 0 {
                sent += poll_at_most(polls, client.write(part)).await.map_or(0, Result::unwrap);
            } else if let Some(accepted) = poll_at_most(polls, client.send(part.to_vec())).await {
                accepted.unwrap();
                sent += part.len();
            }
            if random.usize(..4) == 0 {
                yield_now().await;
            }
        }
        client.shutdown().await.unwrap();
        client
    });
    let mut random = Rng::with_seed(!seed);
    let mut bytes_read = Vec::new();
    loop {
        let polls = random.usize(..3);
        if random.usize(..2) == 0 {
            match poll_at_most(polls, server.recv()).await {
                Some(Ok(Some(chunk))) => bytes_read.extend_from_slice(&chunk),
                Some(ended) => break assert!(ended.unwrap().is_none()),
                None => yield_now().await,
            }
        } else {
            let mut buffer = vec![0; 1 + random.usize(..5000)];
            match poll_at_most(polls, server.read(&mut buffer)).await {
                Some(Ok(count @ 1..)) => bytes_read.extend_from_slice(&buffer[..count]),
                Some(ended) => break assert_eq!(ended.unwrap(), 0),
                None => yield_now().await,
            }
        }
    }
    assert_same_bytes(&bytes_read, &expected);
    drop(writing.await.unwrap());
}

#[test]
fn chunks_are_truncated_and_sent_without_copy() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            client.write_all(b"0123456789").await.unwrap();
            let mut chunk = server.recv().await.unwrap().unwrap();
            while chunk.len() < 10 {
                // If the buffer is small or only part of the data is received, the rest arrives in another chunk.
                let rest = server.recv().await.unwrap().unwrap();
                server.send(chunk).await.unwrap();
                chunk = rest;
            }
            chunk.advance(3);
            chunk.truncate(4);
            chunk.truncate(100);
            assert_eq!((&chunk[..], chunk.as_ref().len()), (&b"3456"[..], 4));
            assert!(chunk.capacity() >= 4);
            server.send(chunk).await.unwrap();
            let mut response = [0; 4];
            client.read_exact(&mut response).await.unwrap();
            assert_eq!(&response, b"3456");
            for empty in [SendBuf::from(""), Vec::new().into(), Bytes::new().into()] {
                server.send(empty).await.unwrap();
            }
            assert_eq!(server.write(b"").await.unwrap(), 0);
            server.send("ab").await.unwrap();
            server.send(&b"cd"[..]).await.unwrap();
            server.flush().await.unwrap();
            client.read_exact(&mut response).await.unwrap();
            assert_eq!(&response, b"abcd");
        });
    });
}

#[test]
fn leased_chunks_do_not_block_receives() {
    on_every_setup(|setup| {
        // The ring has sixteen buffers, and all of them are leased.
        let setup = setup.with(|options| {
            options.testing.initial_receive_buffers = options.testing.initial_receive_buffers.min(4);
            options.max_receive_buffers = options.max_receive_buffers.min(16);
        });
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let expected = pattern(3, 64_000);
            let message = expected.clone();
            let writing = spawn(async move {
                for part in message.chunks(200) {
                    client.write_all(part).await.unwrap();
                    client.flush().await.unwrap();
                    yield_now().await;
                }
                client
            });
            let mut leased = Vec::new();
            let mut count = 0;
            while count < expected.len() {
                let chunk = server.recv().await.unwrap().unwrap();
                count += chunk.len();
                leased.push(chunk);
            }
            // Unoptimized, an iterator over bytes would take most of the time.
            let bytes_read = leased.iter().map(|chunk| &chunk[..]).collect::<Vec<_>>().concat();
            assert_same_bytes(&bytes_read, &expected);
            drop(leased);
            drop(writing.await.unwrap());
        });
    });
}

#[test]
fn read_exact_fails_on_early_eof() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            client.write_all(b"abc").await.unwrap();
            client.shutdown().await.unwrap();
            let error = server.read_exact(&mut [0; 10]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("3 of 10"), "{error}");
            assert_eq!(server.read(&mut [0; 10]).await.unwrap(), 0);
            assert!(server.recv().await.unwrap().is_none());
        });
    });
}

#[test]
fn fault_23_half_close() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let message = pattern(23, 300_000);
            let echoing = spawn(async move { echo(&mut server).await });
            let (mut reader, mut writer) = client.split();
            let mut bytes_read = Vec::new();
            let ((), ()) = join(
                async {
                    writer.write_all(&message).await.unwrap();
                    writer.shutdown().await.unwrap();
                },
                async {
                    while let Some(chunk) = reader.recv().await.unwrap() {
                        bytes_read.extend_from_slice(&chunk);
                    }
                },
            )
            .await;
            assert_same_bytes(&bytes_read, &message);
            let late = match writer.write(b"x").await {
                // The write was accepted before the kernel reported the shutdown. The flush returns the error.
                Ok(_) => writer.flush().await,
                Err(error) => Err(error),
            };
            assert!(late.is_err(), "the write half is shut down");
            echoing.await.unwrap().unwrap();
        });
    });
}

#[test]
fn halves_work_in_two_tasks() {
    on_every_setup(|setup| {
        setup.run(async {
            let (client, server) = pair().await.unwrap();
            let sides: Vec<_> = [client, server]
                .into_iter()
                .zip([1, 2])
                .map(|(stream, seed)| {
                    let (mut reader, mut writer) = stream.into_split();
                    let writing = spawn(async move {
                        writer.write_all(&pattern(seed, 150_000)).await.unwrap();
                        writer.shutdown().await.unwrap();
                    });
                    let reading = spawn(async move {
                        let mut bytes_read = Vec::new();
                        while let Some(chunk) = reader.recv().await.unwrap() {
                            bytes_read.extend_from_slice(&chunk);
                        }
                        assert_same_bytes(&bytes_read, &pattern(3 - seed, 150_000));
                    });
                    [writing, reading]
                })
                .collect();
            for task in sides.into_iter().flatten() {
                task.await.unwrap();
            }
        });
    });
}

#[test]
fn accepted_bytes_of_dropped_stream_arrive() {
    on_every_setup(|setup| {
        setup.run(async {
            let message = pattern(9, 2 << 20);
            let (mut client, mut server) = pair().await.unwrap();
            // The queue accepts all bytes, but the kernel takes only some of them.
            client.send(message.clone()).await.unwrap();
            drop(client);
            let mut bytes_read = Vec::new();
            while let Some(chunk) = server.recv().await.unwrap() {
                bytes_read.extend_from_slice(&chunk);
            }
            assert_same_bytes(&bytes_read, &message);
        });
    });
}

#[test]
fn last_bytes_arrive_before_eof_of_shutdown_or_drop() {
    on_every_setup(|setup| {
        setup.run(async {
            for length in [1, 100, 5_000, 300_000] {
                for ends_by_shutdown in [false, true] {
                    let (mut client, mut server) = pair().await.unwrap();
                    let expected = pattern(length as u64, 50 + length);
                    let message = expected.clone();
                    let writing = spawn(async move {
                        // Earlier bytes may still be in flight.
                        client.write_all(&message[..50]).await.unwrap();
                        let mut left = &message[50..];
                        while !left.is_empty() {
                            left = &left[client.write_more(left).await.unwrap()..];
                        }
                        if ends_by_shutdown {
                            client.shutdown().await.unwrap();
                        }
                        // No task is reading on this side, so closing must not wait for a reader.
                        ends_by_shutdown.then_some(client)
                    });
                    let mut received = Vec::new();
                    while let Some(chunk) = server.recv().await.unwrap() {
                        received.extend_from_slice(&chunk);
                    }
                    assert!(received == expected, "{length} bytes: {} received", received.len());
                    drop(writing.await.unwrap());
                }
            }
        });
    });
}

#[test]
fn aborted_stream_is_closed_on_both_sides() {
    on_every_setup(|setup| {
        setup.run(async {
            let base = anello::current_driver_metrics().unwrap().sockets;
            let (mut client, mut server) = pair().await.unwrap();
            client.send(pattern(9, LARGE)).await.unwrap();
            client.abort();
            let mut count = 0;
            while let Ok(Some(chunk)) = server.recv().await {
                count += chunk.len();
            }
            assert!(count < LARGE, "all {count} bytes arrived despite the abort");
            drop(server);
            while anello::current_driver_metrics().unwrap().sockets > base {
                yield_now().await;
            }
        });
    });
}

/// Some kernels keep registered files open while operations on other files are in flight.
#[test]
fn dropped_stream_is_closed_while_other_operations_wait() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut waiting, silent) = pair().await.unwrap();
            let receiving = spawn(async move { waiting.recv().await.map(|chunk| chunk.is_none()) });
            let (client, mut server) = pair().await.unwrap();
            yield_now().await;
            drop(client);
            assert!(server.recv().await.unwrap().is_none(), "{}: expected EOF", setup.name);
            drop(silent);
            assert!(receiving.await.unwrap().unwrap());
        });
    });
}

#[test]
fn shutdown_handle_ends_waiting_receive() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let shutdown_handle = server.shutdown_handle();
            let waiting = spawn(async move {
                let ended = server.recv().await;
                (ended.map(|chunk| chunk.is_none()), server)
            });
            yield_now().await;
            shutdown_handle.shutdown_read();
            let (ended, mut server) = waiting.await.unwrap();
            assert!(ended.unwrap(), "expected EOF");
            server.write_all(b"still sends").await.unwrap();
            let mut response = [0; 11];
            client.read_exact(&mut response).await.unwrap();
            let ending = client.shutdown_handle();
            let waiting = spawn(async move { client.recv().await.map(|chunk| chunk.is_none()) });
            yield_now().await;
            ending.shutdown();
            assert!(waiting.await.unwrap().unwrap_or(true));
            // Has no effect on closed connections.
            shutdown_handle.shutdown();
            ending.shutdown();
        });
    });
}

#[test]
fn shutdown_handle_resets_waiting_stream() {
    on_every_setup(|setup| {
        setup.run(async {
            for sends in [false, true] {
                let (mut client, mut server) = pair().await.unwrap();
                let shutdown_handle = server.shutdown_handle();
                let waiting = spawn(async move {
                    // The peer is not reading, so the send buffers become full.
                    while sends && server.write_all(&[b'x'; 64 << 10]).await.is_ok() {}
                    server.recv().await.map(drop)
                });
                sleep(Duration::from_millis(20)).await;
                shutdown_handle.reset();
                assert!(waiting.await.unwrap().is_err(), "the waiting task must get an error");
                while let Ok(Some(_)) = client.recv().await {}
                // Has no effect on a closed connection.
                shutdown_handle.reset();
            }
        });
    });
}

#[test]
fn streams_fail_after_runtime_drop() {
    on_every_setup(|setup| {
        let runtime = setup.runtime();
        let (mut client, mut server, chunk) = runtime.block_on(async {
            let (mut client, mut server) = pair().await.unwrap();
            client.write_all(b"data").await.unwrap();
            let chunk = server.recv().await.unwrap().unwrap();
            (client, server, chunk)
        });
        let shutdown_handle = client.shutdown_handle();
        drop(runtime);
        assert_eq!(&b"data"[..chunk.len()], &chunk[..], "memory outlives the runtime while it is leased");
        setup.run(async {
            assert!(client.write(b"x").await.is_err());
            assert!(client.flush().await.is_err());
            assert!(server.recv().await.is_err());
            assert!(client.peer_addr().is_err());
            shutdown_handle.shutdown();
        });
        drop((client, server));
    });
}

#[test]
fn task_that_never_waits_does_not_starve_other_tasks() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut busy, mut busy_peer) = pair().await.unwrap();
            let (mut quiet, mut quiet_peer) = pair().await.unwrap();
            // Two tasks that exchange bytes continuously.
            let flood = spawn(async move {
                loop {
                    busy.send(vec![1; 1000]).await.unwrap();
                }
            });
            let drain = spawn(async move { while let Ok(Some(_)) = busy_peer.recv().await {} });
            let echoing = spawn(async move { echo(&mut quiet_peer).await });
            for round in 0..50u8 {
                quiet.write_all(&[round]).await.unwrap();
                assert_eq!(quiet.recv().await.unwrap().as_deref(), Some(&[round][..]));
                anello::time::sleep(Duration::from_micros(1)).await;
            }
            drop(quiet);
            echoing.await.unwrap().unwrap();
            flood.abort();
            drain.abort();
        });
    });
}

#[test]
fn two_thousand_connections() {
    on_both_drivers(|setup: &Setup| {
        let count = 2000.min((crate::common::usage::raise_open_files() - 500) / 2 / 3);
        setup.run(async move {
            let listener = Rc::new(listen().unwrap());
            let accepting = {
                let listener = Rc::clone(&listener);
                spawn(async move {
                    for _ in 0..count {
                        let mut stream = listener.accept().await.unwrap();
                        spawn(async move { echo(&mut stream).await }).detach();
                    }
                })
            };
            let mut clients = Vec::new();
            for _ in 0..count {
                clients.push(connect(&listener).await.unwrap());
            }
            accepting.await.unwrap();
            for round in 0..3u64 {
                for (number, client) in clients.iter_mut().enumerate() {
                    client.send(pattern(round ^ number as u64, 100)).await.unwrap();
                }
                for (number, client) in clients.iter_mut().enumerate() {
                    let mut response = [0; 100];
                    client.read_exact(&mut response).await.unwrap();
                    assert_eq!(response[..], pattern(round ^ number as u64, 100)[..]);
                }
            }
            let metrics = anello::current_driver_metrics().unwrap();
            assert_eq!((metrics.accepted, metrics.sockets), (count as u64, 2 * count as u64 + 1));
            drop(clients);
            while anello::current_driver_metrics().unwrap().sockets > 1 {
                yield_now().await;
            }
        });
    });
}

/// After the first few messages that exceed a receive buffer, each further message is received with a single call
/// instead of one call per buffer. At 16 KiB, this is four times faster.
#[test]
fn large_messages_are_received_whole() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let echoing = spawn(async move { echo(&mut server).await });
            let (message, rounds) = (Bytes::from(pattern(16, 16_384)), 100);
            let mut receives_before = 0;
            for round in 0..2 * rounds {
                if round == rounds {
                    receives_before = anello::current_driver_metrics().unwrap().receives;
                }
                client.send(message.clone()).await.unwrap();
                let mut count = 0;
                while count < message.len() {
                    count += client.recv().await.unwrap().unwrap().len();
                }
            }
            let receives = anello::current_driver_metrics().unwrap().receives - receives_before;
            // Both sides receive. The kernel may split a message in two.
            assert!(receives <= 4 * rounds, "{}: {receives} receives for {rounds} messages", setup.name);
            drop(client);
            echoing.await.unwrap().unwrap();
        });
    });
}

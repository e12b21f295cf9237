//! Streams and listeners: bytes arrive once and in order, whichever calls bring them, on every driver.
//!
//! Written once for the streams of every family: a test program names its own as `crate::family`.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use anello::net::{SendBuf, echo};
use anello::time::sleep;
use anello::{spawn, yield_now};
use bytes::Bytes;

use crate::common::{
    LARGE, Random, Setup, assert_same_bytes, exchange, file_of, join, on_both_drivers, pattern, poll_at_most,
};
use crate::family::{Stream, connect, listen, on_every_setup, pair};

/// The sizes at which something changes: a byte, a receive buffer, the classes of memory, the send queue.
const SIZES: [usize; 16] =
    [1, 2, 63, 64, 65, 1000, 4095, 4096, 4097, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 1 << 20];

/// A message there and back, both sides at once, because a large one fits no buffer.
async fn there_and_back(client: Stream, message: Vec<u8>) -> io::Result<Stream> {
    let (mut reader, mut writer) = client.into_split();
    let length = message.len();
    let sent = message.clone();
    let writing = spawn(async move {
        writer.write_all(&sent).await?;
        Ok::<_, io::Error>(writer)
    });
    let mut answer = vec![0; length];
    reader.read_exact(&mut answer).await?;
    drop(writing.await.unwrap()?);
    assert_same_bytes(&answer, &message);
    // The last half: the connection ends here.
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
                there_and_back(client, pattern(size as u64, size)).await.unwrap();
                let echoed = echoing.await.unwrap();
                assert_eq!(echoed.ok(), Some(size as u64), "{}: {size} bytes", setup.name);
            }
        });
    });
}

#[test]
fn one_connection_changes_its_sizes() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let echoing = spawn(async move { echo(&mut server).await });
            let mut random = Random::new(7);
            for round in 0..300 {
                let size = match round % 3 {
                    0 => 1 + random.below(100),
                    1 => 1 + random.below(5000),
                    _ => 1 + random.below(30_000),
                };
                exchange(&mut client, &pattern(round, size)).await;
            }
            // Many small ones: back to the ring, where there is one.
            for round in 0..200u8 {
                client.write_all(&[round]).await.unwrap();
                assert_eq!(client.recv().await.unwrap().as_deref(), Some(&[round][..]));
            }
            drop(client);
            echoing.await.unwrap().unwrap();
        });
    });
}

#[test]
fn calls_of_all_kinds_keep_the_order() {
    on_every_setup(|setup| {
        for seed in 0..8 {
            setup.run(mixed_calls(seed));
        }
    });
}

/// A writer and a reader that choose their calls, sizes and pauses at random.
async fn mixed_calls(seed: u64) {
    let expected = pattern(seed, 200_000);
    let (mut client, mut server) = pair().await.unwrap();
    let message = expected.clone();
    let file = file_of(&message);
    let writing = spawn(async move {
        let mut random = Random::new(seed);
        let mut left = &message[..];
        while !left.is_empty() {
            let most = [10, 1000, 20_000][random.below(3)];
            let (piece, rest) = left.split_at((1 + random.below(most)).min(left.len()));
            let mut taken = piece.len();
            match random.below(8) {
                7 => {
                    let (one, other) = piece.split_at(random.below(piece.len()));
                    let slices = [IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(other)];
                    taken = client.write_vectored(&slices).await.unwrap();
                }
                6 => {
                    let (offset, length) = ((message.len() - left.len()) as u64, piece.len() as u64);
                    assert_eq!(client.send_file(&file, offset, length).await.unwrap(), length);
                }
                0 => client.send(piece.to_vec()).await.unwrap(),
                1 => client.send(Bytes::copy_from_slice(piece)).await.unwrap(),
                2 => taken = client.write(piece).await.unwrap(),
                3 => client.write_all(piece).await.unwrap(),
                4 => {
                    client.flush().await.unwrap();
                    taken = 0;
                }
                _ => {
                    yield_now().await;
                    taken = 0;
                }
            }
            left = if taken == piece.len() { rest } else { &left[taken..] };
        }
        client.shutdown().await.unwrap();
        client
    });
    let mut random = Random::new(!seed);
    let mut found = Vec::new();
    loop {
        match random.below(5) {
            0 => yield_now().await,
            1 => {
                let mut buffer = vec![0; 1 + random.below(10_000)];
                match server.read(&mut buffer).await.unwrap() {
                    0 => break,
                    count => found.extend_from_slice(&buffer[..count]),
                }
            }
            2 => {
                let mut buffer = vec![0; (1 + random.below(300)).min(expected.len() - found.len())];
                server.read_exact(&mut buffer).await.unwrap();
                found.extend_from_slice(&buffer);
            }
            3 => drop(poll_at_most(1, server.read(&mut [])).await),
            _ => match server.recv().await.unwrap() {
                Some(chunk) => found.extend_from_slice(&chunk),
                None => break,
            },
        }
    }
    assert_same_bytes(&found, &expected);
    assert!(server.recv().await.unwrap().is_none(), "the end stays the end");
    drop(writing.await.unwrap());
}

#[test]
fn futures_dropped_at_any_poll_lose_nothing() {
    on_every_setup(|setup| {
        for seed in 100..104 {
            setup.run(impatient(seed));
        }
    });
}

/// Both sides give up on most of their calls: what was accepted is counted by the results alone.
async fn impatient(seed: u64) {
    let expected = pattern(seed, 60_000);
    let (mut client, mut server) = pair().await.unwrap();
    let message = expected.clone();
    let writing = spawn(async move {
        let mut random = Random::new(seed);
        let mut sent = 0;
        while sent < message.len() {
            let piece = &message[sent..(sent + 1 + random.below(3000)).min(message.len())];
            let polls = random.below(3);
            if random.below(2) == 0 {
                sent += poll_at_most(polls, client.write(piece)).await.map_or(0, Result::unwrap);
            } else if let Some(accepted) = poll_at_most(polls, client.send(piece.to_vec())).await {
                accepted.unwrap();
                sent += piece.len();
            }
            if random.below(4) == 0 {
                yield_now().await;
            }
        }
        client.shutdown().await.unwrap();
        client
    });
    let mut random = Random::new(!seed);
    let mut found = Vec::new();
    loop {
        let polls = random.below(3);
        if random.below(2) == 0 {
            match poll_at_most(polls, server.recv()).await {
                Some(Ok(Some(chunk))) => found.extend_from_slice(&chunk),
                Some(ended) => break assert!(ended.unwrap().is_none()),
                None => yield_now().await,
            }
        } else {
            let mut buffer = vec![0; 1 + random.below(5000)];
            match poll_at_most(polls, server.read(&mut buffer)).await {
                Some(Ok(count @ 1..)) => found.extend_from_slice(&buffer[..count]),
                Some(ended) => break assert_eq!(ended.unwrap(), 0),
                None => yield_now().await,
            }
        }
    }
    assert_same_bytes(&found, &expected);
    drop(writing.await.unwrap());
}

#[test]
fn chunks_are_cut_and_sent_where_they_lie() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            client.write_all(b"0123456789").await.unwrap();
            let mut chunk = server.recv().await.unwrap().unwrap();
            while chunk.len() < 10 {
                // A very small buffer, or a kernel that brings less: the rest is another chunk.
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
            let mut answer = [0; 4];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"3456");
            for nothing in [SendBuf::from(""), Vec::new().into(), Bytes::new().into()] {
                server.send(nothing).await.unwrap();
            }
            assert_eq!(server.write(b"").await.unwrap(), 0);
            server.send("ab").await.unwrap();
            server.send(&b"cd"[..]).await.unwrap();
            server.flush().await.unwrap();
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"abcd");
        });
    });
}

#[test]
fn chunks_held_back_keep_nobody_waiting() {
    on_every_setup(|setup| {
        // The ring has sixteen buffers, and all are held.
        let setup = setup.with(|options| {
            options.initial_receive_buffers = options.initial_receive_buffers.min(4);
            options.max_receive_buffers = options.max_receive_buffers.min(16);
        });
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let expected = pattern(3, 64_000);
            let message = expected.clone();
            let writing = spawn(async move {
                for piece in message.chunks(200) {
                    client.write_all(piece).await.unwrap();
                    client.flush().await.unwrap();
                    yield_now().await;
                }
                client
            });
            let mut held = Vec::new();
            let mut count = 0;
            while count < expected.len() {
                let chunk = server.recv().await.unwrap().unwrap();
                count += chunk.len();
                held.push(chunk);
            }
            let found: Vec<u8> = held.iter().flat_map(|chunk| chunk.iter().copied()).collect();
            assert_same_bytes(&found, &expected);
            drop(held);
            drop(writing.await.unwrap());
        });
    });
}

#[test]
fn an_early_end_is_an_error_of_read_exact() {
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
            let mut found = Vec::new();
            let ((), ()) = join(
                async {
                    writer.write_all(&message).await.unwrap();
                    writer.shutdown().await.unwrap();
                },
                async {
                    while let Some(chunk) = reader.recv().await.unwrap() {
                        found.extend_from_slice(&chunk);
                    }
                },
            )
            .await;
            assert_same_bytes(&found, &message);
            let late = match writer.write(b"x").await {
                // Accepted before the kernel was asked: it tells when it is.
                Ok(_) => writer.flush().await,
                Err(error) => Err(error),
            };
            assert!(late.is_err(), "this side has ended");
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
                        let mut found = Vec::new();
                        while let Some(chunk) = reader.recv().await.unwrap() {
                            found.extend_from_slice(&chunk);
                        }
                        assert_same_bytes(&found, &pattern(3 - seed, 150_000));
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
fn what_a_dropped_stream_had_accepted_still_arrives() {
    on_every_setup(|setup| {
        setup.run(async {
            let message = pattern(9, 2 << 20);
            let (mut client, mut server) = pair().await.unwrap();
            // Accepted whole, but far too much for the kernel.
            client.send(message.clone()).await.unwrap();
            drop(client);
            let mut found = Vec::new();
            while let Some(chunk) = server.recv().await.unwrap() {
                found.extend_from_slice(&chunk);
            }
            assert_same_bytes(&found, &message);
        });
    });
}

#[test]
fn last_bytes_arrive_before_the_end_however_it_comes() {
    on_every_setup(|setup| {
        setup.run(async {
            for length in [1, 100, 5_000, 300_000] {
                for ends_by_shutdown in [false, true] {
                    let (mut client, mut server) = pair().await.unwrap();
                    let expected = pattern(length as u64, 50 + length);
                    let message = expected.clone();
                    let writing = spawn(async move {
                        // Something may be on its way still.
                        client.write_all(&message[..50]).await.unwrap();
                        let mut left = &message[50..];
                        while !left.is_empty() {
                            left = &left[client.write_more(left).await.unwrap()..];
                        }
                        if ends_by_shutdown {
                            client.shutdown().await.unwrap();
                        }
                        // As nobody reads on this side, closing must not wait for a reader.
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
fn an_aborted_stream_ends_for_both() {
    on_every_setup(|setup| {
        setup.run(async {
            let base = anello::current_metrics().unwrap().sockets;
            let (mut client, mut server) = pair().await.unwrap();
            client.send(pattern(9, LARGE)).await.unwrap();
            client.abort();
            let mut count = 0;
            while let Ok(Some(chunk)) = server.recv().await {
                count += chunk.len();
            }
            assert!(count < LARGE, "aborted, yet all {count} bytes came");
            drop(server);
            while anello::current_metrics().unwrap().sockets > base {
                yield_now().await;
            }
        });
    });
}

/// Some kernels keep registered files open for as long as operations on others are in flight.
#[test]
fn a_dropped_stream_is_closed_whatever_else_waits() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut waiting, silent) = pair().await.unwrap();
            let receiving = spawn(async move { waiting.recv().await.map(|chunk| chunk.is_none()) });
            let (client, mut server) = pair().await.unwrap();
            yield_now().await;
            drop(client);
            assert!(server.recv().await.unwrap().is_none(), "{}: the end of the stream", setup.name);
            drop(silent);
            assert!(receiving.await.unwrap().unwrap());
        });
    });
}

#[test]
fn a_closer_ends_a_stream_that_waits() {
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
            assert!(ended.unwrap(), "the end of the stream");
            server.write_all(b"still sends").await.unwrap();
            let mut answer = [0; 11];
            client.read_exact(&mut answer).await.unwrap();
            let ending = client.shutdown_handle();
            let waiting = spawn(async move { client.recv().await.map(|chunk| chunk.is_none()) });
            yield_now().await;
            ending.shutdown();
            assert!(waiting.await.unwrap().unwrap_or(true));
            // Of connections that are gone: nothing happens.
            shutdown_handle.shutdown();
            ending.shutdown();
        });
    });
}

#[test]
fn a_closer_resets_a_stream_that_waits() {
    on_every_setup(|setup| {
        setup.run(async {
            for sends in [false, true] {
                let (mut client, mut server) = pair().await.unwrap();
                let shutdown_handle = server.shutdown_handle();
                let waiting = spawn(async move {
                    // The peer reads nothing: there is no more room at some time.
                    while sends && server.write_all(&[b'x'; 64 << 10]).await.is_ok() {}
                    server.recv().await.map(drop)
                });
                sleep(Duration::from_millis(20)).await;
                shutdown_handle.reset();
                assert!(waiting.await.unwrap().is_err(), "whoever waits is told");
                while let Ok(Some(_)) = client.recv().await {}
                // Of a connection that is gone: nothing happens.
                shutdown_handle.reset();
            }
        });
    });
}

#[test]
fn streams_that_outlive_their_runtime_say_so() {
    on_every_setup(|setup| {
        let runtime = setup.runtime();
        let (mut client, mut server, chunk) = runtime.block_on(async {
            let (mut client, mut server) = pair().await.unwrap();
            client.write_all(b"kept").await.unwrap();
            let chunk = server.recv().await.unwrap().unwrap();
            (client, server, chunk)
        });
        let shutdown_handle = client.shutdown_handle();
        drop(runtime);
        assert_eq!(&b"kept"[..chunk.len()], &chunk[..], "memory outlives the runtime while it is leased");
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
fn a_task_that_never_waits_for_its_peer_starves_nobody() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut busy, mut busy_peer) = pair().await.unwrap();
            let (mut quiet, mut quiet_peer) = pair().await.unwrap();
            // Two tasks that hand each other bytes without end.
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
        let count = 2000.min((crate::common::child::raise_open_files() - 500) / 2 / 3);
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
                    let mut answer = [0; 100];
                    client.read_exact(&mut answer).await.unwrap();
                    assert_eq!(answer[..], pattern(round ^ number as u64, 100)[..]);
                }
            }
            let metrics = anello::current_metrics().unwrap();
            assert_eq!((metrics.accepted, metrics.sockets), (count as u64, 2 * count as u64 + 1));
            drop(clients);
            while anello::current_metrics().unwrap().sockets > 1 {
                yield_now().await;
            }
        });
    });
}

/// What does not fit a receive buffer is soon received in one piece, not in as many as buffers would take: at 16 KiB
/// that is a factor of four in time.
#[test]
fn large_messages_are_received_whole() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let echoing = spawn(async move { echo(&mut server).await });
            let (message, rounds) = (Bytes::from(pattern(16, 16_384)), 100);
            let mut before = 0;
            for round in 0..2 * rounds {
                if round == rounds {
                    before = anello::current_metrics().unwrap().receives;
                }
                client.send(message.clone()).await.unwrap();
                let mut count = 0;
                while count < message.len() {
                    count += client.recv().await.unwrap().unwrap().len();
                }
            }
            let receives = anello::current_metrics().unwrap().receives - before;
            // Both sides receive; the kernel may cut a message in two.
            assert!(receives <= 4 * rounds, "{}: {receives} receives for {rounds} messages", setup.name);
            drop(client);
            echoing.await.unwrap().unwrap();
        });
    });
}

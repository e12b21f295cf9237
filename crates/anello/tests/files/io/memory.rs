//! In-memory streams.

use std::io::{ErrorKind, IoSlice};
use std::thread;

use anello::io::duplex;
use bytes::Bytes;

use crate::common::*;

#[test]
fn writer_waits_while_stream_is_full() {
    on_each(both_drivers_and_sim(), |setup| {
        setup.run(async {
            let (mut reader, mut writer) = duplex(10);
            assert_eq!(writer.write(&[1; 8]).await.unwrap(), 8);
            assert_eq!(writer.write(&[2; 8]).await.unwrap(), 2);
            assert!(poll_at_most(1, writer.write(&[3])).await.is_none());
            let mut buffer = [0; 5];
            reader.read_exact(&mut buffer).await.unwrap();
            // Owned bytes are accepted whole.
            writer.send(vec![4; 100]).await.unwrap();
            assert!(poll_at_most(1, writer.send("x")).await.is_none());
            let mut rest = [0; 105];
            reader.read_exact(&mut rest).await.unwrap();
            assert_eq!((rest[..3].to_vec(), rest[3..5].to_vec(), rest[104]), (vec![1; 3], vec![2; 2], 4));
            let waiting = anello::spawn(async move {
                for number in 0..100 {
                    writer.write_all(&[number; 30]).await.unwrap();
                }
            });
            let mut all = [0; 3000];
            reader.read_exact(&mut all).await.unwrap();
            assert!(all.chunks(30).zip(0..).all(|(part, number)| part == [number; 30]));
            waiting.await.unwrap();
            assert_eq!(reader.recv().await.unwrap(), None);
        });
    });
}

#[test]
fn empty_write_fails_only_if_stream_is_closed() {
    on_each(both_drivers_and_sim(), |setup| {
        setup.run(async {
            let slices = [IoSlice::new(&[]), IoSlice::new(&[])];
            let (mut writer, reader) = duplex(1);
            writer.write_all(b"x").await.unwrap();
            assert_eq!(poll_at_most(1, writer.write(&[])).await.unwrap().unwrap(), 0);
            drop(reader);
            assert_eq!(writer.write(&[]).await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            let (_client, server) = duplex(1);
            let (_reader, mut writer) = server.into_split();
            assert_eq!(writer.write_vectored(&slices).await.unwrap(), 0);
            writer.shutdown().await.unwrap();
            assert_eq!(writer.write_vectored(&slices).await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        });
    });
}

#[test]
fn owned_bytes_are_received_without_copy() {
    on_each(both_drivers_and_sim(), |setup| {
        setup.run(async {
            let (mut one, mut other) = duplex(1);
            let bytes = Bytes::from(vec![7; 1000]);
            one.send(bytes.clone()).await.unwrap();
            let received = other.recv().await.unwrap().unwrap();
            assert_eq!(received.as_ptr(), bytes.as_ptr());
            // An empty buffer is not EOF.
            one.send(Vec::new()).await.unwrap();
            assert!(poll_at_most(1, other.recv()).await.is_none());
            // A chunk becomes shared bytes.
            let (mut near, mut far) = pair().await.unwrap();
            near.send("chunk").await.unwrap();
            one.send(far.recv().await.unwrap().unwrap()).await.unwrap();
            assert_eq!(other.recv().await.unwrap().as_deref(), Some(&b"chunk"[..]));
        });
    });
}

#[test]
fn dropped_half_is_eof_or_broken_pipe() {
    on_each(both_drivers_and_sim(), |setup| {
        setup.run(async {
            let (mut one, mut other) = duplex(10);
            one.send("last").await.unwrap();
            drop(one);
            assert_eq!(other.send("x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            assert_eq!(other.recv().await.unwrap().as_deref(), Some(&b"last"[..]));
            assert_eq!(other.recv().await.unwrap(), None);
            assert_eq!(other.recv().await.unwrap(), None);
            let (mut reader, mut writer) = duplex(10);
            writer.shutdown().await.unwrap();
            assert_eq!(writer.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            let error = reader.read_exact(&mut [0]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            // A waiting writer is woken when the reader is dropped.
            let (reader, mut writer) = duplex(1);
            writer.send("full").await.unwrap();
            let waiting = anello::spawn(async move { writer.send("x").await });
            anello::yield_now().await;
            drop(reader);
            assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::BrokenPipe);
        });
    });
}

#[test]
fn destructor_of_bytes_can_use_stream() {
    let (reader, mut writer) = duplex(100);
    let (mut inner_reader, inner_writer) = duplex(100);
    let inner_writer = std::sync::Mutex::new(Some(inner_writer));
    let bytes = bytes_of_owner(move || drop(inner_writer.lock().unwrap().take()));
    anello::Runtime::new().unwrap().block_on(async {
        writer.send(bytes).await.unwrap();
        drop(reader);
        assert_eq!(inner_reader.recv().await.unwrap(), None);
    });
}

#[test]
fn fault_14_stream_wakes_other_worker() {
    on_every_driver(|setup| {
        let (mut client, mut server) = duplex(100);
        thread::scope(|scope| {
            scope.spawn(|| {
                setup.run(async move {
                    while let Some(bytes) = server.recv().await.unwrap() {
                        server.send(bytes).await.unwrap();
                    }
                });
            });
            setup.run(async move {
                for number in 0..100 {
                    client.send(vec![number; 30]).await.unwrap();
                    let mut response = [0; 30];
                    client.read_exact(&mut response).await.unwrap();
                    assert_eq!(response, [number; 30]);
                }
            });
        });
    });
}

#[test]
fn fault_10_dropped_futures_lose_no_bytes() {
    on_each(both_drivers_and_sim(), |setup| {
        for seed in 0..20 {
            setup.run(async {
                let (mut reader, mut writer) = duplex(64);
                let sending = anello::spawn(async move {
                    let mut random = Rng::with_seed(seed);
                    let mut sent = Vec::new();
                    for _ in 0..500 {
                        let message = pattern(random.u64(..), random.usize(1..100));
                        if random.bool() {
                            let written = poll_at_most(random.usize(1..3), writer.write(&message)).await;
                            sent.extend_from_slice(&message[..written.map_or(0, Result::unwrap)]);
                        } else if let Some(accepted) =
                            poll_at_most(random.usize(1..3), writer.send(message.clone())).await
                        {
                            accepted.unwrap();
                            sent.extend_from_slice(&message);
                        }
                    }
                    sent
                });
                let mut random = Rng::with_seed(!seed);
                let mut received = Vec::new();
                loop {
                    let mut buffer = [0; 20];
                    let count = match random.bool() {
                        true => poll_at_most(random.usize(1..3), reader.recv()).await.map(|bytes| {
                            let bytes = bytes.unwrap().unwrap_or_default();
                            received.extend_from_slice(&bytes);
                            bytes.len()
                        }),
                        false => {
                            poll_at_most(random.usize(1..3), reader.read(&mut buffer)).await.map(|count| {
                                let count = count.unwrap();
                                received.extend_from_slice(&buffer[..count]);
                                count
                            })
                        }
                    };
                    if count == Some(0) {
                        break;
                    }
                    anello::yield_now().await;
                }
                assert_same_bytes(&received, &sending.await.unwrap());
            });
        }
    });
}

#[test]
fn always_ready_stream_never_starves_worker() {
    on_each(both_drivers_and_sim(), |setup| {
        setup.run(async {
            let busy = anello::spawn(async {
                let (mut one, mut other) = duplex(1);
                loop {
                    one.send("x").await.unwrap();
                    other.recv().await.unwrap().unwrap();
                }
            });
            anello::time::sleep(std::time::Duration::from_millis(1)).await;
            busy.abort();
        });
    });
}

#[test]
fn traits_of_other_crates_are_implemented() {
    on_each(both_drivers_and_sim(), |setup| {
        setup.run(async {
            let (mut one, mut other) = duplex(4);
            let writing = anello::spawn(async move {
                tokio::io::AsyncWriteExt::write_all(&mut one, b"tokio").await.unwrap();
                futures_util::io::AsyncWriteExt::write_all(&mut one, b"futures").await.unwrap();
                tokio::io::AsyncWriteExt::shutdown(&mut one).await.unwrap();
                one
            });
            let mut bytes = [0; 5];
            tokio::io::AsyncReadExt::read_exact(&mut other, &mut bytes).await.unwrap();
            assert_eq!(&bytes, b"tokio");
            let mut rest = Vec::new();
            futures_util::io::AsyncReadExt::read_to_end(&mut other, &mut rest).await.unwrap();
            assert_eq!(rest, b"futures");
            drop(writing.await.unwrap());
        });
    });
}

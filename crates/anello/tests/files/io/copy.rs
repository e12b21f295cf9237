//! `copy` and `copy_bidirectional` over sockets and in-memory streams.

use std::io::{self, ErrorKind};
use std::time::Duration;

use anello::fs::File;
use anello::io::{AsyncRecv, AsyncSplit, BufReader, copy, copy_bidirectional, duplex};
use anello::net::{TcpStream, UnixStream, pipe};
use anello::time::{sleep, timeout};
use bytes::Bytes;

use crate::common::*;

/// Two connections with a proxy in between: the client's and the server's end, and the proxy's two ends.
async fn proxied() -> (TcpStream, TcpStream, TcpStream, TcpStream) {
    let (client, inbound) = pair().await.unwrap();
    let (outbound, server) = pair().await.unwrap();
    (client, inbound, outbound, server)
}

/// Sends `message` and shuts down, and returns what it receives until EOF.
async fn send_and_receive_all(stream: &mut TcpStream, message: Bytes) -> Vec<u8> {
    let (mut reader, mut writer) = stream.split();
    let send = async {
        for part in message.chunks(10_000) {
            writer.write_all(part).await.unwrap();
        }
        writer.shutdown().await.unwrap();
    };
    let receive = async {
        let mut received = Vec::new();
        while let Some(chunk) = reader.recv().await.unwrap() {
            received.extend_from_slice(&chunk);
        }
        received
    };
    join(send, receive).await.1
}

/// A program that has used tokio's `io::copy` with files finds that it works here as well.
#[test]
fn file_is_copied_to_stream_and_from_stream() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let directory = tempfile::tempdir().unwrap();
            let (source, target) = (directory.path().join("source"), directory.path().join("target"));
            let content = pattern(3, 700_001);
            std::fs::write(&source, &content).unwrap();
            let (mut sender, mut receiver) = pair().await.unwrap();
            let send = async {
                let mut file = File::open(&source).await.unwrap();
                let copied = copy(&mut file, &mut sender).await.unwrap();
                sender.shutdown().await.unwrap();
                copied
            };
            let receive = async {
                let mut file = File::create(&target).await.unwrap();
                copy(&mut receiver, &mut file).await.unwrap()
            };
            assert_eq!(join(send, receive).await, (700_001, 700_001));
            assert_same_bytes(&std::fs::read(&target).unwrap(), &content);

            std::fs::write(&source, "first\nsecond\n").unwrap();
            let mut lines = BufReader::new(File::open(&source).await.unwrap()).lines();
            assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("first"));
            assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("second"));
            assert_eq!(lines.next_line().await.unwrap(), None);
        });
    });
}

#[test]
fn reading_to_end_collects_all_bytes() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut sender, mut receiver) = pair().await.unwrap();
            let content = pattern(4, 100_000);
            let send = async {
                sender.write_all(&content).await.unwrap();
                sender.shutdown().await.unwrap();
            };
            let mut bytes = b"before".to_vec();
            let (count, ()) = join(receiver.read_to_end(&mut bytes), send).await;
            assert_eq!(count.unwrap(), content.len());
            assert_same_bytes(&bytes, &[b"before", &content[..]].concat());

            let (mut sender, mut receiver) = duplex(64);
            let mut text = "before".to_owned();
            sender.send(b"invalid: \xff".to_vec()).await.unwrap();
            drop(sender);
            let error = receiver.read_to_string(&mut text).await.unwrap_err();
            assert_eq!((error.kind(), &*text), (ErrorKind::InvalidData, "before"));
        });
    });
}

#[test]
fn bidirectional_copy_transfers_all_bytes_and_half_closes() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut client, mut inbound, mut outbound, mut server) = proxied().await;
            let proxy =
                anello::spawn(async move { copy_bidirectional(&mut inbound, &mut outbound).await.unwrap() });
            let (request, response) = (pattern(1, 300_000), pattern(2, 200_000));
            let (sent, answered) = (Bytes::from(request.clone()), Bytes::from(response.clone()));
            let (at_client, at_server) =
                join(send_and_receive_all(&mut client, sent), send_and_receive_all(&mut server, answered))
                    .await;
            assert_same_bytes(&at_server, &request);
            assert_same_bytes(&at_client, &response);
            assert_eq!(proxy.await.unwrap(), (request.len() as u64, response.len() as u64));
        });
    });
}

#[test]
fn half_close_is_forwarded_while_other_direction_continues() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut client, mut inbound, mut outbound, mut server) = proxied().await;
            let proxy =
                anello::spawn(async move { copy_bidirectional(&mut inbound, &mut outbound).await.unwrap() });
            client.send("request").await.unwrap();
            client.shutdown().await.unwrap();
            let mut request = [0; 7];
            server.read_exact(&mut request).await.unwrap();
            assert!(server.recv().await.unwrap().is_none());
            // The server responds after EOF.
            for _ in 0..10 {
                server.send("response").await.unwrap();
                let mut response = [0; 8];
                client.read_exact(&mut response).await.unwrap();
            }
            drop(server);
            assert!(client.recv().await.unwrap().is_none());
            assert_eq!(proxy.await.unwrap(), (7, 80));
        });
    });
}

#[test]
fn copy_waits_for_slow_reader() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, mut inbound, mut outbound, mut server) = proxied().await;
            let copied = anello::spawn(async move { copy(&mut inbound, &mut outbound).await.unwrap() });
            let message = pattern(3, LARGE);
            let sent = Bytes::from(message.clone());
            let sending = anello::spawn(async move {
                for start in (0..LARGE).step_by(1 << 20) {
                    client.send(sent.slice(start..start + (1 << 20))).await.unwrap();
                }
                client.flush().await.unwrap();
            });
            // The proxy does not take all bytes while the server reads nothing.
            sleep(Duration::from_millis(20)).await;
            assert!(!sending.is_finished());
            let mut received = vec![0; LARGE];
            server.read_exact(&mut received).await.unwrap();
            assert_same_bytes(&received, &message);
            sending.await.unwrap();
            assert_eq!(copied.await.unwrap(), LARGE as u64);
            assert!(server.recv().await.unwrap().is_none());
        });
    });
}

#[test]
fn reset_peer_ends_bidirectional_copy_with_error() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (client, mut inbound, mut outbound, _server) = proxied().await;
            let proxy = anello::spawn(async move { copy_bidirectional(&mut inbound, &mut outbound).await });
            client.set_linger(Some(Duration::ZERO)).unwrap();
            drop(client);
            let error = proxy.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        });
    });
}

#[test]
fn copies_between_unix_and_memory_streams() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, mut inbound) = UnixStream::pair().unwrap();
            let (mut outbound, mut server) = duplex(100);
            let proxy =
                anello::spawn(async move { copy_bidirectional(&mut inbound, &mut outbound).await.unwrap() });
            let message = pattern(4, 100_000);
            let echo = anello::spawn(async move {
                let (mut reader, mut writer) = server.halves();
                let bytes = copy(&mut reader, &mut writer).await.unwrap();
                server.shutdown().await.unwrap();
                bytes
            });
            exchange(&mut client, &message).await;
            client.shutdown().await.unwrap();
            assert!(client.recv().await.unwrap().is_none());
            assert_eq!(echo.await.unwrap(), 100_000);
            assert_eq!(proxy.await.unwrap(), (100_000, 100_000));
        });
    });
}

#[test]
fn copies_through_full_pipe() {
    on_every_driver(|setup| {
        setup.run(async {
            let (mut client, inbound) = UnixStream::pair().unwrap();
            let (mut sender, mut receiver) = pipe::pipe().unwrap();
            let (mut reader, mut writer) = inbound.into_split();
            let forth = async {
                let count = copy(&mut reader, &mut sender).await.unwrap();
                drop(sender);
                count
            };
            let back = async {
                let count = copy(&mut receiver, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
                count
            };
            // More than fits into the pipe and the sockets.
            let message = pattern(8, 1 << 20);
            let exchanging = anello::spawn(async move {
                exchange(&mut client, &message).await;
                client.shutdown().await.unwrap();
                assert!(client.recv().await.unwrap().is_none());
            });
            assert_eq!(join(forth, back).await, (1 << 20, 1 << 20));
            exchanging.await.unwrap();
        });
    });
}

/// Peers send in both directions without a pause. Neither direction starves the other, nor other tasks.
#[test]
fn busy_direction_does_not_starve_opposite_direction() {
    on_each(both_drivers().into_iter().chain(simulated_drivers()).collect(), |setup| {
        setup.run(async {
            // In-memory streams are always ready, because both ends of a stream belong to the same kind of busy task.
            let ((busy, mut inbound), (mut outbound, idle)) = (duplex(1 << 16), duplex(1 << 16));
            let (mut busy_reader, mut busy_writer) = busy.into_split();
            let (mut idle_reader, mut idle_writer) = idle.into_split();
            let proxy = anello::spawn(async move { copy_bidirectional(&mut inbound, &mut outbound).await });
            let writing = anello::spawn(async move { while busy_writer.send(vec![1; 10]).await.is_ok() {} });
            let reading = anello::spawn(async move { while idle_reader.recv().await.unwrap().is_some() {} });
            for number in 0..20u8 {
                idle_writer.send(vec![number]).await.unwrap();
                assert_eq!(busy_reader.recv().await.unwrap().as_deref(), Some(&[number][..]));
            }
            // Short, because the simulated clock advances little while a task is ready.
            sleep(Duration::from_micros(50)).await;
            proxy.abort();
            writing.await.unwrap();
            reading.await.unwrap();
        });
    });
}

#[test]
fn fault_10_dropped_copy_leaves_streams_usable() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut client, mut inbound, mut outbound, mut server) = proxied().await;
            for number in 0..200u8 {
                assert!(poll_at_most(1, copy_bidirectional(&mut inbound, &mut outbound)).await.is_none());
                if number % 10 == 0 {
                    // Nothing is lost between two messages: both streams are empty when the future is dropped.
                    let copying = copy_bidirectional(&mut inbound, &mut outbound);
                    let message = async {
                        client.send(vec![number]).await.unwrap();
                        assert_eq!(&*server.recv().await.unwrap().unwrap(), [number]);
                        server.send(vec![number]).await.unwrap();
                        assert_eq!(&*client.recv().await.unwrap().unwrap(), [number]);
                    };
                    let mut copying = std::pin::pin!(copying);
                    let mut message = std::pin::pin!(message);
                    std::future::poll_fn(|context| {
                        assert!(copying.as_mut().poll(context).is_pending());
                        message.as_mut().poll(context)
                    })
                    .await;
                }
            }
            assert!(timeout(Duration::from_millis(1), copy(&mut inbound, &mut outbound)).await.is_err());
        });
    });
}

/// Sends `message` and shuts down, and returns what it receives until EOF. Both may fail if connections are lost.
async fn try_exchange(stream: &mut TcpStream, message: &[u8], random: &mut Rng) -> io::Result<Vec<u8>> {
    let part_bytes = random.usize(1..20_000);
    let (mut reader, mut writer) = stream.split();
    let send = async {
        for part in message.chunks(part_bytes) {
            writer.send(part.to_vec()).await?;
        }
        writer.shutdown().await
    };
    let receive = async {
        let mut received = Vec::new();
        while let Some(chunk) = reader.recv().await? {
            received.extend_from_slice(&chunk);
        }
        Ok(received)
    };
    let (sent, received) = join(send, receive).await;
    sent.and(received)
}

/// Random messages through a proxy. Without errors, all bytes arrive.
async fn run_proxy(seed: u64) -> io::Result<()> {
    let mut random = Rng::with_seed(seed);
    let (mut client, mut inbound) = pair().await?;
    let (mut outbound, mut server) = pair().await?;
    let [request, response] = [(); 2].map(|()| pattern(random.u64(..), random.usize(..100_000)));
    let proxy = anello::spawn(async move { copy_bidirectional(&mut inbound, &mut outbound).await });
    let mut other_random = Rng::with_seed(!seed);
    let (at_client, at_server) = join(
        try_exchange(&mut client, &request, &mut random),
        try_exchange(&mut server, &response, &mut other_random),
    )
    .await;
    let copied = proxy.await.expect("the task does not panic")?;
    assert_same_bytes(&at_client?, &response);
    assert_same_bytes(&at_server?, &request);
    assert_eq!(copied, (request.len() as u64, response.len() as u64));
    Ok(())
}

#[test]
fn fault_42_proxied_bytes_arrive_or_fail() {
    within(hang_timeout(), "simulator", || {
        for seed in 0..500 {
            let (setup, is_lossy) = random_simulator(seed);
            // The time is virtual. A lost connection may leave one side waiting.
            let result = setup.run(async { timeout(Duration::from_secs(3600), run_proxy(seed)).await });
            assert!(is_lossy || matches!(result, Ok(Ok(()))), "seed {seed}: {result:?}");
        }
    });
}

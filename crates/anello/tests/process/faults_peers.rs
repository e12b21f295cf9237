//! Peer and application faults: stalled readers, resets, floods, and thousands of dropped futures. The numbers refer to
//! `docs/internals/faults.md`.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream as StdStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::echo;
use anello::net::{TcpListener, TcpStream};
use anello::time::timeout;
use anello::{current_driver_metrics, spawn, yield_now};
use sha2::{Digest, Sha256};
use socket2::{Domain, SockRef, Socket, Type};

use crate::common::usage::{assert_grown_less, raise_open_files, usage};
use crate::common::{
    ANY_PORT, Rng, Setup, assert_same_bytes, both_drivers, each_available, in_own_process, on_both_drivers,
    on_each, on_every_driver, pair, pattern, poll_at_most, scaled_timeout, sha256, variable, within,
};
use crate::server::Server;

const MEGABYTE: usize = 1 << 20;

/// Entry point for the server child process; not itself a test.
#[test]
fn fault_02_short_sends_and_receives() {
    on_both_drivers(|setup| setup.run(transfer_through_small_buffers(10 * MEGABYTE)));
}

#[test]
fn fault_02_short_sends_on_every_driver() {
    on_every_driver(|setup| setup.run(transfer_through_small_buffers(MEGABYTE / 4)));
}

async fn transfer_through_small_buffers(size: usize) {
    let (mut client, mut server) = pair().await.unwrap();
    client.set_send_buffer_size(1).unwrap();
    let message = pattern(2, size);
    let expected = sha256(&message);
    let writing = spawn(async move {
        for part in message.chunks(100_000) {
            client.write_all(part).await.unwrap();
        }
        client.shutdown().await.unwrap();
        client
    });
    let mut hash = Sha256::new();
    while let Some(chunk) = server.recv().await.unwrap() {
        hash.update(&chunk);
    }
    assert_eq!(<[u8; 32]>::from(hash.finalize()), expected);
    drop(writing.await.unwrap());
}

/// Returns the number of futures to drop, which can be set with `ANELLO_DROPS`.
fn drops() -> u64 {
    let configured = variable("ANELLO_DROPS");
    configured.unwrap_or(if cfg!(debug_assertions) { 20_000 } else { 100_000 })
}

#[test]
fn fault_10_futures_dropped_in_flight() {
    // Runs in a child process, because its memory usage is measured.
    in_own_process(|| {
        on_both_drivers(|setup| {
            let runtime = setup.runtime();
            let warm_up = drops() / 4;
            runtime.block_on(drop_futures(10, warm_up));
            let before = usage();
            runtime.block_on(drop_futures(11, drops()));
            let after = usage();
            eprintln!("{}: {:?}", setup.name, runtime.metrics());
            assert_eq!(after.descriptors, before.descriptors);
            let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
            assert_grown_less(setup.name, grown, 4 * MEGABYTE);
        });
    });
}

/// Starts operations, polls them a few times and drops them. No socket may remain at the end.
async fn drop_futures(seed: u64, count: u64) {
    let listener = Rc::new(TcpListener::bind(ANY_PORT).unwrap());
    let address = listener.local_addr().unwrap();
    let base = current_driver_metrics().unwrap().sockets;
    let mut random = Rng::with_seed(seed);
    let (mut client, mut server) = (None, None);
    for number in 0..count {
        // Opens a new connection from time to time. The old streams are dropped with operations in flight.
        if number % 50 == 0 || client.is_none() || server.is_none() {
            client = Some(TcpStream::connect(address).await.unwrap());
            server = Some(listener.accept().await.unwrap());
        }
        let (one, other) = (client.as_mut().unwrap(), server.as_mut().unwrap());
        let stream = if random.usize(..2) == 0 { one } else { other };
        let polls = random.usize(..2);
        match random.usize(..9) {
            0 => drop(poll_at_most(polls, stream.recv()).await),
            1 => drop(poll_at_most(polls, stream.read(&mut [0; 10])).await),
            2 => drop(poll_at_most(polls, stream.send(vec![1; 1 + random.usize(..9000)])).await),
            3 => {
                drop(poll_at_most(polls, stream.write_all(&[2; 70_000][..1 + random.usize(..70_000)])).await)
            }
            4 => drop(poll_at_most(polls, stream.flush()).await),
            5 => drop(poll_at_most(polls, listener.accept()).await),
            6 => drop(poll_at_most(polls, TcpStream::connect(address)).await),
            7 => drop(timeout(Duration::ZERO, stream.recv()).await),
            _ => yield_now().await,
        }
    }
    drop((client, server));
    // Accepts and drops connections that were established but not yet accepted.
    while timeout(Duration::from_millis(50), listener.accept()).await.is_ok() {}
    while current_driver_metrics().unwrap().sockets > base {
        anello::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn fault_11_accept_and_connect_timeouts() {
    in_own_process(|| {
        // No task is accepting and the backlog is full, so attempts to connect never complete.
        let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        full.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        full.listen(0).unwrap();
        let unreachable = full.local_addr().unwrap().as_socket().unwrap();
        let _first = StdStream::connect(unreachable).unwrap();
        on_both_drivers(move |setup| {
            let runtime = setup.runtime();
            let count = drops() / 4;
            let rounds = |count| async move {
                let listener = TcpListener::bind(ANY_PORT).unwrap();
                for number in 0..count {
                    let wait = Duration::from_nanos(number % 3 * 100);
                    assert!(timeout(wait, listener.accept()).await.is_err());
                    assert!(timeout(wait, TcpStream::connect(unreachable)).await.is_err());
                    // A timeout that has already elapsed when it starts does not yield to other tasks.
                    yield_now().await;
                }
            };
            let settled = || async {
                while current_driver_metrics().unwrap().sockets > 0 {
                    yield_now().await;
                }
            };
            runtime.block_on(rounds(count / 4));
            runtime.block_on(settled());
            let before = usage();
            runtime.block_on(rounds(count));
            runtime.block_on(settled());
            let after = usage();
            assert_eq!(after.descriptors, before.descriptors, "{}", setup.name);
            let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
            assert_grown_less(setup.name, grown, 2 * MEGABYTE);
        });
    });
}

#[test]
fn closed_connections_leak_no_memory() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            let runtime = setup.runtime();
            let serve = |count| async move {
                let listener = TcpListener::bind(ANY_PORT).unwrap();
                for _ in 0..count {
                    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                    let mut server = listener.accept().await.unwrap();
                    // A response and EOF are in flight when the stream is dropped.
                    server.write_all(b"response").await.unwrap();
                    drop(server);
                    let mut received = [0; 8];
                    client.read_exact(&mut received).await.unwrap();
                }
            };
            runtime.block_on(serve(500));
            let before = usage();
            runtime.block_on(serve(drops() / 4));
            let grown = usage().resident_bytes.saturating_sub(before.resident_bytes);
            // Leaking a hundred bytes per connection would exceed 500,000 bytes.
            assert_grown_less(setup.name, grown, 300_000);
        });
    });
}

/// Returns connections whose peers never read.
async fn unread(count: usize) -> (Vec<TcpStream>, Vec<StdStream>) {
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let (mut streams, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let peer = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        peer.set_recv_buffer_size(1).unwrap();
        peer.connect(&address.into()).unwrap();
        peers.push(StdStream::from(peer));
        let stream = listener.accept().await.unwrap();
        stream.set_send_buffer_size(1).unwrap();
        streams.push(stream);
    }
    (streams, peers)
}

#[test]
fn fault_20_stalled_readers() {
    in_own_process(|| {
        assert!(raise_open_files() > 1100, "needs descriptors for 500 connections");
        on_both_drivers(|setup| {
            let runtime = setup.runtime();
            let message_bytes = 16 * 1024;
            let (count, cap) = (500, setup.options.max_send_queue_bytes + message_bytes);
            let before = usage().resident_bytes;
            runtime.block_on(async {
                let (streams, peers) = unread(count).await;
                let accepted = Rc::new(std::cell::Cell::new(0u64));
                let downloads: Vec<_> = streams
                    .into_iter()
                    .map(|mut stream| {
                        let accepted = Rc::clone(&accepted);
                        spawn(async move {
                            while stream.send(vec![7; message_bytes]).await.is_ok() {
                                accepted.set(accepted.get() + 1);
                            }
                        })
                    })
                    .collect();
                // Runs until no connection makes progress.
                let mut last = u64::MAX;
                while std::mem::replace(&mut last, accepted.get()) != accepted.get() {
                    anello::time::sleep(Duration::from_millis(300)).await;
                }
                let grown = usage().resident_bytes.saturating_sub(before);
                let bound = count * (cap + 8 * 1024) + 8 * MEGABYTE;
                eprintln!("{}: {} KiB per connection", setup.name, grown / count / 1024);
                assert_grown_less(setup.name, grown, bound);
                drop(peers);
                for download in downloads {
                    download.await.unwrap();
                }
            });
        });
    });
}

#[test]
fn fault_20_small_messages_do_not_hold_large_buffers() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            let runtime = setup.runtime();
            runtime.block_on(async {
                let (mut streams, mut peers) = unread(1).await;
                let mut stream = streams.pop().unwrap();
                // Fills the kernel's buffers, so that echoed bytes stay in the queue.
                let mut kernel_takes = true;
                while kernel_takes {
                    stream.write_all(&[0; 1000]).await.unwrap();
                    kernel_takes = timeout(Duration::from_millis(300), stream.flush()).await.is_ok();
                }
                let (mut reader, mut writer) = stream.into_split();
                let echoing = spawn(async move {
                    let mut count = 0u64;
                    while let Some(chunk) = reader.recv().await.unwrap() {
                        count += chunk.len() as u64;
                        if poll_at_most(1, writer.send(chunk)).await.is_none() {
                            break;
                        }
                    }
                    count
                });
                let peer = peers.last_mut().unwrap();
                let before = usage().resident_bytes;
                for _ in 0..20_000 {
                    if echoing.is_finished() {
                        break;
                    }
                    let received = current_driver_metrics().unwrap().receives;
                    peer.write_all(b"1").unwrap();
                    while current_driver_metrics().unwrap().receives == received && !echoing.is_finished() {
                        yield_now().await;
                    }
                }
                let grown = usage().resident_bytes.saturating_sub(before);
                assert!(!echoing.is_finished(), "{}: the queue was full before the test", setup.name);
                echoing.abort();
                // The queue holds 64 KiB of one-byte messages. With a separate buffer for each message, it would use
                // 256 MiB.
                assert_grown_less(setup.name, grown, 4 * MEGABYTE);
            });
        });
    });
}

#[test]
fn fault_21_idle_flood() {
    in_own_process(|| {
        let limit = raise_open_files();
        let count = 15_000.min(limit.saturating_sub(1000));
        eprintln!("{count} idle connections (as many as the open-file limit allows)");
        on_both_drivers(move |setup| {
            let mut server = Server::start(setup, None);
            let connect = |number: usize| {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                let source = Ipv4Addr::new(127, 0, 0, 2 + (number % 8) as u8);
                socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
                socket.connect(&server.address.into()).unwrap();
                StdStream::from(socket)
            };
            let before = {
                let mut first = connect(0);
                first.write_all(b"?").unwrap();
                first.read_exact(&mut [0]).unwrap();
                first
            };
            let mut idle = vec![before];
            idle.extend((1..100).map(connect));
            let connect_rest = |idle: &mut Vec<StdStream>| idle.extend((100..count).map(connect));
            let start = server_usage(&server);
            connect_rest(&mut idle);
            let report = server.wait_until(|report| report.sockets > count as u64);
            let each = report.usage.resident_bytes.saturating_sub(start) / count;
            eprintln!("{}: {each} bytes per idle connection", setup.name);
            assert_grown_less(setup.name, each, 2048);
            // The idle connections still work.
            for stream in idle.iter_mut().step_by(500) {
                stream.write_all(b"!").unwrap();
                let mut response = [0];
                stream.read_exact(&mut response).unwrap();
                assert_eq!(&response, b"!");
            }
            drop(idle);
            server.wait_until(|report| report.sockets == 1);
            server.stop();
        });
    });
}

fn server_usage(server: &Server) -> usize {
    crate::common::usage::usage_of(server.process()).resident_bytes
}

#[test]
fn fault_22_resets_during_transfer() {
    on_both_drivers(|setup| {
        let mut server = Server::start(setup, None);
        let address = server.address;
        let before = server.report();
        let mut random = Rng::with_seed(22);
        for _ in 0..1000 {
            let mut client = StdStream::connect(address).unwrap();
            SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
            client.write_all(&pattern(random.u64(..), 1 + random.usize(..60_000))).unwrap();
            if random.usize(..2) == 0 {
                client.read_exact(&mut [0; 1]).unwrap();
            }
            drop(client);
        }
        // A client that was reset before it was accepted may never be accepted.
        let report = server.wait_until(|report| report.sockets == before.sockets && report.accepted > 900);
        assert!(report.usage.descriptors <= before.usage.descriptors, "{report:?}");
        assert_eq!(report.broken_pipes, 0, "SIGPIPE");
        let mut client = StdStream::connect(address).unwrap();
        client.write_all(b"alive").unwrap();
        let mut response = [0; 5];
        client.read_exact(&mut response).unwrap();
        assert_eq!(&response, b"alive");
        server.stop();
    });
}

#[test]
fn fault_22_resets_while_receive_is_armed() {
    const CLIENTS: u32 = 20_000;
    on_both_drivers(|setup| {
        let runtime = setup.runtime();
        runtime.block_on(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let address = listener.local_addr().unwrap();
            let clients = std::thread::spawn(move || {
                for number in 0..CLIENTS {
                    let mut client = StdStream::connect(address).unwrap();
                    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
                    // The resets arrive at different times: some while the connection is being accepted, others while
                    // the receive operation is being submitted or is pending.
                    for _ in 0..number % 1000 {
                        std::hint::spin_loop();
                    }
                    client.write_all(b"last").unwrap();
                }
            });
            let mut receiving = Vec::new();
            while receiving.len() < CLIENTS as usize {
                let all_have_connected = clients.is_finished();
                let accepted = timeout(scaled_timeout(Duration::from_secs(2)), listener.accept()).await;
                // A client that was reset before it was accepted may never be accepted.
                if accepted.is_err() && all_have_connected {
                    break;
                }
                let Ok(Ok(mut stream)) = accepted else { continue };
                receiving.push(spawn(async move { while let Ok(Some(_)) = stream.recv().await {} }));
            }
            clients.join().unwrap();
            assert!(receiving.len() > CLIENTS as usize / 2, "{} accepted", receiving.len());
            for task in receiving {
                task.await.unwrap();
            }
        });
    });
}

/// Sends a large amount of data over one connection to a stalled reader. `ANELLO_STREAM_BYTES` sets the amount.
#[test]
fn long_stream_to_stalled_reader() {
    let configured = variable("ANELLO_STREAM_BYTES");
    let total: u64 = configured.unwrap_or(64 * MEGABYTE as u64);
    for setup in each_available(both_drivers()) {
        within(scaled_timeout(Duration::from_secs(600)), setup.name, move || long_stream(&setup, total));
    }
}

fn long_stream(setup: &Setup, total: u64) {
    let mut server = Server::start(setup, None);
    let stream = StdStream::connect(server.address).unwrap();
    let sent = Arc::new(AtomicU64::new(0));
    let (mut writer, counted) = (stream.try_clone().unwrap(), Arc::clone(&sent));
    let writing = std::thread::spawn(move || {
        let (block, mut hash) = (pattern(1 << 30, MEGABYTE + 1), Sha256::new());
        let mut left = total;
        while left > 0 {
            let part = &block[..block.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            writer.write_all(part).unwrap();
            hash.update(part);
            left -= part.len() as u64;
            counted.fetch_add(part.len() as u64, Ordering::SeqCst);
        }
        writer.shutdown(std::net::Shutdown::Write).unwrap();
        hash.finalize()
    });
    // The client reads nothing, so all buffers fill up. After that, the server must not run any more turns.
    let mut last = (u64::MAX, u64::MAX);
    loop {
        let now = (sent.load(Ordering::SeqCst), server.report().turns);
        std::thread::sleep(Duration::from_millis(200));
        // The report itself takes a turn or two.
        if now.0 == last.0 && now.1 - last.1 < 10 {
            break;
        }
        last = now;
    }
    let filled = server.report();
    let (mut reader, mut hash, mut received) = (stream, Sha256::new(), 0u64);
    let mut buffer = vec![0; 100_000];
    let mut most = 0;
    loop {
        let count = reader.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        if received / (16 << 20) != (received + count as u64) / (16 << 20) {
            std::thread::sleep(Duration::from_millis(20));
            most = most.max(server.report().usage.resident_bytes);
        }
        received += count as u64;
    }
    assert_eq!(received, total);
    assert_eq!(hash.finalize(), writing.join().unwrap(), "the received bytes differ");
    assert_grown_less(setup.name, filled.usage.resident_bytes.max(most), 32 * MEGABYTE);
    server.stop();
}

#[test]
fn busy_connection_does_not_starve_other_connections() {
    on_each(both_drivers(), |setup| {
        let mut server = Server::start(setup, None);
        let address = server.address;
        let end = Arc::new(std::sync::atomic::AtomicBool::new(false));
        // Two threads that keep one connection full in both directions.
        let flood = StdStream::connect(address).unwrap();
        let (mut reader, mut writer, ended) = (flood.try_clone().unwrap(), flood, Arc::clone(&end));
        let reading = std::thread::spawn(move || {
            let mut buffer = vec![0; MEGABYTE];
            while reader.read(&mut buffer).is_ok_and(|count| count > 0) {}
        });
        let writing = std::thread::spawn(move || {
            let block = vec![1; MEGABYTE];
            while !ended.load(Ordering::SeqCst) {
                writer.write_all(&block).unwrap();
            }
            writer.shutdown(std::net::Shutdown::Both).unwrap();
        });
        let mut quiet = StdStream::connect(address).unwrap();
        quiet.set_nodelay(true).unwrap();
        for number in 0..200u8 {
            quiet.write_all(&[number]).unwrap();
            let mut response = [0];
            quiet.read_exact(&mut response).unwrap();
            assert_eq!(response, [number]);
        }
        end.store(true, Ordering::SeqCst);
        writing.join().unwrap();
        reading.join().unwrap();
        server.report();
        server.stop();
    });
}

/// A task that only sends, to a peer that reads as fast as it can, must not starve the other tasks of its runtime.
#[test]
fn sender_does_not_starve_other_tasks() {
    on_every_driver(|setup| {
        let reading = setup.run(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let mut peer = StdStream::connect(listener.local_addr().unwrap()).unwrap();
            let reading = std::thread::spawn(move || {
                let mut buffer = vec![0; MEGABYTE];
                while peer.read(&mut buffer).is_ok_and(|count| count > 0) {}
            });
            let mut sender = listener.accept().await.unwrap();
            let polls = Rc::new(std::cell::Cell::new(0u64));
            let counted = Rc::clone(&polls);
            let sending = spawn(async move {
                // The work per poll is limited, even if the kernel accepts everything.
                loop {
                    sender.send(&b"0123456789abcdef"[..]).await.unwrap();
                    counted.set(counted.get() + 1);
                }
            });
            for _ in 0..20 {
                let before = polls.get();
                yield_now().await;
                let done = polls.get() - before;
                assert!(done <= 256, "{}: {done} messages before other tasks ran", setup.name);
            }
            sending.abort();
            yield_now().await;
            reading
        });
        // The runtime and the connection have been dropped.
        reading.join().unwrap();
    });
}

#[test]
fn small_writes_over_slow_link() {
    on_every_driver(|setup| {
        setup.run(async {
            let (client, mut server) = pair().await.unwrap();
            server.set_send_buffer_size(1).unwrap();
            let message = pattern(20, 100_000);
            let (mut reader, mut writer) = client.into_split();
            let sent = message.clone();
            let echoing = spawn(async move { echo(&mut server).await });
            let writing = spawn(async move {
                let mut random = Rng::with_seed(20);
                let mut left = &sent[..];
                while !left.is_empty() {
                    let (part, rest) = left.split_at((1 + random.usize(..30)).min(left.len()));
                    writer.write_all(part).await.unwrap();
                    if random.usize(..10) == 0 {
                        yield_now().await;
                    }
                    left = rest;
                }
                writer.shutdown().await.unwrap();
            });
            let mut received = Vec::new();
            while let Some(chunk) = reader.recv().await.unwrap() {
                received.extend_from_slice(&chunk);
                if received.len() % 7 == 0 {
                    yield_now().await;
                }
            }
            assert_same_bytes(&received, &message);
            writing.await.unwrap();
            assert_eq!(echoing.await.unwrap().unwrap(), 100_000);
        });
    });
}

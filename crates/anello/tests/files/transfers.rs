//! Files: sent in order with other data on every driver, regardless of what the peer does, and read without blocking
//! other tasks.

use std::fs::OpenOptions;
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Duration;

use crate::common::echo;
use anello::fs::File;
use anello::task::MAX_BLOCKING_THREADS;
use anello::time::sleep;
use anello::{current_driver_metrics, spawn, spawn_blocking, yield_now};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::common::{
    assert_same_bytes, exchange, file_of, in_own_process, on_both_drivers, on_every_driver,
    on_every_driver_and_sim, pair, pattern,
};

/// More bytes than fit in the kernel's buffers for one connection.
const LARGE: usize = 24 << 20;

#[test]
fn file_waits_for_stalled_reader_and_keeps_its_offset() {
    on_every_driver_and_sim(|setup| {
        // The simulated kernel's buffers hold only a few KiB.
        let length = if setup.name.contains("sim") { 1 << 20 } else { LARGE };
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let content = pattern(1, length);
            let file = file_of(&content);
            let sending = spawn(async move {
                server.send("head").await?;
                let sent = server.send_file(&file, 0, length as u64).await?;
                server.send("between").await?;
                let rest = server.send_file(&file, length as u64 - 10, 10).await?;
                server.write_all(b"tail").await?;
                server.shutdown().await?;
                Ok::<_, io::Error>((sent, rest))
            });
            // The transfer fills the send buffer before anything is read.
            for _ in 0..1000 {
                yield_now().await;
            }
            let mut received = Vec::new();
            while let Some(chunk) = client.recv().await.unwrap() {
                received.extend_from_slice(&chunk);
            }
            let expected = [b"head", &content[..], b"between", &content[length - 10..], b"tail"].concat();
            assert_same_bytes(&received, &expected);
            assert_eq!(sending.await.unwrap().unwrap(), (length as u64, 10), "{}", setup.name);
        });
    });
}

/// Gate that blocks work until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |is_open| !*is_open).unwrap());
    }
}

/// Runs in a child process, because it occupies every thread of the blocking pool.
#[test]
fn file_operations_complete_while_blocking_pool_is_busy() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            setup.run(async {
                let (gate, running) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
                let work: Vec<_> = (0..MAX_BLOCKING_THREADS + 8)
                    .map(|_| {
                        let (gate, running) = (gate.clone(), Arc::clone(&running));
                        spawn_blocking(move || {
                            running.fetch_add(1, Ordering::SeqCst);
                            gate.pass();
                        })
                    })
                    .collect();
                while running.load(Ordering::SeqCst) < MAX_BLOCKING_THREADS {
                    yield_now().await;
                }
                let content = pattern(18, 100_000);
                let kept = tempfile::NamedTempFile::new().unwrap();
                std::fs::write(kept.path(), &content).unwrap();
                // Opening a file always uses a thread; the other operations do so only if the data is not in memory.
                let file = File::open(kept.path()).await.unwrap();
                let mut bytes = vec![0; 1000];
                assert_eq!(file.read_at(&mut bytes, 5).await.unwrap(), 1000);
                assert_same_bytes(&bytes, &content[5..1005]);
                assert_eq!(anello::fs::spawn_file_operation(|| 5).await.unwrap(), 5);
                let (mut client, mut server) = pair().await.unwrap();
                let length = content.len() as u64;
                let sending = spawn(async move { server.send_file(&file, 0, length).await });
                let mut received = vec![0; content.len()];
                client.read_exact(&mut received).await.unwrap();
                assert_same_bytes(&received, &content);
                assert_eq!(sending.await.unwrap().unwrap(), length);
                // All of this happened before any of the blocking work completed.
                assert_eq!(running.load(Ordering::SeqCst), MAX_BLOCKING_THREADS);
                gate.open();
                for ended in work {
                    ended.await.unwrap();
                }
                assert_eq!(running.load(Ordering::SeqCst), MAX_BLOCKING_THREADS + 8);
            });
        });
    });
}

/// Operations that wait for another process, or for a dead mount, do not stop the others.
#[test]
fn file_operations_complete_while_others_stall() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            const STALLED: usize = 40;
            let directory = tempfile::tempdir().unwrap();
            let [unopened, fifo] = ["unopened", "fifo"].map(|name| directory.path().join(name));
            for path in [&unopened, &fifo] {
                mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            }
            // With this writer, opening the FIFO does not wait, but reading does.
            let mut writer = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
            setup.run(async {
                let open = || spawn(anello::fs::read(unopened.clone()));
                let opens: Vec<_> = (0..STALLED).map(|_| open()).collect();
                let files = (0..STALLED).map(|_| File::from_std(std::fs::File::open(&fifo).unwrap()));
                let read = |file: File| spawn(async move { file.read(&mut [0]).await.unwrap() });
                let reads: Vec<_> = files.map(read).collect();
                yield_now().await;
                for _ in 0..100 {
                    assert!(anello::fs::metadata(directory.path()).await.unwrap().is_dir());
                }
                assert!(!opens.iter().any(|open| open.is_finished()));
                assert!(!reads.iter().any(|read| read.is_finished()));
                io::Write::write_all(&mut writer, &[0; STALLED]).unwrap();
                for read in reads {
                    assert_eq!(read.await.unwrap(), 1);
                }
                while !opens.iter().all(|open| open.is_finished()) {
                    drop(OpenOptions::new().read(true).write(true).open(&unopened).unwrap());
                    yield_now().await;
                }
                for open in opens {
                    assert_eq!(open.await.unwrap().unwrap(), b"");
                }
            });
        });
    });
}

#[test]
fn send_file_returns_lower_count_at_eof() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let file = file_of(b"0123456789");
            for (offset, length, sent) in [(0, 100, 10), (4, 100, 6), (10, 1, 0), (99, 5, 0), (3, 0, 0)] {
                assert_eq!(server.send_file(&file, offset, length).await.unwrap(), sent, "{}", setup.name);
            }
            drop(server);
            let mut received = Vec::new();
            while let Some(chunk) = client.recv().await.unwrap() {
                received.extend_from_slice(&chunk);
            }
            assert_eq!(received, b"0123456789456789", "{}", setup.name);
        });
    });
}

#[test]
fn failed_send_file_keeps_connection_usable() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let path = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&path, "0123456789").unwrap();
            let not_to_read = File::from(OpenOptions::new().write(true).open(&path).unwrap());
            server.send("before,").await.unwrap();
            let refused = server.send_file(&not_to_read, 0, 10).await;
            assert!(refused.is_err(), "{}: {refused:?}", setup.name);
            server.send("after").await.unwrap();
            drop(server);
            let mut received = Vec::new();
            while let Some(chunk) = client.recv().await.unwrap() {
                received.extend_from_slice(&chunk);
            }
            assert_eq!(received, b"before,after", "{}", setup.name);
        });
    });
}

#[test]
fn pending_send_file_ends_with_its_stream() {
    on_every_driver_and_sim(|setup| {
        let length = if setup.name.contains("sim") { 1 << 20 } else { LARGE };
        let content = pattern(2, length);
        setup.run(async {
            let file = file_of(&content);
            let sockets = || current_driver_metrics().unwrap().sockets;
            let before = sockets();
            // After the transfer is cancelled, the stream is dropped, aborted, or used to send other data.
            for way in 0..3 {
                let (mut client, mut server) = pair().await.unwrap();
                // Keeps polling after the peer's buffer is full.
                let mut sending = Box::pin(server.send_file(&file, 0, length as u64));
                for _ in 0..50 {
                    let polled = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
                    assert!(polled.is_pending(), "{}: {polled:?}", setup.name);
                    yield_now().await;
                }
                drop(sending);
                match way {
                    0 => drop(server),
                    1 => server.abort(),
                    _ => {
                        server.send("then this").await.unwrap();
                        drop(server);
                    }
                }
                let mut received = Vec::new();
                while let Ok(Some(chunk)) = client.recv().await {
                    received.extend_from_slice(&chunk);
                }
                if way == 2 {
                    let ending = received.split_off(received.len() - 9);
                    assert_eq!(ending, b"then this", "{}", setup.name);
                }
                assert_same_bytes(&received, &content[..received.len()]);
                drop(client);
                // If a socket remains, the watchdog ends the test.
                while sockets() != before {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        });
    });
}

#[test]
fn stream_works_after_send_file() {
    on_every_driver_and_sim(|setup| {
        let is_simulated = setup.name.contains("sim");
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let content = pattern(5, 200_000);
            let file = file_of(&content);
            let sending = spawn(async move {
                let length = content.len() as u64;
                assert_eq!(server.send_file(&file, 0, length).await.unwrap(), length);
                // The data is larger than the buffers, so the stream waits both for data and for room to send.
                echo(&mut server).await.unwrap();
                server
            });
            let mut received = vec![0; 200_000];
            client.read_exact(&mut received).await.unwrap();
            assert_same_bytes(&received, &pattern(5, 200_000));
            for seed in 0..3 {
                exchange(&mut client, &pattern(seed, if is_simulated { 100_000 } else { 2 << 20 })).await;
            }
            client.shutdown().await.unwrap();
            let server = sending.await.unwrap();
            if !is_simulated {
                let (server, _) = server.into_std().await.unwrap();
                assert!(!rustix::net::sockopt::tcp_cork(&server).unwrap(), "{}", setup.name);
                let flags = rustix::fs::fcntl_getfl(&server).unwrap();
                assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "{}", setup.name);
            }
        });
    });
}

#[test]
fn send_file_fails_when_peer_has_closed() {
    on_every_driver_and_sim(|setup| {
        let content = pattern(3, 1 << 20);
        setup.run(async {
            let file = file_of(&content);
            let (client, mut server) = pair().await.unwrap();
            client.abort();
            let ended = async {
                loop {
                    if let Err(error) = server.send_file(&file, 0, content.len() as u64).await {
                        return error;
                    }
                }
            };
            let error = ended.await;
            let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
            assert!(kinds.contains(&error.kind()), "{}: {error:?}", setup.name);
            assert!(server.send("more").await.is_err(), "{}: the error must be permanent", setup.name);
        });
    });
}

#[test]
fn files_are_read_from_page_cache_and_disk() {
    // Excludes the simulated kernel, whose clock does not advance while other threads work.
    on_every_driver(|setup| {
        setup.run(async {
            let content = pattern(4, 100_000);
            let file = file_of(&content);
            let mut buffer = vec![0; 60_000];
            let mut read = Vec::new();
            loop {
                let count = file.read_at(&mut buffer, read.len() as u64).await.unwrap();
                if count == 0 {
                    break;
                }
                read.extend_from_slice(&buffer[..count]);
            }
            assert_same_bytes(&read, &content);
            // Evicts the data from memory, if the kernel complies, and reads it again.
            file.as_std().sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            file.read_ahead(0, content.len() as u64).await.unwrap();
            let mut byte = [0];
            assert_eq!(file.as_std().read_at(&mut byte, 99_999).unwrap(), 1);
            assert_eq!(byte[0], content[99_999]);
            assert_eq!(file.read_at(&mut [], 0).await.unwrap(), 0);
            // The range is past EOF.
            file.read_ahead(1 << 40, 5).await.unwrap();
            file.read_ahead(50_000, 100_000).await.unwrap();
            file.read_ahead(0, u64::MAX).await.unwrap();
            file.read_ahead(u64::MAX, u64::MAX).await.unwrap();
            assert!(File::open("/there/is/no/such/file").await.is_err());
        });
    });
}

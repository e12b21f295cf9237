//! Streams that move to other workers.

use std::fs;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as StdStream};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anello::net::{StreamFamily, StreamSocket, TcpListener, TcpStream, UnixStream};
use anello::server::{Distribution, ListenerGroup, PendingConnections};
use anello::time::sleep;
use anello::{Handle, WorkerContext, Workers, spawn, yield_now};

use crate::common::{
    Rng, Setup, assert_same_bytes, both_drivers, group_setups, hang_timeout, in_own_process, on_each, pair,
    pattern, poll_at_most, simulated_drivers,
};

/// Idle runtimes on threads of their own.
struct Runtimes {
    handles: Vec<Handle>,
    threads: Vec<thread::JoinHandle<()>>,
    stops: Vec<mpsc::Sender<()>>,
}

impl Runtimes {
    fn start(setups: &[&Setup]) -> Self {
        let mut started = Self { handles: Vec::new(), threads: Vec::new(), stops: Vec::new() };
        for setup in setups {
            let ((stop, stopped), (report, reports)) = (mpsc::channel(), mpsc::channel());
            let setup = (*setup).clone();
            started.threads.push(thread::spawn(move || {
                let runtime = setup.runtime();
                report.send(runtime.handle()).expect("a receiver");
                runtime
                    .block_on(async move { anello::spawn_blocking(move || stopped.recv().ok()).await.ok() });
            }));
            started.handles.push(reports.recv().expect("the runtime starts"));
            started.stops.push(stop);
        }
        started
    }

    fn stop(self) {
        drop((self.handles, self.stops));
        self.threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}

fn connected(address: SocketAddr) -> StdStream {
    let client = StdStream::connect(address).expect("a connection");
    client.set_read_timeout(Some(hang_timeout())).expect("a timeout");
    client
}

/// Boxed, because the future contains itself.
type Served = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// Echoes bytes in parts of random lengths, and moves the stream after a random number of reads.
fn echo_and_move<F: StreamFamily>(
    mut stream: StreamSocket<F>,
    mut random: Rng,
    workers: Arc<Vec<Handle>>,
    moves: Arc<AtomicUsize>,
) -> Served {
    Box::pin(async move {
        let mut buffer = vec![0; 1 << 16];
        for _ in 0..random.usize(1..8) {
            let part = random.usize(1..buffer.len());
            match stream.read(&mut buffer[..part]).await? {
                0 => return stream.shutdown().await,
                count => stream.write_all(&buffer[..count]).await?,
            }
            if random.bool() {
                yield_now().await;
            }
        }
        moves.fetch_add(1, Ordering::Relaxed);
        let target = random.usize(..workers.len());
        let others = Arc::clone(&workers);
        let serve = move |stream| echo_and_move(stream, random, others, moves);
        stream.move_to(&workers[target], serve).await?.detach();
        Ok(())
    })
}

/// Sends bytes from one thread, shuts down the write direction, and compares the echo.
fn exchange(mut client: impl Read, mut sender: impl Write + Send, shut_down: impl Fn() + Sync, seed: u64) {
    let sent = pattern(seed, 1 << 20);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Rng::with_seed(seed);
            let mut left = sent.as_slice();
            while !left.is_empty() {
                let (part, rest) = left.split_at(random.usize(1..=left.len().min(100_000)));
                sender.write_all(part).expect("send succeeds");
                left = rest;
            }
            shut_down();
        });
        let mut received = Vec::new();
        client.read_to_end(&mut received).expect("EOF");
        assert_same_bytes(&received, &sent);
    });
}

/// In the second case on io_uring, the workers have different drivers.
#[test]
fn no_byte_is_lost_while_stream_moves() {
    on_each(group_setups(), |setup| {
        let [uring, epoll] = [0, 1].map(|index| both_drivers().swap_remove(index));
        let mut cases = vec![vec![setup, setup]];
        if setup.is_uring() {
            cases.push(vec![&uring, &epoll, setup]);
        }
        for setups in cases {
            let runtimes = Runtimes::start(&setups);
            let workers = Arc::new(runtimes.handles.clone());
            for seed in 0..3 {
                eprintln!("{}, seed {seed}", setup.name);
                let moves = Arc::new(AtomicUsize::new(0));
                let shared = || (Rng::with_seed(seed), Arc::clone(&workers), Arc::clone(&moves));
                let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
                let client = connected(listener.local_addr().expect("an address"));
                let (server, _) = listener.accept().expect("a connection");
                server.set_nodelay(true).expect("option is set");
                let (random, others, counted) = shared();
                let serve = move || async move {
                    echo_and_move(TcpStream::from_std(server)?, random, others, counted).await
                };
                workers[0].spawn_with(serve).detach();
                let shut_down = || client.shutdown(Shutdown::Write).expect("the connection is open");
                exchange(&client, &client, shut_down, seed);
                let (client, server) = StdUnixStream::pair().expect("a pair");
                client.set_read_timeout(Some(hang_timeout())).expect("a timeout");
                let (random, others, counted) = shared();
                let serve = move || async move {
                    echo_and_move(UnixStream::from_std(server)?, random, others, counted).await
                };
                workers[0].spawn_with(serve).detach();
                let shut_down = || client.shutdown(Shutdown::Write).expect("the connection is open");
                exchange(&client, &client, shut_down, seed);
                assert!(moves.load(Ordering::Relaxed) > 4, "{}: {moves:?}", setup.name);
            }
            drop(workers);
            runtimes.stop();
        }
    });
}

#[test]
fn received_and_accepted_bytes_and_options_are_kept() {
    on_each(group_setups(), |setup| {
        let runtimes = Runtimes::start(&[setup]);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = connected(listener.local_addr().expect("an address"));
        let (server, _) = listener.accept().expect("a connection");
        client.write_all(b"first second").expect("send succeeds");
        let target = runtimes.handles[0].clone();
        let large = pattern(7, 8 << 20);
        let (response, on_thread) = (large.clone(), setup.clone());
        let moving = thread::spawn(move || {
            on_thread.run(async move {
                let mut stream = TcpStream::from_std(server)?;
                stream.set_nodelay(false)?;
                stream.set_ttl(77)?;
                let mut first = [0; 6];
                stream.read_exact(&mut first).await?;
                assert_eq!(&first, b"first ");
                // Much more than the buffers of the kernel: the stream moves once the client has read most of it.
                stream.send(response).await?;
                let serve = |mut stream: TcpStream| async move {
                    assert!(!stream.nodelay()?);
                    assert_eq!(stream.ttl()?, 77);
                    let mut second = [0; 6];
                    stream.read_exact(&mut second).await?;
                    stream.send(second.to_vec()).await?;
                    while let Some(chunk) = stream.recv().await? {
                        stream.send(chunk).await?;
                    }
                    stream.shutdown().await
                };
                Ok::<_, io::Error>(stream.move_to(&target, serve).await?)
            })
        });
        let mut received = vec![0; large.len()];
        client.read_exact(&mut received).expect("a response");
        assert_same_bytes(&received, &large);
        client.write_all(b" third").expect("send succeeds");
        client.shutdown(Shutdown::Write).expect("the connection is open");
        let mut rest = String::new();
        client.read_to_string(&mut rest).expect("EOF");
        assert_eq!(rest, "second third", "{}", setup.name);
        let served = moving.join().expect("no panic").expect("the stream moves");
        let served = setup.run(served).expect("no panic").expect("the stream is attached");
        served.expect("the connection is closed normally");
        runtimes.stop();
    });
}

/// Echoes nothing: moves the stream to the other worker when a byte arrives, and sends a message from there.
async fn move_on_request(worker: WorkerContext, mut stream: TcpStream) -> io::Result<()> {
    stream.send(vec![worker.index as u8]).await?;
    if stream.recv().await?.is_none() {
        return Ok(());
    }
    let hold = |mut stream: TcpStream| async move {
        stream.send(&b"moved"[..]).await?;
        while stream.recv().await?.is_some() {}
        Ok::<(), io::Error>(())
    };
    stream.move_to(&worker.handles()[1 - worker.index], hold).await?.detach();
    Ok(())
}

#[test]
fn moved_connection_is_counted_for_other_worker() {
    on_each(group_setups(), |setup| {
        let bound = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1);
        let sockets = bound.and_then(|group| group.sockets()).expect("a listening socket");
        let address = sockets[0].local_addr().expect("an address");
        let group = ListenerGroup::<TcpListener>::new(sockets, 2);
        group.set_distribution(Distribution::LeastLoaded);
        let joined = group.clone();
        let workers = Workers::builder().unpinned_workers(2).runtime(setup.builder()).start(move |worker| {
            let joined = joined.clone();
            async move {
                let member = joined.join(worker.index);
                while let Some(stream) = member.accept().await.expect("accept succeeds") {
                    spawn(move_on_request(worker.clone(), stream)).detach();
                }
            }
        });
        let workers = workers.expect("workers");
        group.wait_applied(hang_timeout()).expect("all members accept");
        let mut clients = [Vec::new(), Vec::new()];
        for _ in 0..10 {
            let mut client = connected(address);
            let mut index = [0];
            client.read_exact(&mut index).expect("a response");
            clients[usize::from(index[0])].push(client);
        }
        assert_eq!(group.open_connections(), [5, 5], "{}", setup.name);
        for (moved, client) in (1..=3).zip(&mut clients[0]) {
            client.write_all(b"m").expect("send succeeds");
            let mut response = [0; 5];
            client.read_exact(&mut response).expect("a response");
            assert_eq!(group.open_connections(), [5 - moved, 5 + moved], "{}", setup.name);
        }
        drop(clients);
        while group.open_connections() != [0, 0] {
            thread::yield_now();
        }
        group.close(PendingConnections::Serve);
        workers.join().expect("the workers exit");
    });
}

#[test]
fn eof_and_half_close_are_kept() {
    on_each(group_setups(), |setup| {
        let runtimes = Runtimes::start(&[setup]);
        let target = &runtimes.handles[0];
        setup.run(async {
            let (mut client, mut server) = pair().await.expect("a connection");
            client.send(&b"last"[..]).await.expect("send succeeds");
            client.shutdown().await.expect("the connection is open");
            assert_eq!(server.recv().await.expect("receive succeeds").as_deref(), Some(&b"last"[..]));
            // On io_uring, the driver has received EOF by the time the stream moves.
            assert!(server.recv().await.expect("receive succeeds").is_none());
            let serve = |mut stream: TcpStream| async move {
                assert!(stream.recv().await?.is_none());
                stream.send(&b"end"[..]).await?;
                stream.shutdown().await
            };
            let moved = server.move_to(target, serve).await.expect("the stream moves");
            assert_eq!(client.recv().await.expect("receive succeeds").as_deref(), Some(&b"end"[..]));
            assert!(client.recv().await.expect("receive succeeds").is_none(), "{}", setup.name);
            moved.await.expect("no panic").expect("the stream is attached").expect("no error");
            // A write direction that was shut down before the move.
            let (mut client, mut server) = pair().await.expect("a connection");
            server.send(&b"end"[..]).await.expect("send succeeds");
            server.shutdown().await.expect("the connection is open");
            let serve = |mut stream: TcpStream| async move {
                let received = stream.recv().await?.map(|chunk| chunk.to_vec());
                let written = stream.write_all(b"more").await.map_err(|error| error.kind());
                Ok::<_, io::Error>((received, written))
            };
            let moved = server.move_to(target, serve).await.expect("the stream moves");
            assert_eq!(client.recv().await.expect("receive succeeds").as_deref(), Some(&b"end"[..]));
            assert!(client.recv().await.expect("receive succeeds").is_none());
            client.send(&b"ciao"[..]).await.expect("send succeeds");
            let (received, written) = moved.await.expect("no panic").expect("attached").expect("no error");
            assert_eq!(received.as_deref(), Some(&b"ciao"[..]));
            assert_eq!(written, Err(io::ErrorKind::BrokenPipe), "{}", setup.name);
        });
        runtimes.stop();
    });
}

/// The error is returned by `move_to` if this driver has received it, and to the other worker otherwise.
#[test]
fn reset_is_reported_to_one_of_the_workers() {
    on_each(group_setups(), |setup| {
        let runtimes = Runtimes::start(&[setup]);
        let target = runtimes.handles[0].clone();
        setup.run(async {
            for polls in [0, 1, 100] {
                let (mut client, mut server) = pair().await.expect("a connection");
                client.send(&b"ciao"[..]).await.expect("send succeeds");
                server.recv().await.expect("receive succeeds").expect("not EOF");
                // Arms the receive.
                assert!(poll_at_most(1, server.recv()).await.is_none());
                client.set_linger(Some(Duration::ZERO)).expect("option is set");
                drop(client);
                for _ in 0..polls {
                    yield_now().await;
                }
                let serve = |mut stream: TcpStream| async move { stream.recv().await.map(|_| ()) };
                let result = match server.move_to(&target, serve).await {
                    Ok(moved) => moved.await.expect("no panic").expect("the stream is attached"),
                    Err(error) => {
                        let (error, mut stream) = error.into_parts();
                        assert!(stream.recv().await.is_err(), "the error is permanent");
                        Err(error)
                    }
                };
                let error = result.expect_err("the connection was reset");
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{}: {error}", setup.name);
            }
        });
        runtimes.stop();
    });
}

#[test]
fn stream_moved_to_dropped_runtime_is_closed() {
    on_each(group_setups(), |setup| {
        let runtimes = Runtimes::start(&[setup]);
        let target = runtimes.handles[0].clone();
        runtimes.stop();
        setup.run(async {
            let (mut client, server) = pair().await.expect("a connection");
            let moved = server.move_to(&target, |_| async { panic!("the runtime has been dropped") }).await;
            assert!(moved.expect("the stream is detached").await.is_err());
            assert!(client.recv().await.expect("receive succeeds").is_none(), "{}", setup.name);
        });
    });
}

#[test]
fn stream_of_simulated_driver_stays() {
    on_each(simulated_drivers(), |setup| {
        let runtime = setup.runtime();
        let handle = runtime.handle();
        runtime.block_on(async {
            let (mut client, server) = pair().await.expect("a connection");
            let error = server.move_to(&handle, |_| async {}).await.expect_err("no descriptor");
            let (error, mut stream) = error.into_parts();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{}: {error}", setup.name);
            client.send(&b"ciao"[..]).await.expect("send succeeds");
            assert_eq!(stream.recv().await.expect("receive succeeds").as_deref(), Some(&b"ciao"[..]));
        });
    });
}

/// Runs in a child process, because the number of descriptors is process-wide.
#[test]
fn fault_10_and_11_cancelled_move_closes_connection() {
    in_own_process(|| {
        on_each(group_setups(), move |setup| {
            let open_descriptors = || fs::read_dir("/proc/self/fd").expect("proc is mounted").count();
            let runtimes = Runtimes::start(&[setup]);
            let target = runtimes.handles[0].clone();
            let runtime = setup.runtime();
            let seed = Rng::new().u64(..);
            eprintln!("{}, seed {seed}", setup.name);
            let mut random = Rng::with_seed(seed);
            let before = open_descriptors();
            runtime.block_on(async {
                for _ in 0..200 {
                    let (mut client, mut server) = pair().await.expect("a connection");
                    if random.bool() {
                        client.send(&b"ciao"[..]).await.expect("send succeeds");
                        poll_at_most(random.usize(1..5), pin!(server.recv())).await;
                    }
                    if random.bool() {
                        server.send(vec![1; random.usize(1..1 << 20)]).await.expect("send succeeds");
                    }
                    let serve = |mut stream: TcpStream| async move {
                        while stream.recv().await?.is_some() {}
                        io::Result::Ok(())
                    };
                    let moved = poll_at_most(random.usize(1..5), server.move_to(&target, serve)).await;
                    if let Some(Ok(moved)) = moved {
                        moved.detach();
                    }
                    // The connection is either closed or served by the other worker until the client closes it.
                    client.shutdown().await.ok();
                    while matches!(client.recv().await, Ok(Some(_))) {}
                }
                while open_descriptors() > before {
                    sleep(Duration::from_millis(1)).await;
                }
            });
            drop(runtime);
            runtimes.stop();
        });
    });
}

//! Ways in which a stream ends that has accepted bytes: its peer receives all of them and then EOF, or an error.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use anello::event_loop::{EventLoop, Events, StreamId};
use anello::net::{StreamFamily, StreamSocket, TcpStream, UnixStream};
use anello::server::DetachedStream;
use anello::time::sleep;
use anello::{Handle, Runtime, RuntimeBuilder, Workers, current_driver_metrics, spawn, yield_now};

use crate::common::*;

/// Sends more bytes than the kernel has room for to a peer that does not read. Returns their number.
async fn fill<F: StreamFamily>(stream: &mut StreamSocket<F>) -> usize {
    stream.send(vec![1; LARGE]).await.expect("an open connection");
    let (mut accepted, mut idle_turns) = (LARGE, 0);
    while idle_turns < TURNS {
        match poll_once(stream.write(&[1; 20_000])).await {
            Some(written) => (accepted, idle_turns) = (accepted + written.expect("an open connection"), 0),
            None => idle_turns += 1,
        }
        yield_now().await;
    }
    accepted
}

/// Returns how many bytes are received before the end, and whether the end is EOF.
async fn receive<F: StreamFamily>(stream: &mut StreamSocket<F>) -> (usize, io::Result<()>) {
    let mut received = 0;
    loop {
        match stream.recv().await {
            Ok(Some(chunk)) => received += chunk.len(),
            Ok(None) => return (received, Ok(())),
            Err(error) => return (received, Err(error)),
        }
    }
}

async fn until_only_peer_is_open() {
    while current_driver_metrics().unwrap().sockets > 1 {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Asserts that a peer that has received fewer bytes than were accepted knows it.
fn assert_reset(way: &str, accepted: usize, (received, end): (usize, io::Result<()>)) {
    assert!(received < accepted, "{way}: {received} of {accepted} bytes were received");
    let kind = end.expect_err(way).kind();
    assert_eq!(kind, ErrorKind::ConnectionReset, "{way}: {received} of {accepted} bytes were received");
}

/// A set-up on which a released stream is aborted after a short time without progress.
fn impatient(setup: &Setup) -> Setup {
    setup.with(|options| options.testing.linger = Duration::from_millis(30))
}

/// Polls the future once, and drops it. Returns whether it has completed.
fn is_ready<T>(future: impl Future<Output = T>) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

type End<F> = fn(StreamSocket<F>);

/// Ways to end a stream in a task.
fn ends<F: StreamFamily>() -> [(&'static str, End<F>); 10] {
    [
        ("abort", StreamSocket::abort),
        ("reset", |stream| stream.shutdown_handle().reset()),
        ("drop", drop),
        ("shutdown, then drop", |mut stream| assert!(is_ready(stream.shutdown()))),
        ("drop of both halves", |stream| drop(stream.into_split())),
        ("drop of the write half first", |stream| {
            let (reader, writer) = stream.into_split();
            drop(writer);
            drop(reader);
        }),
        ("shutdown by handle, then drop", |stream| stream.shutdown_handle().shutdown()),
        // These are cancelled, or fail on the simulated kernels.
        ("into_std", |stream| _ = is_ready(stream.into_std())),
        ("move_to", |stream| _ = is_ready(stream.move_to(&Handle::current(), async |stream| drop(stream)))),
        ("detach", |stream| _ = is_ready(DetachedStream::detach(stream))),
    ]
}

#[test]
fn peer_of_stream_that_discards_accepted_bytes_is_reset() {
    on_every_driver_and_sim(|setup| {
        for (way, end) in ends() {
            impatient(setup).run(async {
                let (mut client, mut server) = pair().await.unwrap();
                let accepted = fill(&mut client).await;
                end(client);
                until_only_peer_is_open().await;
                assert_reset(way, accepted, receive(&mut server).await);
            });
        }
    });
}

/// A Unix socket cannot be reset.
#[test]
fn peer_of_unix_stream_that_discards_accepted_bytes_receives_part_and_eof() {
    on_every_driver_and_sim(|setup| {
        for (way, end) in ends() {
            impatient(setup).run(async {
                let (mut client, mut server) = UnixStream::pair().unwrap();
                let accepted = fill(&mut client).await;
                end(client);
                until_only_peer_is_open().await;
                let (received, end) = receive(&mut server).await;
                end.expect(way);
                assert!((1..accepted).contains(&received), "{way}: {received} of {accepted} bytes");
            });
        }
    });
}

/// After an abort, the peer would take an EOF for the end of complete data.
#[test]
fn peer_of_aborted_stream_is_reset_although_everything_was_sent() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            client.write_all(b"part").await.unwrap();
            client.flush().await.unwrap();
            client.abort();
            let (_, end) = receive(&mut server).await;
            assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        });
    });
}

#[test]
fn task_that_waits_to_send_gets_an_error_when_a_handle_shuts_the_stream_down() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let handle = client.shutdown_handle();
            let mut accepted = fill(&mut client).await;
            let writer = spawn(async move {
                let error = client.write(&[1]).await.expect_err("the write direction is shut down");
                (client, error.kind())
            });
            yield_now().await;
            handle.shutdown();
            let (client, kind) = writer.await.unwrap();
            assert_eq!(kind, ErrorKind::BrokenPipe);
            // The accepted bytes are still sent.
            let (received, end) = receive(&mut server).await;
            accepted -= received;
            assert_eq!((accepted, end.is_ok()), (0, true));
            drop(client);
        });
    });
}

/// Otherwise, two tasks that send to each other without receiving could wait forever.
#[test]
fn task_that_flushes_gets_an_error_when_a_stream_that_was_shut_down_makes_no_progress() {
    on_every_driver_and_sim(|setup| {
        impatient(setup).run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let handle = client.shutdown_handle();
            let accepted = fill(&mut client).await;
            let flushing = spawn(async move { client.flush().await.expect_err("the peer does not read") });
            yield_now().await;
            handle.shutdown();
            flushing.await.unwrap();
            // Until the send in flight has been cancelled, it could still send everything.
            until_only_peer_is_open().await;
            assert_reset("shutdown by handle", accepted, receive(&mut server).await);
        });
    });
}

/// The peer takes much longer than the limit, which restarts with each byte.
#[test]
fn slow_peer_receives_everything_from_dropped_stream() {
    on_each(simulated_drivers(), |setup| {
        // Otherwise, the peer's driver receives bytes before they are read.
        let setup = setup.with(|options| {
            (options.max_received_chunks, options.receive_buffer_bytes) = (1, 1024);
        });
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let accepted = fill(&mut client).await;
            drop(client);
            let (mut received, mut bytes) = (0, vec![0; 1 << 20]);
            loop {
                sleep(Duration::from_secs(20)).await;
                match server.read(&mut bytes).await.expect("the stream is not aborted") {
                    0 => break,
                    count => received += count,
                }
            }
            assert_eq!(received, accepted);
        });
    });
}

/// The time between two bytes that the kernel takes is much shorter than the limit, and the time for all of them is longer.
/// The peer reads on the thread of the stream, so that a pause of this thread delays both. With submission polling, a pause
/// of the kernel's thread would delay the interruption of a send, which shows its progress, beyond the limit.
#[test]
fn peer_that_reads_for_longer_than_the_limit_receives_everything() {
    const LIMIT: Duration = Duration::from_secs(1);
    let mut setups = all_drivers();
    setups.retain(|setup| setup.options.submission_polling.is_none());
    on_each(setups, |setup| {
        let runtime = setup.with(|options| options.testing.linger = LIMIT).runtime();
        let (stream, accepted, mut peer) = filled(&runtime);
        peer.set_nonblocking(true).unwrap();
        let received = runtime.block_on(async {
            drop(stream);
            let (start, mut received, mut bytes) = (Instant::now(), 0, vec![0; 1 << 16]);
            loop {
                if start.elapsed() < 3 * LIMIT {
                    sleep(Duration::from_millis(10)).await;
                } else {
                    yield_now().await;
                }
                match peer.read(&mut bytes) {
                    Ok(0) => return received,
                    Ok(count) => received += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "after {received} bytes"),
                }
            }
        });
        assert_eq!(received, accepted);
    });
}

/// Returns a stream of the runtime with the number of bytes it has accepted, and its peer, which does not read.
fn filled(runtime: &Runtime) -> (TcpStream, usize, std::net::TcpStream) {
    let listener = StdListener::bind(ANY_PORT).unwrap();
    let (stream, accepted) = runtime.block_on(async {
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let accepted = fill(&mut stream).await;
        (stream, accepted)
    });
    (stream, accepted, listener.accept().unwrap().0)
}

fn read_to_end(mut peer: std::net::TcpStream) -> (usize, io::Result<()>) {
    let mut bytes = Vec::new();
    let end = peer.read_to_end(&mut bytes);
    (bytes.len(), end.map(drop))
}

#[test]
fn peer_is_reset_when_runtime_ends_before_everything_is_sent() {
    on_every_driver(|setup| {
        for drain in [Duration::ZERO, Duration::from_millis(30)] {
            let runtime = setup.builder().drain_timeout(drain).build().unwrap();
            let (stream, accepted, peer) = filled(&runtime);
            let task = runtime.spawn(async move {
                let _stream = stream;
                std::future::pending::<()>().await;
            });
            task.detach();
            drop(runtime);
            assert_reset("the task is dropped with the runtime", accepted, read_to_end(peer));

            let runtime = setup.builder().drain_timeout(drain).build().unwrap();
            let (stream, accepted, peer) = filled(&runtime);
            drop(runtime);
            assert_reset("the stream outlives the runtime", accepted, read_to_end(peer));
            drop(stream);

            let (ended, peer) = (RefCell::new(None), Rc::new(RefCell::new(None)));
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let runtime = setup.builder().drain_timeout(drain).build().unwrap();
                let (_stream, accepted, far) = filled(&runtime);
                ended.replace(Some(accepted));
                peer.replace(Some(far));
                std::panic::resume_unwind(Box::new("the worker panics"));
            }));
            assert!(panicked.is_err());
            let (accepted, peer) = (ended.take().unwrap(), peer.take().unwrap());
            assert_reset("panic", accepted, read_to_end(peer));
        }
    });
}

#[test]
fn runtime_that_ends_sends_everything_to_a_peer_that_reads() {
    on_every_driver(|setup| {
        let setup = &with_long_ack_timeout(setup);
        let runtime = setup.builder().drain_timeout(Duration::from_secs(3600)).build().unwrap();
        let (stream, accepted, peer) = filled(&runtime);
        let peer = std::thread::spawn(|| read_to_end(peer));
        drop((stream, runtime));
        let (received, end) = peer.join().unwrap();
        assert_eq!((received, end.is_ok()), (accepted, true));
    });
}

/// A way to end a thread that has a stream to the address. Reports the number of bytes that the stream has accepted.
type ThreadEnd = fn(RuntimeBuilder, SocketAddr, mpsc::Sender<usize>);

/// Starts a worker that ends, or panics, once its stream has accepted bytes. A task holds the stream.
fn end_worker(builder: RuntimeBuilder, address: SocketAddr, accepted: mpsc::Sender<usize>, panics: bool) {
    let workers = Workers::builder().unpinned_workers(1).runtime(builder).start(move |_| {
        let accepted = accepted.clone();
        async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            accepted.send(fill(&mut stream).await).unwrap();
            let task = async move {
                let _stream = stream;
                std::future::pending::<()>().await;
            };
            spawn(task).detach();
            if panics {
                resume_unwind(Box::new("the worker panics"));
            }
        }
    });
    assert_eq!(workers.unwrap().join().is_err(), panics);
}

/// Moves a stream that has accepted bytes to a worker that ends once it has accepted more.
fn end_worker_after_move(builder: RuntimeBuilder, address: SocketAddr, accepted: mpsc::Sender<usize>) {
    let (stop, stopped) = mpsc::channel::<()>();
    let stopped = std::sync::Mutex::new(Some(stopped));
    let workers = Workers::builder().unpinned_workers(1).runtime(builder.clone()).start(move |_| {
        let stopped = stopped.lock().unwrap().take().unwrap();
        async move { anello::spawn_blocking(move || stopped.recv().ok()).await.unwrap() }
    });
    let workers = workers.unwrap();
    builder.build().unwrap().block_on(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"before the move").await.unwrap();
        let serve = async move |mut stream: TcpStream| {
            let count = fill(&mut stream).await;
            accepted.send(b"before the move".len() + count).unwrap();
            drop(stop);
            std::future::pending::<()>().await;
            drop(stream);
        };
        stream.move_to(&workers.handles()[0], serve).await.unwrap().detach();
    });
    workers.join().unwrap();
}

const THREAD_ENDS: [(&str, ThreadEnd); 5] = [
    ("worker ends", |builder, address, accepted| end_worker(builder, address, accepted, false)),
    ("worker panics", |builder, address, accepted| end_worker(builder, address, accepted, true)),
    ("worker ends after a move", end_worker_after_move),
    ("stream is dropped, then the runtime", |builder, address, accepted| {
        builder.build().unwrap().block_on(async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            accepted.send(fill(&mut stream).await).unwrap();
        });
    }),
    ("stream is shut down, then the runtime is dropped", |builder, address, accepted| {
        builder.build().unwrap().block_on(async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            accepted.send(fill(&mut stream).await).unwrap();
            let (_reader, writer) = stream.into_split();
            drop(writer);
        });
    }),
];

#[test]
fn peer_is_reset_when_thread_ends_before_everything_is_sent() {
    on_every_driver(|setup| {
        for (way, end) in THREAD_ENDS {
            let listener = StdListener::bind(ANY_PORT).unwrap();
            let (sender, accepted) = mpsc::channel();
            let builder = setup.builder().drain_timeout(Duration::from_millis(30));
            end(builder, listener.local_addr().unwrap(), sender);
            let (peer, _) = listener.accept().unwrap();
            assert_reset(way, accepted.recv().unwrap(), read_to_end(peer));
        }
    });
}

#[test]
fn thread_that_ends_sends_everything_to_a_peer_that_reads() {
    on_every_driver(|setup| {
        let setup = &with_long_ack_timeout(setup);
        for (way, end) in THREAD_ENDS {
            let listener = StdListener::bind(ANY_PORT).unwrap();
            let address = listener.local_addr().unwrap();
            let (sender, accepted) = mpsc::channel();
            let peer = thread::spawn(move || {
                let (peer, _) = listener.accept().unwrap();
                let accepted: usize = accepted.recv().unwrap();
                (accepted, read_to_end(peer))
            });
            end(setup.builder().drain_timeout(Duration::from_secs(3600)), address, sender);
            let (accepted, (received, end)) = peer.join().unwrap();
            assert_eq!((received, end.is_ok()), (accepted, true), "{way}");
        }
    });
}

/// Detaching waits until everything is sent, so the new owner of the socket can close it.
#[test]
fn detached_stream_has_sent_everything() {
    type Detach = fn(TcpStream) -> Pin<Box<dyn Future<Output = ()>>>;
    const WAYS: [(&str, Detach); 3] = [
        ("into_std", |stream| Box::pin(async { drop(stream.into_std().await.unwrap()) })),
        ("move_to", |stream| {
            Box::pin(async {
                let moved = stream.move_to(&Handle::current(), async |stream| drop(stream)).await.unwrap();
                moved.await.unwrap().unwrap();
            })
        }),
        ("detach", |stream| Box::pin(async { drop(DetachedStream::detach(stream).await.unwrap()) })),
    ];
    on_every_driver(|setup| {
        for (way, detach) in WAYS {
            setup.run(async {
                let (mut client, mut server) = pair().await.unwrap();
                let accepted = fill(&mut client).await;
                let ((), (received, end)) = join(detach(client), receive(&mut server)).await;
                assert_eq!((received, end.is_ok()), (accepted, true), "{way}");
            });
        }
    });
}

/// Returns a stream of the event loop with the number of bytes it has accepted, and its peer, which does not read.
fn filled_in_loop(event_loop: &mut EventLoop) -> (StreamId, usize, std::net::TcpStream) {
    let listener = StdListener::bind(ANY_PORT).unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = event_loop.import_stream(stream, 0).unwrap();
    assert!(event_loop.send(stream, &mut Some(vec![1; LARGE].into())).is_ready());
    for _ in 0..TURNS {
        event_loop.turn(&mut Events::new(), Some(Duration::ZERO)).unwrap();
    }
    (stream, LARGE, listener.accept().unwrap().0)
}

#[test]
fn peer_of_event_loop_that_discards_accepted_bytes_is_reset() {
    on_every_driver(|setup| {
        for way in ["abort", "close", "drop", "close, then drop", "shutdown", "close, then shutdown"] {
            let mut event_loop = event_loops::open(&impatient(setup));
            let (stream, accepted, peer) = filled_in_loop(&mut event_loop);
            match way {
                "abort" => event_loop.abort(stream),
                "drop" | "shutdown" => {}
                _ => event_loop.close(stream),
            }
            if matches!(way, "abort" | "close") {
                let mut events = Events::new();
                while event_loop.metrics().sockets > 0 {
                    event_loop.turn(&mut events, Some(Duration::from_millis(1))).unwrap();
                }
            }
            if way.contains("shutdown") {
                event_loop.shutdown(Duration::from_millis(30)).unwrap();
            } else {
                drop(event_loop);
            }
            assert_reset(way, accepted, read_to_end(peer));
        }
    });
}

#[test]
fn event_loop_that_shuts_down_sends_everything_to_a_peer_that_reads() {
    on_every_driver(|setup| {
        let setup = &with_long_ack_timeout(setup);
        for is_closed in [false, true] {
            let mut event_loop = event_loops::open(setup);
            let (stream, accepted, peer) = filled_in_loop(&mut event_loop);
            if is_closed {
                event_loop.close(stream);
            }
            let peer = thread::spawn(|| read_to_end(peer));
            event_loop.shutdown(Duration::from_secs(3600)).unwrap();
            let (received, end) = peer.join().unwrap();
            assert_eq!((received, end.is_ok()), (accepted, true));
        }
    });
}

/// The kernel reports an error once, and then EOF. After a second receive, the data would appear complete.
#[test]
fn error_of_receive_is_returned_again() {
    type Receive = for<'a> fn(&'a mut TcpStream) -> Pin<Box<dyn Future<Output = io::Result<usize>> + 'a>>;
    const RECEIVES: [(&str, Receive); 3] = [
        ("recv", |stream| Box::pin(async { Ok(stream.recv().await?.map_or(0, |chunk| chunk.len())) })),
        ("read", |stream| Box::pin(async { stream.read(&mut [0; 9]).await })),
        ("peek", |stream| Box::pin(async { stream.peek(&mut [0; 9]).await })),
    ];
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            for (first, receive) in RECEIVES {
                for (second, receive_again) in RECEIVES {
                    let (mut stream, peer) = pair().await.unwrap();
                    peer.abort();
                    let way = format!("{} {first} {second}", setup.name);
                    assert_eq!(
                        receive(&mut stream).await.unwrap_err().kind(),
                        ErrorKind::ConnectionReset,
                        "{way}"
                    );
                    for _ in 0..2 {
                        let error = receive_again(&mut stream).await.expect_err(&way);
                        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{way}");
                    }
                    if !setup.name.starts_with("sim") {
                        let error = io::Error::from(stream.into_std().await.unwrap_err());
                        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{way}");
                    }
                }
            }
        });
    });
}

/// A write after the shutdown fails and has no other effect: the bytes that were accepted before arrive, and the
/// connection is not reset.
#[test]
fn write_after_shutdown_does_not_fail_the_stream() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (mut stream, mut peer) = pair().await.unwrap();
            stream.write_all(b"accepted").await.unwrap();
            stream.flush().await.unwrap();
            stream.shutdown().await.unwrap();
            let file = file_of(b"file");
            for round in 0..2 {
                let way = format!("{} {round}", setup.name);
                for error in [
                    stream.write(b"x").await.unwrap_err(),
                    stream.write(&[1; 100_000]).await.unwrap_err(),
                    stream.write_more(b"x").await.unwrap_err(),
                    stream.send("x").await.unwrap_err(),
                    stream.send(vec![1; 100_000]).await.unwrap_err(),
                    stream.send_vectored(["x", "y"]).await.unwrap_err(),
                    stream.send_file(&file, 0, 4).await.unwrap_err(),
                ] {
                    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{way}");
                }
                stream.flush().await.unwrap();
                stream.shutdown().await.unwrap();
            }
            assert_eq!(peer.recv().await.unwrap().as_deref(), Some(&b"accepted"[..]));
            assert!(peer.recv().await.unwrap().is_none());
            peer.write_all(b"answer").await.unwrap();
            peer.flush().await.unwrap();
            assert_eq!(stream.recv().await.unwrap().as_deref(), Some(&b"answer"[..]));
            drop(stream);
            assert!(peer.recv().await.unwrap().is_none(), "{}", setup.name);
            assert!(!peer.shutdown_handle().is_broken(), "{}", setup.name);
        });
    });
}

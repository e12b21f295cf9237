//! Ways in which a stream ends that has accepted bytes: its peer receives all of them and then EOF, or an error.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read};
use std::net::TcpListener as StdListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anello::event_loop::{EventLoop, Events, StreamId};
use anello::net::TcpStream;
use anello::time::sleep;
use anello::{Runtime, current_driver_metrics, spawn, yield_now};

use crate::common::*;

/// Sends more bytes than the kernel has room for to a peer that does not read. Returns their number.
async fn fill(stream: &mut TcpStream) -> usize {
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
async fn receive(stream: &mut TcpStream) -> (usize, io::Result<()>) {
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

type End = fn(TcpStream);

fn is_ready(future: impl Future<Output = io::Result<()>>) -> bool {
    matches!(pin!(future).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())))
}

/// Ways to end a stream in a task.
const ENDS: [(&str, End); 6] = [
    ("abort", TcpStream::abort),
    ("reset", |stream| stream.shutdown_handle().reset()),
    ("drop", drop),
    ("shutdown, then drop", |mut stream| assert!(is_ready(stream.shutdown()))),
    ("drop of both halves", |stream| drop(stream.into_split())),
    ("shutdown by handle, then drop", |stream| stream.shutdown_handle().shutdown()),
];

#[test]
fn peer_of_stream_that_discards_accepted_bytes_is_reset() {
    on_every_driver_and_sim(|setup| {
        for (way, end) in ENDS {
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
        let runtime = setup.builder().drain_timeout(Duration::from_secs(3600)).build().unwrap();
        let (stream, accepted, peer) = filled(&runtime);
        let peer = std::thread::spawn(|| read_to_end(peer));
        drop((stream, runtime));
        let (received, end) = peer.join().unwrap();
        assert_eq!((received, end.is_ok()), (accepted, true));
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
        for way in ["abort", "close", "drop", "close, then drop"] {
            let mut event_loop = event_loops::open(&impatient(setup));
            let (stream, accepted, peer) = filled_in_loop(&mut event_loop);
            match way {
                "abort" => event_loop.abort(stream),
                "drop" => {}
                _ => event_loop.close(stream),
            }
            if !way.contains("drop") {
                let mut events = Events::new();
                while event_loop.metrics().sockets > 0 {
                    event_loop.turn(&mut events, Some(Duration::from_millis(1))).unwrap();
                }
            }
            drop(event_loop);
            assert_reset(way, accepted, read_to_end(peer));
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

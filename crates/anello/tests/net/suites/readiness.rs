//! Peeking, waiting for readiness, operations that do not wait, `poll_accept`, and halves that are reunited.
//!
//! Shared by all stream families. Each test program defines its family as `super::family`.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::Poll;

use anello::io::{Interest, Ready};
use anello::net::SendBuf;
use anello::{JoinHandle, current_driver_metrics, spawn, yield_now};

use super::family::{Stream, connect, listen, on_every_setup, pair};
use crate::common::{Rng, TURNS, abandon, assert_same_bytes, pattern, poll_at_most};

fn is_would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Runs until no task can make progress.
async fn settle() {
    for _ in 0..TURNS {
        yield_now().await;
    }
}

/// Waits until the kernel has bytes for the stream, which no receive takes. Over TCP, it can process segments later than
/// the send. On simulated kernels, there is no descriptor.
async fn until_received(stream: &Stream) {
    let Ok(descriptor) = stream.try_clone_to_owned() else { return };
    while rustix::io::ioctl_fionread(&descriptor).unwrap() == 0 {
        yield_now().await;
    }
}

/// Returns `false` if the send queue still has no room when no task can make progress.
async fn becomes_writable(stream: &Stream) -> bool {
    for _ in 0..TURNS {
        if poll_at_most(1, stream.writable()).await.is_some() {
            return true;
        }
        yield_now().await;
    }
    false
}

/// Reads `count` bytes with `readable` and `try_read`.
async fn try_read_exact(stream: &Stream, count: usize) -> Vec<u8> {
    let mut received = vec![0; count];
    let mut filled = 0;
    while filled < count {
        stream.readable().await.unwrap();
        match stream.try_read(&mut received[filled..]) {
            Ok(0) => panic!("EOF after {filled} bytes"),
            Ok(count) => filled += count,
            Err(error) => assert!(is_would_block(&error), "{error}"),
        }
    }
    received
}

#[test]
fn abandoned_futures_do_not_take_the_wake_up_of_others() {
    on_every_setup(|setup| {
        for is_kept in [false, true] {
            setup.run(async {
                let (mut one, other) = pair().await.unwrap();
                let other = Rc::new(other);
                let mut buffer = [0; 1];
                let _kept = (abandon(other.readable(), is_kept), abandon(other.peek(&mut buffer), is_kept));
                let readable = |other: Rc<Stream>| async move { other.readable().await.unwrap() };
                let peek =
                    |other: Rc<Stream>| async move { assert_eq!(other.peek(&mut [0]).await.unwrap(), 1) };
                let mut tasks = Vec::new();
                for _ in 0..3 {
                    tasks.push(spawn(readable(Rc::clone(&other))));
                    tasks.push(spawn(peek(Rc::clone(&other))));
                }
                settle().await;
                one.write_all(b"x").await.unwrap();
                for task in tasks {
                    task.await.unwrap();
                }
            });
        }
    });
}

#[test]
fn peek_returns_bytes_that_later_receives_return_again() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut one, mut other) = pair().await.unwrap();
            let message = pattern(1, 1000);
            assert_eq!(other.peek(&mut []).await.unwrap(), 0);
            for part in message.chunks(90) {
                one.write_all(part).await.unwrap();
            }
            let mut first = [0; 5];
            let count = other.peek(&mut first).await.unwrap();
            assert_same_bytes(&first[..count], &message[..count]);
            // A buffer of any size is eventually filled, whatever the driver has received already.
            for length in [1, 64, 65, 200, 1000, 2000] {
                let mut peeked = vec![0; length];
                let expected = length.min(message.len());
                while other.peek(&mut peeked).await.unwrap() < expected {
                    yield_now().await;
                }
                assert_same_bytes(&peeked[..expected], &message[..expected]);
            }
            let mut received = vec![0; 300];
            other.read_exact(&mut received).await.unwrap();
            assert_same_bytes(&received, &message[..300]);
            let mut peeked = vec![0; 700];
            while other.peek(&mut peeked).await.unwrap() < 700 {
                yield_now().await;
            }
            assert_same_bytes(&peeked, &message[300..]);
            let mut rest = Vec::new();
            while rest.len() < 700 {
                rest.extend_from_slice(&other.recv().await.unwrap().expect("more bytes"));
            }
            assert_same_bytes(&rest, &message[300..]);
            assert!(poll_at_most(1, other.peek(&mut peeked)).await.is_none());
        });
    });
}

#[test]
fn peek_and_readable_report_half_close_and_write_half_stays_usable() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut one, mut other) = pair().await.unwrap();
            one.write_all(b"last").await.unwrap();
            one.shutdown().await.unwrap();
            settle().await;
            let mut buffer = [0; 9];
            while other.peek(&mut buffer).await.unwrap() < 4 {
                yield_now().await;
            }
            assert_eq!(&buffer[..4], b"last");
            other.readable().await.unwrap();
            assert_eq!(try_read_exact(&other, 4).await, b"last");
            for _ in 0..2 {
                other.readable().await.unwrap();
                assert_eq!(other.peek(&mut buffer).await.unwrap(), 0);
                other.readable().await.unwrap();
                let eof = loop {
                    match other.try_read(&mut buffer) {
                        Err(error) if is_would_block(&error) => other.readable().await.unwrap(),
                        result => break result.unwrap(),
                    }
                };
                assert_eq!(eof, 0);
                assert!(other.try_recv().unwrap().is_none());
                assert!(other.recv().await.unwrap().is_none());
            }
            other.writable().await.unwrap();
            assert_eq!(other.try_write(b"ciao").unwrap(), 4);
            assert_eq!(try_read_exact(&one, 4).await, b"ciao");
            // Writes after the shutdown fail, and `writable` reports that.
            one.writable().await.unwrap();
            assert_eq!(one.try_write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        });
    });
}

#[test]
fn ready_reports_directions_of_interest() {
    on_every_setup(|setup| {
        setup.run(async {
            let both = Interest::READABLE | Interest::WRITABLE;
            let (mut one, mut other) = pair().await.unwrap();
            assert!(poll_at_most(1, other.ready(Interest::READABLE)).await.is_none());
            assert_eq!(other.ready(both).await.unwrap(), Ready::WRITABLE);
            for unsupported in [Interest::PRIORITY, Interest::ERROR] {
                let error = other.ready(unsupported).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            }
            one.write_all(b"last").await.unwrap();
            assert_eq!(other.ready(Interest::READABLE | Interest::PRIORITY).await.unwrap(), Ready::READABLE);
            assert_eq!(other.ready(both).await.unwrap(), Ready::READABLE | Ready::WRITABLE);
            let mut received = [0; 4];
            other.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"last");
            one.shutdown().await.unwrap();
            let closed = Ready::WRITABLE | Ready::WRITE_CLOSED;
            assert_eq!(one.ready(Interest::WRITABLE).await.unwrap(), closed);
            let (reader, writer) = other.split();
            let at_eof = Ready::READABLE | Ready::READ_CLOSED;
            assert_eq!(reader.ready(Interest::READABLE).await.unwrap(), at_eof);
            assert_eq!(writer.ready(both).await.unwrap(), at_eof | Ready::WRITABLE);
        });
    });
}

#[test]
fn peek_and_readable_leave_error_for_next_receive() {
    on_every_setup(|setup| {
        setup.run(async {
            for reads_ready in [false, true] {
                let (mut one, mut other) = pair().await.unwrap();
                // A peer that closes its socket before it has read all bytes resets the connection.
                one.write_all(b"unread").await.unwrap();
                one.flush().await.unwrap();
                other.write_all(b"last").await.unwrap();
                other.flush().await.unwrap();
                until_received(&other).await;
                settle().await;
                drop(other);
                settle().await;
                let mut buffer = [0; 16];
                if reads_ready {
                    one.readable().await.unwrap();
                }
                // TCP discards received bytes at a reset, unless the driver has received them already.
                let mut received = 0;
                let error = loop {
                    match one.peek(&mut buffer).await {
                        Ok(0) => panic!("EOF instead of an error"),
                        Ok(count) => {
                            assert_eq!(&buffer[..count], &b"last"[received..][..count]);
                            one.readable().await.unwrap();
                            received += one.read(&mut buffer[..1]).await.unwrap();
                        }
                        Err(error) => break error,
                    }
                };
                assert!([0, 4].contains(&received));
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
                one.readable().await.unwrap();
                assert_eq!(one.peek(&mut buffer).await.unwrap_err().kind(), error.kind());
                let broken = Ready::READABLE | Ready::READ_CLOSED | Ready::ERROR;
                assert_eq!(one.ready(Interest::READABLE).await.unwrap(), broken);
                let result = match reads_ready {
                    false => one.recv().await.map(|_| 0),
                    true => one.try_read(&mut buffer),
                };
                assert_eq!(result.unwrap_err().kind(), error.kind());
            }
        });
    });
}

#[test]
fn every_waiting_task_is_woken_when_stream_becomes_readable() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut one, other) = pair().await.unwrap();
            let other = Rc::new(other);
            let mut waiting: Vec<JoinHandle<()>> = Vec::new();
            for number in 0..6 {
                let other = Rc::clone(&other);
                waiting.push(spawn(async move {
                    match number % 3 {
                        0 => other.readable().await.unwrap(),
                        1 => assert_eq!(other.ready(Interest::READABLE).await.unwrap(), Ready::READABLE),
                        _ => assert!(other.peek(&mut [0; 3]).await.unwrap() > 0),
                    }
                }));
            }
            settle().await;
            // Attempts that do not wait, and futures that are dropped, do not disturb the waiting tasks.
            assert!(is_would_block(&other.try_read(&mut [0; 3]).unwrap_err()));
            assert!(is_would_block(&other.try_recv().unwrap_err()));
            assert!(poll_at_most(1, other.readable()).await.is_none());
            waiting.remove(2).abort();
            settle().await;
            one.write_all(b"x").await.unwrap();
            for task in waiting {
                task.await.unwrap();
            }
            assert_eq!(try_read_exact(&other, 1).await, b"x");
        });
    });
}

#[test]
fn every_waiting_task_is_woken_when_send_queue_has_room() {
    on_every_setup(|setup| {
        setup.run(async {
            let (one, mut other) = pair().await.unwrap();
            one.writable().await.unwrap();
            let message = pattern(7, 1000);
            let mut sent = Vec::new();
            loop {
                let slices = [IoSlice::new(&message[..10]), IoSlice::new(&message[10..])];
                match one.try_write_vectored(&slices) {
                    Ok(count) => sent.extend_from_slice(&message[..count]),
                    // The queue may only be waiting for the next turn.
                    Err(error) if is_would_block(&error) => {
                        if !becomes_writable(&one).await {
                            break;
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            let one = Rc::new(one);
            let mut waiting: Vec<JoinHandle<()>> = Vec::new();
            for number in 0..4 {
                let one = Rc::clone(&one);
                waiting.push(spawn(async move {
                    match number % 2 {
                        0 => one.writable().await.unwrap(),
                        _ => assert_eq!(
                            one.ready(Interest::READABLE | Interest::WRITABLE).await.unwrap(),
                            Ready::WRITABLE
                        ),
                    }
                }));
            }
            settle().await;
            // With submission polling, another thread sends the queued bytes, possibly only now.
            match one.try_write(b"x") {
                Ok(count) => sent.extend_from_slice(&b"x"[..count]),
                Err(error) => assert!(is_would_block(&error), "{error}"),
            }
            let mut received = vec![0; sent.len()];
            other.read_exact(&mut received).await.unwrap();
            assert_same_bytes(&received, &sent);
            for task in waiting {
                task.await.unwrap();
            }
            assert_eq!(one.try_write(b"x").unwrap(), 1);
        });
    });
}

#[test]
fn fault_10_dropped_waits_lose_no_bytes_and_no_wakeups() {
    on_every_setup(|setup| {
        for seed in 0..4 {
            let mut random = Rng::with_seed(seed);
            setup.run(async move {
                let base = current_driver_metrics().unwrap().sockets;
                let (mut one, mut other) = pair().await.unwrap();
                let message = pattern(seed, 20_000);
                let expected = message.clone();
                let sending = spawn(async move {
                    let mut random = Rng::with_seed(!seed);
                    let mut sent = 0;
                    while sent < message.len() {
                        let part = &message[sent..][..random.usize(1..900).min(message.len() - sent)];
                        match random.usize(..5) {
                            0 => drop(poll_at_most(random.usize(..2), one.writable()).await),
                            4 => drop(poll_at_most(random.usize(..2), one.ready(Interest::WRITABLE)).await),
                            1 => match one.try_write(part) {
                                Ok(count) => sent += count,
                                Err(error) => assert!(is_would_block(&error), "{error}"),
                            },
                            2 => yield_now().await,
                            _ => {
                                one.send(SendBuf::from(part.to_vec())).await.unwrap();
                                sent += part.len();
                            }
                        }
                    }
                    one.shutdown().await.unwrap();
                    one
                });
                let mut received = Vec::new();
                loop {
                    let mut buffer = vec![0; random.usize(1..700)];
                    match random.usize(..7) {
                        0 => drop(poll_at_most(random.usize(..2), other.readable()).await),
                        6 => drop(poll_at_most(random.usize(..2), other.ready(Interest::READABLE)).await),
                        1 => {
                            if let Some(count) =
                                poll_at_most(random.usize(..2), other.peek(&mut buffer)).await
                            {
                                let count = count.unwrap();
                                assert_eq!(buffer[..count], expected[received.len()..][..count], "{seed}");
                            }
                        }
                        2 => match other.try_read(&mut buffer) {
                            Ok(count) => received.extend_from_slice(&buffer[..count]),
                            Err(error) => assert!(is_would_block(&error), "{error}"),
                        },
                        3 => match other.try_recv() {
                            Ok(Some(chunk)) => received.extend_from_slice(&chunk),
                            Ok(None) => break,
                            Err(error) => assert!(is_would_block(&error), "{error}"),
                        },
                        4 => match poll_at_most(random.usize(..2), other.recv()).await {
                            Some(Ok(None)) => break,
                            Some(chunk) => received.extend_from_slice(&chunk.unwrap().unwrap()),
                            None => {}
                        },
                        _ => yield_now().await,
                    }
                }
                assert_same_bytes(&received, &expected);
                drop((sending.await.unwrap(), other));
                while current_driver_metrics().unwrap().sockets > base {
                    yield_now().await;
                }
            });
        }
    });
}

#[test]
fn reset_through_handle_ends_waits_with_error() {
    on_every_setup(|setup| {
        setup.run(async {
            let (one, _other) = pair().await.unwrap();
            let (handle, one) = (one.shutdown_handle(), Rc::new(one));
            let waiting: Vec<_> = (0..2)
                .map(|_| {
                    let one = Rc::clone(&one);
                    spawn(async move { one.readable().await })
                })
                .collect();
            settle().await;
            handle.reset();
            for task in waiting {
                assert_eq!(task.await.unwrap().unwrap_err().kind(), io::ErrorKind::NotConnected);
            }
            assert!(one.try_read(&mut [0]).is_err_and(|error| !is_would_block(&error)));
            assert!(one.peek(&mut [0]).await.is_err() && one.try_write(b"x").is_err());
        });
    });
}

#[test]
fn fault_11_polled_accepts_lose_no_connection() {
    on_every_setup(|setup| {
        setup.run(async {
            let base = current_driver_metrics().unwrap().sockets;
            let mut listener = listen().unwrap();
            let seed = 0xacc_e97;
            let mut random = Rng::with_seed(seed);
            for _ in 0..20 {
                for _ in 0..random.usize(..3) {
                    let poll = poll_fn(|context| Poll::Ready(listener.poll_accept(context).is_pending()));
                    assert!(poll.await);
                    assert!(poll_at_most(random.usize(..2), listener.accept()).await.is_none());
                }
                let mut client = connect(&listener).await.unwrap();
                let mut server = match random.bool() {
                    false => listener.accept().await.unwrap(),
                    true => poll_fn(|context| listener.poll_accept(context)).await.unwrap(),
                };
                client.write_all(b"x").await.unwrap();
                assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"x"[..]), "{seed}");
            }
            drop(listener);
            while current_driver_metrics().unwrap().sockets > base {
                yield_now().await;
            }
        });
    });
}

#[test]
fn reunited_halves_form_stream_that_is_still_open() {
    on_every_setup(|setup| {
        setup.run(async {
            let (one, mut other) = pair().await.unwrap();
            let address = one.local_addr().unwrap();
            let (reader, mut writer) = one.into_split();
            assert_eq!(format!("{:?}", reader.local_addr().unwrap()), format!("{address:?}"));
            assert_eq!(
                format!("{:?}", writer.peer_addr().unwrap()),
                format!("{:?}", other.local_addr().unwrap())
            );
            writer.write_all(b"one").await.unwrap();
            let mut one = writer.reunite(reader).unwrap();
            one.write_all(b"two").await.unwrap();
            let mut received = [0; 6];
            other.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"onetwo");
            other.write_all(b"back").await.unwrap();
            assert_eq!(try_read_exact(&one, 4).await, b"back");
            // Halves of different streams are returned, and are still usable.
            let (reader, writer) = one.into_split();
            let (other_reader, other_writer) = other.into_split();
            let error = reader.reunite(other_writer).unwrap_err();
            assert!(error.to_string().contains("different streams"));
            let (reader, mut other_writer) = (error.read, error.write);
            other_writer.write_all(b"last").await.unwrap();
            let mut other = other_reader.reunite(other_writer).unwrap();
            let one = reader.reunite(writer).unwrap();
            assert_eq!(try_read_exact(&one, 4).await, b"last");
            drop(one);
            assert!(other.recv().await.unwrap().is_none());
        });
    });
}

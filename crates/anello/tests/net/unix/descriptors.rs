//! Descriptors that are sent through Unix streams, and the pidfd of the peer.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;

use anello::net::{UnixDatagram, UnixStream};
use anello::{current_driver_metrics, spawn, yield_now};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::SockRef;

use super::family::{on_every_setup, pair};
use crate::common::{
    Rng, assert_same_bytes, in_own_process, on_both_drivers, on_every_driver, pattern, poll_at_most,
};

/// Returns a pipe whose write end, once sent, can be checked from the read end.
fn pipe() -> (PipeReader, PipeWriter) {
    io::pipe().unwrap()
}

/// Receives bytes and all descriptors that were sent with them.
async fn recv_with_fds(stream: &mut UnixStream, buffer: &mut [u8]) -> (usize, Vec<OwnedFd>) {
    let mut fds = Vec::new();
    let info = stream.recv_with_fds(buffer, &mut fds).await.unwrap();
    assert!(!info.are_fds_truncated);
    (info.bytes, fds)
}

/// Asserts that the descriptor is the write end of this pipe and the only one.
fn assert_only_write_end(descriptor: OwnedFd, mut reader: PipeReader) {
    let mut writer = PipeWriter::from(descriptor);
    writer.write_all(b"through the pipe").unwrap();
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through the pipe");
}

#[test]
fn descriptors_arrive_with_their_byte_after_queued_bytes() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut one, mut other) = pair().await.unwrap();
            let message = pattern(1, 400_000);
            let (reader, writer) = pipe();
            let expected = message.clone();
            let sending = spawn(async move {
                // More bytes than the kernel takes in one call.
                one.send(message).await.unwrap();
                assert_eq!(one.send_with_fds(b"x", &[writer.as_fd()]).await.unwrap(), 1);
                one.write_all(b"after").await.unwrap();
                one
            });
            let mut received = Vec::new();
            let mut descriptors = Vec::new();
            while received.len() < expected.len() + 6 {
                let mut buffer = [0; 5000];
                // Neither method takes descriptors.
                other.readable().await.unwrap();
                assert!(other.peek(&mut buffer).await.unwrap() > 0);
                let (count, more) = recv_with_fds(&mut other, &mut buffer).await;
                let range = received.len()..received.len() + count;
                assert_eq!(!more.is_empty(), range.contains(&expected.len()), "{range:?}");
                received.extend_from_slice(&buffer[..count]);
                descriptors.extend(more);
            }
            assert_same_bytes(&received, &[&expected[..], b"xafter"].concat());
            assert_eq!(descriptors.len(), 1);
            assert_only_write_end(descriptors.remove(0), reader);
            drop(sending.await.unwrap());
            assert_eq!(recv_with_fds(&mut other, &mut [0; 9]).await.0, 0, "EOF");
        });
    });
}

#[test]
fn other_receives_close_descriptors_and_keep_bytes() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut one, mut other) = pair().await.unwrap();
            for by_read in [false, true] {
                let (mut reader, writer) = pipe();
                one.send_with_fds(b"abc", &[writer.as_fd()]).await.unwrap();
                drop(writer);
                let mut buffer = [0; 1];
                if by_read {
                    assert_eq!(other.read(&mut buffer).await.unwrap(), 1);
                    // The rest of the same message is returned first, without descriptors.
                    let mut rest = [0; 9];
                    let (count, descriptors) = recv_with_fds(&mut other, &mut rest).await;
                    assert_eq!((&rest[..count], descriptors.len()), (&b"bc"[..], 0));
                } else {
                    assert_eq!(other.recv().await.unwrap().as_deref(), Some(&b"abc"[..]));
                }
                assert_eq!(reader.read(&mut buffer).unwrap(), 0, "the write end is closed");
            }
            let (reader, writer) = pipe();
            one.send_with_fds(b"x", &[writer.as_fd()]).await.unwrap();
            drop(writer);
            let (_, mut descriptors) = recv_with_fds(&mut other, &mut [0; 9]).await;
            assert_only_write_end(descriptors.remove(0), reader);
        });
    });
}

#[test]
fn invalid_descriptor_messages_fail_and_stream_stays_usable() {
    on_every_setup(|setup| {
        setup.run(async {
            let (mut one, mut other) = pair().await.unwrap();
            let file = File::open("/dev/null").unwrap();
            let error = one.send_with_fds(b"", &[file.as_fd()]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let error = one.send_with_fds(b"x", &vec![file.as_fd(); 254]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            one.send_with_fds(b"most", &vec![file.as_fd(); 253]).await.unwrap();
            let mut buffer = [0; 9];
            let (count, descriptors) = recv_with_fds(&mut other, &mut buffer).await;
            assert_eq!((&buffer[..count], descriptors.len()), (&b"most"[..], 253));
            one.send_with_fds(b"none", &[]).await.unwrap();
            let (count, descriptors) = recv_with_fds(&mut other, &mut buffer).await;
            assert_eq!((&buffer[..count], descriptors.len()), (&b"none"[..], 0));
            assert_eq!(recv_with_fds(&mut other, &mut []).await.0, 0);
            one.shutdown().await.unwrap();
            let error = one.send_with_fds(b"x", &[file.as_fd()]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            assert_eq!(recv_with_fds(&mut other, &mut buffer).await.0, 0);
            drop(other);
        });
    });
}

#[test]
fn fault_10_dropped_futures_lose_no_descriptors() {
    on_every_setup(|setup| {
        let seed = 0xf0_0d5;
        setup.run(async move {
            let mut random = Rng::with_seed(seed);
            let base = current_driver_metrics().unwrap().sockets;
            let (mut one, mut other) = pair().await.unwrap();
            one.set_send_buffer_size(5000).unwrap();
            let (mut sent, mut received, mut fillers, mut pending) = (0, 0, 0, Vec::new());
            let filler = pattern(seed, 3000);
            let mut buffer = [0; 700];
            while received < 60 {
                if sent < 60 && random.bool() {
                    let (reader, writer) = pipe();
                    // The full socket buffer delays some of the messages. Without a limit, a slow kernel thread would
                    // never send all filler, for which the messages wait.
                    if fillers <= sent && random.usize(..8) == 0 {
                        fillers += 1;
                        drop(poll_at_most(1, one.write_all(&filler)).await);
                    }
                    if poll_at_most(random.usize(..2), one.send_with_fds(b"!", &[writer.as_fd()]))
                        .await
                        .is_some_and(|result| result.is_ok())
                    {
                        sent += 1;
                        pending.push(reader);
                    }
                }
                let received_now =
                    poll_at_most(random.usize(..2), recv_with_fds(&mut other, &mut buffer)).await;
                if let Some(result) = received_now {
                    for descriptor in result.1 {
                        received += 1;
                        assert_only_write_end(descriptor, pending.remove(0));
                    }
                }
                yield_now().await;
            }
            assert_eq!(received, sent, "seed {seed:#x}");
            drop((one, other));
            while current_driver_metrics().unwrap().sockets > base {
                yield_now().await;
            }
        });
    });
}

/// A receive stops after descriptors and before urgent data. The messages of a burst wake the receiver one by one or
/// together.
#[test]
fn bursts_of_messages_at_which_receives_stop_are_received_completely() {
    on_every_driver(|setup| {
        let seed = 0xb0_457;
        setup.run(async move {
            let mut random = Rng::with_seed(seed);
            let (std_sender, receiver) = StdStream::pair().unwrap();
            let mut sender = UnixStream::from_std(std_sender.try_clone().unwrap()).unwrap();
            let mut receiver = UnixStream::from_std(receiver).unwrap();
            let (_reader, writer) = pipe();
            for burst in 0..300 {
                let (mut expected, mut received) = (Vec::new(), Vec::new());
                if random.bool() {
                    // The driver then waits for events.
                    assert!(poll_at_most(1, receiver.recv()).await.is_none());
                }
                for byte in 0..random.u8(1..5) {
                    expected.push(byte);
                    match random.usize(..3) {
                        0 => (&std_sender).write_all(&[byte]).unwrap(),
                        // Not all kernels have urgent data on Unix sockets.
                        1 if SockRef::from(&std_sender).send_out_of_band(&[byte]).is_ok() => {}
                        _ => {
                            let sent = sender.send_with_fds(&[byte], &[writer.as_fd()]).await.unwrap();
                            assert_eq!(sent, 1);
                        }
                    }
                    for _ in 0..random.usize(..3) {
                        yield_now().await;
                    }
                    let polls = random.usize(..2);
                    received.extend(
                        poll_at_most(polls, receive(&mut receiver, &mut random)).await.unwrap_or_default(),
                    );
                }
                while received.len() < expected.len() {
                    received.extend(receive(&mut receiver, &mut random).await);
                }
                assert_eq!(received, expected, "{}, seed {seed:#x}, burst {burst}", setup.name);
            }
            drop((std_sender, sender));
            assert!(receiver.recv().await.unwrap().is_none());
        });
    });
}

/// Receives with a random method and buffer size.
async fn receive(stream: &mut UnixStream, random: &mut Rng) -> Vec<u8> {
    let mut buffer = [0; 64];
    let length = if random.bool() { 1 } else { buffer.len() };
    let count = match random.usize(..3) {
        0 => recv_with_fds(stream, &mut buffer[..length]).await.0,
        1 => stream.read(&mut buffer[..length]).await.unwrap(),
        _ => return stream.recv().await.unwrap().unwrap().to_vec(),
    };
    buffer[..count].to_vec()
}

#[test]
fn pidfd_refers_to_peer() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (one, _other) = UnixStream::pair().unwrap();
            match one.peer_pidfd() {
                Ok(pidfd) => {
                    let id = pidfd.try_clone().unwrap();
                    let pid = rustix::process::getpid();
                    let info = std::fs::read_to_string(format!(
                        "/proc/self/fdinfo/{}",
                        std::os::fd::AsRawFd::as_raw_fd(&id)
                    ));
                    let expected = format!("Pid:\t{}\n", pid.as_raw_nonzero());
                    assert!(info.unwrap().contains(&expected));
                }
                // Before Linux 6.5.
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
            }
        });
    });
}

/// Runs in a child process, because the limit applies to the process.
#[test]
fn descriptors_that_cannot_be_opened_are_reported() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            setup.run(async {
                let (mut one, mut other) = pair().await.unwrap();
                let file = File::open("/dev/null").unwrap();
                one.send_with_fds(b"three", &[file.as_fd(); 3]).await.unwrap();
                other.readable().await.unwrap();
                let (sender, receiver) = UnixDatagram::pair().unwrap();
                sender.send_with_fds(b"datagram", &[file.as_fd(); 2]).await.unwrap();
                let limit = getrlimit(Resource::Nofile);
                setrlimit(Resource::Nofile, Rlimit { current: Some(100), ..limit }).unwrap();
                let mut files = Vec::new();
                while let Ok(file) = file.try_clone() {
                    files.push(file);
                }
                files.pop();
                let (mut buffer, mut fds) = ([0; 9], Vec::new());
                let info = other.recv_with_fds(&mut buffer, &mut fds).await.unwrap();
                assert_eq!(
                    (&buffer[..info.bytes], fds.len(), info.are_fds_truncated),
                    (&b"three"[..], 1, true)
                );
                let info = receiver.recv_with_fds(&mut buffer, &mut fds).await.unwrap();
                assert_eq!((info.bytes, fds.len()), (8, 1), "no descriptor is free");
                assert!(info.are_fds_truncated && !info.is_truncated);
                setrlimit(Resource::Nofile, limit).unwrap();
                one.send_with_fds(b"two", &[file.as_fd(); 2]).await.unwrap();
                assert_eq!(recv_with_fds(&mut other, &mut buffer).await.1.len(), 2);
            });
        });
    });
}

//! Features of Unix streams that the suites of all stream families do not cover.

use std::fs;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use crate::common::echo;
use anello::net::{TcpStream, UnixListener, UnixStream};
use anello::{ZeroCopy, current_driver_metrics, spawn, yield_now};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use sha2::{Digest, Sha256};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::family::{any_address, connect, listen, pair};
use super::socket_path::{SocketPath, path_of};
use crate::common::usage::usage;
use crate::common::{
    Flag, Rng, assert_same_bytes, hang_timeout, in_own_process, on_both_drivers, on_each, on_every_driver,
    pattern, poll_at_most, short_or_long, simulated_drivers,
};

const MEGABYTE: usize = 1 << 20;

/// Returns a runtime stream and the standard-library stream connected to it. The latter has read and write timeouts.
async fn with_std() -> (UnixStream, StdStream) {
    let listener = listen().unwrap();
    let peer = StdStream::connect_addr(&listener.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(hang_timeout())).unwrap();
    peer.set_write_timeout(Some(hang_timeout())).unwrap();
    (listener.accept().await.unwrap(), peer)
}

#[test]
fn paths_and_abstract_names() {
    on_every_driver(|setup| {
        let path = SocketPath::new("addresses");
        setup.run(async {
            let listener = UnixListener::bind(&path.0).unwrap();
            assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(&*path.0));
            let mut client = UnixStream::connect(&path.0).await.unwrap();
            let mut server = listener.accept().await.unwrap();
            assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(&*path.0));
            assert_eq!(server.local_addr().unwrap().as_pathname(), Some(&*path.0));
            assert!(client.local_addr().unwrap().is_unnamed() && server.peer_addr().unwrap().is_unnamed());
            client.write_all(b"ciao").await.unwrap();
            assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"ciao"[..]));
            for stream in [&client, &server] {
                let peer = stream.peer_cred().unwrap();
                assert_eq!(peer.pid, Some(std::process::id()));
                assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
                assert_eq!(peer.gid, rustix::process::getegid().as_raw());
            }
            let address = any_address();
            let listener = UnixListener::bind_addr(&address).unwrap();
            assert_eq!(listener.local_addr().unwrap().as_abstract_name(), address.as_abstract_name());
            let client = UnixStream::connect_addr(&address).await.unwrap();
            assert_eq!(client.peer_addr().unwrap().as_abstract_name(), address.as_abstract_name());
            // As in tokio, a path that begins with a zero byte is an abstract name.
            let client = UnixStream::connect(path_of(&address)).await.unwrap();
            assert_eq!(client.peer_addr().unwrap().as_abstract_name(), address.as_abstract_name());
            let address = any_address();
            let listener = UnixListener::bind(path_of(&address)).unwrap();
            assert_eq!(listener.local_addr().unwrap().as_abstract_name(), address.as_abstract_name());
        });
        fs::remove_file(&path.0).unwrap();
    });
}

#[test]
fn errors_contain_path_and_remedy() {
    on_both_drivers(|setup| {
        let path = SocketPath::new("errors");
        setup.run(async {
            let named = |error: &io::Error| error.to_string().contains(path.0.to_str().unwrap());
            let error = UnixStream::connect(&path.0).await.unwrap_err();
            assert!(error.kind() == io::ErrorKind::NotFound && named(&error), "{error}");
            drop(StdListener::bind(&path.0).unwrap());
            let error = UnixStream::connect(&path.0).await.unwrap_err();
            assert!(error.kind() == io::ErrorKind::ConnectionRefused && named(&error), "{error}");
            let error = UnixListener::bind(&path.0).unwrap_err();
            assert!(error.kind() == io::ErrorKind::AddrInUse && named(&error), "{error}");
            assert!(error.to_string().contains("remove"), "{error}");
            let long = "x".repeat(200);
            for error in
                [UnixListener::bind(&long).unwrap_err(), UnixStream::connect(&long).await.unwrap_err()]
            {
                assert!(error.kind() == io::ErrorKind::InvalidInput && error.to_string().contains(&long));
            }
            let unnamed = StdStream::pair().unwrap().0.local_addr().unwrap();
            let failed: [io::Result<()>; 2] = [
                UnixListener::bind_addr(&unnamed).map(drop),
                UnixStream::connect_addr(&unnamed).await.map(drop),
            ];
            assert!(failed.into_iter().all(|one| one.unwrap_err().kind() == io::ErrorKind::InvalidInput));
            let address = any_address();
            let _listener = UnixListener::bind_addr(&address).unwrap();
            let error = UnixListener::bind_addr(&address).unwrap_err();
            assert!(
                error.kind() == io::ErrorKind::AddrInUse && error.to_string().contains("@anello"),
                "{error}"
            );
        });
    });
}

#[test]
fn simulated_listener_releases_its_path() {
    on_each(simulated_drivers(), |setup| {
        let path = SocketPath::new("simulated");
        setup.run(async {
            let error = UnixStream::connect(&path.0).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            let listener = UnixListener::bind(&path.0).unwrap();
            assert!(!path.0.exists());
            assert_eq!(UnixListener::bind(&path.0).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            let mut waiting = UnixStream::connect(&path.0).await.unwrap();
            drop(listener);
            assert_eq!(waiting.recv().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            drop(UnixListener::bind(&path.0).unwrap());
        });
    });
}

#[test]
fn connect_waits_for_full_backlog() {
    on_every_driver(|setup| {
        setup.run(async {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            let path = SocketPath::new("backlog");
            socket.bind(&SockAddr::unix(&path.0).unwrap()).unwrap();
            socket.listen(0).unwrap();
            let mut clients = vec![UnixStream::connect(&path.0).await.unwrap()];
            let base = current_driver_metrics().unwrap().sockets;
            let waiting = UnixStream::connect(&path.0);
            assert!(poll_at_most(3, waiting).await.is_none(), "{}: the backlog had room", setup.name);
            assert_eq!(
                current_driver_metrics().unwrap().sockets,
                base,
                "an abandoned connect must not leak a socket"
            );
            let later = path.0.clone();
            let connecting = spawn(async move { UnixStream::connect(later).await });
            yield_now().await;
            let listener = UnixListener::from_std(StdListener::from(socket)).unwrap();
            let mut servers = Vec::new();
            for _ in 0..2 {
                servers.push(listener.accept().await.unwrap());
            }
            clients.push(connecting.await.unwrap().unwrap());
            for (client, server) in clients.iter_mut().zip(&mut servers) {
                client.write_all(b"here").await.unwrap();
                assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"here"[..]));
            }
        });
    });
}

/// All buffers fill up. No bytes may be lost, and the send queue must stay within its limit.
#[test]
fn long_stream_to_stalled_reader() {
    on_every_driver(|setup| {
        let total = if setup.options.max_send_queue_bytes > 1000 { 2 * MEGABYTE } else { MEGABYTE / 2 };
        setup.run(async {
            let (mut stream, mut peer) = with_std().await;
            let echoing = spawn(async move { echo(&mut stream).await });
            let mut writer = peer.try_clone().unwrap();
            let writing = thread::spawn(move || {
                let (block, mut hash) = (pattern(8, 100_003), Sha256::new());
                let mut left = total;
                while left > 0 {
                    let part = &block[..block.len().min(left)];
                    writer.write_all(part).unwrap();
                    hash.update(part);
                    left -= part.len();
                }
                writer.shutdown(std::net::Shutdown::Write).unwrap();
                hash.finalize()
            });
            // The peer reads nothing until the echo task has made no progress during several checks.
            let (mut last, mut still) = (0, 0);
            while still < 5 {
                anello::time::sleep(Duration::from_millis(2)).await;
                let now = current_driver_metrics().unwrap().receives;
                still = if now == last { still + 1 } else { 0 };
                last = now;
            }
            let ended = Flag::default();
            let raised = ended.clone();
            let reading = thread::spawn(move || {
                let (mut hash, mut buffer, mut received) = (Sha256::new(), vec![0; 70_000], 0);
                while let Ok(count @ 1..) = peer.read(&mut buffer) {
                    hash.update(&buffer[..count]);
                    received += count;
                }
                raised.raise();
                (received, hash.finalize())
            });
            assert_eq!(echoing.await.unwrap().unwrap(), total as u64, "{}", setup.name);
            // The runtime must run until the connection is closed.
            ended.wait().await;
            let (received, hash) = reading.join().unwrap();
            assert_eq!(received, total);
            assert_eq!(hash, writing.join().unwrap(), "the received bytes differ");
        });
    });
}

#[test]
fn closed_peer_returns_error_without_signal() {
    in_own_process(|| {
        // Detects SIGPIPE, which Rust programs ignore by default, but which would kill other programs.
        let broken_pipes = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGPIPE, std::sync::Arc::clone(&broken_pipes))
            .unwrap();
        on_every_driver(|setup| {
            setup.run(async {
                // The peer has closed its socket: writing fails with a broken pipe, and reading returns EOF.
                let (mut stream, peer) = with_std().await;
                drop(peer);
                let written = match stream.write(b"nobody").await {
                    Ok(_) => stream.flush().await,
                    Err(error) => Err(error),
                };
                assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe, "{}", setup.name);
                assert!(stream.send(pattern(1, 100_000)).await.is_err(), "the error must be permanent");
                // The peer has closed its socket with unread bytes, which resets the connection.
                let (mut stream, peer) = with_std().await;
                stream.write_all(b"unread").await.unwrap();
                stream.flush().await.unwrap();
                drop(peer);
                let error = stream.recv().await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{}", setup.name);
                // The peer closes its socket while many bytes are in flight.
                let (mut stream, peer) = with_std().await;
                let sending = spawn(async move {
                    loop {
                        if let Err(error) = stream.send(vec![1; 50_000]).await {
                            return error.kind();
                        }
                    }
                });
                for _ in 0..5 {
                    yield_now().await;
                }
                drop(peer);
                let kind = sending.await.unwrap();
                assert!(matches!(kind, io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset), "{kind}");
            });
        });
        assert!(!broken_pipes.load(std::sync::atomic::Ordering::SeqCst), "SIGPIPE");
    });
}

#[test]
fn descriptors_are_not_leaked() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            let runtime = setup.runtime();
            runtime.block_on(open_and_close_connections(1, 200));
            let before = usage();
            runtime.block_on(open_and_close_connections(2, short_or_long(500, 2000)));
            assert_eq!(usage().descriptors, before.descriptors, "{}", setup.name);
        });
    });
}

/// Opens connections that end in different ways, and drops futures before they complete. No socket may remain at the
/// end.
async fn open_and_close_connections(seed: u64, count: usize) {
    let listener = Rc::new(listen().unwrap());
    let base = current_driver_metrics().unwrap().sockets;
    let mut random = Rng::with_seed(seed);
    for _ in 0..count {
        let mut client = connect(&listener).await.unwrap();
        let mut server = listener.accept().await.unwrap();
        drop(poll_at_most(1, server.recv()).await);
        let size = 1 + random.usize(..200_000);
        client.send(pattern(seed, size)).await.unwrap();
        drop(poll_at_most(random.usize(..3), server.recv()).await);
        match random.usize(..5) {
            0 => client.abort(),
            1 => server.abort(),
            2 => client.shutdown_handle().shutdown(),
            3 => drop(poll_at_most(1, client.shutdown()).await),
            _ => drop(poll_at_most(1, listener.accept()).await),
        }
    }
    while current_driver_metrics().unwrap().sockets > base {
        anello::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A read stops after descriptors, so a short read does not mean that the socket is empty.
#[test]
fn bytes_after_descriptors_arrive() {
    on_every_driver(|setup| {
        setup.run(async {
            let (mut stream, mut peer) = with_std().await;
            for early in [true, false] {
                let send = |peer: &mut StdStream| {
                    let (file, mut space) =
                        (fs::File::open("/dev/null").unwrap(), [MaybeUninit::uninit(); 64]);
                    let mut control = SendAncillaryBuffer::new(&mut space);
                    let files = [file.as_fd()];
                    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
                    let sent = rustix::net::sendmsg(
                        &*peer,
                        &[IoSlice::new(b"with a file")],
                        &mut control,
                        SendFlags::empty(),
                    );
                    assert_eq!(sent.unwrap(), 11);
                    peer.write_all(b", and behind it").unwrap();
                };
                if early {
                    send(&mut peer);
                }
                let mut received = [0; 26];
                let reading = spawn(async move {
                    stream.read_exact(&mut received).await.unwrap();
                    (stream, received)
                });
                yield_now().await;
                if !early {
                    send(&mut peer);
                }
                (stream, received) = reading.await.unwrap();
                assert_eq!(&received, b"with a file, and behind it", "{}", setup.name);
            }
        });
    });
}

#[test]
fn urgent_byte_arrives_in_order() {
    on_every_driver(|setup| {
        setup.run(async {
            for pair in 0..2 {
                let (mut stream, mut peer) = if pair == 0 {
                    with_std().await
                } else {
                    let listener = StdListener::bind_addr(&any_address()).unwrap();
                    let stream = UnixStream::connect_addr(&listener.local_addr().unwrap()).await.unwrap();
                    (stream, listener.accept().unwrap().0)
                };
                if let Err(error) = SockRef::from(&peer).send_out_of_band(b"?") {
                    return eprintln!("skipped: this kernel has no urgent data on Unix sockets: {error}");
                }
                peer.write_all(b"before").unwrap();
                SockRef::from(&peer).send_out_of_band(b"!").unwrap();
                peer.write_all(b"behind").unwrap();
                let mut received = [0; 14];
                stream.read_exact(&mut received).await.unwrap();
                assert_eq!(&received, b"?before!behind", "{}", setup.name);
            }
        });
    });
}

/// Features missing on Unix sockets must stay available for TCP connections.
#[test]
fn zero_copy_sends_are_used_only_on_tcp() {
    on_both_drivers(|setup| {
        let setup = setup.with(|options| options.zero_copy = ZeroCopy::Always { threshold_bytes: 1000 });
        setup.run(async {
            let message = pattern(4, 50_000);
            let (mut client, mut server) = pair().await.unwrap();
            client.send(message.clone()).await.unwrap();
            let mut received = vec![0; message.len()];
            server.read_exact(&mut received).await.unwrap();
            assert_same_bytes(&received, &message);
            assert_eq!(current_driver_metrics().unwrap().zero_copy_sends, 0);
            let (mut client, mut server): (TcpStream, TcpStream) = crate::common::pair().await.unwrap();
            client.send(message.clone()).await.unwrap();
            server.read_exact(&mut received).await.unwrap();
            assert_same_bytes(&received, &message);
            let expected = setup.is_uring() && anello::current_driver().unwrap().features.contains("send-zc");
            assert_eq!(current_driver_metrics().unwrap().zero_copy_sends > 0, expected, "{}", setup.name);
        });
    });
}

#[test]
fn streams_and_listeners_convert_to_and_from_standard_library() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = StdListener::bind_addr(&any_address()).unwrap();
            let address: SocketAddr = listener.local_addr().unwrap();
            let mut early = StdStream::connect_addr(&address).unwrap();
            let listener = UnixListener::from_std(listener).unwrap();
            assert_eq!(listener.local_addr().unwrap().as_abstract_name(), address.as_abstract_name());
            let mut stream = listener.accept().await.unwrap();
            early.write_all(b"taken, left over").unwrap();
            let mut first = [0; 6];
            stream.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"taken,");
            let message = pattern(3, 500_000);
            stream.send(message.clone()).await.unwrap();
            let reading = thread::spawn(move || {
                let mut received = vec![0; 500_000];
                early.read_exact(&mut received).map(|()| (early, received))
            });
            let (mut stream, left) = stream.into_std().await.unwrap();
            let (mut early, received) = reading.join().unwrap().unwrap();
            assert_same_bytes(&received, &message);
            // The stream is in blocking mode, and `read_exact` calls `read` as often as needed.
            let mut rest = vec![0; 10 - left.len()];
            stream.read_exact(&mut rest).unwrap();
            assert_eq!([left, rest].concat(), b" left over");
            let mut again = UnixStream::from_std(stream).unwrap();
            early.write_all(b"back").unwrap();
            let mut received = [0; 4];
            again.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"back");
            again.set_send_buffer_size(10_000).unwrap();
            drop(again);
            assert_eq!(early.read(&mut received).unwrap(), 0);
        });
    });
}

//! Conversions to and from the standard library, and shared descriptors.

use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketType};

use super::*;

#[test]
fn streams_convert_to_and_from_standard_library() {
    on_every_driver(|setup| {
        setup.run(async {
            let (mut stream, mut peer) = with_std().await;
            peer.write_all(b"taken, left over").unwrap();
            let mut first = [0; 6];
            stream.read_exact(&mut first).await.unwrap();
            // All accepted bytes are sent before the conversion, regardless of their number.
            let message = pattern(3, 500_000);
            stream.send(message.clone()).await.unwrap();
            let reading = thread::spawn(move || {
                let mut received = vec![0; 500_000];
                peer.read_exact(&mut received).map(|()| (peer, received))
            });
            let (mut stream, left) = stream.into_std().await.unwrap();
            let (mut peer, received) = reading.join().unwrap().unwrap();
            assert_same_bytes(&received, &message);
            // The stream is in blocking mode, and `read_exact` calls `read` as often as needed.
            let mut rest = vec![0; 10 - left.len()];
            stream.read_exact(&mut rest).unwrap();
            assert_eq!([left, rest].concat(), b" left over");
            stream.write_all(b"blocking").unwrap();
            let mut answer = [0; 8];
            peer.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"blocking");
            let mut again = TcpStream::from_std(stream).unwrap();
            peer.write_all(b"back").unwrap();
            let mut received = [0; 4];
            again.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"back");
            again.write_all(b"here").await.unwrap();
            again.flush().await.unwrap();
            peer.read_exact(&mut received).unwrap();
            assert_eq!(&received, b"here");
        });
    });
}

#[test]
fn leftover_bytes_are_carried_to_and_from_standard_library() {
    on_every_driver(|setup| {
        setup.run(async {
            for size in [0, 1, 5000, 300_000] {
                let (stream, mut peer) = with_std().await;
                let (std_stream, received) = stream.into_std().await.unwrap();
                assert!(received.is_empty());
                let message = pattern(size as u64, size + 1000);
                peer.write_all(&message[size..]).unwrap();
                let mut stream = TcpStream::from_std_with(std_stream, &message[..size]).unwrap();
                // The bytes in the socket follow the leftover bytes.
                let mut peeked = vec![0; size + 1000];
                while stream.peek(&mut peeked).await.unwrap() < peeked.len() {
                    yield_now().await;
                }
                assert_same_bytes(&peeked, &message);
                stream.readable().await.unwrap();
                let mut first = vec![0; size / 3];
                stream.read_exact(&mut first).await.unwrap();
                assert_same_bytes(&first, &message[..size / 3]);
                // Leftover bytes that were not taken are returned again.
                let (mut std_stream, left) = stream.into_std().await.unwrap();
                let mut rest = vec![0; size + 1000 - size / 3 - left.len()];
                std_stream.read_exact(&mut rest).unwrap();
                assert_same_bytes(&[left, rest].concat(), &message[size / 3..]);
                let mut stream = TcpStream::from_std_with(std_stream, b"abc").unwrap();
                assert_eq!(stream.recv().await.unwrap().as_deref(), Some(&b"abc"[..]));
                peer.write_all(b"d").unwrap();
                assert_eq!(stream.recv().await.unwrap().as_deref(), Some(&b"d"[..]));
                stream.write_all(b"e").await.unwrap();
                stream.flush().await.unwrap();
                // A stream that is dropped with leftover bytes releases them.
                let (std_stream, _) = stream.into_std().await.unwrap();
                drop(TcpStream::from_std_with(std_stream, &message).unwrap());
                let mut answer = [0];
                peer.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"e");
            }
            while anello::current_driver_metrics().unwrap().sockets > 0 {
                yield_now().await;
            }
        });
    });
}

#[test]
fn received_bytes_outlive_stream_and_runtime_without_copy() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let (kept, expected) = runtime.block_on(async {
            let (mut stream, mut peer) = with_std().await;
            let (mut kept, mut expected) = (Vec::new(), Vec::new());
            for round in 0..300 {
                let message = pattern(round, 50);
                peer.write_all(&message).unwrap();
                let mut received = 0;
                while received < message.len() {
                    let chunk = stream.recv().await.unwrap().expect("bytes");
                    let address = chunk.as_ptr();
                    let bytes = Bytes::from(chunk);
                    assert_eq!(bytes.as_ptr(), address);
                    received += bytes.len();
                    // Most buffers are returned, some of them by another thread.
                    match round % 10 {
                        0 => kept.push(bytes),
                        1 => drop(thread::spawn(move || drop(bytes)).join()),
                        _ => drop(bytes),
                    }
                }
                if round % 10 == 0 {
                    expected.extend(message);
                }
            }
            (kept, expected)
        });
        drop(runtime);
        let joined = thread::spawn(move || kept.concat()).join().unwrap();
        assert_same_bytes(&joined, &expected);
    });
}

#[test]
fn pending_reset_is_returned_by_conversion_with_received_bytes() {
    on_every_driver(|setup| {
        setup.run(async {
            let (mut stream, mut peer) = with_std().await;
            // Arms the receive operation.
            assert!(poll_at_most(1, stream.recv()).await.is_none());
            yield_now().await;
            peer.write_all(b"last").unwrap();
            SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
            drop(peer);
            for _ in 0..TURNS {
                yield_now().await;
            }
            // The error is either in the kernel, where the new owner finds it, or returned with the stream.
            let mut received = Vec::new();
            let error = match stream.into_std().await {
                Ok((mut stream, left)) => {
                    received.extend(left);
                    stream.read_to_end(&mut received).unwrap_err()
                }
                Err(error) => {
                    let (error, mut stream) = error.into_parts();
                    while let Ok(Some(chunk)) = stream.recv().await {
                        received.extend_from_slice(&chunk);
                    }
                    error
                }
            };
            assert_eq!((error.kind(), &received[..]), (io::ErrorKind::ConnectionReset, &b"last"[..]));
        });
    });
}

/// If many sockets become readable in one turn, a driver may send the responses together after receiving from all of
/// them.
#[test]
fn batched_responses_are_sent_before_connection_ends() {
    on_every_driver(|setup| {
        setup.run(async {
            let (mut peers, mut tasks) = (Vec::new(), Vec::new());
            for number in 0..40 {
                let (mut stream, peer) = with_std().await;
                peers.push(peer);
                tasks.push(spawn(async move {
                    let mut request = vec![0; 90];
                    stream.read_exact(&mut request).await.unwrap();
                    stream.send(request).await.unwrap();
                    stream.send(pattern(number, 300)).await.unwrap();
                    match number % 4 {
                        0 => drop(stream),
                        1 => stream.flush().await.unwrap(),
                        2 => stream.shutdown().await.unwrap(),
                        _ => drop(stream.into_std().await.unwrap()),
                    }
                }));
            }
            // Runs until all servers are waiting for their requests.
            anello::time::sleep(Duration::from_millis(10)).await;
            for (number, peer) in (0..).zip(&mut peers) {
                peer.write_all(&pattern(100 + number, 90)).unwrap();
            }
            let read = |mut peer: std::net::TcpStream| {
                thread::spawn(move || {
                    let mut received = Vec::new();
                    peer.read_to_end(&mut received).map(|_| received)
                })
            };
            let readers: Vec<_> = peers.into_iter().map(read).collect();
            for task in tasks {
                task.await.unwrap();
            }
            for (number, reader) in (0..).zip(readers) {
                while !reader.is_finished() {
                    anello::time::sleep(Duration::from_millis(1)).await;
                }
                let expected = [pattern(100 + number, 90), pattern(number, 300)].concat();
                assert_same_bytes(&reader.join().unwrap().unwrap(), &expected);
            }
        });
    });
}

#[test]
fn duplicated_descriptor_does_not_affect_other_connections() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let stream = listener.accept().await.unwrap();
            let (stream, _) = stream.into_std().await.unwrap();
            let duplicate = stream.try_clone().unwrap();
            let mut first = TcpStream::from_std(stream).unwrap();
            peer.write_all(b"1").unwrap();
            assert_eq!(first.recv().await.unwrap().as_deref(), Some(&b"1"[..]));
            drop(first);
            while anello::current_driver_metrics().unwrap().sockets > 1 {
                anello::yield_now().await;
            }
            // The duplicate keeps the connection open, but the connection's slot may have been reused.
            let mut second = TcpStream::from_std(duplicate).unwrap();
            peer.write_all(b"2").unwrap();
            assert_eq!(second.recv().await.unwrap().as_deref(), Some(&b"2"[..]));
            second.write_all(b"3").await.unwrap();
            second.shutdown().await.unwrap();
            // The blocking read below also blocks the driver, so all bytes must be sent first.
            second.flush().await.unwrap();
            let mut rest = Vec::new();
            peer.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"3");
        });
    });
}

#[test]
fn duplicate_outlives_stream_and_runtime() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let (stream, listener, duplicate, mut peer) = runtime.block_on(async {
            let (mut stream, mut peer) = with_std().await;
            // A receive is armed when the duplicate is created.
            assert!(poll_at_most(1, stream.recv()).await.is_none());
            let duplicate = std::net::TcpStream::from(stream.try_clone_to_owned().unwrap());
            assert_ne!(stream.as_raw_fd(), duplicate.as_raw_fd());
            assert_eq!(stream.local_addr().unwrap(), duplicate.local_addr().unwrap());
            // Options are shared.
            SockRef::from(&duplicate).set_ttl_v4(77).unwrap();
            assert_eq!(stream.ttl().unwrap(), 77);
            drop(stream);
            while anello::current_driver_metrics().unwrap().sockets > 0 {
                yield_now().await;
            }
            // Neither the connection nor the driver is affected by the closed stream.
            for _ in 0..3 {
                peer.write_all(b"x").unwrap();
                for _ in 0..TURNS {
                    yield_now().await;
                }
            }
            assert_eq!(anello::current_driver_metrics().unwrap().late_completions, 0);
            let mut again = TcpStream::from_std(duplicate.try_clone().unwrap()).unwrap();
            let mut received = [0; 3];
            again.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"xxx");
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let at = listener.local_addr().unwrap();
            let other = std::net::TcpListener::from(listener.try_clone_to_owned().unwrap());
            assert_eq!(other.local_addr().unwrap(), at);
            (again, listener, duplicate, peer)
        });
        drop(runtime);
        // The runtime has closed its descriptors.
        assert_eq!((stream.as_raw_fd(), listener.as_raw_fd()), (-1, -1));
        assert!(stream.try_clone_to_owned().is_err() && listener.try_clone_to_owned().is_err());
        duplicate.set_nonblocking(false).unwrap();
        (&duplicate).write_all(b"end").unwrap();
        drop((stream, duplicate));
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"end");
    });
}

#[test]
fn descriptors_of_wrong_kind_are_rejected() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
            let error = TcpStream::try_from(OwnedFd::from(unix.try_clone().unwrap())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("not a TCP stream"), "{error}");
            assert!(UnixListener::try_from(OwnedFd::from(unix.try_clone().unwrap())).is_err());
            UnixStream::try_from(OwnedFd::from(unix.try_clone().unwrap())).unwrap();
            UnixStream::try_from(unix).unwrap();
            let udp = std::net::UdpSocket::bind(ANY_PORT).unwrap();
            assert!(TcpStream::try_from(OwnedFd::from(udp)).is_err());
            let file = std::fs::File::open("/dev/null").unwrap();
            let error = TcpStream::try_from(OwnedFd::from(file)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
            let listener = std::net::TcpListener::bind(ANY_PORT).unwrap();
            let at = listener.local_addr().unwrap();
            assert!(TcpStream::try_from(OwnedFd::from(listener.try_clone().unwrap())).is_err());
            assert!(TcpSocket::try_from(OwnedFd::from(listener.try_clone().unwrap())).is_err());
            let listener = TcpListener::try_from(OwnedFd::from(listener)).unwrap();
            let client = std::net::TcpStream::connect(at).unwrap();
            assert!(TcpListener::try_from(OwnedFd::from(client.try_clone().unwrap())).is_err());
            let mut client = TcpStream::try_from(client).unwrap();
            client.write_all(b"x").await.unwrap();
            assert_eq!(listener.accept().await.unwrap().recv().await.unwrap().as_deref(), Some(&b"x"[..]));
        });
    });
}

#[test]
fn duplicates_of_descriptor_are_imported_in_sequence() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (kept, _) = listener.accept().await.unwrap().into_std().await.unwrap();
            for round in 0..3 {
                // Each duplicate reuses the descriptor number of the previous one.
                let mut stream = TcpStream::from_std(kept.try_clone().unwrap()).unwrap();
                peer.write_all(b"question").unwrap();
                assert_eq!(stream.recv().await.unwrap().as_deref(), Some(&b"question"[..]), "{round}");
                stream.write_all(b"answer").await.unwrap();
                drop(stream);
                while anello::current_driver_metrics().unwrap().sockets > 1 {
                    anello::yield_now().await;
                }
                let mut answer = [0; 6];
                peer.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"answer");
            }
        });
    });
}

#[test]
fn standard_library_listener_is_imported() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = std::net::TcpListener::bind(ANY_PORT).unwrap();
            let address = listener.local_addr().unwrap();
            let mut early = std::net::TcpStream::connect(address).unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            assert_eq!(listener.local_addr().unwrap(), address);
            let mut stream = listener.accept().await.unwrap();
            early.write_all(b"early").unwrap();
            let mut received = [0; 5];
            stream.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"early");
        });
    });
}

#[test]
fn imported_tcp_socket_connects() {
    on_every_driver(|setup| {
        setup.run(async {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            let socket = TcpSocket::try_from(socket).unwrap();
            assert_eq!(socket.as_fd().as_raw_fd(), socket.as_raw_fd());
            socket.bind(ANY_PORT.parse().unwrap()).unwrap();
            let source = socket.local_addr().unwrap();
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            let mut client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
            assert_eq!(client.local_addr().unwrap(), source);
            let mut server = listener.accept().await.unwrap();
            client.write_all(b"x").await.unwrap();
            assert_eq!(server.recv().await.unwrap().as_deref(), Some(&b"x"[..]));
            // Functions that take `impl AsRef<TcpStream>` accept streams and their halves.
            let port = |stream: &dyn AsRef<TcpStream>| stream.as_ref().local_addr().unwrap().port();
            let expected = port(&client);
            let (reader, writer) = client.split();
            assert_eq!([port(&reader), port(&writer)], [expected; 2]);
        });
    });
}

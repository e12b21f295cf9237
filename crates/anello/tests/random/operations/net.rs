//! Sockets.

use std::future::poll_fn;
use std::io::{self, IoSlice, Result};
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener as StdUnixListener};
use std::path::PathBuf;

use anello::io::Interest;
use anello::net::{
    OutgoingDatagram, RecvBatch, StreamFamily, StreamSocket, TcpListener, TcpSocket, TcpStream, UdpSocket,
    UnixDatagram, UnixListener, UnixStream, lookup_host,
};
use anello::server::{DetachedStream, ListenerGroup, PendingConnections};
use anello::{Handle, yield_now};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::Support::{Everywhere, Linux, Threads};
use super::{Kind, Operation, Peer, alone, async_kind, checked, kind, poll_once, unchecked};
use crate::common::{ANY_PORT, file_of, pair};

pub fn kinds() -> Vec<Kind> {
    vec![
        udp_receive("UdpSocket::recv", async |it| it.recv(&mut [0; 9]).await),
        udp_receive("UdpSocket::recv_from", async |it| it.recv_from(&mut [0; 9]).await),
        udp_receive("UdpSocket::recv_message", async |it| it.recv_message(&mut [0; 9]).await),
        udp_receive("UdpSocket::recv_batch", async |it| it.recv_batch(&mut RecvBatch::new(2, 9)).await),
        udp_receive("UdpSocket::peek", async |it| it.peek(&mut [0; 9]).await),
        udp_receive("UdpSocket::peek_from", async |it| it.peek_from(&mut [0; 9]).await),
        udp_receive("UdpSocket::peek_sender", async |it| it.peek_sender().await),
        udp_receive("UdpSocket::readable", async |it| it.readable().await),
        udp_receive("UdpSocket::async_io", async |it| {
            it.async_io(Interest::READABLE, || it.try_recv(&mut [0; 9])).await
        }),
        udp_receive("UdpSocket::poll_recv", async |it| {
            poll_fn(|context| it.poll_recv(context, &mut [0; 9])).await
        }),
        udp_receive("UdpSocket::poll_recv_ready", async |it| {
            poll_fn(|context| it.poll_recv_ready(context)).await
        }),
        udp_send("UdpSocket::send", async |it| it.send(b"x").await),
        udp_send("UdpSocket::send_to", async |it| it.send_to(b"x", it.peer_addr()?).await),
        udp_send("UdpSocket::send_message", async |it| {
            it.send_message(&OutgoingDatagram::to_peer(b"xxx").with_segment_size(1)).await
        }),
        udp_send("UdpSocket::send_batch", async |it| {
            it.send_batch(&[OutgoingDatagram::to_peer(b"x"), OutgoingDatagram::to_peer(b"y")]).await
        }),
        udp_send("UdpSocket::writable", async |it| it.writable().await),
        udp_send("UdpSocket::poll_send", async |it| poll_fn(|context| it.poll_send(context, b"x")).await),
        udp_send("UdpSocket::poll_send_ready", async |it| {
            poll_fn(|context| it.poll_send_ready(context)).await
        }),
        kind("lookup_host", Threads, || alone(async || lookup_host("localhost:80").await)),
        kind("TcpListener::bind_host", Threads, || {
            alone(async || TcpListener::bind_host("localhost:0").await)
        })
        .needing_runtime(),
        kind("UdpSocket::bind_host", Threads, || alone(async || UdpSocket::bind_host("localhost:0").await))
            .needing_runtime(),
        udp_resolve("UdpSocket::connect", async |it| it.connect("localhost:9").await),
        udp_resolve("UdpSocket::send_to(name)", async |it| it.send_to(b"x", "localhost:9").await),
        tcp_listen("TcpStream::connect", async |it| TcpStream::connect(it.local_addr()?).await),
        tcp_listen("TcpStream::connect(addresses)", async |it| {
            TcpStream::connect(vec![it.local_addr()?; 2]).await
        })
        .needing_runtime(),
        tcp_listen("TcpStream::connect_from", async |it| {
            TcpStream::connect_from(SocketAddr::from(([127, 0, 0, 1], 0)), it.local_addr()?).await
        }),
        tcp_listen("TcpSocket::connect", async |it| TcpSocket::new_v4()?.connect(it.local_addr()?).await),
        tcp_accept("TcpListener::accept", async |it| it.accept().await),
        tcp_accept("TcpListener::poll_accept", async |it| poll_fn(|context| it.poll_accept(context)).await),
        tcp_receive("TcpStream::recv", async |it| it.recv().await),
        tcp_receive("TcpStream::read", async |it| it.read(&mut [0; 9]).await),
        tcp_receive("TcpStream::read_exact", async |it| it.read_exact(&mut [0]).await),
        tcp_receive("TcpStream::peek", async |it| it.peek(&mut [0; 9]).await),
        tcp_receive("TcpStream::poll_peek", async |it| {
            poll_fn(|context| it.poll_peek(context, &mut [0; 9])).await
        }),
        tcp_receive("TcpStream::readable", async |it| it.readable().await),
        tcp_receive("TcpStream::poll_read_ready", async |it| {
            poll_fn(|context| it.poll_read_ready(context)).await
        }),
        tcp_receive("TcpStream::ready", async |it| it.ready(Interest::READABLE).await),
        tcp_send("TcpStream::send", async |it| it.send(b"x".to_vec()).await),
        tcp_send("TcpStream::send_vectored", async |it| it.send_vectored([vec![0], vec![1]]).await),
        tcp_send("TcpStream::write", async |it| it.write(b"x").await),
        tcp_send("TcpStream::write_vectored", async |it| it.write_vectored(&[IoSlice::new(b"x")]).await),
        tcp_send("TcpStream::write_more", async |it| it.write_more(b"x").await),
        tcp_send("TcpStream::write_all", async |it| it.write_all(b"bytes").await),
        tcp_send("TcpStream::flush", async |it| it.flush().await),
        tcp_send("TcpStream::send_file", async |it| it.send_file(&file_of(b"bytes"), 0, 5).await),
        tcp_send("TcpStream::writable", async |it| it.writable().await),
        tcp_send("TcpStream::poll_write_ready", async |it| {
            poll_fn(|context| it.poll_write_ready(context)).await
        }),
        tcp_send("TcpStream::ready for writing", async |it| it.ready(Interest::WRITABLE).await),
        async_kind("StreamSocket::into_std", Linux, async || {
            alone(async || {
                let (mut near, _far) = UnixStream::pair().unwrap();
                poll_once(near.recv());
                near.into_std().await
            })
        }),
        async_kind("Stream::detach", Linux, async || {
            alone(async || {
                let (mut near, _far) = UnixStream::pair().unwrap();
                poll_once(near.recv());
                DetachedStream::detach(near).await
            })
        }),
        kind("StreamSocket::move_to", Linux, || checked(((), ()), async |()| move_to().await, |()| {})),
        unix_receive("UnixStream::recv", async |it| it.recv().await),
        unix_receive("UnixStream::recv_with_fds", async |it| {
            it.recv_with_fds(&mut [0; 9], &mut Vec::new()).await
        }),
        unix_receive("UnixStream::readable", async |it| it.readable().await),
        unix_receive("UnixStream::peek", async |it| it.peek(&mut [0; 9]).await),
        kind("UnixStream::send_with_fds", Everywhere, unix_send_with_fds),
        kind("UnixStream::connect", Linux, unix_connect).needing_runtime(),
        kind("UnixListener::accept", Everywhere, unix_accept),
        datagram_receive("UnixDatagram::recv", async |it| it.recv(&mut [0; 9]).await),
        datagram_receive("UnixDatagram::recv_from", async |it| it.recv_from(&mut [0; 9]).await),
        datagram_receive("UnixDatagram::peek_from", async |it| it.peek_from(&mut [0; 9]).await),
        datagram_receive("UnixDatagram::recv_with_fds", async |it| {
            it.recv_with_fds(&mut [0; 9], &mut Vec::new()).await
        }),
        datagram_receive("UnixDatagram::readable", async |it| it.readable().await),
        datagram_send("UnixDatagram::send", async |it| it.send(b"x").await),
        datagram_send("UnixDatagram::send_with_fds", async |it| {
            it.send_with_fds(b"x", &[file_of(b"").as_fd()]).await
        }),
        datagram_send("UnixDatagram::writable", async |it| it.writable().await),
        datagram_send_to("UnixDatagram::send_to", async |(near, path)| near.send_to(b"x", path).await),
        datagram_send_to("UnixDatagram::send_with_fds_to", async |(near, path)| {
            near.send_with_fds_to(b"x", &[file_of(b"").as_fd()], &UnixAddr::from_pathname(path)?).await
        }),
        kind("GroupMember::accept", Linux, || {
            let group = ListenerGroup::<TcpListener>::bind(ANY_PORT.parse().unwrap(), 1).unwrap();
            let address = group.sockets().unwrap()[0].local_addr().unwrap();
            let connect = move |clients: &mut Vec<_>| clients.push(StdTcpStream::connect(address));
            checked((group.join(0), Vec::new()), async |member| member.accept().await, connect)
        }),
        kind("ListenerGroup::closed", Linux, || {
            let group = ListenerGroup::<TcpListener>::bind(ANY_PORT.parse().unwrap(), 1).unwrap();
            let close = |group: &mut ListenerGroup<_>| group.close(PendingConnections::Leave);
            unchecked((group.clone(), group), async |group| group.closed().await, close)
        }),
    ]
}

/// Returns an operation on a socket to which a datagram is sent.
fn udp_receive<R: 'static>(
    name: &'static str,
    receive: impl AsyncFn(&mut UdpSocket) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let receiver = UdpSocket::bind(ANY_PORT).unwrap();
        let (sender, address) = (UdpSocket::bind(ANY_PORT).unwrap(), receiver.local_addr().unwrap());
        // A simulated kernel may report that the send buffer is full although it is not.
        let send =
            move |sender: &mut UdpSocket| (0..1000).any(|_| sender.try_send_to(b"datagram", address).is_ok());
        checked((receiver, sender), receive, send)
    })
}

/// Returns an operation on a connected socket. It waits if the kernel reports that the send buffer is full.
fn udp_send<R: 'static>(
    name: &'static str,
    send: impl AsyncFn(&mut UdpSocket) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    async_kind(name, Everywhere, async move || {
        let (sender, receiver) = (UdpSocket::bind(ANY_PORT).unwrap(), UdpSocket::bind(ANY_PORT).unwrap());
        sender.connect(receiver.local_addr().unwrap()).await.unwrap();
        checked((sender, receiver), send, |_| {})
    })
}

/// Returns an operation that resolves a name.
fn udp_resolve<R: 'static>(
    name: &'static str,
    perform: impl AsyncFn(&mut UdpSocket) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Threads, move || unchecked((UdpSocket::bind(ANY_PORT).unwrap(), ()), perform, |()| {}))
}

/// Returns an operation that connects to a listener.
fn tcp_listen<R: 'static>(
    name: &'static str,
    connect: impl AsyncFn(&mut TcpListener) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || checked((TcpListener::bind(ANY_PORT).unwrap(), ()), connect, |()| {}))
}

/// Returns an operation on a listener to which a peer connects.
fn tcp_accept<R: 'static>(
    name: &'static str,
    accept: impl AsyncFn(&mut TcpListener) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let peer = Peer::new(async move |event| {
            let mut clients = Vec::new();
            loop {
                event.notified().await;
                clients.push(TcpStream::connect(address).await);
            }
        });
        checked((listener, peer), accept, Peer::act)
    })
}

/// Returns an operation on a connection whose peer sends a byte.
fn tcp_receive<R: 'static>(
    name: &'static str,
    receive: impl AsyncFn(&mut TcpStream) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    async_kind(name, Everywhere, async move || {
        let (near, far) = pair().await.unwrap();
        checked((near, sending_peer(far)), receive, Peer::act)
    })
}

/// Returns a peer that sends a byte after each event.
fn sending_peer<F: StreamFamily>(mut far: StreamSocket<F>) -> Peer {
    Peer::new(async move |event| {
        loop {
            event.notified().await;
            drop(far.send(b"x".to_vec()).await);
        }
    })
}

/// Returns a peer that receives all bytes after an event.
fn receiving_peer<F: StreamFamily>(mut far: StreamSocket<F>) -> Peer {
    Peer::new(async move |event| {
        event.notified().await;
        while let Ok(Some(_)) = far.recv().await {}
    })
}

/// Returns an operation on a connection that accepts no bytes until its peer receives.
fn tcp_send<R: 'static>(
    name: &'static str,
    send: impl AsyncFn(&mut TcpStream) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    async_kind(name, Everywhere, async move || {
        let (near, far) = pair().await.unwrap();
        near.set_send_buffer_size(4096).unwrap();
        for _ in 0..3 {
            while near.try_write(&[0; 16384]).is_ok() {}
            yield_now().await;
        }
        checked((near, receiving_peer(far)), send, Peer::act)
    })
}

async fn move_to() -> Result<()> {
    let (near, mut far) = UnixStream::pair()?;
    let serve = |mut stream: UnixStream| async move { stream.recv().await.map(drop) };
    let task = near.move_to(&Handle::current(), serve).await.map_err(io::Error::from)?;
    far.write_all(b"x").await?;
    drop(task.await);
    Ok(())
}

/// Returns an operation on a stream whose peer sends a byte.
fn unix_receive<R: 'static>(
    name: &'static str,
    receive: impl AsyncFn(&mut UnixStream) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let (near, far) = UnixStream::pair().unwrap();
        checked((near, sending_peer(far)), receive, Peer::act)
    })
}

fn unix_send_with_fds() -> Operation {
    let (near, far) = UnixStream::pair().unwrap();
    while near.try_write(&[0; 4096]).is_ok() {}
    let send = async |near: &mut UnixStream| near.send_with_fds(b"x", &[file_of(b"").as_fd()]).await;
    checked((near, receiving_peer(far)), send, Peer::act)
}

/// Returns an operation that connects to a listener whose accept queue is full.
fn unix_connect() -> Operation {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = StdUnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
    let connect = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let client = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::connect(&client, &address).map(|()| client)
    };
    let clients: Vec<OwnedFd> = std::iter::from_fn(|| connect().ok()).collect();
    listener.set_nonblocking(true).unwrap();
    let remote = (listener, clients, directory);
    checked(
        (path, remote),
        async |path| UnixStream::connect(path).await,
        |(listener, clients, _)| {
            clients.extend(std::iter::from_fn(|| Some(listener.accept().ok()?.0.into())));
        },
    )
}

fn unix_accept() -> Operation {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let peer = Peer::new(async move |event| {
        let mut clients = Vec::new();
        loop {
            event.notified().await;
            clients.push(UnixStream::connect(directory.path().join("socket")).await);
        }
    });
    checked((listener, peer), async |listener| listener.accept().await, Peer::act)
}

/// Returns an operation on a datagram socket whose peer sends a datagram.
fn datagram_receive<R: 'static>(
    name: &'static str,
    receive: impl AsyncFn(&mut UnixDatagram) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        // A simulated kernel may report that the peer's queue is full although it is not.
        let send = |far: &mut UnixDatagram| (0..1000).any(|_| far.try_send(b"x").is_ok());
        checked(UnixDatagram::pair().unwrap(), receive, send)
    })
}

/// Returns an operation on a datagram socket whose peer's queue is full until the peer receives.
fn datagram_send<R: 'static>(
    name: &'static str,
    send: impl AsyncFn(&mut UnixDatagram) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let (near, far) = UnixDatagram::pair().unwrap();
        while near.try_send(b"x").is_ok() {}
        checked((near, far), send, |far| receive_all(far))
    })
}

/// Returns an operation that sends to a path, whose queue is full until its owner receives.
fn datagram_send_to<R: 'static>(
    name: &'static str,
    send: impl AsyncFn(&mut (UnixDatagram, PathBuf)) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let far = UnixDatagram::bind(&path).unwrap();
        let near = UnixDatagram::unbound().unwrap();
        while near.try_send_to(b"x", &path).is_ok() {}
        checked(((near, path), (far, directory)), send, |(far, _)| receive_all(far))
    })
    .needing_runtime()
}

fn receive_all(socket: &UnixDatagram) {
    // A simulated kernel may report that the queue is empty although it is not.
    for _ in 0..1000 {
        socket.try_recv(&mut [0; 1]).ok();
    }
}

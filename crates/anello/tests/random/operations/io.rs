//! Pipes, other descriptors, in-memory streams and standard input.

use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut, PipeWriter, Result, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;

use anello::io::{
    AsyncFd, BufReader, DuplexReadHalf, DuplexStream, DuplexWriteHalf, Interest, Lines, Stdin, copy,
    copy_bidirectional, duplex, stdin,
};
use anello::net::pipe::{Receiver, Sender};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{ioctl_fionbio, read, write};
use rustix::net::{RecvFlags, SendFlags};

use super::Support::{Linux, Memory};
use super::{Kind, checked, kind, poll_once};

pub fn kinds() -> Vec<Kind> {
    vec![
        pipe_read("pipe::Receiver::read", async |it| it.read(&mut [0; 9]).await),
        pipe_read("pipe::Receiver::read_vectored", async |it| {
            it.read_vectored(&mut [IoSliceMut::new(&mut [0; 9])]).await
        }),
        pipe_read("pipe::Receiver::read_exact", async |it| it.read_exact(&mut [0]).await),
        pipe_read("pipe::Receiver::readable", async |it| it.readable().await),
        pipe_read("pipe::Receiver::poll_read_ready", async |it| {
            poll_fn(|context| it.poll_read_ready(context)).await
        }),
        kind("pipe::Receiver::read_to_end", Linux, || {
            let (reader, writer) = std::io::pipe().unwrap();
            let objects = (Receiver::from_owned_fd(reader.into()).unwrap(), Some(writer));
            checked(objects, async |it| it.read_to_end(&mut Vec::new()).await, Option::take)
        }),
        pipe_write("pipe::Sender::write", async |it| it.write(b"x").await),
        pipe_write("pipe::Sender::write_vectored", async |it| it.write_vectored(&[IoSlice::new(b"x")]).await),
        pipe_write("pipe::Sender::write_all", async |it| it.write_all(b"bytes").await),
        pipe_write("pipe::Sender::writable", async |it| it.writable().await),
        pipe_write("pipe::Sender::poll_write_ready", async |it| {
            poll_fn(|context| it.poll_write_ready(context)).await
        }),
        event("AsyncFd::readable", async |it| it.readable().await.map(drop)),
        event("AsyncFd::readable_mut", async |it| it.readable_mut().await.map(drop)),
        event("AsyncFd::poll_read_ready", async |it| {
            poll_fn(|context| it.poll_read_ready(context).map_ok(drop)).await
        }),
        event("AsyncFd::async_io", async |it| {
            it.async_io(Interest::READABLE, |fd| Ok(read(fd, &mut [0; 8])?)).await
        }),
        event("AsyncFd::async_io_mut", async |it| {
            it.async_io_mut(Interest::READABLE, |fd| Ok(read(fd, &mut [0; 8])?)).await
        }),
        full_socket("AsyncFd::writable", async |it| it.writable().await.map(drop)),
        full_socket("AsyncFd::writable_mut", async |it| it.writable_mut().await.map(drop)),
        full_socket("AsyncFd::poll_write_ready", async |it| {
            poll_fn(|context| it.poll_write_ready(context).map_ok(drop)).await
        }),
        full_socket("AsyncFd::ready", async |it| {
            it.ready(Interest::READABLE | Interest::WRITABLE).await.map(drop)
        }),
        standard_input("Stdin::read", async |it| it.read(&mut [0; 9]).await),
        standard_input("Stdin::read_to_end", async |it| it.read_to_end(&mut Vec::new()).await),
        memory("DuplexReadHalf::read", async |it| it.read(&mut [0; 9]).await),
        memory("DuplexReadHalf::recv", async |it| it.recv().await),
        memory("DuplexReadHalf::read_exact", async |it| it.read_exact(&mut [0]).await),
        full_memory("DuplexWriteHalf::write", async |it| it.write(b"x").await),
        full_memory("DuplexWriteHalf::send", async |it| it.send(b"x".to_vec()).await),
        full_memory("DuplexWriteHalf::write_all", async |it| it.write_all(b"bytes").await),
        kind("DuplexStream::recv", Memory, || {
            checked(duplex(1000), async |it| it.recv().await, |far| poll_once(far.write(b"x")))
        }),
        kind("DuplexStream::write", Memory, || {
            let (mut near, far) = duplex(1);
            poll_once(near.write(b"x"));
            checked((near, far), async |it| it.write(b"x").await, |far| poll_once(far.read(&mut [0; 9])))
        }),
        lines("BufReader::fill_buf", async |it| it.get_mut().fill_buf().await.map(drop)),
        lines("BufReader::read", async |it| it.get_mut().read(&mut [0; 9]).await),
        lines("BufReader::read_exact", async |it| it.get_mut().read_exact(&mut [0]).await),
        lines("BufReader::read_until", async |it| it.get_mut().read_until(b'\n', &mut Vec::new()).await),
        lines("BufReader::read_line", async |it| it.get_mut().read_line(&mut String::new()).await),
        lines("Lines::next_line", async |it| it.next_line().await),
        kind("copy", Memory, || {
            let ((reader, far), (rest, writer)) = (halves(10), halves(10));
            checked(
                ((reader, writer), Some((far, rest))),
                async |(from, to)| copy(from, to).await,
                Option::take,
            )
        }),
        kind("copy_bidirectional", Memory, || {
            let ((one, far), (other, opposite)) = (duplex(10), duplex(10));
            let copy =
                async |(one, other): &mut (DuplexStream, DuplexStream)| copy_bidirectional(one, other).await;
            checked(((one, other), Some((far, opposite))), copy, Option::take)
        }),
    ]
}

/// Returns an operation on a pipe into which a byte is written.
fn pipe_read<R: 'static>(
    name: &'static str,
    receive: impl AsyncFn(&mut Receiver) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Linux, move || {
        let (reader, writer) = std::io::pipe().unwrap();
        let reader = Receiver::from_owned_fd(reader.into()).unwrap();
        checked((reader, writer), receive, |writer: &mut PipeWriter| writer.write(b"x"))
    })
}

/// Returns an operation on a pipe that is full until it is read.
fn pipe_write<R: 'static>(
    name: &'static str,
    send: impl AsyncFn(&mut Sender) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Linux, move || {
        let (reader, writer) = std::io::pipe().unwrap();
        ioctl_fionbio(&reader, true).unwrap();
        ioctl_fionbio(&writer, true).unwrap();
        while write(&writer, &[0; 4096]).is_ok() {}
        let writer = Sender::from_owned_fd(writer.into()).unwrap();
        checked((writer, reader), send, |reader| read(reader, &mut [0; 65536]))
    })
}

/// Returns an operation on an event counter that is incremented.
fn event<R: 'static>(
    name: &'static str,
    wait: impl AsyncFn(&mut AsyncFd<OwnedFd>) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Linux, move || {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let other = event.try_clone().unwrap();
        let event = AsyncFd::with_interest(event, Interest::READABLE).unwrap();
        checked((event, other), wait, |other| write(other, &1_u64.to_ne_bytes()))
    })
}

/// Returns an operation on a socket whose send buffer is full until its peer receives.
fn full_socket<R: 'static>(
    name: &'static str,
    wait: impl AsyncFn(&mut AsyncFd<StdUnixStream>) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Linux, move || {
        let (near, far) = StdUnixStream::pair().unwrap();
        while rustix::net::send(&near, &[0; 4096], SendFlags::DONTWAIT).is_ok() {}
        checked((AsyncFd::new(near).unwrap(), far), wait, |far| {
            while rustix::net::recv(&*far, &mut [0; 65536], RecvFlags::DONTWAIT).is_ok() {}
        })
    })
}

/// Returns an operation on the standard input, which is replaced by a pipe that is closed.
fn standard_input<R: 'static>(
    name: &'static str,
    receive: impl AsyncFn(&mut Stdin) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Linux, move || {
        let (reader, writer) = std::io::pipe().unwrap();
        rustix::stdio::dup2_stdin(&reader).unwrap();
        checked((stdin(), Some(writer)), receive, Option::take)
    })
}

/// Returns the two ends of one direction of an in-memory stream.
fn halves(max_bytes: usize) -> (DuplexReadHalf, DuplexWriteHalf) {
    let (one, other) = duplex(max_bytes);
    (one.into_split().0, other.into_split().1)
}

/// Returns an operation on an in-memory stream into which bytes are written.
fn memory<R: 'static>(
    name: &'static str,
    receive: impl AsyncFn(&mut DuplexReadHalf) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Memory, move || checked(halves(1000), receive, |writer| poll_once(writer.write(b"x"))))
}

/// Returns an operation on an in-memory stream that is full until it is read.
fn full_memory<R: 'static>(
    name: &'static str,
    send: impl AsyncFn(&mut DuplexWriteHalf) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Memory, move || {
        let (reader, mut writer) = halves(10);
        poll_once(writer.write(&[0; 10]));
        checked((writer, reader), send, |reader| poll_once(reader.read(&mut [0; 10])))
    })
}

/// Returns an operation on a buffered reader, which receives lines.
fn lines<R: 'static>(
    name: &'static str,
    receive: impl AsyncFn(&mut Lines<DuplexReadHalf>) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Memory, move || {
        let (reader, writer) = halves(1000);
        checked((BufReader::new(reader).lines(), writer), receive, |it| poll_once(it.write(b"line\n")))
    })
}

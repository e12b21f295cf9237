//! Operations of every kind that wait for an event, for tests of what can happen to a waiting future: it is dropped,
//! leaked, moved to another runtime, or polled with a waker that misbehaves.

#![allow(dead_code, reason = "each suite uses only a part of this module")]
#![allow(clippy::await_holding_refcell_ref, reason = "only one future at a time uses the object")]
#![allow(clippy::unit_arg, reason = "the results of some operations are ignored, and others have none")]

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::pin::{Pin, pin};
use std::process::Stdio;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use anello::fs::{AlignedBuf, File};
use anello::io::{AsyncFd, Interest};
use anello::net::{RecvBatch, UdpSocket, UnixDatagram, UnixStream, pipe};
use anello::signal::{SignalKind, signal};
use anello::sync::{self, local};
use anello::task::{JoinSet, unconstrained};
use anello::{Handle, process, spawn, spawn_blocking, time};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{ioctl_fionbio, read, write};
use rustix::net::{RecvFlags, SendFlags};

use crate::common::{ANY_PORT, Setup, file_of};

pub type Waiting = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// An operation that waits for an event.
pub struct Operation {
    start: Box<dyn Fn() -> Waiting>,
    complete: Box<dyn Fn()>,
}

impl Operation {
    /// Returns a future that performs the operation. If it has been dropped before it completed, this method can be
    /// called again. At most one future may exist at a time.
    pub fn start(&self) -> Waiting {
        (self.start)()
    }

    /// Causes the event for which the operation waits. Has no effect if the runtime has been dropped.
    pub fn complete(&self) {
        (self.complete)();
    }
}

/// Drivers that support an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// On all drivers, and its effects on a simulated kernel depend only on the seed.
    Everywhere,
    /// On all drivers, with the help of other threads.
    Threads,
    /// On Linux.
    Linux,
}

#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub support: Support,
    /// Whether a pending future may need a current runtime when it is polled.
    pub needs_runtime: bool,
    /// Called while a runtime is running.
    pub make: fn() -> Operation,
}

/// Returns the kinds of operations that a setup supports.
pub fn kinds(setup: &Setup) -> Vec<Kind> {
    let is_simulated = matches!(setup.kind, anello::DriverKind::Sim(_));
    let is_supported = |kind: &Kind| !is_simulated || kind.support != Support::Linux;
    all().into_iter().filter(is_supported).collect()
}

fn all() -> Vec<Kind> {
    use Support::{Everywhere, Linux, Threads};
    let kind = |name, support, make| Kind { name, support, needs_runtime: false, make };
    vec![
        kind("UdpSocket::recv_from", Everywhere, || {
            udp(|socket| async move { socket.recv_from(&mut [0; 9]).await.map(drop) })
        }),
        kind("UdpSocket::recv_message", Everywhere, || {
            udp(|socket| async move { socket.recv_message(&mut [0; 9]).await.map(drop) })
        }),
        kind("UdpSocket::recv_batch", Everywhere, || {
            udp(|socket| async move { socket.recv_batch(&mut RecvBatch::new(2, 9)).await.map(drop) })
        }),
        kind("UdpSocket::readable", Everywhere, || udp(|socket| async move { socket.readable().await })),
        kind("time::sleep", Everywhere, || {
            operation(|| async { succeed(time::sleep(Duration::from_micros(300)).await) }, || {})
        }),
        kind("time::timeout", Everywhere, || {
            let limit = Duration::from_micros(300);
            operation(
                move || async move { succeed(time::timeout(limit, std::future::pending::<()>()).await) },
                || {},
            )
        }),
        kind("Interval::tick", Everywhere, interval),
        kind("JoinHandle", Everywhere, || join_handle(false)),
        kind("JoinHandle::abort", Everywhere, || join_handle(true)),
        kind("JoinSet::join_next", Everywhere, join_set),
        kind("Handle::spawn", Everywhere, || {
            let handle = Handle::current();
            operation(
                move || {
                    let task = handle.spawn(async {});
                    async { succeed(task.await) }
                },
                || {},
            )
        }),
        kind("local::mpsc::Receiver::recv", Everywhere, || {
            let (sender, receiver) = local::mpsc::channel(1000);
            let receiver = shared(receiver);
            let receive = move || {
                let receiver = Rc::clone(&receiver);
                async move { succeed(receiver.borrow_mut().recv().await) }
            };
            operation(receive, move || sender.try_send(()))
        }),
        kind("local::mpsc::Sender::send", Everywhere, || {
            let (sender, receiver) = local::mpsc::channel(1);
            sender.try_send(()).unwrap();
            let receiver = shared(receiver);
            let send = move || {
                let sender = sender.clone();
                async move { succeed(sender.send(()).await) }
            };
            operation(send, move || receiver.borrow_mut().try_recv())
        }),
        kind("mpsc::Receiver::recv", Everywhere, || {
            let (sender, receiver) = sync::mpsc::channel(1000);
            let receiver = shared(receiver);
            let receive = move || {
                let receiver = Rc::clone(&receiver);
                async move { succeed(receiver.borrow_mut().recv().await) }
            };
            operation(receive, move || sender.try_send(()))
        }),
        kind("mpsc::Sender::send", Everywhere, || {
            let (sender, receiver) = sync::mpsc::channel(1);
            sender.try_send(()).unwrap();
            let receiver = shared(receiver);
            let send = move || {
                let sender = sender.clone();
                async move { succeed(sender.send(()).await) }
            };
            operation(send, move || receiver.borrow_mut().try_recv())
        }),
        kind("oneshot::Receiver", Everywhere, || {
            let (sender, receiver) = sync::oneshot::channel();
            let (sender, receiver) = (RefCell::new(Some(sender)), shared(receiver));
            let receive = move || {
                let receiver = Rc::clone(&receiver);
                async move { succeed((&mut *receiver.borrow_mut()).await) }
            };
            operation(receive, move || sender.take().map(|sender| sender.send(())))
        }),
        kind("watch::Receiver::changed", Everywhere, || {
            let (sender, receiver) = sync::watch::channel(());
            let changed = move || {
                let mut receiver = receiver.clone();
                async move { succeed(receiver.changed().await) }
            };
            operation(changed, move || sender.send(()))
        }),
        kind("broadcast::Receiver::recv", Everywhere, || {
            let (sender, receiver) = sync::broadcast::channel(1000);
            let receiver = shared(receiver);
            let receive = move || {
                let receiver = Rc::clone(&receiver);
                async move { succeed(receiver.borrow_mut().recv().await) }
            };
            operation(receive, move || sender.send(()))
        }),
        kind("Notify::notified", Everywhere, || {
            let notify = Arc::new(sync::Notify::new());
            let notified = Arc::clone(&notify);
            let wait = move || {
                let notified = Arc::clone(&notified).notified_owned();
                async { succeed(notified.await) }
            };
            operation(wait, move || notify.notify_one())
        }),
        kind("Semaphore::acquire", Everywhere, || {
            let semaphore = Arc::new(sync::Semaphore::new(0));
            let acquired = Arc::clone(&semaphore);
            let acquire = move || {
                let acquired = Arc::clone(&acquired);
                async { succeed(acquired.acquire_owned().await) }
            };
            operation(acquire, move || semaphore.add_permits(1))
        }),
        kind("Mutex::lock", Everywhere, || {
            let mutex = Arc::new(sync::Mutex::new(()));
            let held = RefCell::new(Arc::clone(&mutex).try_lock_owned().ok());
            let lock = move || {
                let mutex = Arc::clone(&mutex);
                async { succeed(mutex.lock_owned().await) }
            };
            operation(lock, move || held.take())
        }),
        kind("RwLock::write", Everywhere, || {
            let lock = Arc::new(sync::RwLock::new(()));
            let held = RefCell::new(Arc::clone(&lock).try_read_owned().ok());
            let write = move || {
                let lock = Arc::clone(&lock);
                async { succeed(lock.write_owned().await) }
            };
            operation(write, move || held.take())
        }),
        kind("CancellationToken::cancelled", Everywhere, || {
            let token = sync::CancellationToken::new();
            let child = token.child_token();
            let wait = move || {
                let child = child.clone();
                async { succeed(child.cancelled_owned().await) }
            };
            operation(wait, move || token.cancel())
        }),
        kind("SimplexReader::read", Everywhere, || {
            let (reader, writer) = anello::io::simplex(10);
            let (reader, writer) = (shared(reader), RefCell::new(writer));
            let read = move || {
                let reader = Rc::clone(&reader);
                async move { reader.borrow_mut().read(&mut [0; 9]).await.map(drop) }
            };
            operation(read, move || poll_once(writer.borrow_mut().write(b"x")))
        }),
        kind("SimplexWriter::write", Everywhere, || {
            let (reader, writer) = anello::io::simplex(1);
            let (reader, writer) = (RefCell::new(reader), shared(writer));
            poll_once(writer.borrow_mut().write(b"x"));
            let write = move || {
                let writer = Rc::clone(&writer);
                async move { writer.borrow_mut().write(b"x").await.map(drop) }
            };
            operation(write, move || poll_once(reader.borrow_mut().read(&mut [0; 9])))
        }),
        kind("spawn_blocking", Threads, || {
            operation(|| async { succeed(spawn_blocking(|| ()).await) }, || {})
        }),
        kind("File::metadata", Threads, || file(|file| async move { file.metadata().await.map(drop) })),
        kind("File::read_owned_at", Threads, || {
            direct_file(|file| async move { file.read_owned_at(AlignedBuf::new(4096), 0).await.0.map(drop) })
        }),
        kind("File::write_owned_at", Threads, || {
            direct_file(|file| async move { file.write_owned_at(AlignedBuf::new(4096), 0).await.0.map(drop) })
        }),
        kind("File::write and flush", Threads, || {
            file(|file| async move {
                file.write(b"bytes").await?;
                file.flush().await
            })
        }),
        kind("UnixStream::recv_with_fds", Linux, || {
            unix_receive(
                |stream| async move { stream.borrow_mut().recv_with_fds(&mut [0; 9]).await.map(drop) },
            )
        }),
        kind("UnixStream::readable", Linux, || {
            unix_receive(|stream| async move { stream.borrow().readable().await })
        }),
        kind("UnixStream::peek", Linux, || {
            unix_receive(|stream| async move { stream.borrow().peek(&mut [0; 9]).await.map(drop) })
        }),
        kind("UnixStream::send_with_fds", Linux, unix_send_with_fds),
        kind("StreamSocket::move_to", Linux, || operation(move_to, || {})),
        kind("UnixDatagram::recv", Linux, || {
            datagram(|socket| async move { socket.recv(&mut [0; 9]).await.map(drop) })
        }),
        kind("UnixDatagram::recv_with_fds", Linux, || {
            datagram(
                |socket| async move { socket.recv_with_fds(&mut [0; 9], &mut Vec::new()).await.map(drop) },
            )
        }),
        kind("UnixDatagram::send", Linux, || {
            full_datagram(|socket| async move { socket.send(b"x").await.map(drop) })
        }),
        Kind { needs_runtime: true, ..kind("UnixDatagram::send_to", Linux, datagram_send_to) },
        kind("AsyncFd::readable", Linux, || event(|fd| async move { fd.readable().await.map(drop) })),
        kind("AsyncFd::async_io", Linux, || {
            event(|fd| async move {
                fd.async_io(Interest::READABLE, |fd| Ok(read(fd, &mut [0; 8])?)).await.map(drop)
            })
        }),
        kind("pipe::Receiver::read", Linux, || {
            let (receiver, writer) = io::pipe().unwrap();
            let receiver = Rc::new(pipe::Receiver::from_owned_fd(receiver.into()).unwrap());
            let receive = move || {
                let receiver = Rc::clone(&receiver);
                async move { receiver.read(&mut [0; 9]).await.map(drop) }
            };
            operation(receive, move || (&writer).write(b"x"))
        }),
        kind("pipe::Sender::write", Linux, || {
            let (reader, sender) = io::pipe().unwrap();
            ioctl_fionbio(&sender, true).unwrap();
            while write(&sender, &[0; 4096]).is_ok() {}
            let sender = Rc::new(pipe::Sender::from_owned_fd(sender.into()).unwrap());
            let send = move || {
                let sender = Rc::clone(&sender);
                async move { sender.write(b"x").await.map(drop) }
            };
            operation(send, move || read(&reader, &mut [0; 65536]))
        }),
        kind("Child::wait", Linux, || {
            child(|child| async move { child.borrow_mut().wait().await.map(drop) })
        }),
        kind("ChildStdout::read", Linux, || {
            child(|child| async move {
                let mut child = child.borrow_mut();
                child.stdout.as_mut().unwrap().read(&mut [0; 9]).await.map(drop)
            })
        }),
        kind("Signal::recv", Linux, || {
            // Ignored by default.
            let listener = shared(signal(SignalKind::window_change()).unwrap());
            let receive = move || {
                let listener = Rc::clone(&listener);
                async move { succeed(listener.borrow_mut().recv().await) }
            };
            operation(receive, || {
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::WINCH)
                    .unwrap();
            })
        }),
    ]
}

fn operation<F: Future<Output = io::Result<()>> + 'static, T>(
    start: impl Fn() -> F + 'static,
    complete: impl Fn() -> T + 'static,
) -> Operation {
    let complete = move || {
        // Fails if the runtime has been dropped.
        let _ = complete();
    };
    Operation { start: Box::new(move || Box::pin(start())), complete: Box::new(complete) }
}

/// Ignores the result, which can be an error if the runtime has been dropped.
fn succeed<T>(_output: T) -> io::Result<()> {
    Ok(())
}

fn shared<T>(value: T) -> Rc<RefCell<T>> {
    Rc::new(RefCell::new(value))
}

/// Polls a future once, even if the budget of the running task is exhausted.
fn poll_once<F: Future>(future: F) {
    drop(pin!(unconstrained(future)).as_mut().poll(&mut Context::from_waker(Waker::noop())));
}

fn udp<F: Future<Output = io::Result<()>> + 'static>(receive: fn(Rc<UdpSocket>) -> F) -> Operation {
    let receiver = Rc::new(UdpSocket::bind(ANY_PORT).unwrap());
    let (sender, address) = (UdpSocket::bind(ANY_PORT).unwrap(), receiver.local_addr().unwrap());
    // A simulated kernel may report that the send buffer is full although it is not.
    let send = move || (0..1000).any(|_| sender.try_send_to(b"datagram", address).is_ok());
    operation(move || receive(Rc::clone(&receiver)), send)
}

fn interval() -> Operation {
    let ticks = shared(time::interval(Duration::from_micros(300)));
    let tick = move || {
        let ticks = Rc::clone(&ticks);
        async move { succeed(ticks.borrow_mut().tick().await) }
    };
    operation(tick, || {})
}

fn join_handle(aborts: bool) -> Operation {
    let end = Arc::new(sync::Notify::new());
    let ended = Arc::clone(&end);
    let task = shared(spawn(async move { ended.notified().await }));
    let abort = task.borrow().abort_handle();
    let join = move || {
        let task = Rc::clone(&task);
        // A handle must not be polled after its completion, but may be started again if its result has been lost.
        async move { succeed(poll_fn(|context| Pin::new(&mut *task.borrow_mut()).poll(context)).await) }
    };
    operation(join, move || if aborts { abort.abort() } else { end.notify_one() })
}

fn join_set() -> Operation {
    let mut set = JoinSet::new();
    let aborts = [set.spawn(std::future::pending::<()>()), set.spawn(std::future::pending::<()>())];
    let set = shared(set);
    let join = move || {
        let set = Rc::clone(&set);
        async move { succeed(set.borrow_mut().join_next().await) }
    };
    operation(join, move || aborts[0].abort())
}

fn file<F: Future<Output = io::Result<()>> + 'static>(perform: fn(File) -> F) -> Operation {
    let file = file_of(&[7; 8192]);
    operation(move || perform(file.clone()), || {})
}

/// Returns an operation on a file that bypasses the page cache, if its file system supports this.
fn direct_file<F: Future<Output = io::Result<()>> + 'static>(perform: fn(File) -> F) -> Operation {
    let named = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(named.path(), [7; 8192]).unwrap();
    let open = |flags| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(flags).open(named.path())
    };
    let file = File::from(open(libc::O_DIRECT).or_else(|_| open(0)).unwrap());
    operation(move || perform(file.clone()), || {})
}

/// Returns an operation on a stream whose peer sends a byte.
fn unix_receive<F: Future<Output = io::Result<()>> + 'static>(
    receive: fn(Rc<RefCell<UnixStream>>) -> F,
) -> Operation {
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let near = shared(UnixStream::from_std(near).unwrap());
    operation(move || receive(Rc::clone(&near)), move || (&far).write(b"x"))
}

fn unix_send_with_fds() -> Operation {
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    while rustix::net::send(&near, &[0; 4096], SendFlags::DONTWAIT).is_ok() {}
    let near = shared(UnixStream::from_std(near).unwrap());
    let send = move || {
        let (near, sent) = (Rc::clone(&near), OwnedFd::from(io::pipe().unwrap().0));
        async move { near.borrow_mut().send_with_fds(b"x", &[sent.as_fd()]).await.map(drop) }
    };
    let drain = move || {
        while rustix::net::recv(&far, &mut [0; 65536], RecvFlags::DONTWAIT).is_ok_and(|(count, _)| count > 0)
        {
        }
    };
    operation(send, drain)
}

async fn move_to() -> io::Result<()> {
    let (near, mut far) = UnixStream::pair()?;
    let serve = |mut stream: UnixStream| async move { stream.recv().await.map(drop) };
    let task = near.move_to(&Handle::current(), serve).await.map_err(io::Error::from)?;
    far.write_all(b"x").await?;
    succeed(task.await)
}

/// Returns an operation on a datagram socket whose peer sends a datagram.
fn datagram<F: Future<Output = io::Result<()>> + 'static>(receive: fn(Rc<UnixDatagram>) -> F) -> Operation {
    let (near, far) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let near = Rc::new(UnixDatagram::from_std(near).unwrap());
    operation(move || receive(Rc::clone(&near)), move || far.send(b"x"))
}

/// Returns an operation on a datagram socket whose peer's queue is full until the peer receives.
fn full_datagram<F: Future<Output = io::Result<()>> + 'static>(send: fn(Rc<UnixDatagram>) -> F) -> Operation {
    let (near, far) = std::os::unix::net::UnixDatagram::pair().unwrap();
    while rustix::net::send(&near, b"x", SendFlags::DONTWAIT).is_ok() {}
    let near = Rc::new(UnixDatagram::from_std(near).unwrap());
    operation(move || send(Rc::clone(&near)), move || receive_all(&far))
}

fn datagram_send_to() -> Operation {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let far = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let near = Rc::new(UnixDatagram::unbound().unwrap());
    while near.try_send_to(b"x", &path).is_ok() {}
    let send = move || {
        let (near, path) = (Rc::clone(&near), path.clone());
        async move { near.send_to(b"x", path).await.map(drop) }
    };
    operation(send, move || {
        let _directory = &directory;
        receive_all(&far);
    })
}

fn receive_all(socket: &std::os::unix::net::UnixDatagram) {
    while rustix::net::recv(socket, &mut [0; 9], RecvFlags::DONTWAIT).is_ok() {}
}

/// Returns an operation on an event counter that is incremented.
fn event<F: Future<Output = io::Result<()>> + 'static>(wait: fn(Rc<AsyncFd<OwnedFd>>) -> F) -> Operation {
    let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let other = event.try_clone().unwrap();
    let event = Rc::new(AsyncFd::with_interest(event, Interest::READABLE).unwrap());
    operation(move || wait(Rc::clone(&event)), move || write(&other, &1_u64.to_ne_bytes()))
}

/// Returns an operation on a child that exits when its input is closed.
fn child<F: Future<Output = io::Result<()>> + 'static>(
    wait: fn(Rc<RefCell<process::Child>>) -> F,
) -> Operation {
    let mut command = process::Command::new("cat");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let stdin = RefCell::new(child.stdin.take());
    let child = shared(child);
    operation(move || wait(Rc::clone(&child)), move || stdin.take())
}

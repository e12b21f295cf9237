//! Tests of `AsyncFd` with eventfds, timerfds, inotify, pipes and socket pairs.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use anello::io::{AsyncFd, Interest, Ready};
use anello::net::raw_os_error;
use anello::{spawn, yield_now};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::common::{TURNS, on_each, on_every_driver, simulated_drivers};

fn pair() -> (AsyncFd<UnixStream>, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (AsyncFd::new(near).unwrap(), far)
}

async fn read(near: &AsyncFd<UnixStream>) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 64];
    let count = near.async_io(Interest::READABLE, |mut near| near.read(&mut buffer)).await?;
    Ok(buffer[..count].to_vec())
}

/// Runs turns until everything that can happen has happened, and returns whether the future has completed.
async fn completes<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut future = future;
    for _ in 0..TURNS {
        if let Poll::Ready(output) = poll_once(future.as_mut()).await {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn readable_waits_for_data_and_reports_eof() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            let mut readable = pin!(near.readable());
            assert!(completes(readable.as_mut()).await.is_none());
            far.write_all(b"one").unwrap();
            let guard = readable.await.unwrap();
            assert_eq!(guard.ready(), Ready::READABLE);
            assert_eq!(read(&near).await.unwrap(), b"one");
            let reader = async {
                assert_eq!(read(&near).await.unwrap(), b"two");
                assert_eq!(read(&near).await.unwrap(), b"");
                assert!(near.readable().await.unwrap().ready().is_read_closed());
            };
            let mut reader = pin!(reader);
            assert!(completes(reader.as_mut()).await.is_none());
            far.write_all(b"two").unwrap();
            assert!(completes(reader.as_mut()).await.is_none());
            drop(far);
            reader.await;
        });
    });
}

#[test]
fn writable_waits_for_room() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            let block = [7; 4096];
            let mut written = 0;
            loop {
                let mut guard = near.writable().await.unwrap();
                match guard.try_io(|near| near.get_ref().write(&block)) {
                    Ok(count) => written += count.unwrap(),
                    Err(_would_block) => break,
                }
            }
            let mut writable = pin!(near.writable());
            assert!(completes(writable.as_mut()).await.is_none());
            let mut buffer = vec![0; written];
            far.read_exact(&mut buffer).unwrap();
            assert!(writable.await.unwrap().ready().is_writable());
            drop(far);
            let error = loop {
                let mut guard = near.writable().await.unwrap();
                match guard.try_io(|near| near.get_ref().write(&block)) {
                    Ok(result) => break result.unwrap_err(),
                    Err(_would_block) => {}
                }
            };
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        });
    });
}

#[test]
fn pipe_eventfd_timerfd_and_inotify_become_readable() {
    on_every_driver(|setup| {
        setup.run(async {
            // eventfd
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            let event = AsyncFd::with_interest(event, Interest::READABLE).unwrap();
            let take = |fd: &OwnedFd| {
                let mut bytes = [0; 8];
                rustix::io::read(fd, &mut bytes)?;
                Ok(u64::from_ne_bytes(bytes))
            };
            for value in [1, 5] {
                let mut reading = pin!(event.async_io(Interest::READABLE, take));
                assert!(completes(reading.as_mut()).await.is_none());
                rustix::io::write(&event, &u64::to_ne_bytes(value)).unwrap();
                assert_eq!(reading.await.unwrap(), value);
            }

            // timerfd
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).unwrap();
            let it_value = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let once = Itimerspec { it_interval: Timespec::default(), it_value };
            rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once).unwrap();
            let timer = AsyncFd::with_interest(timer, Interest::READABLE).unwrap();
            assert_eq!(timer.async_io(Interest::READABLE, take).await.unwrap(), 1);

            // inotify
            let directory = tempfile::tempdir().unwrap();
            let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
            let watcher = inotify::init(flags).unwrap();
            inotify::add_watch(&watcher, directory.path(), inotify::WatchFlags::CREATE).unwrap();
            let watcher = AsyncFd::with_interest(watcher, Interest::READABLE).unwrap();
            let mut buffer = [0; 4096];
            {
                let next = |fd: &OwnedFd| Ok(rustix::io::read(fd, &mut buffer)?);
                let mut created = pin!(watcher.async_io(Interest::READABLE, next));
                assert!(completes(created.as_mut()).await.is_none());
                std::fs::write(directory.path().join("new"), b"").unwrap();
                assert!(created.await.unwrap() > 0);
            }
            assert!(buffer.windows(3).any(|name| name == b"new"));

            // pipe
            let (receiver, sender) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
            let receiver = AsyncFd::with_interest(receiver, Interest::READABLE).unwrap();
            let sender = AsyncFd::with_interest(sender, Interest::WRITABLE).unwrap();
            let send = |fd: &OwnedFd| Ok(rustix::io::write(fd, b"pipe")?);
            assert_eq!(sender.async_io(Interest::WRITABLE, send).await.unwrap(), 4);
            let receive = |fd: &OwnedFd| Ok(rustix::io::read(fd, &mut [0; 16])?);
            assert_eq!(receiver.async_io(Interest::READABLE, receive).await.unwrap(), 4);
            let mut eof = pin!(receiver.async_io(Interest::READABLE, receive));
            assert!(completes(eof.as_mut()).await.is_none());
            drop(sender);
            assert_eq!(eof.await.unwrap(), 0);
        });
    });
}

#[test]
fn cleared_readiness_returns_with_the_next_event_only() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            far.write_all(b"data").unwrap();
            let mut guard = near.readable().await.unwrap();
            let mut buffer = [0; 64];
            for expected in [Some(4), None] {
                let result = guard.try_io(|near| near.get_ref().read(&mut buffer));
                assert_eq!(result.ok().map(Result::unwrap), expected);
            }
            assert!(guard.ready().is_empty());
            let mut readable = pin!(near.readable());
            assert!(completes(readable.as_mut()).await.is_none());
            far.write_all(b"more").unwrap();
            readable.await.unwrap().retain_ready();
            // Readiness that was not cleared is still set, even though the data has been read.
            assert_eq!(near.try_io(Interest::READABLE, |mut near| near.read(&mut buffer)).unwrap(), 4);
            assert!(near.readable().await.unwrap().ready().is_readable());
        });
    });
}

#[test]
fn clear_with_old_guard_keeps_later_event() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            far.write_all(b"first").unwrap();
            let mut old = near.readable().await.unwrap();
            // Causes a new event while the old guard exists. On io_uring, each write is reported, because the poll is
            // still armed.
            far.write_all(b"second").unwrap();
            for _ in 0..TURNS {
                yield_now().await;
            }
            old.clear_ready();
            assert_eq!(read(&near).await.unwrap(), b"firstsecond");
        });
    });
}

#[test]
fn clear_ready_keeps_eof() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            far.write_all(b"last").unwrap();
            drop(far);
            let mut guard = near.readable().await.unwrap();
            assert_eq!(near.get_ref().read(&mut [0; 64]).unwrap(), 4);
            // A short read: the application may clear the readiness, although EOF follows.
            guard.clear_ready();
            assert_eq!(guard.ready(), Ready::EMPTY);
            let mut guard = near.readable().await.unwrap();
            assert!(guard.ready().is_read_closed());
            assert_eq!(guard.try_io(|near| near.get_ref().read(&mut [0; 64])).unwrap().unwrap(), 0);
        });
    });
}

#[test]
fn several_tasks_are_all_woken() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            let near = Rc::new(near);
            let woken = Rc::new(Cell::new(0));
            let tasks: Vec<_> = (0..5)
                .map(|_| {
                    let (near, woken) = (Rc::clone(&near), Rc::clone(&woken));
                    spawn(async move {
                        near.readable().await.unwrap().retain_ready();
                        woken.set(woken.get() + 1);
                    })
                })
                .collect();
            for _ in 0..TURNS {
                yield_now().await;
            }
            assert_eq!(woken.get(), 0);
            far.write_all(b"x").unwrap();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(woken.get(), 5);
        });
    });
}

#[test]
fn readers_and_writers_take_turns_without_loss() {
    on_every_driver(|setup| {
        setup.run(async {
            const BYTES: usize = 1 << 18;
            let (near, far) = pair();
            let far = AsyncFd::new(far).unwrap();
            let (near, far) = (Rc::new(near), Rc::new(far));
            let received = Rc::new(Cell::new(0));
            let mut tasks = Vec::new();
            for _ in 0..3 {
                let (far, received) = (Rc::clone(&far), Rc::clone(&received));
                tasks.push(spawn(async move {
                    let mut buffer = [0; 1000];
                    while received.get() < 3 * BYTES {
                        let read = far.async_io(Interest::READABLE, |mut far| far.read(&mut buffer));
                        match read.await.unwrap() {
                            0 => break,
                            count => received.set(received.get() + count),
                        }
                    }
                    if received.get() == 3 * BYTES {
                        // Ends the reads of the other tasks.
                        far.get_ref().shutdown(std::net::Shutdown::Read).unwrap();
                    }
                }));
            }
            for _ in 0..3 {
                let near = Rc::clone(&near);
                tasks.push(spawn(async move {
                    let mut left = BYTES;
                    while left > 0 {
                        let block = &[1; 3000][..left.min(3000)];
                        let write = near.async_io(Interest::WRITABLE, |mut near| near.write(block));
                        left -= write.await.unwrap();
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(received.get(), 3 * BYTES);
        });
    });
}

#[test]
fn fault_10_dropped_waiter_leaves_no_waker() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            let wakers: Vec<_> = (0..100).map(|_| Arc::new(CountingWaker::default())).collect();
            for counter in &wakers {
                let waker = Waker::from(Arc::clone(counter));
                let mut context = Context::from_waker(&waker);
                let mut first = pin!(near.readable());
                let mut second = pin!(near.ready(Interest::READABLE));
                assert!(first.as_mut().poll(&mut context).is_pending());
                assert!(second.as_mut().poll(&mut context).is_pending());
            }
            // At most the last waker is kept, for the next wait of the same task.
            assert!(wakers[..99].iter().all(|counter| Arc::strong_count(counter) == 1));
            assert!(Arc::strong_count(&wakers[99]) <= 2);
            far.write_all(b"x").unwrap();
            assert_eq!(read(&near).await.unwrap(), b"x");
            assert!(wakers.iter().all(|counter| counter.0.load(Ordering::SeqCst) == 0));
        });
    });
}

#[test]
fn poll_functions_and_futures_wait_independently() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            let (polled, awaited) = (Arc::new(CountingWaker::default()), Arc::new(CountingWaker::default()));
            let waker = Waker::from(Arc::clone(&awaited));
            let mut readable = pin!(near.readable());
            assert!(readable.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let waker = Waker::from(Arc::clone(&polled));
            assert!(near.poll_read_ready(&mut Context::from_waker(&waker)).is_pending());
            far.write_all(b"x").unwrap();
            while polled.0.load(Ordering::SeqCst) == 0 {
                anello::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!((polled.0.load(Ordering::SeqCst), awaited.0.load(Ordering::SeqCst)), (1, 1));
            assert!(near.poll_read_ready(&mut Context::from_waker(&waker)).is_ready());
        });
    });
}

#[test]
fn two_descriptors_of_one_file_and_one_descriptor_twice_work() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            let duplicate = AsyncFd::new(near.get_ref().try_clone().unwrap()).unwrap();
            let again = AsyncFd::with_interest(near.get_ref(), Interest::READABLE).unwrap();
            {
                let mut waits = [pin!(near.readable()), pin!(duplicate.readable())];
                let mut third = pin!(again.readable());
                assert!(completes(third.as_mut()).await.is_none());
                for wait in &mut waits {
                    assert!(completes(wait.as_mut()).await.is_none());
                }
                far.write_all(b"x").unwrap();
                for wait in waits {
                    wait.await.unwrap().retain_ready();
                }
                third.await.unwrap().retain_ready();
            }
            drop(duplicate);
            assert_eq!(read(&near).await.unwrap(), b"x");
            far.write_all(b"y").unwrap();
            assert_eq!(read(&near).await.unwrap(), b"y");
        });
    });
}

#[test]
fn dropped_async_fd_closes_file_even_with_poll_in_flight() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            let mut readable = Box::pin(near.readable());
            assert!(completes(readable.as_mut()).await.is_none());
            drop(readable);
            drop(near);
            if setup.options.submission_polling.is_some() {
                // A kernel thread cancels the poll at some point.
                while far.read(&mut [0; 8]).is_err() {
                    anello::time::sleep(Duration::from_millis(1)).await;
                }
            } else {
                // No turn runs between the drop and this read.
                assert_eq!(far.read(&mut [0; 8]).unwrap(), 0);
            }
        });
    });
}

#[test]
fn into_inner_returns_usable_descriptor() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            far.write_all(b"abc").unwrap();
            near.readable().await.unwrap().retain_ready();
            let mut near = near.into_inner();
            let mut buffer = [0; 8];
            assert_eq!(near.read(&mut buffer).unwrap(), 3);
            let mut near = AsyncFd::new(near).unwrap();
            far.write_all(b"d").unwrap();
            let mut guard = near.readable_mut().await.unwrap();
            assert_eq!(guard.try_io(|near| near.get_mut().read(&mut buffer)).unwrap().unwrap(), 1);
        });
    });
}

#[test]
fn interest_that_is_not_registered_is_an_error() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, _far) = pair();
            let near = AsyncFd::with_interest(near.into_inner(), Interest::READABLE).unwrap();
            let error = near.writable().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("WRITABLE"), "{error}");
        });
    });
}

#[test]
fn regular_file_is_an_error_that_returns_the_file() {
    on_every_driver(|setup| {
        setup.run(async {
            let file = tempfile::tempfile().unwrap();
            let (mut file, error) = AsyncFd::try_new(file).unwrap_err().into_parts();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert!(error.to_string().contains("regular file"), "{error}");
            file.write_all(b"still open").unwrap();
            assert_eq!(raw_os_error(&error), Some(libc::EPERM));
            // The type of the file does not determine whether it can be polled.
            for (path, can_be_polled) in
                [("/", false), ("/dev/null", false), ("/dev/zero", false), ("/proc/self/mounts", true)]
            {
                let registered = AsyncFd::new(std::fs::File::open(path).unwrap());
                let expected = (!can_be_polled).then_some(libc::EPERM);
                assert_eq!(
                    registered.err().and_then(|error| raw_os_error(&error)),
                    expected,
                    "{path} {}",
                    setup.name
                );
            }
        });
    });
}

#[test]
fn simulated_driver_rejects_descriptors() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            let (near, _far) = UnixStream::pair().unwrap();
            let error = AsyncFd::new(near).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("simulated"), "{error}");
        });
    });
}

#[test]
fn descriptor_outlives_its_runtime() {
    on_every_driver(|setup| {
        let runtime = setup.runtime();
        let (near, mut far) = runtime.block_on(async { pair() });
        let counter = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut context = Context::from_waker(&waker);
        let mut readable = Box::pin(near.readable());
        assert!(readable.as_mut().poll(&mut context).is_pending());
        runtime.block_on(async { yield_now().await });
        drop(runtime);
        assert_eq!(counter.0.load(Ordering::SeqCst), 1, "a waiting task is woken");
        let Poll::Ready(Err(error)) = readable.as_mut().poll(&mut context) else { panic!("still pending") };
        assert_eq!(error.kind(), ErrorKind::NotConnected);
        drop(readable);
        assert!(near.try_io(Interest::READABLE, |_| Ok(())).is_err());
        far.write_all(b"x").unwrap();
        let mut near = near.into_inner();
        assert_eq!(near.read(&mut [0; 8]).unwrap(), 1);
    });
}

#[test]
fn ready_descriptor_does_not_starve_other_tasks() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, mut far) = pair();
            far.write_all(b"x").unwrap();
            let done = Rc::new(Cell::new(false));
            let other = Rc::clone(&done);
            spawn(async move { other.set(true) }).detach();
            while !done.get() {
                near.readable().await.unwrap().retain_ready();
            }
        });
    });
}

#[test]
fn urgent_data_makes_priority_ready() {
    on_every_driver(|setup| {
        setup.run(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let server = AsyncFd::with_interest(server, Interest::PRIORITY | Interest::READABLE).unwrap();
            let mut urgent = pin!(server.ready(Interest::PRIORITY));
            assert!(completes(urgent.as_mut()).await.is_none());
            rustix::net::send(&client, b"plain", rustix::net::SendFlags::empty()).unwrap();
            assert!(completes(urgent.as_mut()).await.is_none());
            assert!(server.readable().await.unwrap().ready().is_readable());
            rustix::net::send(&client, b"!", rustix::net::SendFlags::OOB).unwrap();
            assert!(urgent.await.unwrap().ready().is_priority());
        });
    });
}

#[test]
fn dropped_runtime_inside_waker_releases_descriptor_later() {
    on_every_driver(|setup| {
        setup.run(async {
            // A buffer owner whose destructor drops the descriptor while the driver is borrowed.
            let (near, mut far) = pair();
            let near = std::cell::RefCell::new(Some(near));
            let near = Rc::new(near);
            let held = Rc::clone(&near);
            thread_local!(static HELD: std::cell::RefCell<Vec<Rc<dyn std::any::Any>>> = const { std::cell::RefCell::new(Vec::new()) });
            HELD.with_borrow_mut(|all| all.push(held));
            let bytes = crate::common::bytes_of_owner(|| HELD.with_borrow_mut(Vec::clear));
            let (mut client, mut server) = crate::common::pair().await.unwrap();
            drop(near);
            client.send(bytes).await.unwrap();
            client.flush().await.unwrap();
            assert!(server.recv().await.unwrap().is_some());
            while !matches!(far.read(&mut [0; 8]), Ok(0)) {
                yield_now().await;
            }
        });
    });
}

#[test]
fn other_errors_of_an_operation_are_returned() {
    on_every_driver(|setup| {
        setup.run(async {
            let (near, _far) = pair();
            let error = near
                .async_io(Interest::WRITABLE, |_| Err::<(), _>(io::Error::from(Errno::NOSPC)))
                .await
                .unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        });
    });
}

/// Errors are reported without a registration for them, as in tokio.
#[test]
fn error_readiness_is_reported_alone() {
    on_every_driver(|setup| {
        setup.run(async {
            for interest in [Interest::WRITABLE, Interest::ERROR] {
                let (reader, writer) = std::io::pipe().unwrap();
                let writer = AsyncFd::with_interest(writer, interest).unwrap();
                let mut failed = pin!(writer.ready(Interest::ERROR));
                assert!(completes(failed.as_mut()).await.is_none(), "{}", setup.name);
                drop(reader);
                assert!(failed.await.unwrap().ready().is_error());
            }
            let (sender, receiver) = anello::net::pipe::pipe().unwrap();
            drop(receiver);
            assert!(sender.ready(Interest::ERROR).await.unwrap().is_error());
        });
    });
}

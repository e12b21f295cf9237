//! Tests of an event loop that another loop waits for.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use anello::event_loop::{EventKind, EventLoop, Events, Interest};
use anello::{DriverKind, DriverOptions, SubmissionPolling, TaskWork};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::common::{Setup, is_uring_unavailable, on_each, on_every_driver, simulated_drivers};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn open(setup: &Setup) -> EventLoop {
    let mut options = setup.options.clone();
    if options.task_work == TaskWork::Deferred {
        options.task_work = TaskWork::Cooperative;
    }
    let builder = EventLoop::builder().driver(setup.kind.clone()).options(options);
    builder.build().unwrap_or_else(|error| panic!("{}: {error}", setup.name))
}

/// The loop that waits for the event loop.
enum Outer {
    Poll,
    Epoll(OwnedFd),
}

impl Outer {
    fn epoll(event_loop: &EventLoop) -> Self {
        let outer = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let inner = event_loop.pollable_fd().unwrap();
        epoll::add(&outer, inner, EventData::new_u64(0), EventFlags::IN).unwrap();
        Self::Epoll(outer)
    }

    /// Waits until the event loop is readable or the timeout has passed. Returns whether it is readable.
    fn wait(&self, event_loop: &EventLoop, timeout: Option<Duration>) -> bool {
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap());
        let ready = match self {
            Self::Poll => {
                let inner = event_loop.pollable_fd().unwrap();
                poll(&mut [PollFd::new(&inner, PollFlags::IN)], timeout.as_ref())
            }
            Self::Epoll(outer) => {
                let mut buffer = Vec::with_capacity(1);
                epoll::wait(outer, rustix::buffer::spare_capacity(&mut buffer), timeout.as_ref())
            }
        };
        match ready {
            Ok(count) => count > 0,
            Err(Errno::INTR) => self.wait(event_loop, timeout.map(|timeout| timeout.try_into().unwrap())),
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits and runs a turn, until `poll` returns a result.
    fn run<T>(&self, event_loop: &mut EventLoop, mut poll: impl FnMut(&mut EventLoop) -> Poll<T>) -> T {
        let mut events = Events::new();
        loop {
            if let Poll::Ready(output) = poll(event_loop) {
                return output;
            }
            let timeout = event_loop.max_wait();
            self.wait(event_loop, timeout);
            event_loop.turn(&mut events, Some(Duration::ZERO)).unwrap();
        }
    }
}

fn on_every_outer_loop(test: impl Fn(&Outer, &mut EventLoop) + Send + Sync + 'static) {
    on_every_driver(move |setup| {
        test(&Outer::Poll, &mut open(setup));
        let mut event_loop = open(setup);
        test(&Outer::epoll(&event_loop), &mut event_loop);
    });
}

#[test]
fn nested_loop_echoes_each_message() {
    on_every_outer_loop(|outer, event_loop| {
        let listener = event_loop.listen(ANY_PORT, 0).unwrap();
        let address = event_loop.local_addr(listener).unwrap();
        let client = thread::spawn(move || {
            let mut client = TcpStream::connect(address).unwrap();
            for round in 0..200u8 {
                client.write_all(&[round; 100]).unwrap();
                let mut reply = [0; 100];
                client.read_exact(&mut reply).unwrap();
                assert_eq!(reply, [round; 100]);
            }
        });
        let server = outer.run(event_loop, |event_loop| event_loop.accept(listener, 1)).unwrap();
        loop {
            let received = outer.run(event_loop, |event_loop| event_loop.recv(server)).unwrap();
            let Some(chunk) = received else { break };
            let mut outgoing = Some(chunk.into());
            outer.run(event_loop, |event_loop| event_loop.send(server, &mut outgoing)).unwrap();
        }
        client.join().unwrap();
    });
}

#[test]
fn nested_loop_reports_wakes_from_other_threads() {
    on_every_outer_loop(|outer, event_loop| {
        let waker = event_loop.waker();
        let (reply, replies) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            for _ in 0..20 {
                waker.wake();
                replies.recv().unwrap();
            }
        });
        let mut events = Events::new();
        for _ in 0..20 {
            while events.is_empty() {
                let timeout = event_loop.max_wait();
                outer.wait(event_loop, timeout);
                event_loop.turn(&mut events, Some(Duration::ZERO)).unwrap();
            }
            assert!(events.iter().all(|event| event.kind() == EventKind::Wake));
            reply.send(()).unwrap();
            events = Events::new();
        }
        drop(reply);
        thread.join().unwrap();
    });
}

#[test]
fn nested_loop_reports_every_event_of_many_sockets() {
    const SOCKETS: usize = 150;
    on_every_outer_loop(|outer, event_loop| {
        let mut peers: Vec<_> = (0..SOCKETS)
            .map(|index| {
                let (near, far) = UnixStream::pair().unwrap();
                if index % 2 == 0 {
                    let source = event_loop.register(&near, Interest::READABLE, index).unwrap();
                    assert!(event_loop.poll_ready(source, Interest::READABLE).is_pending());
                } else {
                    let stream = event_loop.import_stream(near, index).unwrap();
                    assert!(event_loop.recv(stream).is_pending());
                }
                far
            })
            .collect();
        let mut events = Events::new();
        while event_loop.max_wait() == Some(Duration::ZERO) {
            event_loop.turn(&mut events, Some(Duration::ZERO)).unwrap();
        }
        peers.iter_mut().for_each(|peer| peer.write_all(b"x").unwrap());
        let mut reported = [false; SOCKETS];
        while reported.contains(&false) {
            let timeout = event_loop.max_wait();
            outer.wait(event_loop, timeout);
            event_loop.turn(&mut events, Some(Duration::ZERO)).unwrap();
            events.iter().for_each(|event| reported[event.token()] = true);
        }
    });
}

#[test]
fn idle_nested_loop_becomes_unreadable_and_waits_for_timers() {
    on_every_outer_loop(|outer, event_loop| {
        let mut events = Events::new();
        let settle = |event_loop: &mut EventLoop, events: &mut Events| {
            while outer.wait(event_loop, Some(Duration::ZERO))
                || event_loop.max_wait() == Some(Duration::ZERO)
            {
                event_loop.turn(events, Some(Duration::ZERO)).unwrap();
            }
        };
        settle(event_loop, &mut events);
        assert_eq!(event_loop.max_wait(), None);
        event_loop.waker().wake();
        assert_eq!(event_loop.max_wait(), Some(Duration::ZERO));
        settle(event_loop, &mut events);
        events = Events::new();
        event_loop.add_timer(Duration::from_millis(2), 7);
        assert!(event_loop.max_wait() <= Some(Duration::from_secs(1)));
        while events.is_empty() {
            let timeout = event_loop.max_wait();
            outer.wait(event_loop, timeout);
            event_loop.turn(&mut events, Some(Duration::ZERO)).unwrap();
        }
        assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [7]);
        settle(event_loop, &mut events);
        assert_eq!(event_loop.max_wait(), None);
    });
}

#[test]
fn loop_with_deferred_task_work_has_no_descriptor() {
    let Ok(event_loop) = EventLoop::builder().driver(DriverKind::Uring).build() else { return };
    if event_loop.driver().features.contains("defer-taskrun") {
        let error = event_loop.pollable_fd().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("TaskWork::Cooperative"), "{error}");
    }
}

#[test]
fn simulated_loop_has_no_descriptor() {
    on_each(simulated_drivers(), |setup| {
        let error = open(setup).pollable_fd().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    });
}

fn has_polling_thread(thread_id: i32) -> bool {
    let name = format!("iou-sqp-{thread_id}\n");
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .any(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).is_ok_and(|comm| comm == name))
}

#[test]
fn loops_of_two_threads_share_polling_thread() {
    let thread_id = || rustix::thread::gettid().as_raw_nonzero().get();
    let polling = Some(SubmissionPolling::default().idle_ms(1));
    let options = DriverOptions::default().submission_polling(polling);
    let builder = EventLoop::builder().driver(DriverKind::Uring).options(options);
    let first = match builder.build() {
        Err(error) if is_uring_unavailable(&error) => return,
        first => first.unwrap(),
    };
    assert!(has_polling_thread(thread_id()));
    if !first.driver().features.contains("msg-ring") {
        return;
    }
    let builder = builder.share_polling_thread(&first.waker());
    let second = thread::spawn(move || {
        let mut second = builder.build().unwrap();
        assert!(!has_polling_thread(thread_id()));
        let (near, mut far) = UnixStream::pair().unwrap();
        let stream = second.import_stream(near, 1).unwrap();
        assert!(second.recv(stream).is_pending());
        far.write_all(b"x").unwrap();
        let mut events = Events::new();
        while events.is_empty() {
            second.turn(&mut events, None).unwrap();
        }
    });
    second.join().unwrap();
    drop(first);
}

#[test]
fn loop_without_polling_thread_cannot_share_one() {
    let builder = EventLoop::builder().driver(DriverKind::Uring);
    let first = match builder.build() {
        Err(error) if is_uring_unavailable(&error) => return,
        first => first.unwrap(),
    };
    let shared = builder.share_polling_thread(&first.waker());
    shared.build().expect("without submission polling, there is nothing to share");
    let polling = Some(SubmissionPolling::default().idle_ms(1));
    let shared = shared.options(DriverOptions::default().submission_polling(polling));
    if first.driver().features.contains("msg-ring") {
        let error = shared.build().unwrap_err();
        assert!(error.to_string().starts_with("cannot share an SQPOLL thread: "), "{error}");
    }
    drop(first);
    shared.build().expect("the other loop has been dropped");
}

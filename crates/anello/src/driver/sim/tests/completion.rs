//! Tests that the completion-based kernel posts and omits the same completions as io_uring.

use std::cell::Cell;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};

use super::super::completion::SimCompletion;
use super::super::socket::SimSocket;
use super::super::sockets::SimNetwork;
use crate::driver::kernel::op::{Completion, Op, SendMode, Wait};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::kernel::{CompletionKernel, Kernel};
use crate::driver::memory::key::Key;
use crate::driver::settings::options::DriverOptions;
use crate::driver::settings::sim_options::{SimFaults, SimOptions};
use crate::driver::sockets::options::SocketOption;
use crate::driver::sockets::{End, Sockets};

fn token(kind: Kind) -> Token {
    Token::new(kind, Key { index: 1, generation: 2 })
}

/// Returns a kernel and both sides of a connection with a capacity of eight bytes.
fn connected(options: &DriverOptions) -> (SimCompletion, SimSocket, SimSocket) {
    connected_with(SimFaults::none(), options)
}

fn connected_with(faults: SimFaults, options: &DriverOptions) -> (SimCompletion, SimSocket, SimSocket) {
    let mut kernel = {
        let sim = SimOptions::new(1).socket_buffer_bytes(8).faults(faults);
        SimCompletion::new(SimNetwork::new(&sim), &sim, options)
    };
    let listener = kernel.sockets_mut().open(false).unwrap();
    kernel.sockets_mut().bind(&listener, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    kernel.sockets_mut().start_listening(&listener, 1).unwrap();
    let address = kernel.sockets().address(&listener, End::Local).unwrap().as_socket().unwrap();
    let near = kernel.sockets_mut().open_stream(address, None).unwrap();
    kernel.push(token(Kind::Connect), Op::Connect { socket: &near, address });
    kernel.push(token(Kind::Accept), Op::Accept { listener: &listener, multishot: false });
    kernel.enter(Wait::None).unwrap();
    let accepted = completions(&mut kernel).into_iter().find(|one| one.token == token(Kind::Accept)).unwrap();
    let far = kernel.accepted(accepted.result);
    (kernel, near, far)
}

fn completions(kernel: &mut SimCompletion) -> Vec<Completion> {
    std::iter::from_fn(|| kernel.completion()).collect()
}

fn send(kernel: &mut SimCompletion, socket: &SimSocket, data: &[u8], mode: SendMode) -> u32 {
    let op = Op::Send { socket, data: data.as_ptr(), length_bytes: data.len() as u32, mode };
    kernel.push(token(Kind::Send), op)
}

/// Calls `enter` once and returns the results.
fn results(kernel: &mut SimCompletion, wait: Wait) -> Vec<(Token, i32, bool)> {
    kernel.enter(wait).unwrap();
    completions(kernel).iter().map(|one| (one.token, one.result, one.has_more())).collect()
}

#[test]
fn inline_send_posts_completion_only_if_short() {
    let (mut kernel, near, _far) = connected(&DriverOptions::default());
    let submission = send(&mut kernel, &near, b"01234", SendMode::Inline);
    assert!(!kernel.consumed(submission));
    assert_eq!(results(&mut kernel, Wait::None), []);
    assert!(kernel.consumed(submission));
    send(&mut kernel, &near, b"56789", SendMode::Inline);
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Send), 3, false)]);
    send(&mut kernel, &near, b"89", SendMode::Inline);
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Send), -libc::EAGAIN, false)]);
}

#[test]
fn inline_send_without_completion_does_not_end_wait() {
    let (mut kernel, near, _far) = connected(&DriverOptions::default());
    send(&mut kernel, &near, b"x", SendMode::Inline);
    assert_eq!(kernel.enter(Wait::Forever).unwrap_err().kind(), std::io::ErrorKind::Deadlock);
}

#[test]
fn async_send_waits_until_all_bytes_are_sent() {
    let (mut kernel, near, far) = connected(&DriverOptions::default());
    let data = *b"0123456789ab";
    send(&mut kernel, &near, &data, SendMode::Async);
    assert_eq!(results(&mut kernel, Wait::None), []);
    let mut buffer = [0; 8];
    assert_eq!(kernel.sockets_mut().receive(&far, &mut buffer).unwrap(), 8);
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Send), 12, false)]);
    assert_eq!(kernel.sockets_mut().receive(&far, &mut buffer).unwrap(), 4);
}

#[test]
fn cancelled_send_returns_number_of_sent_bytes() {
    let (mut kernel, near, _far) = connected(&DriverOptions::default());
    let data = *b"0123456789ab";
    send(&mut kernel, &near, &data, SendMode::Async);
    assert_eq!(results(&mut kernel, Wait::None), []);
    kernel.push(token(Kind::Cancel), Op::Cancel { target: token(Kind::Send) });
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Send), 8, false)]);
}

#[test]
fn zero_copy_send_posts_notification_later() {
    let (mut kernel, near, _far) = connected(&DriverOptions::default());
    send(&mut kernel, &near, b"01234", SendMode::ZeroCopy);
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Send), 5, true)]);
    kernel.enter(Wait::Forever).unwrap();
    let notification = completions(&mut kernel);
    assert!(notification.len() == 1 && notification[0].is_notification() && !notification[0].has_more());
}

#[test]
fn write_before_zero_copy_notification_is_error() {
    let (mut kernel, near, _far) = connected(&DriverOptions::default());
    let data = Cell::new(*b"01");
    let address = data.as_ptr().cast_const().cast();
    let op = Op::Send { socket: &near, data: address, length_bytes: 2, mode: SendMode::ZeroCopy };
    kernel.push(token(Kind::Send), op);
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Send), 2, true)]);
    data.set(*b"0x");
    assert!(kernel.enter(Wait::Forever).unwrap_err().to_string().contains("too early"));
}

#[test]
fn receive_without_buffers_fails_when_armed() {
    let mut options = DriverOptions::default();
    options.testing.initial_receive_buffers = 1;
    (options.max_receive_buffers, options.receive_buffer_bytes) = (1, 64);
    let (mut kernel, near, far) = connected(&options);
    kernel.push(token(Kind::Receive), Op::Receive { socket: &far, multishot: true });
    assert_eq!(results(&mut kernel, Wait::None), []);
    kernel.sockets_mut().send(&near, b"abc").unwrap();
    kernel.enter(Wait::None).unwrap();
    let filled = kernel.completion().unwrap();
    assert_eq!((filled.result, filled.has_more()), (3, true));
    let chunk = kernel.pools().filled(filled.buffer().unwrap(), 3).unwrap();
    assert_eq!(&chunk[..], b"abc");
    kernel.push(token(Kind::Cancel), Op::Cancel { target: token(Kind::Receive) });
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Receive), -libc::ECANCELED, false)]);
    kernel.push(token(Kind::Receive), Op::Receive { socket: &far, multishot: true });
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Receive), -libc::ENOBUFS, false)]);
    drop(chunk);
    kernel.push(token(Kind::Receive), Op::Receive { socket: &far, multishot: true });
    assert_eq!(results(&mut kernel, Wait::None), []);
}

#[test]
fn receive_misses_reset_only_without_half_close() {
    for is_half_closed in [false, true] {
        let faults = SimFaults { missed_resets: 1000, ..SimFaults::none() };
        let (mut kernel, near, far) = connected_with(faults, &DriverOptions::default());
        kernel.push(token(Kind::Receive), Op::Receive { socket: &far, multishot: true });
        assert_eq!(results(&mut kernel, Wait::None), []);
        kernel.sockets_mut().send(&near, b"abc").unwrap();
        if is_half_closed {
            kernel.sockets().shutdown(&near, Shutdown::Write).unwrap();
        }
        kernel.sockets().set_option(&near, SocketOption::Linger, 0).unwrap();
        drop(near);
        let mut expected = vec![(token(Kind::Receive), 3, true)];
        expected.extend(is_half_closed.then_some((token(Kind::Receive), 0, false)));
        assert_eq!(results(&mut kernel, Wait::None), expected);
    }
}

#[test]
fn readable_poll_reports_new_bytes_and_eof() {
    let (mut kernel, near, far) = connected(&DriverOptions::default());
    kernel.push(token(Kind::Readable), Op::Readable { socket: &far });
    assert_eq!(results(&mut kernel, Wait::None), []);
    let readable = i32::from(libc::POLLIN);
    kernel.sockets_mut().send(&near, b"abc").unwrap();
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Readable), readable, true)]);
    assert_eq!(results(&mut kernel, Wait::None), [], "no new event");
    drop(near);
    let eof = readable | i32::from(libc::POLLRDHUP);
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Readable), eof, true)]);
}

#[test]
fn cancellation_without_target_returns_enoent() {
    let (mut kernel, _near, far) = connected(&DriverOptions::default());
    kernel.push(token(Kind::Cancel), Op::Cancel { target: token(Kind::Receive) });
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Cancel), -libc::ENOENT, false)]);
    kernel.push(token(Kind::Receive), Op::Receive { socket: &far, multishot: true });
    kernel.push(token(Kind::Cancel), Op::Cancel { target: token(Kind::Receive) });
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Receive), -libc::ECANCELED, false)]);
}

#[test]
fn operation_in_flight_holds_socket_open() {
    let (mut kernel, near, far) = connected(&DriverOptions::default());
    kernel.push(token(Kind::Receive), Op::Receive { socket: &near, multishot: true });
    kernel.enter(Wait::None).unwrap();
    drop(near);
    kernel.sockets_mut().send(&far, b"abc").unwrap();
    assert_eq!(results(&mut kernel, Wait::None), [(token(Kind::Receive), 3, true)]);
}

#[test]
fn completions_beyond_queue_capacity_are_kept() {
    let mut options = DriverOptions::default();
    options.testing.cq_entries = 2;
    let (mut kernel, ..) = connected(&options);
    for _ in 0..5 {
        kernel.push(token(Kind::Cancel), Op::Cancel { target: token(Kind::Receive) });
    }
    assert_eq!(results(&mut kernel, Wait::None).len(), 5);
    assert_eq!(kernel.overflows(), 2);
}

//! Tests of receiving.

use std::num::NonZero;
use std::task::{Poll, Waker};

use super::{Pair, RING_BUFFER_BYTES, options, ready};
use crate::driver::kernel::Kernel;
use crate::driver::kernel::op::{Completion, SINGLE_WAKE_UP, Wait};
use crate::driver::kernel::token::Kind;
use crate::driver::memory::buffer::RingUsage;
use crate::driver::proactor::receive_window::{ReceiveWindow, WINDOW_NS};
use crate::driver::proactor::stream::{HangupPoll, Received, Receiving};
use crate::driver::settings::sim_options::{SimFaults, SimOptions};
use crate::driver::sockets::messages::ReceivedFds;
use crate::driver::sockets::options::SocketOption;
use crate::driver::sockets::{Family, Sockets};

#[test]
fn error_of_a_receive_lasts() {
    let mut pair = Pair::new();
    assert!(pair.receive().is_pending() && pair.proactor.receive_error(pair.far).is_none());
    pair.turns();
    let near = pair.proactor.streams.get(pair.near).unwrap();
    pair.proactor.kernel.sockets().set_option(&near.socket, SocketOption::Linger, 0).unwrap();
    pair.proactor.abort(pair.near);
    pair.turns();
    for _ in 0..2 {
        assert_eq!(pair.receive(), Poll::Ready(Err(Some(libc::ECONNRESET))));
        let error = pair.proactor.receive_error(pair.far).and_then(|error| error.raw_os_error());
        assert_eq!(error, Some(libc::ECONNRESET));
    }
}

#[test]
fn first_receives_are_not_multishot() {
    for (missed_resets, hangup_poll) in [(0, HangupPoll::Idle), (1, HangupPoll::Armed)] {
        let faults = SimFaults { missed_resets, ..SimFaults::none() };
        let sim = SimOptions::new(1).faults(faults);
        let mut pair = Pair::with(Family::Internet, &sim, &options());
        for one_shot_receives in [1, 0] {
            pair.pass(b"abc");
            let far = pair.far();
            assert_eq!((far.one_shot_receives, far.receiving), (one_shot_receives, Receiving::Idle));
            assert_eq!(far.hangup_poll, HangupPoll::Idle);
        }
        for _ in 0..2 {
            pair.pass(b"abc");
            let far = pair.far();
            assert_eq!((far.one_shot_receives, far.receiving), (0, Receiving::Ring));
            assert_eq!(far.hangup_poll, hangup_poll);
        }
    }
}

#[test]
fn hangup_cancels_the_receive_of_a_broken_connection() {
    let (hup, err, rdhup) = (i32::from(libc::POLLHUP), i32::from(libc::POLLERR), i32::from(libc::POLLRDHUP));
    for (result, is_cancelled) in
        [(0, false), (-libc::ECANCELED, false), (rdhup, false), (hup, true), (err, true), (rdhup | hup, true)]
    {
        let faults = SimFaults { missed_resets: 1, ..SimFaults::none() };
        let sim = SimOptions::new(1).faults(faults);
        let mut pair = Pair::with(Family::Internet, &sim, &options());
        (0..3).for_each(|_| pair.pass(b"abc"));
        assert_eq!(pair.far().hangup_poll, HangupPoll::Armed);
        pair.complete(Kind::Hangup, result, 0);
        let expected = if is_cancelled { Receiving::Cancelling(Kind::Receive) } else { Receiving::Ring };
        assert_eq!(pair.far().receiving, expected, "{result}");
        let expected = if result < 0 { HangupPoll::Idle } else { HangupPoll::Fired };
        assert_eq!(pair.far().hangup_poll, expected, "{result}");
    }
}

#[test]
fn messages_that_do_not_fit_into_a_ring_buffer_are_received_directly() {
    for (length, is_direct) in [(1, false), (RING_BUFFER_BYTES, false), (3 * RING_BUFFER_BYTES, true)] {
        let mut pair = Pair::new();
        assert!(pair.receive().is_pending());
        pair.turns();
        pair.send_now(&vec![7; length]);
        pair.turns();
        assert_eq!(pair.far().direct, is_direct, "{length} bytes");
    }
}

#[test]
fn stream_returns_to_the_ring_after_small_messages() {
    for family in [Family::Internet, Family::Unix] {
        let mut pair = Pair::with(family, &SimOptions::new(1), &options());
        pair.far().direct = true;
        (0..63).for_each(|_| pair.pass(&[7; RING_BUFFER_BYTES]));
        pair.pass(&[7; RING_BUFFER_BYTES + 1]);
        (0..63).for_each(|_| pair.pass(b"a"));
        assert!(pair.far().direct);
        pair.pass(b"a");
        assert_eq!(pair.far().direct, family == Family::Unix);
        (0..3).for_each(|_| pair.pass(b"a"));
    }
}

#[test]
fn stream_is_direct_while_no_ring_buffer_is_left() {
    let mut options = options();
    (options.max_receive_buffers, options.testing.initial_receive_buffers) = (1, 1);
    let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &options);
    let mut leased = Vec::new();
    for _ in 0..4 {
        let mut received = None;
        assert!(pair.proactor.poll_receive(pair.far, &mut received, Waker::noop()).is_pending());
        pair.turns();
        if pair.far().direct {
            break;
        }
        pair.send_now(b"abc");
        pair.turns();
        assert!(pair.proactor.poll_receive(pair.far, &mut received, Waker::noop()).is_ready());
        leased.push(received);
    }
    assert!(!leased.is_empty() && pair.far().direct && pair.proactor.metrics().buffer_exhaustions > 0);
}

#[test]
fn event_of_a_direct_stream_determines_what_a_short_read_means() {
    let input = i32::from(libc::POLLIN);
    for (family, mask, was_readable, may_hold_messages) in [
        (Family::Unix, input, false, true),
        (Family::Unix, input | SINGLE_WAKE_UP, false, false),
        (Family::Unix, input | SINGLE_WAKE_UP, true, true),
        (Family::Internet, input, false, false),
        (Family::Internet, input | SINGLE_WAKE_UP, false, false),
    ] {
        let mut pair = Pair::with(family, &SimOptions::new(1), &options());
        pair.far().direct = true;
        assert!(pair.receive().is_pending());
        pair.far().reads.readable = was_readable;
        pair.complete(Kind::Readable, mask, Completion::MORE);
        let reads = pair.far().reads;
        assert!(reads.readable && !reads.short_read_is_inconclusive);
        assert_eq!(reads.may_hold_messages, may_hold_messages, "{family:?} {mask} {was_readable}");
    }
    for bit in [libc::POLLHUP, libc::POLLRDHUP, libc::POLLERR] {
        let mut pair = Pair::direct();
        assert!(pair.receive().is_pending());
        pair.complete(Kind::Readable, input | i32::from(bit), Completion::MORE);
        assert!(pair.far().reads.short_read_is_inconclusive, "{bit}");
        pair.complete(Kind::Readable, input, Completion::MORE);
        assert!(pair.far().reads.short_read_is_inconclusive, "{bit}");
    }
}

#[test]
fn socket_is_read_only_after_received_chunks() {
    let mut pair = Pair::new();
    pair.send_now(b"de");
    assert_eq!(pair.peek(5), ready(b"de"), "no receive is in flight");
    pair.proactor.store_received(pair.far, b"abc");
    assert_eq!((pair.peek(2), pair.peek(4), pair.peek(9)), (ready(b"ab"), ready(b"abcd"), ready(b"abcde")));
    assert_eq!(pair.receive(), ready(b"abc"));
    assert!(pair.receive().is_pending() && pair.peek(5).is_pending(), "a receive is in flight");
    pair.turns();
    assert_eq!(pair.peek(5), ready(b"de"));

    let mut pair = Pair::direct();
    assert!(pair.peek(1).is_pending() && !pair.far().reads.readable);
    pair.proactor.store_received(pair.far, b"abc");
    pair.turns();
    assert_eq!(pair.peek(5), ready(b"abc"));
    pair.proactor.shutdown_write(pair.near).unwrap();
    pair.turns();
    assert_eq!((pair.peek(5), pair.receive()), (ready(b"abc"), ready(b"abc")));
    assert_eq!((pair.peek(5), pair.receive()), (ready(b""), ready(b"")));
}

#[test]
fn use_of_the_ring_is_observed_in_windows() {
    let usage = |in_use, filled| RingUsage { in_use, filled };
    let mut window = ReceiveWindow::new(100, usage(3, u16::MAX));
    assert!(!window.has_ended(100 + WINDOW_NS - 1) && window.has_ended(100 + WINDOW_NS));
    let remaining_ns = WINDOW_NS - 50;
    for (wait, limited) in [
        (Wait::Forever, Wait::For(remaining_ns)),
        (Wait::For(7), Wait::For(7)),
        (Wait::For(u64::MAX), Wait::For(remaining_ns)),
        (Wait::None, Wait::None),
    ] {
        assert_eq!(window.limit(wait, 150), limited);
    }
    assert_eq!(window.limit(Wait::Forever, u64::MAX), Wait::For(0));
    // Nothing has changed: the window that follows would have the same result, and ends no wait.
    window.record(usage(3, u16::MAX));
    assert_eq!((window.peak, window.next(0).limit(Wait::Forever, 0)), (3, Wait::Forever));
    assert_eq!(window.next(0).limit(Wait::For(u64::MAX), 0), Wait::For(u64::MAX));
    // The number of filled buffers wraps.
    window.record(usage(1, 4));
    window.record(usage(2, 4));
    assert_eq!((window.peak, window.next(0).limit(Wait::Forever, 0)), (8, Wait::For(WINDOW_NS)));
    let mut next = window.next(7);
    assert_eq!(next.peak, 0);
    next.record(usage(2, 5));
    assert_eq!(next.peak, 3);
}

#[test]
fn peek_at_eof_returns_the_error_of_a_send() {
    let mut pair = Pair::direct();
    pair.far().sends.error = NonZero::new(libc::ECONNRESET);
    pair.proactor.release(pair.near);
    pair.turns();
    assert_eq!(pair.peek(5), Poll::Ready(Err(Some(libc::ECONNRESET))));
}

#[test]
fn receive_in_flight_has_one_kind() {
    for (receiving, kind) in [
        (Receiving::Idle, None),
        (Receiving::Ring, Some(Kind::Receive)),
        (Receiving::Polling, Some(Kind::Readable)),
        (Receiving::Cancelling(Kind::Receive), Some(Kind::Receive)),
        (Receiving::InDoubt(Kind::Readable), Some(Kind::Readable)),
    ] {
        for other in [Kind::Receive, Kind::Readable] {
            assert_eq!(receiving.is_in_flight(other), kind == Some(other), "{receiving:?}");
        }
    }
}

#[test]
fn received_chunks_are_counted() {
    let (pair, mut received) = (Pair::new(), Received::default());
    for count in 1..=4 {
        let chunk = pair.proactor.pools.copy(b"a").next().unwrap();
        assert_eq!(received.push(chunk), count);
    }
}

#[test]
fn failed_poll_fails_the_receive_unless_it_was_cancelled() {
    for (errno, is_returned) in [(libc::EIO, true), (libc::ECANCELED, false)] {
        let mut pair = Pair::direct();
        assert!(pair.receive().is_pending());
        pair.complete(Kind::Readable, -errno, 0);
        let expected = if is_returned { Poll::Ready(Err(Some(errno))) } else { Poll::Pending };
        assert_eq!(pair.receive(), expected);
    }
}

#[test]
fn descriptors_are_received_only_by_open_direct_streams() {
    let receive = |pair: &mut Pair| {
        let (mut buffer, mut descriptors) = ([0; 8], ReceivedFds::default());
        let (far, waker) = (pair.far, Waker::noop());
        let polled = pair.proactor.poll_receive_with_fds(far, &mut buffer, &mut descriptors, waker);
        polled.map_err(|error| error.raw_os_error())
    };
    let mut pair = Pair::direct();
    pair.send_now(b"abc");
    assert_eq!(receive(&mut pair), Poll::Ready(Ok(3)));
    let mut pair = Pair::new();
    pair.send_now(b"abc");
    assert!(receive(&mut pair).is_pending(), "receives through the ring");
    let mut pair = Pair::direct();
    assert!(receive(&mut pair).is_pending());
    pair.complete(Kind::Readable, -libc::EIO, 0);
    assert_eq!(receive(&mut pair), Poll::Ready(Err(Some(libc::EIO))));
}

//! Tests of sending, also without a copy.

use std::mem::discriminant;
use std::num::NonZero;
use std::task::{Poll, Waker};

use super::{Pair, with_thresholds};
use crate::driver::kernel::op::Completion;
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::proactor::cancellation_of;
use crate::driver::proactor::stream::Sending;
use crate::driver::settings::options::DriverOptions;
use crate::driver::settings::sim_options::SimOptions;
use crate::driver::sockets::Family;
use crate::driver::stream::send_queue::{Queued, SendBuf};
use crate::driver::wake::queue::WakeQueue;

#[test]
fn unsubmitted_send_needs_a_turn() {
    let mut pair = Pair::new();
    assert!(!pair.proactor.needs_turn());
    assert!(!pair.proactor.find_work(&mut WakeQueue::default()).unwrap());
    pair.send(b"abc");
    assert!(pair.proactor.needs_turn());
    pair.turns();
    assert!(!pair.proactor.needs_turn());
}

#[test]
fn stream_is_ready_for_writing_while_the_queue_has_room() {
    let mut pair = Pair::new();
    let is_ready = |pair: &mut Pair| pair.proactor.poll_write_ready(pair.near, Waker::noop()).is_ready();
    pair.send(&[7; 15]);
    assert!(is_ready(&mut pair) && !pair.proactor.confirm_without_sleeping);
    pair.send(&[7]);
    pair.proactor.confirm_without_sleeping = false;
    assert!(!is_ready(&mut pair) && pair.proactor.confirm_without_sleeping);
    pair.proactor.shutdown_write(pair.near).unwrap();
    assert!(is_ready(&mut pair), "a write fails");
}

#[test]
fn sends_for_which_a_task_waits_are_confirmed_before_the_next_wait() {
    let mut pair = Pair::new();
    assert!(matches!(pair.proactor.poll_flush(pair.near, Waker::noop()), Poll::Ready(Ok(()))));
    pair.send(b"abc");
    assert!(pair.near().is_unconfirmed() && !pair.must_confirm());
    assert!(pair.proactor.poll_submitted(pair.near, Waker::noop()).is_ready() && !pair.must_confirm());
    pair.send(b"de");
    assert!(pair.must_confirm(), "more is to be sent");
    assert!(pair.write(1).is_ready() && pair.must_confirm());
    assert!(pair.send_vectored(&[1, 1]) && pair.must_confirm());
    assert!(pair.proactor.poll_flush(pair.near, Waker::noop()).is_pending() && pair.must_confirm());
    pair.send(&[7; 8]);
    assert!(pair.must_confirm(), "the queue is full");
    let mut outgoing = Some(SendBuf::Vec(b"x".to_vec()));
    assert!(pair.proactor.poll_send(pair.near, &mut outgoing, Waker::noop()).is_pending());
    assert!(pair.must_confirm());
    assert!(pair.write(1).is_pending() && pair.must_confirm());
    assert!(!pair.send_vectored(&[1, 1]) && pair.must_confirm());
    assert!(pair.proactor.release(pair.near) && pair.must_confirm());

    // The completion of this send ends a wait.
    let mut pair = Pair::sending();
    pair.must_confirm();
    assert!(pair.proactor.poll_flush(pair.near, Waker::noop()).is_pending());
    assert!(pair.proactor.poll_submitted(pair.near, Waker::noop()).is_pending());
    assert!(pair.write(1).is_ready() && !pair.must_confirm());
}

#[test]
fn inline_send_is_confirmed_early_if_something_depends_on_it() {
    for (is_followed, is_awaited, is_released) in
        [(false, false, false), (true, false, false), (false, true, false), (false, false, true)]
    {
        let mut pair = Pair::new();
        let near = pair.near();
        near.sends.queue.push(Queued(SendBuf::Vec(vec![7; 600])));
        if is_followed {
            near.sends.queue.push(Queued(SendBuf::Vec(vec![7; 600])));
        }
        if is_awaited {
            near.sends.waker.wait(Waker::noop());
        }
        near.released = is_released;
        pair.proactor.after_send(pair.near, false, &mut WakeQueue::default());
        assert!(pair.near().is_unconfirmed());
        assert_eq!(pair.must_confirm(), is_followed || is_awaited || is_released);
    }
}

#[test]
fn long_writes_are_sent_directly() {
    for (threshold, length, is_direct) in
        [(64, 63, false), (64, 64, true), (usize::MAX, 4096, false), (usize::MAX, 4097, true)]
    {
        let options =
            DriverOptions { max_send_queue_bytes: 10_000, ..with_thresholds(threshold, usize::MAX) };
        let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &options);
        assert!(matches!(pair.write(length), Poll::Ready(count) if count == length));
        assert_eq!((pair.near().sending == Sending::Idle, pair.sends()), (is_direct, (is_direct.into(), 0)));
    }
    for (length, is_direct) in [(63, false), (64, true)] {
        let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &with_thresholds(64, usize::MAX));
        pair.send(&vec![7; length]);
        assert_eq!((pair.near().sending == Sending::Idle, pair.sends()), (is_direct, (is_direct.into(), 0)));
        pair.turns();
        assert!(pair.send_vectored(&[length - 32, 32]));
        assert_eq!(
            (pair.near().sending == Sending::Idle, pair.sends().0),
            (is_direct, 1 + u64::from(is_direct))
        );
    }
}

#[test]
fn write_accepts_what_fits_into_the_socket_and_the_queue() {
    let mut pair = Pair::new();
    assert!(matches!(pair.write(20), Poll::Ready(16)), "only the queue, because nothing is sent directly");
    let mut pair = Pair::new();
    pair.send(&[7; 10]);
    assert!(matches!(pair.write(10), Poll::Ready(6)));
    let mut pair = Pair::small(64);
    assert!(matches!(pair.write(64), Poll::Ready(24)));
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Async, (0, 1)));
    let mut pair = Pair::small(64);
    assert!(pair.send_vectored(&[32, 32]));
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Async, (0, 1)));
    // More buffers than one call takes.
    let options = with_thresholds(64, usize::MAX);
    let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &options);
    assert!(pair.send_vectored(&[1; 1500]));
    assert!(pair.near().is_unconfirmed() && pair.sends() == (1, 0));
}

#[test]
fn bytes_that_the_socket_does_not_take_are_queued() {
    let mut pair = Pair::small(64);
    let write_more = |pair: &mut Pair, data: &[u8]| {
        pair.proactor.poll_write_more(pair.near, data, Waker::noop()).map(Result::unwrap)
    };
    assert!(matches!(write_more(&mut pair, b"12345678"), Poll::Ready(8)));
    assert_eq!(pair.sends(), (1, 0));
    assert!(matches!(write_more(&mut pair, b"abc"), Poll::Ready(3)));
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Async, (1, 1)));

    let mut pair = Pair::small(64);
    pair.send_now(b"12345678");
    pair.send(&[7; 64]);
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Async, (0, 0)));
}

#[test]
fn result_of_a_send_decides_what_follows() {
    let inline = || {
        let mut pair = Pair::new();
        pair.send(b"abcdef");
        assert!(pair.near().is_unconfirmed());
        pair
    };
    let mut pair = inline();
    pair.complete_send(2);
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Async, (0, 1)));
    assert!(!pair.near().sends.may_have_lost_error);
    for errno in [libc::EAGAIN, libc::EINTR, libc::ENOBUFS, libc::ENOMEM] {
        let mut pair = inline();
        pair.complete_send(-errno);
        assert_eq!((pair.near().sending, pair.sends(), pair.error()), (Sending::Async, (0, 1), None));
    }
    let before = Pair::sending().sends();
    let mut pair = Pair::sending();
    pair.complete_send(12);
    assert_eq!((pair.near().sending, pair.sends()), (Sending::Idle, (before.0 + 1, before.1)));
    assert!(!pair.near().sends.may_have_lost_error);
    let mut pair = Pair::sending();
    pair.complete_send(5);
    assert_eq!((pair.near().sends.queue.queued_bytes(), pair.sends()), (7, (before.0, before.1 + 1)));
    assert!(pair.near().sends.may_have_lost_error);
    // The first send has lost the error of the connection.
    pair.complete_send(-libc::EPIPE);
    assert_eq!(pair.error(), Some(libc::ECONNRESET));
    for errno in [libc::EPIPE, libc::ENOBUFS, libc::EOPNOTSUPP, libc::ECONNRESET] {
        let mut pair = Pair::sending();
        pair.complete_send(-errno);
        assert_eq!((pair.error(), pair.near().sending), (Some(errno), Sending::Idle));
    }
}

#[test]
fn only_long_messages_on_internet_sockets_are_sent_without_a_copy() {
    for (family, lengths, count) in
        [(Family::Internet, [1500, 1], 1), (Family::Unix, [1500, 1], 0), (Family::Internet, [15, 15], 0)]
    {
        let mut pair = Pair::with(family, &SimOptions::new(1), &with_thresholds(1000, 32));
        assert!(pair.send_vectored(&lengths));
        assert_eq!(pair.proactor.metrics().zero_copy_sends, count);
        let mut pair = Pair::with(family, &SimOptions::new(1), &with_thresholds(1000, 32));
        pair.send(&vec![7; lengths[0]]);
        assert_eq!(pair.proactor.metrics().zero_copy_sends, count);
    }
    let mut options = with_thresholds(1000, 32);
    options.testing.disabled_features.zero_copy = true;
    let mut pair = Pair::with(Family::Internet, &SimOptions::new(1), &options);
    assert!(pair.send_vectored(&[40, 1]));
    assert_eq!(pair.proactor.metrics().zero_copy_sends, 0);
}

#[test]
fn memory_of_a_zero_copy_send_is_kept_until_the_notification() {
    let (mut pair, send_key) = Pair::sending_zero_copy();
    let token = Token::new(Kind::SendZeroCopy, send_key);
    pair.complete_token(token, 40, Completion::MORE);
    assert_eq!((pair.near().sending, pair.sends(), pair.error()), (Sending::Idle, (1, 0), None));
    assert!(pair.proactor.zero_copy_sends.get(send_key).unwrap().memory.is_some());
    pair.complete_token(token, 0, Completion::NOTIFICATION);
    assert_eq!((pair.proactor.zero_copy_sends.len(), pair.sends(), pair.error()), (0, (1, 0), None));

    // After a short send, the rest is sent once the memory is no longer in use.
    let (mut pair, send_key) = Pair::sending_zero_copy();
    let token = Token::new(Kind::SendZeroCopy, send_key);
    pair.complete_token(token, 10, Completion::MORE);
    assert_eq!((pair.near().sending, pair.sends()), (Sending::ZeroCopy(send_key), (0, 0)));
    pair.complete_token(token, 0, Completion::NOTIFICATION);
    assert_eq!((pair.near().sends.queue.queued_bytes(), pair.sends(), pair.error()), (30, (0, 1), None));

    // The result was dropped.
    let (mut pair, send_key) = Pair::sending_zero_copy();
    pair.complete_token(Token::new(Kind::SendZeroCopy, send_key), 0, Completion::NOTIFICATION);
    assert_eq!(pair.error(), Some(libc::ECONNABORTED));

    for (errno, sending, zero_copy_bytes) in
        [(libc::ENOBUFS, Sending::Async, 32), (libc::EOPNOTSUPP, Sending::Inline(1), usize::MAX)]
    {
        let (mut pair, send_key) = Pair::sending_zero_copy();
        pair.complete_token(Token::new(Kind::SendZeroCopy, send_key), -errno, 0);
        assert_eq!((pair.error(), pair.proactor.zero_copy_bytes), (None, zero_copy_bytes));
        assert_eq!(discriminant(&pair.near().sending), discriminant(&sending));
        assert_eq!(pair.sends().1, u64::from(errno == libc::ENOBUFS));
    }

    // An aborted stream does not wait for the notification of a short send.
    let (mut pair, send_key) = Pair::sending_zero_copy();
    pair.complete_token(Token::new(Kind::SendZeroCopy, send_key), 10, Completion::MORE);
    pair.proactor.abort(pair.near);
    assert!(pair.proactor.streams.get(pair.near).is_none());
    assert!(pair.proactor.zero_copy_sends.get(send_key).unwrap().memory.is_some());
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "invariant 8"))]
fn second_result_of_a_zero_copy_send_fails_the_stream() {
    let (mut pair, send_key) = Pair::sending_zero_copy();
    let token = Token::new(Kind::SendZeroCopy, send_key);
    pair.complete_token(token, 40, Completion::MORE);
    pair.complete_token(token, 40, Completion::MORE);
    assert!(pair.error().is_some());
}

#[test]
fn zero_copy_send_is_interrupted() {
    let sim = SimOptions::new(1).socket_buffer_bytes(8);
    let mut pair = Pair::with(Family::Internet, &sim, &with_thresholds(1000, 32));
    pair.send(&[7; 40]);
    pair.turns();
    assert!(matches!(pair.near().sending, Sending::ZeroCopy(_)) && !pair.proactor.needs_turn());
    pair.proactor.send_again(pair.near);
    assert!(pair.proactor.needs_turn());
}

#[test]
fn only_failed_zero_copy_send_is_cancelled_again() {
    for is_failed in [false, true] {
        let sim = SimOptions::new(1).socket_buffer_bytes(8);
        let mut pair = Pair::with(Family::Internet, &sim, &with_thresholds(1000, 32));
        pair.send(&[7; 40]);
        pair.turns();
        let Sending::ZeroCopy(send_key) = pair.near().sending else { panic!("{:?}", pair.near().sending) };
        pair.near().sends.error = NonZero::new(libc::ECONNABORTED).filter(|_| is_failed);
        let not_found = Completion { token: cancellation_of(send_key), result: -libc::ENOENT, flags: 0 };
        pair.proactor.dispatch(&not_found, &mut WakeQueue::default());
        assert_eq!(pair.proactor.needs_turn(), is_failed);
    }
}

#[test]
fn bytes_of_a_short_zero_copy_send_are_sent() {
    let (mut pair, send_key) = Pair::sending_zero_copy();
    assert_eq!(pair.proactor.unsent_bytes(pair.near), 40);
    pair.complete_token(Token::new(Kind::SendZeroCopy, send_key), 10, Completion::MORE);
    assert_eq!(pair.proactor.unsent_bytes(pair.near), 30);
}

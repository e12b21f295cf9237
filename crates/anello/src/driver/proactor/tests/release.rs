//! Tests of releasing streams, and of cancelling and recovering their operations.

use std::num::NonZero;
use std::os::fd::AsFd;
use std::task::{Poll, Waker};

use super::{Pair, options, ready};
use crate::driver::kernel::Kernel;
use crate::driver::kernel::op::Completion;
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::memory::key::Key;
use crate::driver::proactor::stream::{Connect, HangupPoll, Receiving, Sending, Stream};
use crate::driver::proactor::{Proactor, RecoveryCancels, cancellation_of};
use crate::driver::settings::sim_options::SimOptions;
use crate::driver::sim::{SimCompletion, SimNetwork, SimSocket};
use crate::driver::sockets::{Family, FileRange, Sockets};
use crate::driver::wake::queue::WakeQueue;

#[test]
fn only_aborted_stream_is_reset() {
    for is_aborted in [true, false] {
        let mut pair = Pair::new();
        assert!(pair.receive().is_pending());
        pair.turns();
        if is_aborted {
            pair.proactor.abort(pair.near);
        } else {
            pair.proactor.release(pair.near);
        }
        pair.turns();
        let expected = if is_aborted { Poll::Ready(Err(Some(libc::ECONNRESET))) } else { ready(b"") };
        assert_eq!(pair.receive(), expected);
    }
}

/// Otherwise, a peer that does not read would delay the shutdown, and one that reads would take the bytes for all.
#[test]
fn shutdown_resets_only_streams_with_unsent_bytes() {
    for is_sending in [true, false] {
        let (sim, options) = (SimOptions::new(1).socket_buffer_bytes(8), options());
        let mut kernel = SimCompletion::new(SimNetwork::new(&sim), &sim, &options);
        let (near, peer) = kernel.sockets_mut().pair_unix().unwrap();
        let mut proactor = Proactor::new(kernel, &options);
        let near = proactor.attach(near, Family::Internet, false).unwrap();
        let mut pair = Pair { proactor, near, far: near };
        if is_sending {
            pair.send(&[7; 20]);
            pair.turns();
            assert!(pair.proactor.unsent_bytes(near) > 0);
        }
        let start_ns = pair.proactor.kernel.sockets().now_ns();
        pair.proactor.shut_down(&mut WakeQueue::default()).unwrap();
        let network = pair.proactor.kernel.sockets_mut();
        let timeout_ns = options.testing.zero_copy_ack_timeout.as_nanos();
        assert!(u128::from(network.now_ns() - start_ns) < timeout_ns, "no zero-copy send is in flight");
        let end = loop {
            match network.receive(&peer, &mut [0; 8]) {
                Ok(1..) => {}
                end => break end.map_err(|error| error.raw_os_error()),
            }
        };
        assert_eq!(end, if is_sending { Err(Some(libc::ECONNRESET)) } else { Ok(0) });
    }
}

/// The kernel does not find an operation that moves between its queues. The streams are in the state after such a
/// cancellation: released, with an operation in flight.
#[test]
fn operation_that_a_cancellation_has_not_found_is_cancelled_again() {
    let mut receiving = Pair::new();
    assert!(receiving.receive().is_pending());
    receiving.turns();
    receiving.far().receiving = Receiving::Cancelling(Kind::Receive);
    receiving.far().released = true;
    // A send that waits for room in the socket buffer.
    let mut sending = Pair::small(64);
    sending.send(&[7; 40]);
    sending.turns();
    assert_eq!(sending.far().sending, Sending::Idle);
    let near = sending.near;
    let stream = sending.proactor.streams.get_mut(near).unwrap();
    assert_eq!(stream.sending, Sending::Async);
    (stream.sends.error, stream.released) = (NonZero::new(libc::ECONNABORTED), true);
    for (mut pair, key) in [(receiving, None), (sending, Some(near))] {
        let key = key.unwrap_or(pair.far);
        pair.turns();
        assert!(pair.proactor.streams.get(key).is_some(), "the operation is in flight");
        let not_found = Completion { token: cancellation_of(key), result: -libc::ENOENT, flags: 0 };
        pair.proactor.dispatch(&not_found, &mut WakeQueue::default());
        pair.turns();
        assert!(pair.proactor.streams.get(key).is_none());
        // Nothing is left to cancel.
        pair.proactor.dispatch(&not_found, &mut WakeQueue::default());
        assert!(!pair.proactor.needs_turn());
    }
}

/// The recovery only finds receives that are in flight after all completions have been read.
#[test]
fn receive_that_ends_after_dropped_completions_has_failed() {
    let mut pair = Pair::new();
    pair.far().receiving = Receiving::Ring;
    pair.proactor.abort_receives(&mut WakeQueue::default());
    pair.complete(Kind::Receive, 0, 0);
    assert_eq!(pair.receive(), Poll::Ready(Err(Some(libc::ECONNABORTED))));
}

#[test]
fn poll_that_a_recovery_does_not_find_has_ended() {
    // The second one was armed after completions had been dropped.
    for (sending, expected) in [(Sending::PollInDoubt, Sending::Idle), (Sending::Polling, Sending::Polling)] {
        let mut pair = Pair::new();
        pair.near().sending = sending;
        pair.proactor.recovery =
            RecoveryCancels { round: 1, targets: vec![Token::new(Kind::Writable, pair.near)] };
        pair.proactor.on_cancel_not_found(Key { index: 0, generation: 1 }, &mut WakeQueue::default());
        assert_eq!(pair.near().sending, expected);
    }
}

#[test]
fn only_cancelled_operations_are_cancelled_again() {
    type Change = fn(&mut Stream<SimSocket>);
    let cases: [(Change, bool); 8] = [
        (|stream| stream.hangup_poll = HangupPoll::Armed, false),
        (|stream| stream.hangup_poll = HangupPoll::Cancelling, true),
        (|_| {}, false),
        (|stream| stream.sends.error = NonZero::new(libc::ECONNABORTED), true),
        // The poll waits for room for the queued bytes.
        (|stream| stream.sending = Sending::Polling, false),
        (
            |stream| {
                stream.sends.queue.clear();
                stream.sending = Sending::Polling;
            },
            true,
        ),
        (|stream| stream.connect = Connect::InFlight, false),
        (|stream| (stream.connect, stream.released) = (Connect::InFlight, true), true),
    ];
    for (index, (change, is_cancelled)) in cases.into_iter().enumerate() {
        let mut pair = Pair::sending();
        assert!(!pair.proactor.needs_turn());
        change(pair.near());
        let not_found = Completion { token: cancellation_of(pair.near), result: -libc::ENOENT, flags: 0 };
        pair.proactor.dispatch(&not_found, &mut WakeQueue::default());
        assert_eq!(pair.proactor.needs_turn(), is_cancelled, "case {index}");
    }
}

#[test]
fn release_cancels_only_what_is_in_flight() {
    let mut pair = Pair::new();
    assert!(!pair.proactor.release(pair.near), "nothing is unsent");
    assert!(pair.proactor.streams.get(pair.near).is_none() && !pair.proactor.needs_turn());
    // A poll for writability would never complete.
    let mut pair = Pair::small(64);
    pair.send_now(b"12345678");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let range = FileRange { file: file.as_fd(), offset: 0, length: 10 };
    assert!(pair.proactor.poll_send_file(pair.near, range, Waker::noop()).is_pending());
    assert!(pair.near().sending == Sending::Polling && pair.near().sends_files);
    pair.turns();
    assert!(!pair.proactor.release(pair.near));
    pair.turns();
    assert!(pair.proactor.streams.get(pair.near).is_none());
}

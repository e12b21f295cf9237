//! Tests of polls of registered descriptors.

use std::rc::Rc;
use std::task::Waker;

use super::{Pair, options};
use crate::driver::kernel::Kernel;
use crate::driver::kernel::op::{Completion, Wait};
use crate::driver::kernel::token::Token;
use crate::driver::proactor::stream::SourcePoll;
use crate::driver::proactor::{Proactor, cancellation_of};
use crate::driver::settings::sim_options::SimOptions;
use crate::driver::sim::{SimCompletion, SimNetwork};
use crate::driver::sockets::Sockets;
use crate::driver::source::interest::{Direction, Interest};
use crate::driver::wake::queue::WakeQueue;

#[test]
fn urgent_data_is_reported_only_if_there_is_some() {
    let mut proactor = Pair::new().proactor;
    let socket = proactor.kernel.sockets_mut().open(false).unwrap();
    let key = proactor.register(Rc::new(socket), Interest::READABLE | Interest::PRIORITY).unwrap();
    let poll = |proactor: &mut Proactor<SimCompletion>, direction| {
        proactor.poll_ready(key, direction, Waker::noop(), None).map(Result::unwrap).is_ready()
    };
    let complete = |proactor: &mut Proactor<SimCompletion>, direction, events: i16| {
        let token = Token::source(key, direction);
        let completion = Completion { token, result: events.into(), flags: Completion::MORE };
        proactor.dispatch(&completion, &mut WakeQueue::default());
    };
    assert!(!poll(&mut proactor, Direction::Read) && !poll(&mut proactor, Direction::Priority));
    complete(&mut proactor, Direction::Priority, libc::POLLPRI);
    assert!(!poll(&mut proactor, Direction::Priority), "every wake-up reports urgent data");
    assert!(!poll(&mut proactor, Direction::Read));
    complete(&mut proactor, Direction::Read, libc::POLLIN | libc::POLLPRI);
    assert!(poll(&mut proactor, Direction::Read) && poll(&mut proactor, Direction::Priority));
    assert!(proactor.source(key).is_some() && proactor.deregister(key) && proactor.source(key).is_none());
}

#[test]
fn poll_of_a_source_lasts_except_for_writing() {
    let sim = SimOptions::new(1);
    let mut kernel = SimCompletion::new(SimNetwork::new(&sim), &sim, &options());
    let (near, far) = kernel.sockets_mut().pair_unix().unwrap();
    let mut proactor = Proactor::new(kernel, &options());
    let key = proactor.register(Rc::new(near), Interest::READABLE | Interest::WRITABLE).unwrap();
    for direction in [Direction::Read, Direction::Write] {
        assert!(proactor.poll_ready(key, direction, Waker::noop(), None).is_pending());
    }
    proactor.kernel.sockets_mut().send(&far, b"abc").unwrap();
    (0..3).for_each(|_| proactor.turn(Wait::None, &mut WakeQueue::default()).unwrap());
    for direction in [Direction::Read, Direction::Write] {
        assert!(proactor.poll_ready(key, direction, Waker::noop(), None).is_ready());
    }
    let polls = &proactor.sources.get(key).unwrap().polls;
    assert_eq!(polls[Direction::Read as usize], SourcePoll::Armed);
    assert_eq!(polls[Direction::Write as usize], SourcePoll::Idle);
}

#[test]
fn only_cancelled_polls_of_a_source_are_cancelled_again() {
    for (poll, is_cancelled) in [(SourcePoll::Armed, false), (SourcePoll::Cancelling, true)] {
        let mut proactor = Pair::new().proactor;
        proactor.turn(Wait::None, &mut WakeQueue::default()).unwrap();
        let socket = proactor.kernel.sockets_mut().open(false).unwrap();
        let source = proactor.register(Rc::new(socket), Interest::READABLE).unwrap();
        proactor.sources.get_mut(source).unwrap().polls[Direction::Read as usize] = poll;
        assert!(!proactor.needs_turn());
        let not_found = Completion { token: cancellation_of(source), result: -libc::ENOENT, flags: 0 };
        proactor.dispatch(&not_found, &mut WakeQueue::default());
        assert_eq!(proactor.needs_turn(), is_cancelled);
    }
}

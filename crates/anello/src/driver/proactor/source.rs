//! Readiness sources on kernels that complete operations.

use std::io;
use std::num::NonZero;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::stream::{Source, SourcePoll};
use super::{Proactor, cancellation_of};
use crate::driver::errors::impossible::report_impossible;
use crate::driver::kernel::op::{Completion, Op};
use crate::driver::kernel::token::Token;
use crate::driver::kernel::{CompletionKernel, Socket};
use crate::driver::memory::key::Key;
use crate::driver::sockets::{Sockets, gone};
use crate::driver::source::interest::{DIRECTIONS, Direction, Interest};
use crate::driver::source::readiness::{Readiness, ReadyEvent, Ticket};
use crate::driver::wake::queue::{PollIo, WakeQueue};

const PRIORITY: u32 = libc::POLLPRI as u32;

impl<K: CompletionKernel> Proactor<K> {
    pub fn register(&mut self, descriptor: Rc<Socket<K>>, interest: Interest) -> io::Result<Key> {
        Ok(self.sources.insert(Source {
            descriptor,
            readiness: Readiness::new(interest),
            polls: Default::default(),
            write_state_lasts: false,
            error: None,
            released: false,
        }))
    }

    /// Returns the descriptor of a source.
    #[allow(dead_code, reason = "used by the sockets that are built on readiness sources")]
    pub fn source(&self, key: Key) -> Option<&Rc<Socket<K>>> {
        self.sources.get(key).filter(|source| !source.released).map(|source| &source.descriptor)
    }

    pub fn poll_ready(
        &mut self,
        key: Key,
        direction: Direction,
        waker: &Waker,
        ticket: Option<&mut Ticket>,
    ) -> PollIo<ReadyEvent> {
        let Some(source) = self.sources.get_mut(key).filter(|source| !source.released) else {
            return Poll::Ready(Err(gone()));
        };
        if let Some(errno) = source.error.take() {
            return Poll::Ready(Err(io::Error::from_raw_os_error(errno.get())));
        }
        let polled = source.readiness.poll(direction, waker, ticket);
        if polled.is_pending() && source.polls[direction as usize] == SourcePoll::Idle {
            source.polls[direction as usize] = SourcePoll::Armed;
            let multishot = direction != Direction::Write || source.write_state_lasts;
            let events = direction.requested_events();
            let op = Op::Poll { socket: &*source.descriptor, events, multishot };
            self.kernel.push(Token::source(key, direction), op);
        }
        polled
    }

    #[inline]
    pub fn assumed_ready(&self, key: Key, direction: Direction) -> io::Result<ReadyEvent> {
        let source = self.sources.get(key).filter(|source| !source.released).ok_or_else(gone)?;
        Ok(source.readiness.assume(direction))
    }

    pub fn deregister(&mut self, key: Key) -> bool {
        let Some(source) = self.sources.get_mut(key) else { return false };
        source.released = true;
        for direction in Direction::ALL {
            let poll = &mut source.polls[direction as usize];
            if *poll == SourcePoll::Armed {
                *poll = SourcePoll::Cancelling;
                let cancel = Op::Cancel { target: Token::source(key, direction) };
                self.kernel.push(cancellation_of(key), cancel);
            }
        }
        self.finish_source(key);
        self.sources.get(key).is_some()
    }

    pub(super) fn cancel_polls_again(&mut self, index: u32) {
        let Some((key, source)) = self.sources.occupant(index) else { return };
        for direction in Direction::ALL {
            if source.polls[direction as usize] == SourcePoll::Cancelling {
                let cancel = Op::Cancel { target: Token::source(key, direction) };
                self.kernel.push(cancellation_of(key), cancel);
            }
        }
    }

    #[inline(never)]
    pub(super) fn on_source(&mut self, completion: &Completion, wakes: &mut WakeQueue) {
        let (key, direction) = completion.token.source_key();
        let Some(source) = self.sources.get_mut(key) else {
            return self.on_late_completion(self.sources.is_earlier(key));
        };
        if source.polls[direction as usize] == SourcePoll::Idle {
            // The tasks that wait for the source get the event, and find out by a call what it means.
            report_impossible("invariant 8: completion of a poll that is not in flight");
        }
        match u32::try_from(completion.result) {
            Ok(mut events) => {
                // io_uring reports urgent data at every wake-up, even if there is none.
                if direction == Direction::Priority
                    && events & PRIORITY != 0
                    && !self.kernel.sockets().is_priority_ready(&source.descriptor)
                {
                    events &= !PRIORITY;
                }
                source.readiness.on_event(events, wakes);
                if direction == Direction::Write {
                    source.write_state_lasts = events & direction.requested_events() == 0;
                }
            }
            Err(_) => {
                let errno = -completion.result;
                if !matches!(errno, libc::ECANCELED | libc::EINTR | libc::EAGAIN) {
                    source.error = NonZero::new(errno);
                }
            }
        }
        if !completion.has_more() {
            source.polls[direction as usize] = SourcePoll::Idle;
            // Tasks that still wait poll again, which arms the poll again.
            source.readiness.wake(direction, wakes);
        }
        if source.released {
            self.finish_source(key);
        }
    }

    /// Removes a released source once none of its polls is in flight.
    fn finish_source(&mut self, key: Key) {
        if self.sources.get(key).is_some_and(|source| source.released && source.is_idle()) {
            // Invariant 2: none of its polls is in flight.
            self.sources.remove(key);
            self.kernel.source_removed(key);
        }
    }

    /// Cancels the polls in flight, because their completions may have been dropped. A poll that has ended is armed
    /// again when a task waits, and then reports the current state, so no event is lost.
    pub(super) fn recover_source(&mut self, key: Key) {
        let Some(source) = self.sources.get_mut(key) else { return };
        let mut targets = [None; DIRECTIONS];
        for direction in Direction::ALL {
            let poll = &mut source.polls[direction as usize];
            if *poll != SourcePoll::Idle {
                *poll = SourcePoll::InDoubt;
                targets[direction as usize] = Some(Token::source(key, direction));
            }
        }
        for target in targets.into_iter().flatten() {
            self.cancel_for_recovery(target);
        }
    }

    pub(super) fn is_source_in_doubt(&self, target: Token) -> bool {
        let (key, direction) = target.source_key();
        self.sources.get(key).is_some_and(|source| source.polls[direction as usize] == SourcePoll::InDoubt)
    }
}

//! Readiness sources: descriptors that the driver polls, but on which it does no I/O.
//!
//! # Design
//!
//! The driver caches readiness per [`Direction`]. An event sets it, and only the owner of the source clears it, after a
//! call has returned `EAGAIN` or a short batch ([`Clear::Drained`]). A [tick](ReadyEvent::tick) counts the events: after
//! `EAGAIN`, readiness is cleared only if no event has arrived since the owner read the tick, which is before its call.
//!
//! - epoll registers a source once, edge-triggered, for the directions of its [`Interest`]. [`Direction::Write`] of a
//!   source that is also read is added once a task waits for it.
//! - io_uring polls a direction only once a task waits for it. The poll is multishot, which reports edges like epoll,
//!   and stays armed until the source is released. For [`Direction::Write`] it is one-shot, because a multishot poll
//!   would report nearly every send. A one-shot poll reports the state at the time it is armed. If it reports only an
//!   error or a hangup, which last, the next poll is multishot, so that a task that waits again does not spin.
//!
//! The driver shares the ownership of the descriptor, so a descriptor number is never used after it has been closed. A
//! poll in flight also keeps the file open in the kernel.
//!
//! # Waiting
//!
//! An event wakes all waiting tasks. Poll functions share one waker per direction. Each future has a *ticket*, under
//! which it is removed when it is dropped. The first waiting future uses a [`WakerSlot`], which needs no allocation.

use std::io;
use std::task::{Poll, Waker};

use super::interest::{DIRECTIONS, Direction, Interest, Ready};
use crate::driver::wake::queue::{PollIo, WakeQueue, WakerSlot};

/// The readiness of a source, and the number of events at the time it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyEvent {
    pub ready: Ready,
    pub tick: u64,
}

/// How much readiness a call to [`Driver::clear_ready`] clears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clear {
    /// Everything: a call has returned `EAGAIN`, so the descriptor is not even at EOF.
    All,
    /// Everything, whatever the tick: a call in this turn has shown that the descriptor is not ready. Events are recorded
    /// only between the calls of tasks.
    Drained,
    /// The given readiness except [`Ready::READ_CLOSED`] and [`Ready::WRITE_CLOSED`]. No further event follows these.
    Matching(Ready),
}

/// Identifies a waiting future within its source. Zero until the future has waited.
pub(crate) type Ticket = u64;

/// The cached readiness of a source, and the tasks that wait for it.
#[derive(Debug)]
pub(in crate::driver) struct Readiness {
    interest: Interest,
    tick: u64,
    last_ticket: Ticket,
    directions: [DirectionState; DIRECTIONS],
}

#[derive(Debug, Default)]
struct DirectionState {
    ready: Ready,
    /// Set once an event or a call has shown whether the direction is ready.
    is_known: bool,
    poll_waker: WakerSlot,
    /// The first waiting future, and its ticket.
    future_waker: WakerSlot,
    owner: Ticket,
    more_futures: Vec<(Ticket, WakerSlot)>,
}

impl Readiness {
    /// Errors are always reported, as the kernel does.
    pub fn new(interest: Interest) -> Self {
        let interest = interest.add(Interest::ERROR);
        Self { interest, tick: 0, last_ticket: 0, directions: Default::default() }
    }

    /// Returns the readiness of a direction, or stores the waker: under the ticket of a future, or as that of the poll
    /// function.
    #[inline]
    pub fn poll(
        &mut self,
        direction: Direction,
        waker: &Waker,
        ticket: Option<&mut Ticket>,
    ) -> PollIo<ReadyEvent> {
        if !self.interest.contains(direction) {
            return Poll::Ready(Err(not_registered(direction, self.interest)));
        }
        let state = &mut self.directions[direction as usize];
        if !state.ready.is_empty() {
            return Poll::Ready(Ok(ReadyEvent { ready: state.ready, tick: self.tick }));
        }
        match ticket {
            None => state.poll_waker.wait(waker),
            Some(ticket) => {
                if *ticket == 0 {
                    self.last_ticket += 1;
                    *ticket = self.last_ticket;
                }
                state.wait(*ticket, waker);
            }
        }
        Poll::Pending
    }

    /// Returns the readiness of a direction. Assumes that it is ready if no event or call has shown otherwise.
    #[inline]
    pub fn assume(&self, direction: Direction) -> ReadyEvent {
        let state = &self.directions[direction as usize];
        let is_assumed = !state.is_known && state.ready.is_empty();
        let ready = if is_assumed { direction.assumed() } else { state.ready };
        ReadyEvent { ready, tick: self.tick }
    }

    /// Sets a direction of a new source, which is certain to be ready before the first event.
    pub fn set_ready(&mut self, direction: Direction) {
        let state = &mut self.directions[direction as usize];
        state.is_known = true;
        state.ready |= direction.assumed();
    }

    /// Clears readiness unless an event has arrived since the given tick.
    pub fn clear(&mut self, direction: Direction, clear: Clear, tick: u64) {
        if self.tick != tick && clear != Clear::Drained {
            return;
        }
        let state = &mut self.directions[direction as usize];
        state.is_known = true;
        state.ready = match clear {
            Clear::All | Clear::Drained => Ready::EMPTY,
            Clear::Matching(ready) => state.ready - (ready - Ready::CLOSED),
        };
    }

    /// Records an event and wakes the tasks that wait for it.
    pub fn on_event(&mut self, events: u32, wakes: &mut WakeQueue) {
        self.tick += 1;
        if events == libc::POLLIN as u32 && self.interest.contains(Direction::Read) {
            // Nearly all events.
            return self.directions[Direction::Read as usize].on_ready(Ready::READABLE, wakes);
        }
        for direction in self.interest.directions() {
            let ready = direction.ready(events);
            if !ready.is_empty() {
                self.directions[direction as usize].on_ready(ready, wakes);
            }
        }
    }

    pub fn wake(&mut self, direction: Direction, wakes: &mut WakeQueue) {
        self.directions[direction as usize].wake(wakes);
    }

    pub fn wake_all(&mut self, wakes: &mut WakeQueue) {
        self.directions.iter_mut().for_each(|state| state.wake(wakes));
    }

    /// Returns the waker slot of the poll function of a direction.
    pub fn waker_slot(&mut self, direction: Direction) -> &mut WakerSlot {
        &mut self.directions[direction as usize].poll_waker
    }

    /// Checks that no task waits for what is ready, and that each future waits once.
    #[cfg(debug_assertions)]
    pub fn check(&self) {
        for direction in Direction::ALL {
            let state = &self.directions[direction as usize];
            assert!(
                state.ready.is_empty() || !self.is_waiting(direction),
                "invariant 9: a task waits for a source that is ready"
            );
            let mut tickets: Vec<_> = state.more_futures.iter().map(|(ticket, _)| *ticket).collect();
            tickets.extend(state.future_waker.is_waiting().then_some(state.owner));
            tickets.sort_unstable();
            assert!(
                !tickets.contains(&0) && tickets.windows(2).all(|pair| pair[0] != pair[1]),
                "a future waits twice for a source, or without a ticket: {tickets:?}"
            );
        }
    }

    /// Returns `true` if a task waits for a direction.
    #[cfg(debug_assertions)]
    pub fn is_waiting(&self, direction: Direction) -> bool {
        let state = &self.directions[direction as usize];
        state.poll_waker.is_waiting() || state.future_waker.is_waiting() || !state.more_futures.is_empty()
    }

    /// Removes the wakers of a future.
    pub fn leave(&mut self, ticket: Ticket) {
        for state in &mut self.directions {
            if state.owner == ticket {
                state.future_waker.stop_waiting();
            }
            state.more_futures.retain(|(other, _)| *other != ticket);
        }
    }
}

impl DirectionState {
    fn wait(&mut self, ticket: Ticket, waker: &Waker) {
        if !self.future_waker.is_waiting() || self.owner == ticket {
            self.owner = ticket;
            return self.future_waker.wait(waker);
        }
        match self.more_futures.iter_mut().find(|(other, _)| *other == ticket) {
            Some((_, slot)) => slot.wait(waker),
            None => {
                let mut slot = WakerSlot::default();
                slot.wait(waker);
                self.more_futures.push((ticket, slot));
            }
        }
    }

    #[inline]
    fn on_ready(&mut self, ready: Ready, wakes: &mut WakeQueue) {
        self.is_known = true;
        self.ready |= ready;
        self.wake(wakes);
    }

    fn wake(&mut self, wakes: &mut WakeQueue) {
        self.poll_waker.wake(wakes);
        self.future_waker.wake(wakes);
        // Usually empty, and checking this is cheaper than draining it.
        if !self.more_futures.is_empty() {
            self.more_futures.drain(..).for_each(|(_, mut slot)| slot.wake(wakes));
        }
    }
}

#[cold]
fn not_registered(direction: Direction, interest: Interest) -> io::Error {
    let text = format!(
        "cannot wait for {:?}: the descriptor is registered for {interest:?} (register it with this interest)",
        Interest::from(direction)
    );
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::driver::source::interest::ERROR;

    const IN: u32 = libc::POLLIN as u32;
    const OUT: u32 = libc::POLLOUT as u32;

    fn readiness() -> (Readiness, WakeQueue) {
        (Readiness::new(Interest::READABLE | Interest::WRITABLE), WakeQueue::default())
    }

    fn poll(readiness: &mut Readiness, direction: Direction) -> Poll<ReadyEvent> {
        readiness.poll(direction, Waker::noop(), None).map(Result::unwrap)
    }

    #[test]
    fn clear_with_old_tick_keeps_readiness() {
        let (mut readiness, mut wakes) = readiness();
        readiness.on_event(IN, &mut wakes);
        let Poll::Ready(event) = poll(&mut readiness, Direction::Read) else { panic!("not ready") };
        readiness.on_event(IN, &mut wakes);
        readiness.clear(Direction::Read, Clear::All, event.tick);
        let Poll::Ready(event) = poll(&mut readiness, Direction::Read) else { panic!("cleared") };
        readiness.clear(Direction::Read, Clear::All, event.tick);
        assert!(poll(&mut readiness, Direction::Read).is_pending());
    }

    #[test]
    fn clear_affects_only_its_direction() {
        let (mut readiness, mut wakes) = readiness();
        readiness.on_event(IN | OUT, &mut wakes);
        readiness.clear(Direction::Write, Clear::All, readiness.tick);
        assert!(poll(&mut readiness, Direction::Write).is_pending());
        let Poll::Ready(event) = poll(&mut readiness, Direction::Read) else { panic!("cleared") };
        assert_eq!(event.ready, Ready::READABLE);
    }

    #[test]
    fn explicit_clear_keeps_closed_sides() {
        let (mut readiness, mut wakes) = readiness();
        readiness.on_event(IN | libc::POLLRDHUP as u32, &mut wakes);
        readiness.clear(Direction::Read, Clear::Matching(Ready::ALL), readiness.tick);
        let Poll::Ready(event) = poll(&mut readiness, Direction::Read) else { panic!("cleared") };
        assert_eq!(event.ready, Ready::READ_CLOSED);
        readiness.clear(Direction::Read, Clear::All, readiness.tick);
        assert!(poll(&mut readiness, Direction::Read).is_pending());
    }

    #[test]
    fn error_makes_both_directions_ready() {
        let (mut readiness, mut wakes) = readiness();
        readiness.on_event(ERROR, &mut wakes);
        for direction in [Direction::Read, Direction::Write] {
            let Poll::Ready(event) = poll(&mut readiness, direction) else { panic!("{direction:?}") };
            assert!(event.ready.is_error());
        }
        assert!(
            readiness.poll(Direction::Priority, Waker::noop(), None).map(|ready| ready.is_err()).is_ready()
        );
    }

    #[test]
    fn futures_beyond_the_first_are_listed_until_they_leave_or_an_event() {
        let (mut readiness, mut wakes) = readiness();
        let mut tickets = [0; 3];
        for ticket in &mut tickets {
            for _ in 0..2 {
                assert!(readiness.poll(Direction::Read, Waker::noop(), Some(ticket)).is_pending());
            }
        }
        let listed = |readiness: &Readiness| readiness.directions[0].more_futures.len();
        assert_eq!((tickets, listed(&readiness)), ([1, 2, 3], 2));
        readiness.leave(2);
        assert_eq!(listed(&readiness), 1);
        readiness.leave(1);
        assert!(!readiness.directions[0].future_waker.is_waiting());
        readiness.on_event(IN, &mut wakes);
        assert_eq!(listed(&readiness), 0);
        assert_eq!(wakes.deferred_wakers.len(), 1);
    }
}

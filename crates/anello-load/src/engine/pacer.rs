//! Dispatch of the requests of an open loop to their connections.
//!
//! A request is dispatched in the order of the schedule, but only as far as a connection can send: the runner
//! dispatches to connections that are ready (idle, with an empty queue) when requests become due, and a connection that
//! has just received a reply dispatches until it has a request of its own. While no connection is ready, nothing is
//! dispatched and the runner sleeps. Requests for which the server is too slow therefore cost nothing until a
//! connection can send them; the number of waiting requests is computed from the schedule.
//!
//! ```text
//!            dispatched                    due, not dispatched            not due
//!   ├───────────────────────────────┼─────────────────────────────┼──────────────────►  schedule
//!   queues of the connections       next                          now
//!   ├─────────────────────────────────────────────────────────────┤
//!                               offered
//! ```

use std::cell::RefCell;
use std::rc::Rc;

use crate::engine::schedule::{COUNTED_EXACTLY, Schedule};
use crate::engine::shared::Shared;
use crate::engine::slot::ConnectionSlot;

/// Maximum number of requests in the due queues of a thread. Further requests count as unsent.
const MAX_QUEUED_REQUESTS: usize = 4_000_000;

/// Limits the requests dispatched at a time, so that replies, timeouts and stop requests are handled at any rate.
const MAX_DISPATCHED_AT_ONCE: usize = 10_000;

/// Dispatches scheduled requests to their connections, and counts them.
pub(crate) struct Pacer {
    schedule: Schedule,
    slots: Vec<Rc<ConnectionSlot>>,
    start_ns: u64,
    end_ns: u64,
    /// Due time of the next request, and slot index of its connection. `None` if there are no more requests.
    next: Option<(u64, usize)>,
    /// Time before the due time at which the runner stops sleeping.
    wake_margin_ns: u64,
    /// Maximum number of requests in the due queue of one connection.
    max_queue_len: usize,
    /// End of the warm-up until the runner has noticed it, so that no result of the measurement is discarded with those
    /// of the warm-up; then `u64::MAX`.
    warm_up_end_ns: u64,
    /// Requests due in these periods are skipped. The last period can be open-ended.
    pauses: Vec<(u64, u64)>,
    /// End of the ramp.
    all_open_ns: u64,
    /// End of the warm-up and of the ramp. From then on, every request counts, except in a pause.
    counted_from_ns: u64,
    /// Requests that count and have been dispatched.
    dispatched: u64,
    /// Requests that count and have been counted as offered.
    offered: u64,
}

/// The pacer of a thread, for the runner and the connections; empty in a closed loop and after the end of the schedule.
#[derive(Default)]
pub(crate) struct SharedPacer(pub RefCell<Option<Pacer>>);

impl SharedPacer {
    /// Dispatches requests that are due until this connection has `count` of them.
    #[inline]
    pub fn dispatch_to(&self, slot: &ConnectionSlot, count: usize, now_ns: u64, shared: &Shared) {
        let has_enough = || slot.due_queue.borrow().len() >= count;
        if has_enough() {
            return;
        }
        if let Some(pacer) = &mut *self.0.borrow_mut()
            && now_ns >= pacer.due_ns()
        {
            pacer.dispatch(now_ns, shared, has_enough);
            if pacer.is_exhausted() {
                shared.wake_runner();
            }
        }
    }
}

impl Pacer {
    /// Creates a pacer for the requests due until `end_ns`. `shared` has the end of the warm-up and the limit of
    /// requests.
    pub fn new(
        schedule: Schedule,
        slots: Vec<Rc<ConnectionSlot>>,
        start_ns: u64,
        end_ns: u64,
        shared: &Shared,
    ) -> Self {
        // Exceeds the time by which the runtime's timers can be late.
        let wake_margin_ns = match anello::current_driver() {
            Some(driver) if driver.name == "uring" => 300_000,
            // The timers of the virtual clock are exact.
            Some(driver) if driver.is_simulated() => 0,
            _ => 1_300_000,
        };
        let count_from_ns = shared.count_from_ns.get();
        let has_warm_up = count_from_ns > start_ns;
        let all_open_ns = slots.iter().map(|slot| slot.open_at_ns.get()).max().unwrap_or(0);
        let max_queue_len = MAX_QUEUED_REQUESTS / slots.len().max(1);
        let (pauses, dispatched, offered, next) = (Vec::new(), 0, 0, None);
        let mut pacer = Self {
            schedule,
            slots,
            start_ns,
            end_ns,
            next,
            wake_margin_ns,
            max_queue_len,
            warm_up_end_ns: if has_warm_up { count_from_ns } else { u64::MAX },
            pauses,
            all_open_ns,
            counted_from_ns: count_from_ns.max(all_open_ns),
            dispatched,
            offered,
        };
        pacer.advance();
        pacer
    }

    /// Returns the due time of the next request, or the end of the schedule.
    #[inline]
    pub fn due_ns(&self) -> u64 {
        self.next.map_or(self.end_ns, |(due_ns, _)| due_ns)
    }

    /// Returns the time until which the runner can sleep if a connection is ready.
    pub fn sleep_until_ns(&self) -> u64 {
        self.due_ns().saturating_sub(self.wake_margin_ns)
    }

    /// Returns `true` if requests are dispatched only as far as connections can send. In a ramp, all requests that are
    /// due are dispatched, because those of connections that have not been opened do not count.
    pub fn is_lazy(&self, now_ns: u64) -> bool {
        now_ns >= self.all_open_ns
    }

    /// Returns `true` if all requests have been dispatched.
    #[inline]
    pub fn is_exhausted(&self) -> bool {
        self.next.is_none()
    }

    /// Returns `true` at the end of the schedule. Connections run until then, even if no more requests are due.
    pub fn is_finished(&self, now_ns: u64) -> bool {
        self.is_exhausted() && now_ns >= self.end_ns
    }

    #[inline]
    fn advance(&mut self) {
        let next = self.schedule.next().map(|(ns, slot)| (self.start_ns.saturating_add(ns), slot));
        self.next = next.filter(|&(due_ns, _)| due_ns < self.end_ns);
    }

    /// Dispatches the requests that are due, until `is_enough` returns `true`.
    pub fn dispatch(&mut self, now_ns: u64, shared: &Shared, is_enough: impl Fn() -> bool) {
        for _ in 0..MAX_DISPATCHED_AT_ONCE {
            let Some((due_ns, slot_index)) = self.next.filter(|&(due_ns, _)| due_ns <= now_ns) else {
                return;
            };
            if is_enough() || due_ns >= self.warm_up_end_ns {
                return;
            }
            if shared.remaining_requests.get() == 0 {
                (self.next, self.end_ns) = (None, due_ns);
                return;
            }
            self.advance();
            let slot = &self.slots[slot_index];
            // During a ramp, a connection gets no requests before it is opened.
            if due_ns < slot.open_at_ns.get()
                || self.pauses.iter().any(|&(from_ns, to_ns)| (from_ns..to_ns).contains(&due_ns))
            {
                continue;
            }
            shared.take_request(due_ns);
            let counts = u64::from(shared.counts(due_ns));
            self.dispatched += counts;
            let mut due_queue = slot.due_queue.borrow_mut();
            if slot.broken.get() || due_queue.len() >= self.max_queue_len {
                shared.counters.add_unsent(counts);
                continue;
            }
            due_queue.push_back(due_ns);
            drop(due_queue);
            if shared.set_ready(&slot.is_ready, false) {
                slot.wake();
            }
        }
    }

    /// Allows requests due after the warm-up to be dispatched.
    pub fn end_warm_up(&mut self) {
        self.warm_up_end_ns = u64::MAX;
    }

    /// Starts or ends a pause at `now_ns`.
    pub fn set_paused(&mut self, is_paused: bool, now_ns: u64, shared: &Shared) {
        if is_paused == self.is_paused() {
            return;
        }
        self.count_offered(now_ns, shared);
        let from_ns = now_ns.saturating_add(1);
        match self.pauses.last_mut() {
            Some((_, to_ns)) if !is_paused => *to_ns = from_ns,
            _ => self.pauses.push((from_ns, u64::MAX)),
        }
    }

    fn is_paused(&self) -> bool {
        self.pauses.last().is_some_and(|&(_, to_ns)| to_ns == u64::MAX)
    }

    /// Counts the requests that are due as offered. Does not count too many if their number is estimated.
    pub fn count_offered(&mut self, now_ns: u64, shared: &Shared) {
        let waiting = self.waiting_requests(now_ns, shared);
        let deviation = if waiting > COUNTED_EXACTLY { 5.0 * (waiting as f64).sqrt() } else { 0.0 };
        self.add_offered(waiting.saturating_sub(deviation as u64), shared);
    }

    /// Counts the requests that are due by then as offered, and those of them that have not been dispatched as unsent.
    pub fn abandon(&mut self, until_ns: u64, shared: &Shared) {
        self.add_offered(self.waiting_requests(until_ns, shared), shared);
        shared.counters.add_unsent(self.offered - self.dispatched);
    }

    fn add_offered(&mut self, waiting: u64, shared: &Shared) {
        let offered = self.dispatched.saturating_add(waiting).max(self.offered);
        shared.counters.add_offered(offered - self.offered);
        self.offered = offered;
    }

    /// Returns the number of requests that are due, count and have not been dispatched.
    fn waiting_requests(&self, now_ns: u64, shared: &Shared) -> u64 {
        let Some((due_ns, _)) = self.next else { return 0 };
        let end_ns = now_ns.saturating_add(1).min(self.end_ns);
        let (mut waiting, mut from_ns) = (0_u64, self.counted_from_ns);
        // The periods between the pauses.
        for &(paused_ns, resumed_ns) in self.pauses.iter().chain(&[(end_ns, end_ns)]) {
            let to_ns = paused_ns.min(end_ns);
            let [from, to] = [from_ns, to_ns].map(|ns| ns.saturating_sub(self.start_ns));
            let next = u64::from((from_ns..to_ns).contains(&due_ns));
            waiting = waiting.saturating_add(self.schedule.remaining_requests(from, to)).saturating_add(next);
            from_ns = from_ns.max(resumed_ns);
        }
        waiting.min(shared.remaining_requests.get())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Instant;

    use super::*;
    use crate::engine::schedule::Share;
    use crate::model::config::{Arrivals, LoadConfig, Mode};
    use crate::wire::exchange::Exchange;
    use crate::wire::message::Messages;

    const MILLISECOND_NS: u64 = 1_000_000;

    /// Returns a pacer of 1000 requests/s for two connections over 100 ms, with a warm-up of 10 ms.
    fn pacer(arrivals: Arrivals) -> (Pacer, Shared, Vec<Rc<ConnectionSlot>>) {
        let mode = Mode::Open { per_second: 1000, arrivals, seed: 1 };
        let load = LoadConfig { mode, ..LoadConfig::echo(SocketAddr::from(([127, 0, 0, 1], 1)), 1) };
        let shared = Shared::new(load, Exchange::Messages(Messages::new(1, 1, false)), Instant::now());
        shared.count_from_ns.set(10 * MILLISECOND_NS);
        let slots: Vec<_> = (0..2).map(|_| Rc::<ConnectionSlot>::default()).collect();
        let schedule = Schedule::new(Share { thread: 0, threads: 1, connections: 2 }, 1000, arrivals, 1);
        let pacer = Pacer::new(schedule, slots.clone(), 0, 100 * MILLISECOND_NS, &shared);
        (pacer, shared, slots)
    }

    fn queued(slots: &[Rc<ConnectionSlot>]) -> Vec<usize> {
        slots.iter().map(|slot| slot.due_queue.borrow().len()).collect()
    }

    #[test]
    fn requests_are_dispatched_only_as_far_as_connections_can_send() {
        let (mut pacer, shared, slots) = pacer(Arrivals::Constant);
        pacer.end_warm_up();
        let now_ns = 50 * MILLISECOND_NS;
        pacer.dispatch(now_ns, &shared, || shared.ready.get() == 0);
        assert_eq!(queued(&slots), [0, 0], "no connection is ready");
        shared.set_ready(&slots[1].is_ready, true);
        pacer.dispatch(now_ns, &shared, || shared.ready.get() == 0);
        assert_eq!((queued(&slots), shared.ready.get()), (vec![1, 1], 0));
        let pacer = SharedPacer(RefCell::new(Some(pacer)));
        pacer.dispatch_to(&slots[0], 3, now_ns, &shared);
        assert_eq!(queued(&slots), [3, 2]);
        pacer.dispatch_to(&slots[0], 1, now_ns, &shared);
        assert_eq!(queued(&slots), [3, 2], "the connection has enough requests");
    }

    #[test]
    fn every_due_request_is_offered_once_except_in_warm_up_and_pauses() {
        for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
            let (mut pacer, shared, slots) = pacer(arrivals);
            let pauses =
                [20..30, 40..55].map(|pause| pause.start * MILLISECOND_NS..pause.end * MILLISECOND_NS);
            let all: Vec<u64> =
                pacer.schedule.clone().map(|(ns, _)| ns).take_while(|&ns| ns < pacer.end_ns).collect();
            let all = pacer.next.iter().map(|&(ns, _)| ns).chain(all);
            // The pause starts and ends after the time at which it is noticed.
            let is_paused = |ns: u64| pauses.iter().any(|pause| pause.start < ns && ns <= pause.end);
            let counted: Vec<u64> = all.filter(|&ns| ns >= 10 * MILLISECOND_NS && !is_paused(ns)).collect();
            let dispatch = |pacer: &mut Pacer, now_ns: u64, count: usize| {
                pacer.dispatch(now_ns, &shared, || queued(&slots).iter().sum::<usize>() >= count);
            };
            pacer.end_warm_up();
            for now_ms in 0..90 {
                let now_ns = now_ms * MILLISECOND_NS;
                pacer.set_paused(pauses.iter().any(|pause| pause.contains(&now_ns)), now_ns, &shared);
                pacer.count_offered(now_ns, &shared);
                let due = counted.iter().filter(|&&ns| ns <= now_ns).count() as u64;
                assert_eq!(pacer.offered, due, "{arrivals:?} at {now_ms} ms");
                dispatch(&mut pacer, now_ns, now_ms as usize / 3);
            }
            pacer.abandon(u64::MAX, &shared);
            let counts = shared.counters.take_interval(0, 0).counts;
            assert_eq!(counts.offered, Some(counted.len() as u64), "{arrivals:?}");
            let sent = slots.iter().flat_map(|slot| slot.due_queue.take());
            assert_eq!(shared.counted(sent) + counts.unsent, counted.len() as u64, "{arrivals:?}");
        }
    }
}

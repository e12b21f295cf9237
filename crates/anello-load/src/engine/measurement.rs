//! The runner of one measurement: dispatches scheduled requests, divides the results into intervals, aborts connections
//! that time out, and advances through the phases.
//!
//! ```text
//!   start        count_from                          deadline            end of drain
//!     ├── warm-up ───┼── interval ──┼── interval ──┼─...─┤── last replies ──┤
//!     requests are due throughout                        │ queued requests  │ requests not sent by now
//!                                                        │ are still sent   │ count as unsent
//! ```
//!
//! # Wake-ups
//!
//! The runtime's timers fire up to 0.13 ms late on io_uring, and up to 1.1 ms late on epoll, because `epoll_wait(2)`
//! has a resolution of 1 ms. The runner therefore sleeps until shortly before the next request is due, and then polls
//! the clock without sleeping. Each of these polls is one turn of the runtime's event loop, so replies are still
//! received. While no connection could send a request ([`pacer`](crate::engine::pacer)), it sleeps. At rates below a
//! few hundred requests per second the core is idle nearly all the time; above a thousand per second, it is always
//! busy. The time spent polling with nothing to do is counted (`pacing_ns`), so it is not mistaken for work.
//!
//! The runner is polled by the future that runs the session, because the runtime polls that future once per turn of its
//! event loop. A task that wakes itself would be polled hundreds of times before the sockets are polled.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use anello::time::{Sleep, sleep};

use crate::engine::pacer::{Pacer, SharedPacer};
use crate::engine::schedule::Schedule;
use crate::engine::shared::{ProgressSnapshot, Shared};
use crate::engine::slot::{AbortReason, ConnectionSlot};
use crate::model::interval::Interval;
use crate::system::nanoseconds;

/// Interval between timeout checks or progress reports. Timeout checks run more often if the stall timeout is short.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Grace period for in-flight requests after the load has been stopped, in nanoseconds.
const STOP_GRACE_NS: u64 = 500_000_000;

/// Receiver of measurement events. `()` ignores all events.
pub(crate) trait Observer {
    /// Returning `Break` stops the load.
    fn tick(&mut self, _snapshot: ProgressSnapshot) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Open loop: returns whether requests that become due are skipped.
    fn is_paused(&self) -> bool {
        false
    }

    fn warmed_up(&mut self, _warm_up: Interval) {}

    /// `pacing_ns` is the time that the pacer spent polling the clock without other work.
    fn interval(&mut self, _index: u64, _interval: Interval, _pacing_ns: u64) {}
}

impl Observer for () {}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasurementRequest {
    /// Start, in nanoseconds since the origin of the session.
    pub start_ns: u64,
    pub warm_up: Duration,
    pub duration: Duration,
    /// Length of the intervals that the observer receives.
    pub interval: Option<Duration>,
    /// Open loop: requests per second over all threads, and the index of the measurement, which modifies the seed.
    pub rate: Option<(u64, u64)>,
}

/// Results since the last interval.
pub(crate) struct FinalInterval {
    pub interval: Interval,
    pub pacing_ns: u64,
    /// Set if the measurement ended before its deadline.
    pub before_deadline: bool,
    /// Throughput of the whole measurement.
    pub throughput: Throughput,
}

/// Replies received before the deadline. Later replies are excluded, because the time until they arrive depends on the
/// slowest connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Throughput {
    pub requests: u64,
    /// Length of the measured period, which starts at the end of the warm-up.
    pub elapsed_ns: u64,
}

pub(crate) struct MeasurementRunner<'a> {
    shared: Rc<Shared>,
    slots: &'a [Rc<ConnectionSlot>],
    pacer: &'a SharedPacer,
    observer: &'a mut dyn Observer,
    phase: Phase,
    interval_ns: Option<u64>,
    tick_ns: u64,
    next_tick_ns: u64,
    /// End of the next interval; `u64::MAX` if there is none.
    next_interval_end_ns: u64,
    last_interval_end_ns: u64,
    /// Requests answered in the completed intervals.
    interval_requests: u64,
    /// Set when the deadline has passed.
    throughput: Option<Throughput>,
    /// Time at which requests in flight are aborted. Set when the load is stopped.
    abort_at_ns: Option<u64>,
    timer: Sleep,
    /// Time for which the timer is set; 0 if it has fired.
    timer_ns: u64,
    /// Time of the last poll, if it found no work, and the value of [`Shared::polls`] at that time.
    idle_poll: Option<(u64, u64)>,
    pacing_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    WarmUp,
    Measuring,
    Draining,
    Finished,
}

impl<'a> MeasurementRunner<'a> {
    pub fn new(
        shared: &Rc<Shared>,
        slots: &'a [Rc<ConnectionSlot>],
        pacer: &'a SharedPacer,
        request: &MeasurementRequest,
        schedule: Option<Schedule>,
        observer: &'a mut dyn Observer,
    ) -> Self {
        let count_from_ns = request.start_ns.saturating_add(nanoseconds(request.warm_up));
        let deadline_ns = count_from_ns.saturating_add(nanoseconds(request.duration));
        shared.count_from_ns.set(count_from_ns);
        shared.deadline_ns.set(deadline_ns);
        shared.counters.last_ns.set(count_from_ns);
        slots.iter().for_each(|slot| slot.is_ready.set(false));
        shared.ready.set(0);
        shared.schedule_finished.set(schedule.is_none());
        pacer.0.replace(
            schedule
                .map(|schedule| Pacer::new(schedule, slots.to_vec(), request.start_ns, deadline_ns, shared)),
        );
        shared.queues_closed.set(false);
        let interval_ns = request.interval.map(nanoseconds);
        let first_end_ns = interval_ns
            .map_or(u64::MAX, |interval_ns| count_from_ns.saturating_add(interval_ns).min(deadline_ns));
        Self {
            shared: Rc::clone(shared),
            slots,
            pacer,
            observer,
            phase: if request.warm_up.is_zero() { Phase::Measuring } else { Phase::WarmUp },
            tick_ns: nanoseconds(TICK.min(shared.load.stall_timeout / 4)).max(1_000_000),
            next_tick_ns: 0,
            next_interval_end_ns: first_end_ns,
            interval_ns,
            last_interval_end_ns: count_from_ns,
            interval_requests: 0,
            throughput: None,
            abort_at_ns: None,
            timer: sleep(Duration::ZERO),
            timer_ns: 0,
            idle_poll: None,
            pacing_ns: 0,
        }
    }

    /// Performs the work that is due, and arranges for the task to be woken when more work is due.
    pub fn poll(&mut self, context: &mut Context<'_>) {
        let now_ns = self.shared.now_ns();
        if let Some((idle_since_ns, polls)) = self.idle_poll.take()
            && polls == self.shared.polls.get()
        {
            self.pacing_ns += now_ns.saturating_sub(idle_since_ns);
        }
        self.register_waker(context);
        // This precedes dispatching, so that each request is counted in the phase in which it is due.
        self.advance_phase(now_ns);
        self.dispatch(now_ns);
        if now_ns >= self.next_tick_ns {
            self.next_tick_ns = now_ns + self.tick_ns;
            self.tick(now_ns);
        }
        self.schedule_wake_up(now_ns, context);
    }

    fn register_waker(&self, context: &Context<'_>) {
        let mut runner = self.shared.runner.borrow_mut();
        if !runner.as_ref().is_some_and(|runner| runner.will_wake(context.waker())) {
            *runner = Some(context.waker().clone());
        }
    }

    /// Dispatches requests that are due to connections that are ready.
    fn dispatch(&mut self, now_ns: u64) {
        let shared = &self.shared;
        let mut pacer = self.pacer.0.borrow_mut();
        let Some(running) = &mut *pacer else { return };
        running.set_paused(self.observer.is_paused(), now_ns, shared);
        let is_lazy = running.is_lazy(now_ns);
        running.dispatch(now_ns, shared, || is_lazy && shared.ready.get() == 0);
        if running.is_finished(now_ns) {
            running.count_offered(now_ns, shared);
            *pacer = None;
            drop(pacer);
            self.finish_schedule();
        }
    }

    /// Counts the requests of the schedule that have become due.
    fn count_offered(&self, now_ns: u64) {
        if let Some(pacer) = &mut *self.pacer.0.borrow_mut() {
            pacer.count_offered(now_ns, &self.shared);
        }
    }

    /// Ends the measurement and returns the results since the last interval.
    pub fn finish(self) -> FinalInterval {
        // Requests can remain in the schedule if no connection is left.
        self.abandon_schedule(u64::MAX);
        let end_ns = self.shared.counters.last_ns.get().max(self.last_interval_end_ns);
        let interval = self.interval(end_ns);
        let throughput = self.throughput.unwrap_or_else(|| self.throughput_until(end_ns, interval.requests));
        FinalInterval {
            interval,
            pacing_ns: self.pacing_ns,
            before_deadline: self.phase <= Phase::Measuring,
            throughput,
        }
    }

    /// Returns the throughput of the whole measurement. `requests` does not include the requests already counted in
    /// completed intervals.
    fn throughput_until(&self, end_ns: u64, requests: u64) -> Throughput {
        let elapsed_ns = end_ns.saturating_sub(self.shared.count_from_ns.get());
        Throughput { requests: self.interval_requests + requests, elapsed_ns }
    }

    fn advance_phase(&mut self, now_ns: u64) {
        let (count_from_ns, deadline_ns) = (self.shared.count_from_ns.get(), self.shared.deadline_ns.get());
        if self.phase == Phase::WarmUp && now_ns >= count_from_ns.min(deadline_ns) {
            self.phase = Phase::Measuring;
            if let Some(pacer) = &mut *self.pacer.0.borrow_mut() {
                pacer.end_warm_up();
            }
            self.observer.warmed_up(self.shared.counters.take_interval(0, 0));
            self.pacing_ns = 0;
            self.shared.counters.last_ns.set(count_from_ns);
        }
        if self.phase == Phase::Measuring && now_ns >= self.next_interval_end_ns.min(deadline_ns) {
            self.count_offered(now_ns);
        }
        if let Some(interval_ns) = self.interval_ns
            && now_ns >= self.next_interval_end_ns
            && self.phase == Phase::Measuring
        {
            let index = (self.next_interval_end_ns - count_from_ns).saturating_sub(1) / interval_ns;
            let interval = self.interval(now_ns);
            self.interval_requests += interval.requests;
            self.observer.interval(index, interval, std::mem::take(&mut self.pacing_ns));
            self.last_interval_end_ns = now_ns;
            // A thread that was delayed for longer than an interval skips intervals.
            let elapsed_intervals = (now_ns - count_from_ns) / interval_ns;
            let next_ns = count_from_ns.saturating_add((elapsed_intervals + 1).saturating_mul(interval_ns));
            self.next_interval_end_ns =
                if now_ns >= deadline_ns { u64::MAX } else { next_ns.min(deadline_ns) };
        }
        if self.phase == Phase::Measuring && now_ns >= deadline_ns {
            self.phase = Phase::Draining;
            let counters = &self.shared.counters;
            // If this poll is late, the time after the last reply does not count.
            let end_ns = counters.last_ns.get().clamp(deadline_ns, now_ns);
            self.throughput = Some(self.throughput_until(end_ns, counters.snapshot().requests));
            // Wakes connections that are waiting for the think time to elapse or for their turn in the ramp, so that
            // they notice the deadline.
            self.wake_all();
        }
        if self.phase == Phase::Draining
            && now_ns >= deadline_ns.saturating_add(nanoseconds(self.shared.load.drain_timeout))
        {
            self.phase = Phase::Finished;
            self.abandon_schedule(u64::MAX);
            self.clear_queues();
        }
    }

    fn interval(&self, end_ns: u64) -> Interval {
        let start_ns = self.last_interval_end_ns.saturating_sub(self.shared.count_from_ns.get());
        self.shared.counters.take_interval(start_ns, end_ns.saturating_sub(self.last_interval_end_ns))
    }

    fn finish_schedule(&self) {
        self.shared.schedule_finished.set(true);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.slots.iter().for_each(|slot| slot.wake());
    }

    /// Counts the requests that are due until then and have not been dispatched as unsent.
    fn abandon_schedule(&self, until_ns: u64) {
        let Some(mut pacer) = self.pacer.0.take() else { return };
        pacer.abandon(until_ns, &self.shared);
        self.finish_schedule();
    }

    fn clear_queues(&self) {
        self.shared.queues_closed.set(true);
        self.slots.iter().for_each(|slot| slot.clear_queue(&self.shared));
        self.wake_all();
    }

    /// Aborts connections that have timed out, and asks the observer whether to stop the load.
    fn tick(&mut self, now_ns: u64) {
        if self.shared.remaining_requests.get() == 0 {
            // Connections that are not open notice that no request is left for them.
            self.wake_all();
        }
        let stall_timeout_ns = nanoseconds(self.shared.load.stall_timeout);
        self.slots.iter().for_each(|slot| slot.check_timeout(now_ns, stall_timeout_ns));
        if self.abort_at_ns.is_none() && self.observer.tick(self.shared.counters.snapshot()).is_break() {
            self.abort_at_ns = Some(now_ns.saturating_add(STOP_GRACE_NS));
            self.shared.deadline_ns.set(now_ns.min(self.shared.deadline_ns.get()));
            self.shared.stopping.set(true);
            self.next_interval_end_ns = u64::MAX;
            self.abandon_schedule(now_ns);
            self.clear_queues();
        }
        if self.abort_at_ns.is_some_and(|abort_at_ns| now_ns >= abort_at_ns) {
            let busy = self.slots.iter().filter(|slot| slot.is_busy());
            busy.for_each(|slot| slot.abort(AbortReason::Interrupted));
        }
    }

    /// Arranges for the task to be woken when more work is due: immediately if that is soon, otherwise by a timer.
    fn schedule_wake_up(&mut self, now_ns: u64, context: &mut Context<'_>) {
        let deadline_ns = self.shared.deadline_ns.get();
        let phase_end_ns = match self.phase {
            Phase::WarmUp => self.shared.count_from_ns.get(),
            Phase::Measuring => deadline_ns,
            Phase::Draining => deadline_ns.saturating_add(nanoseconds(self.shared.load.drain_timeout)),
            Phase::Finished => u64::MAX,
        };
        let mut wake_ns = phase_end_ns.min(self.next_tick_ns).min(self.next_interval_end_ns);
        // While no connection is ready, no request can be sent until a connection wakes the runner.
        let pacer = self.pacer.0.borrow();
        let is_active = |pacer: &&Pacer| self.shared.ready.get() > 0 || !pacer.is_lazy(now_ns);
        if let Some(pacer) = pacer.as_ref().filter(is_active) {
            let sleep_until_ns = pacer.sleep_until_ns();
            if sleep_until_ns <= now_ns {
                // A request is still due here if more requests were due than can be dispatched in one turn.
                self.idle_poll = (now_ns < pacer.due_ns()).then(|| (now_ns, self.shared.polls.get()));
                context.waker().wake_by_ref();
                return;
            }
            wake_ns = wake_ns.min(sleep_until_ns);
        }
        if wake_ns != self.timer_ns {
            self.timer_ns = wake_ns;
            self.timer.reset_after(Duration::from_nanos(wake_ns.saturating_sub(now_ns)));
        }
        if Pin::new(&mut self.timer).poll(context).is_ready() {
            self.timer_ns = 0;
            context.waker().wake_by_ref();
        }
    }
}

//! Conducts one stretch of load: hands out what is due, cuts the record into intervals, looks after connections that
//! wait for too long, and says when what is over.
//!
//! ```text
//!  start        count_from                          deadline      drain
//!    ├── warm-up ───┼── interval ──┼── interval ──┼─...─┤── answers ──┤
//!    requests are due all this time                     │ still owed  │ what was not sent by now is unsent
//! ```
//!
//! **When to wake up.** The runtime's timers fire up to 0.13 ms late on io_uring, and on epoll up to 1.1 ms, because
//! `epoll_wait(2)` counts milliseconds. A schedule of 10,000 requests a second needs better. So the pacer sleeps until
//! shortly before the next request is due ([`wake_margin_ns`]), and then looks again and again without sleeping; each look is
//! a turn of the runtime's loop, so that replies are taken meanwhile. At rates below a few hundred a second the core
//! sleeps nearly all the time; above a thousand a second it is always awake. The time spent looking while nothing was to
//! do is counted (`pacing_ns`), so that it is not taken for work. How well requests kept to their time is measured for
//! each of them (`schedule_error`), not assumed.
//!
//! All of it is done by the future that runs the session: the loop of the runtime polls it once a turn, where a task that
//! wakes itself would be polled hundreds of times before the sockets have their turn.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use anello::time::{Sleep, sleep};

use crate::connection_slot::ConnectionSlot;
use crate::interval::Interval;
use crate::schedule::Schedule;
use crate::shared::{ProgressSnapshot, Shared};

/// How often the connections are looked after, and progress is told, at most.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// How long requests in flight may take when the user wants to stop, in nanoseconds.
const STOP_GRACE_NS: u64 = 500_000_000;

/// Most requests that wait in the lines of a thread; what comes then is unsent.
const MAX_QUEUED_REQUESTS: usize = 4_000_000;

/// Most requests that are handed out in one turn of the runtime's loop, so that replies, the clock and the user have
/// theirs at any rate.
const MAX_DISPATCHED_PER_TURN: usize = 10_000;

/// What is told about a stretch while it lasts.
pub(crate) trait Observer {
    /// Told every so often; says whether to go on.
    fn tick(&mut self, snapshot: ProgressSnapshot) -> ControlFlow<()>;

    /// The warm-up is over; what it saw.
    fn warmed_up(&mut self, warm_up: Interval, pacing_ns: u64);

    /// An interval is over; `pacing_ns` of its time nothing was to do but to watch the clock.
    fn interval(&mut self, index: u64, interval: Interval, pacing_ns: u64);
}

/// One stretch of load. Moments are nanoseconds since the origin of the session.
#[derive(Debug)]
pub(crate) struct MeasurementPlan {
    pub start_ns: u64,
    pub warm_up_ns: u64,
    pub duration_ns: u64,
    /// How long an interval is; none cuts nothing.
    pub interval_ns: Option<u64>,
    pub drain_ns: u64,
    pub stall_timeout_ns: u64,
    /// Open loop: when what is due.
    pub schedule: Option<Schedule>,
}

/// What happened after the last interval.
pub(crate) struct FinalInterval {
    pub interval: Interval,
    pub pacing_ns: u64,
    /// Before the planned end, which did not come, instead of after it.
    pub before_deadline: bool,
    /// What the whole stretch did until its planned end.
    pub throughput: Throughput,
}

/// What was answered while requests could begin. The wait for what was owed after that is left out: it says more about
/// the slowest connection than about all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Throughput {
    pub requests: u64,
    /// From the beginning of the measurement on.
    pub elapsed_ns: u64,
}

pub(crate) struct MeasurementRunner<'a> {
    shared: Rc<Shared>,
    slots: &'a [Rc<ConnectionSlot>],
    observer: &'a mut dyn Observer,
    pacer: Option<Pacer>,
    phase: Phase,
    stall_timeout_ns: u64,
    drain_ns: u64,
    interval_ns: u64,
    tick_ns: u64,
    next_tick_ns: u64,
    /// The next interval's end; `u64::MAX` if there is none.
    next_interval_end_ns: u64,
    last_interval_end_ns: u64,
    /// Requests of the intervals that were cut.
    interval_requests: u64,
    /// Known once the planned end has come.
    throughput: Option<Throughput>,
    /// The user wants to stop: when requests in flight are given up.
    abort_at_ns: Option<u64>,
    timer: Sleep,
    timer_ns: u64,
    /// The last look at the clock that found nothing to do, and the polls of connections until then.
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
    /// Begins a stretch.
    pub fn new(
        shared: &Rc<Shared>,
        slots: &'a [Rc<ConnectionSlot>],
        plan: MeasurementPlan,
        observer: &'a mut dyn Observer,
    ) -> Self {
        let count_from_ns = plan.start_ns.saturating_add(plan.warm_up_ns);
        let deadline_ns = count_from_ns.saturating_add(plan.duration_ns);
        shared.count_from_ns.set(count_from_ns);
        shared.deadline_ns.set(deadline_ns);
        shared.counters.last_ns.set(count_from_ns);
        let pacer = plan.schedule.map(|schedule| {
            Pacer::new(schedule, plan.start_ns, deadline_ns, MAX_QUEUED_REQUESTS / slots.len().max(1))
        });
        shared.schedule_finished.set(pacer.is_none());
        shared.queues_closed.set(false);
        let tick_ns = (TICK.as_nanos() as u64).min(plan.stall_timeout_ns / 4).max(1_000_000);
        let interval_ns = plan.interval_ns.unwrap_or(u64::MAX);
        Self {
            shared: Rc::clone(shared),
            slots,
            observer,
            pacer,
            phase: if plan.warm_up_ns == 0 { Phase::Measuring } else { Phase::WarmUp },
            stall_timeout_ns: plan.stall_timeout_ns,
            drain_ns: plan.drain_ns,
            interval_ns,
            tick_ns,
            next_tick_ns: 0,
            next_interval_end_ns: plan
                .interval_ns
                .map_or(u64::MAX, |interval_ns| count_from_ns.saturating_add(interval_ns).min(deadline_ns)),
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

    /// Does what is to be done now, and wakes the context when there is more.
    pub fn poll(&mut self, context: &mut Context<'_>) {
        let now_ns = self.shared.now_ns();
        if let Some((before_ns, polls)) = self.idle_poll.take()
            && polls == self.shared.polls.get()
        {
            self.pacing_ns += now_ns.saturating_sub(before_ns);
        }
        // Before anything is handed out, so that a request is offered in the phase that it is due in.
        self.advance_phase(now_ns);
        if let Some(pacer) = &mut self.pacer
            && pacer.is_due(now_ns)
        {
            pacer.dispatch_due(now_ns, self.slots, &self.shared);
            if pacer.is_finished(now_ns) {
                self.pacer = None;
                self.finish_schedule();
            }
        }
        if now_ns >= self.next_tick_ns {
            self.next_tick_ns = now_ns + self.tick_ns;
            self.tick(now_ns);
        }
        self.schedule_wake_up(now_ns, context);
    }

    /// What happened since the last cut, at the end of everything.
    pub fn finish(mut self) -> FinalInterval {
        // No connection is left, but the schedule goes on.
        self.abandon_schedule();
        let end_ns = self.shared.counters.last_ns.get().max(self.last_interval_end_ns);
        let interval = self.interval(end_ns);
        let throughput = self.throughput.unwrap_or(Throughput {
            requests: self.interval_requests + interval.requests,
            elapsed_ns: end_ns.saturating_sub(self.shared.count_from_ns.get()),
        });
        FinalInterval {
            interval,
            pacing_ns: self.pacing_ns,
            before_deadline: self.phase <= Phase::Measuring,
            throughput,
        }
    }

    /// Warm-up, intervals, deadline, drain.
    fn advance_phase(&mut self, now_ns: u64) {
        let (count_from_ns, deadline_ns) = (self.shared.count_from_ns.get(), self.shared.deadline_ns.get());
        if self.phase == Phase::WarmUp && now_ns >= count_from_ns.min(deadline_ns) {
            self.phase = Phase::Measuring;
            let warm_up = self.shared.counters.take_interval(0, 0);
            self.observer.warmed_up(warm_up, std::mem::take(&mut self.pacing_ns));
            self.shared.counters.last_ns.set(count_from_ns);
        }
        if now_ns >= self.next_interval_end_ns && self.phase == Phase::Measuring {
            let index = (self.next_interval_end_ns - count_from_ns).saturating_sub(1) / self.interval_ns;
            let interval = self.interval(now_ns);
            self.interval_requests += interval.requests;
            self.observer.interval(index, interval, std::mem::take(&mut self.pacing_ns));
            self.last_interval_end_ns = now_ns;
            // A thread that was held up for longer leaves intervals out.
            let elapsed_intervals = (now_ns - count_from_ns) / self.interval_ns;
            let next_ns =
                count_from_ns.saturating_add((elapsed_intervals + 1).saturating_mul(self.interval_ns));
            self.next_interval_end_ns =
                if now_ns >= deadline_ns { u64::MAX } else { next_ns.min(deadline_ns) };
        }
        if self.phase == Phase::Measuring && now_ns >= deadline_ns {
            self.phase = Phase::Draining;
            self.throughput = Some(self.throughput_at_deadline(now_ns));
            // Who thinks, or waits for its turn to be opened, sees that it is too late.
            self.slots.iter().for_each(|slot| slot.wake());
        }
        if self.phase == Phase::Draining && now_ns >= deadline_ns.saturating_add(self.drain_ns) {
            self.phase = Phase::Finished;
            self.abandon_schedule();
            self.clear_queues();
        }
    }

    /// What was answered by now, when the planned end has just passed.
    fn throughput_at_deadline(&self, now_ns: u64) -> Throughput {
        let (counters, deadline_ns) = (&self.shared.counters, self.shared.deadline_ns.get());
        // A look that comes late has nothing of the time in which nothing was sent any more.
        let end_ns = counters.last_ns.get().clamp(deadline_ns, now_ns.max(deadline_ns));
        Throughput {
            requests: self.interval_requests + counters.snapshot().requests,
            elapsed_ns: end_ns.saturating_sub(self.shared.count_from_ns.get()),
        }
    }

    fn interval(&self, end_ns: u64) -> Interval {
        let start_ns = self.last_interval_end_ns.saturating_sub(self.shared.count_from_ns.get());
        self.shared.counters.take_interval(start_ns, end_ns.saturating_sub(self.last_interval_end_ns))
    }

    fn finish_schedule(&self) {
        self.shared.schedule_finished.set(true);
        self.slots.iter().for_each(|slot| slot.wake());
    }

    /// What has not been handed out by now never will be.
    fn abandon_schedule(&mut self) {
        if let Some(pacer) = self.pacer.take() {
            let remaining = pacer.remaining_requests(self.shared.count_from_ns.get());
            let counters = &self.shared.counters;
            counters.offered.set(counters.offered.get().saturating_add(remaining));
            counters.add_unsent(remaining);
            self.finish_schedule();
        }
    }

    fn clear_queues(&self) {
        self.shared.queues_closed.set(true);
        for slot in self.slots {
            slot.clear_queue(&self.shared);
            slot.wake();
        }
    }

    /// Ends connections that wait for too long, and asks whether to go on.
    fn tick(&mut self, now_ns: u64) {
        self.slots.iter().for_each(|slot| slot.check_timeout(now_ns, self.stall_timeout_ns));
        if self.abort_at_ns.is_none() && self.observer.tick(self.shared.counters.snapshot()).is_break() {
            self.abort_at_ns = Some(now_ns.saturating_add(STOP_GRACE_NS));
            self.shared.deadline_ns.set(now_ns.min(self.shared.deadline_ns.get()));
            self.shared.stopping.set(true);
            self.next_interval_end_ns = u64::MAX;
            self.pacer = None;
            self.finish_schedule();
            self.clear_queues();
        }
        if self.abort_at_ns.is_some_and(|abort_at_ns| now_ns >= abort_at_ns) {
            self.slots.iter().for_each(|slot| slot.abort_if_busy());
        }
    }

    /// Has the context woken when the next thing is due: at once if that is soon.
    fn schedule_wake_up(&mut self, now_ns: u64, context: &mut Context<'_>) {
        let deadline_ns = self.shared.deadline_ns.get();
        let phase_ns = match self.phase {
            Phase::WarmUp => self.shared.count_from_ns.get(),
            Phase::Measuring => deadline_ns,
            Phase::Draining => deadline_ns.saturating_add(self.drain_ns),
            Phase::Finished => u64::MAX,
        };
        let mut wake_ns = phase_ns.min(self.next_tick_ns).min(self.next_interval_end_ns);
        if let Some(pacer) = &self.pacer {
            let due_ns = pacer.due_ns();
            if due_ns <= now_ns {
                // More was due than one turn may hand out.
                context.waker().wake_by_ref();
                return;
            }
            if due_ns - now_ns <= pacer.wake_margin_ns {
                self.idle_poll = Some((now_ns, self.shared.polls.get()));
                context.waker().wake_by_ref();
                return;
            }
            wake_ns = wake_ns.min(due_ns - pacer.wake_margin_ns);
        }
        if wake_ns != self.timer_ns {
            self.timer_ns = wake_ns;
            self.timer.reset(Duration::from_nanos(wake_ns.saturating_sub(now_ns)));
        }
        if Pin::new(&mut self.timer).poll(context).is_ready() {
            self.timer_ns = 0;
            context.waker().wake_by_ref();
        }
    }
}

/// Hands requests to their connections when they are due.
struct Pacer {
    schedule: Schedule,
    start_ns: u64,
    end_ns: u64,
    /// When the next request is due, and the place of its connection; none when the schedule is over.
    next: Option<(u64, usize)>,
    /// How long before it to stop sleeping.
    wake_margin_ns: u64,
    /// Most requests that wait for one connection.
    max_queue_len: usize,
}

impl Pacer {
    fn new(schedule: Schedule, start_ns: u64, end_ns: u64, max_queue_len: usize) -> Self {
        let mut pacer =
            Self { schedule, start_ns, end_ns, next: None, wake_margin_ns: wake_margin_ns(), max_queue_len };
        pacer.advance();
        pacer
    }

    fn due_ns(&self) -> u64 {
        self.next.map_or(self.end_ns, |(due_ns, _)| due_ns)
    }

    /// Whether something is to be done: a request, or the end.
    fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns()
    }

    /// Not before its time, although nothing more may be due: the connections stay until then.
    fn is_finished(&self, now_ns: u64) -> bool {
        self.next.is_none() && now_ns >= self.end_ns
    }

    fn advance(&mut self) {
        let next =
            self.schedule.next().map(|(ns, slot_index)| (self.start_ns.saturating_add(ns), slot_index));
        self.next = next.filter(|&(due_ns, _)| due_ns < self.end_ns);
    }

    fn dispatch_due(&mut self, now_ns: u64, slots: &[Rc<ConnectionSlot>], shared: &Shared) {
        for _ in 0..MAX_DISPATCHED_PER_TURN {
            let Some((due_ns, slot_index)) = self.next.filter(|&(due_ns, _)| due_ns <= now_ns) else {
                return;
            };
            let slot = &slots[slot_index];
            // In a ramp, a connection whose turn has not come is offered nothing.
            if due_ns >= slot.open_at_ns.get() {
                let counts = u64::from(due_ns >= shared.count_from_ns.get());
                shared.counters.offered.set(shared.counters.offered.get() + counts);
                let mut due_queue = slot.due_queue.borrow_mut();
                if slot.broken.get() || due_queue.len() >= self.max_queue_len {
                    shared.counters.add_unsent(counts);
                } else {
                    due_queue.push_back(due_ns);
                    drop(due_queue);
                    slot.wake_if_ready();
                }
            }
            self.advance();
        }
    }

    /// How many requests the schedule still holds that were to be counted.
    fn remaining_requests(&self, count_from_ns: u64) -> u64 {
        let Some((due_ns, _)) = self.next else { return 0 };
        let from_ns = count_from_ns.saturating_sub(self.start_ns);
        let remaining = self.schedule.remaining_requests(from_ns, self.end_ns.saturating_sub(self.start_ns));
        remaining.saturating_add(u64::from(due_ns >= count_from_ns))
    }
}

/// How long before a request is due to stop sleeping: more than the runtime's timers may be late.
fn wake_margin_ns() -> u64 {
    match anello::current_driver() {
        Some(driver) if driver.name == "uring" => 300_000,
        _ => 1_300_000,
    }
}

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
//! shortly before the next request is due ([`margin_ns`]), and then looks again and again without sleeping; each look is
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

use crate::interval::Interval;
use crate::lane::Lane;
use crate::schedule::Schedule;
use crate::shared::{Shared, Standing};

/// How often the connections are looked after, and progress is told, at most.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// How long requests in flight may take when the user wants to stop, in nanoseconds.
const STOP_GRACE_NS: u64 = 500_000_000;

/// Most requests that wait in the lines of a thread; what comes then is unsent.
const WAITING_LIMIT: usize = 4_000_000;

/// Most requests that are handed out in one turn of the runtime's loop, so that replies, the clock and the user have
/// theirs at any rate.
const TURN_LIMIT: usize = 10_000;

/// What is told about a stretch while it lasts.
pub(crate) trait Observer {
    /// Told every so often; says whether to go on.
    fn tick(&mut self, standing: Standing) -> ControlFlow<()>;

    /// The warm-up is over; what it saw.
    fn warmed_up(&mut self, warm_up: Interval, pacing_ns: u64);

    /// An interval is over; `pacing_ns` of its time nothing was to do but to watch the clock.
    fn interval(&mut self, index: u64, interval: Interval, pacing_ns: u64);
}

/// One stretch of load. Moments are nanoseconds since the origin of the session.
#[derive(Debug)]
pub(crate) struct Stretch {
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
pub(crate) struct Rest {
    pub interval: Interval,
    pub pacing_ns: u64,
    /// Before the planned end, which did not come, instead of after it.
    pub in_time: bool,
    /// What the whole stretch did until its planned end.
    pub pace: Pace,
}

/// What was answered while requests could begin. The wait for what was owed after that is left out: it says more about
/// the slowest connection than about all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    pub requests: u64,
    /// From the beginning of the measurement on.
    pub elapsed_ns: u64,
}

pub(crate) struct Conductor<'a> {
    shared: Rc<Shared>,
    lanes: &'a [Rc<Lane>],
    observer: &'a mut dyn Observer,
    pacer: Option<Pacer>,
    phase: Phase,
    stall_timeout_ns: u64,
    drain_ns: u64,
    interval_ns: u64,
    tick_ns: u64,
    next_tick_ns: u64,
    /// The next interval's end; `u64::MAX` if there is none.
    next_cut_ns: u64,
    last_cut_ns: u64,
    /// Requests of the intervals that were cut.
    cut_requests: u64,
    /// Known once the planned end has come.
    pace: Option<Pace>,
    /// The user wants to stop: when requests in flight are given up.
    give_up_ns: Option<u64>,
    timer: Sleep,
    timer_ns: u64,
    /// The last look at the clock that found nothing to do, and the polls of connections until then.
    idle_look: Option<(u64, u64)>,
    pacing_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    WarmUp,
    Measuring,
    Draining,
    Over,
}

impl<'a> Conductor<'a> {
    /// Begins a stretch.
    pub fn new(
        shared: &Rc<Shared>,
        lanes: &'a [Rc<Lane>],
        stretch: Stretch,
        observer: &'a mut dyn Observer,
    ) -> Self {
        let count_from_ns = stretch.start_ns.saturating_add(stretch.warm_up_ns);
        let deadline_ns = count_from_ns.saturating_add(stretch.duration_ns);
        shared.count_from_ns.set(count_from_ns);
        shared.deadline_ns.set(deadline_ns);
        shared.tally.last_ns.set(count_from_ns);
        let pacer = stretch.schedule.map(|schedule| {
            Pacer::new(schedule, stretch.start_ns, deadline_ns, WAITING_LIMIT / lanes.len().max(1))
        });
        shared.schedule_over.set(pacer.is_none());
        shared.lines_closed.set(false);
        let tick_ns = (TICK.as_nanos() as u64).min(stretch.stall_timeout_ns / 4).max(1_000_000);
        let interval_ns = stretch.interval_ns.unwrap_or(u64::MAX);
        Self {
            shared: Rc::clone(shared),
            lanes,
            observer,
            pacer,
            phase: if stretch.warm_up_ns == 0 { Phase::Measuring } else { Phase::WarmUp },
            stall_timeout_ns: stretch.stall_timeout_ns,
            drain_ns: stretch.drain_ns,
            interval_ns,
            tick_ns,
            next_tick_ns: 0,
            next_cut_ns: stretch
                .interval_ns
                .map_or(u64::MAX, |interval_ns| count_from_ns.saturating_add(interval_ns).min(deadline_ns)),
            last_cut_ns: count_from_ns,
            cut_requests: 0,
            pace: None,
            give_up_ns: None,
            timer: sleep(Duration::ZERO),
            timer_ns: 0,
            idle_look: None,
            pacing_ns: 0,
        }
    }

    /// Does what is to be done now, and wakes the context when there is more.
    pub fn poll(&mut self, context: &mut Context<'_>) {
        let now_ns = self.shared.now_ns();
        if let Some((before_ns, polls)) = self.idle_look.take()
            && polls == self.shared.polls.get()
        {
            self.pacing_ns += now_ns.saturating_sub(before_ns);
        }
        // Before anything is handed out, so that a request is offered in the phase that it is due in.
        self.pass_phases(now_ns);
        if let Some(pacer) = &mut self.pacer
            && pacer.is_due(now_ns)
        {
            pacer.hand_out(now_ns, self.lanes, &self.shared);
            if pacer.is_over(now_ns) {
                self.pacer = None;
                self.end_schedule();
            }
        }
        if now_ns >= self.next_tick_ns {
            self.next_tick_ns = now_ns + self.tick_ns;
            self.look_after(now_ns);
        }
        self.wait(now_ns, context);
    }

    /// What happened since the last cut, at the end of everything.
    pub fn finish(mut self) -> Rest {
        // No connection is left, but the schedule goes on.
        self.give_up_schedule();
        let end_ns = self.shared.tally.last_ns.get().max(self.last_cut_ns);
        let interval = self.interval(end_ns);
        let pace = self.pace.unwrap_or(Pace {
            requests: self.cut_requests + interval.requests,
            elapsed_ns: end_ns.saturating_sub(self.shared.count_from_ns.get()),
        });
        Rest { interval, pacing_ns: self.pacing_ns, in_time: self.phase <= Phase::Measuring, pace }
    }

    /// Warm-up, intervals, deadline, drain.
    fn pass_phases(&mut self, now_ns: u64) {
        let (count_from_ns, deadline_ns) = (self.shared.count_from_ns.get(), self.shared.deadline_ns.get());
        if self.phase == Phase::WarmUp && now_ns >= count_from_ns.min(deadline_ns) {
            self.phase = Phase::Measuring;
            let warm_up = self.shared.tally.cut(0, 0);
            self.observer.warmed_up(warm_up, std::mem::take(&mut self.pacing_ns));
            self.shared.tally.last_ns.set(count_from_ns);
        }
        if now_ns >= self.next_cut_ns && self.phase == Phase::Measuring {
            let index = (self.next_cut_ns - count_from_ns).saturating_sub(1) / self.interval_ns;
            let interval = self.interval(now_ns);
            self.cut_requests += interval.requests;
            self.observer.interval(index, interval, std::mem::take(&mut self.pacing_ns));
            self.last_cut_ns = now_ns;
            // A thread that was held up for longer leaves intervals out.
            let passed = (now_ns - count_from_ns) / self.interval_ns;
            let next_ns = count_from_ns.saturating_add((passed + 1).saturating_mul(self.interval_ns));
            self.next_cut_ns = if now_ns >= deadline_ns { u64::MAX } else { next_ns.min(deadline_ns) };
        }
        if self.phase == Phase::Measuring && now_ns >= deadline_ns {
            self.phase = Phase::Draining;
            self.pace = Some(self.pace_at_deadline(now_ns));
            // Who thinks, or waits for its turn to be opened, sees that it is too late.
            self.lanes.iter().for_each(|lane| lane.wake());
        }
        if self.phase == Phase::Draining && now_ns >= deadline_ns.saturating_add(self.drain_ns) {
            self.phase = Phase::Over;
            self.give_up_schedule();
            self.clear_lines();
        }
    }

    /// What was answered by now, when the planned end has just passed.
    fn pace_at_deadline(&self, now_ns: u64) -> Pace {
        let (tally, deadline_ns) = (&self.shared.tally, self.shared.deadline_ns.get());
        // A look that comes late has nothing of the time in which nothing was sent any more.
        let end_ns = tally.last_ns.get().clamp(deadline_ns, now_ns.max(deadline_ns));
        Pace {
            requests: self.cut_requests + tally.standing().requests,
            elapsed_ns: end_ns.saturating_sub(self.shared.count_from_ns.get()),
        }
    }

    fn interval(&self, end_ns: u64) -> Interval {
        let start_ns = self.last_cut_ns.saturating_sub(self.shared.count_from_ns.get());
        self.shared.tally.cut(start_ns, end_ns.saturating_sub(self.last_cut_ns))
    }

    fn end_schedule(&self) {
        self.shared.schedule_over.set(true);
        self.lanes.iter().for_each(|lane| lane.wake());
    }

    /// What has not been handed out by now never will be.
    fn give_up_schedule(&mut self) {
        if let Some(pacer) = self.pacer.take() {
            let left = pacer.left(self.shared.count_from_ns.get());
            let tally = &self.shared.tally;
            tally.offered.set(tally.offered.get().saturating_add(left));
            tally.unsent(left);
            self.end_schedule();
        }
    }

    fn clear_lines(&self) {
        self.shared.lines_closed.set(true);
        for lane in self.lanes {
            lane.clear_line(&self.shared);
            lane.wake();
        }
    }

    /// Ends connections that wait for too long, and asks whether to go on.
    fn look_after(&mut self, now_ns: u64) {
        self.lanes.iter().for_each(|lane| lane.check(now_ns, self.stall_timeout_ns));
        if self.give_up_ns.is_none() && self.observer.tick(self.shared.tally.standing()).is_break() {
            self.give_up_ns = Some(now_ns.saturating_add(STOP_GRACE_NS));
            self.shared.deadline_ns.set(now_ns.min(self.shared.deadline_ns.get()));
            self.shared.stopping.set(true);
            self.next_cut_ns = u64::MAX;
            self.pacer = None;
            self.end_schedule();
            self.clear_lines();
        }
        if self.give_up_ns.is_some_and(|give_up_ns| now_ns >= give_up_ns) {
            self.lanes.iter().for_each(|lane| lane.abandon());
        }
    }

    /// Has the context woken when the next thing is due: at once if that is soon.
    fn wait(&mut self, now_ns: u64, context: &mut Context<'_>) {
        let deadline_ns = self.shared.deadline_ns.get();
        let phase_ns = match self.phase {
            Phase::WarmUp => self.shared.count_from_ns.get(),
            Phase::Measuring => deadline_ns,
            Phase::Draining => deadline_ns.saturating_add(self.drain_ns),
            Phase::Over => u64::MAX,
        };
        let mut wake_ns = phase_ns.min(self.next_tick_ns).min(self.next_cut_ns);
        if let Some(pacer) = &self.pacer {
            let due_ns = pacer.due_ns();
            if due_ns <= now_ns {
                // More was due than one turn may hand out.
                context.waker().wake_by_ref();
                return;
            }
            if due_ns - now_ns <= pacer.margin_ns {
                self.idle_look = Some((now_ns, self.shared.polls.get()));
                context.waker().wake_by_ref();
                return;
            }
            wake_ns = wake_ns.min(due_ns - pacer.margin_ns);
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
    margin_ns: u64,
    /// Most requests that wait for one connection.
    line_limit: usize,
}

impl Pacer {
    fn new(schedule: Schedule, start_ns: u64, end_ns: u64, line_limit: usize) -> Self {
        let mut pacer = Self { schedule, start_ns, end_ns, next: None, margin_ns: margin_ns(), line_limit };
        pacer.step();
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
    fn is_over(&self, now_ns: u64) -> bool {
        self.next.is_none() && now_ns >= self.end_ns
    }

    fn step(&mut self) {
        let next = self.schedule.next().map(|(ns, place)| (self.start_ns.saturating_add(ns), place));
        self.next = next.filter(|&(due_ns, _)| due_ns < self.end_ns);
    }

    fn hand_out(&mut self, now_ns: u64, lanes: &[Rc<Lane>], shared: &Shared) {
        for _ in 0..TURN_LIMIT {
            let Some((due_ns, place)) = self.next.filter(|&(due_ns, _)| due_ns <= now_ns) else { return };
            let lane = &lanes[place];
            // In a ramp, a connection whose turn has not come is offered nothing.
            if due_ns >= lane.opens_at_ns.get() {
                let counts = u64::from(due_ns >= shared.count_from_ns.get());
                shared.tally.offered.set(shared.tally.offered.get() + counts);
                let mut line = lane.line.borrow_mut();
                if lane.broken.get() || line.len() >= self.line_limit {
                    shared.tally.unsent(counts);
                } else {
                    line.push_back(due_ns);
                    drop(line);
                    lane.wake_if_free();
                }
            }
            self.step();
        }
    }

    /// How many requests the schedule still holds that were to be counted.
    fn left(&self, count_from_ns: u64) -> u64 {
        let Some((due_ns, _)) = self.next else { return 0 };
        let from_ns = count_from_ns.saturating_sub(self.start_ns);
        let left = self.schedule.left(from_ns, self.end_ns.saturating_sub(self.start_ns));
        left.saturating_add(u64::from(due_ns >= count_from_ns))
    }
}

/// How long before a request is due to stop sleeping: more than the runtime's timers may be late.
fn margin_ns() -> u64 {
    match anello::current_driver() {
        Some(driver) if driver.name == "uring" => 300_000,
        _ => 1_300_000,
    }
}

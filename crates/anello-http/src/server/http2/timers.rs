//! The deadlines of the streams of one connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use anello::wake_all;
use slab::Slab;

use crate::server::deadline::{Action, Deadlines, TickLength, Timeout};
use crate::server::options::ServerOptions;
use crate::server::timer::MultiplexedStreams;

/// The deadlines of one stream, with the tasks to wake when one of them expires.
#[derive(Debug)]
pub(super) struct StreamTimer {
    pub deadlines: Deadlines,
    /// The timeout whose expiry ends the stream.
    pub expired: Cell<Option<Timeout>>,
    /// The task that serves the stream, and the task that reads the request body.
    wakers: [RefCell<Option<Waker>>; 2],
}

#[derive(Clone, Copy)]
pub(super) enum Task {
    Server,
    BodyReader,
}

impl StreamTimer {
    /// Registers the task to wake. Must be called before each wait.
    pub fn register(&self, task: Task, context: &Context<'_>) {
        let mut registered = self.wakers[task as usize].borrow_mut();
        if !registered.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *registered = Some(context.waker().clone());
        }
    }

    pub fn wake(&self, task: Task) {
        // Not borrowed during the wake-up, because a waker can run arbitrary code.
        let waker = self.wakers[task as usize].take();
        wake_all(waker);
    }
}

/// The timers of the streams that are open on one connection.
#[derive(Debug, Default)]
pub(super) struct StreamTimers(RefCell<Slab<Rc<StreamTimer>>>);

/// Unregisters its timer when it is dropped.
pub(super) struct StreamTimerEntry {
    timers: Rc<StreamTimers>,
    key: usize,
    pub timer: Rc<StreamTimer>,
}

impl StreamTimers {
    pub fn add(self: &Rc<Self>, now: u64) -> StreamTimerEntry {
        let timer = Rc::new(StreamTimer {
            deadlines: Deadlines::new(now),
            expired: Cell::new(None),
            wakers: Default::default(),
        });
        let key = self.0.borrow_mut().insert(Rc::clone(&timer));
        StreamTimerEntry { timers: Rc::clone(self), key, timer }
    }
}

impl StreamTimers {
    /// Wakes the tasks that read request bodies.
    pub fn wake_body_readers(&self) {
        let timers: Vec<_> = self.0.borrow().iter().map(|(_, timer)| Rc::clone(timer)).collect();
        for timer in timers {
            timer.wake(Task::BodyReader);
        }
    }
}

impl MultiplexedStreams for StreamTimers {
    fn check_deadlines(&self, now: u64, options: &ServerOptions, tick: TickLength) {
        let mut expired = Vec::new();
        for (_, timer) in &*self.0.borrow() {
            if let Some((timeout, action)) = timer.deadlines.check(now, options, tick) {
                // The first expiry of the body timeout is reported to the reader, which can still respond.
                timer.expired.set((action != Action::ShutdownRead).then_some(timeout));
                expired.push(Rc::clone(timer));
            }
        }
        for timer in expired {
            timer.wake(Task::Server);
            timer.wake(Task::BodyReader);
        }
    }
}

impl Drop for StreamTimerEntry {
    fn drop(&mut self) {
        self.timers.0.borrow_mut().try_remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use anello_test::PanicsOnWake;

    use super::*;
    use crate::server::deadline::Phase;

    #[test]
    fn panicking_waker_does_not_affect_other_streams() {
        let (timers, waker) = (Rc::new(StreamTimers::default()), Arc::new(PanicsOnWake::default()));
        let task = Waker::from(Arc::clone(&waker));
        let register = |entry: &StreamTimerEntry| {
            entry.timer.register(Task::Server, &Context::from_waker(&task));
            entry.timer.register(Task::BodyReader, &Context::from_waker(&task));
        };
        let entries = [(); 2].map(|()| timers.add(0));
        entries.iter().for_each(register);
        timers.wake_body_readers();
        assert_eq!(waker.calls(), 2);
        entries.iter().for_each(register);
        entries.iter().for_each(|entry| entry.timer.deadlines.enter(Phase::Body, 0));
        let tick = TickLength::new(Duration::from_millis(1));
        timers.check_deadlines(u64::MAX, &ServerOptions::default(), tick);
        assert_eq!(waker.calls(), 6);
    }
}

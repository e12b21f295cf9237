//! A runtime that a scheduler runs step by step, without blocking the thread.

use std::io;
use std::sync::atomic::AtomicBool;

use super::context::{self, RunGuard, Shared, is_running};
use super::runtime::{Batch, Runtime, run_ready, take_turn};
use super::task_counters::TaskCounters;
use crate::driver::{Driver, WakeQueue};

/// Maximum number of turns per step, so that the other hosts make progress.
const TURNS_PER_STEP: usize = 4;

/// A runtime on a simulated host.
#[derive(Debug)]
pub(crate) struct SteppedRuntime {
    runtime: Runtime,
    batch: Batch,
    wakes: WakeQueue,
}

impl SteppedRuntime {
    pub fn new(driver: Driver) -> io::Result<Self> {
        let shared = Shared::new(driver, TaskCounters::new(false, None), None)?;
        Ok(Self {
            runtime: Runtime::new_with(shared, std::time::Duration::ZERO),
            batch: Batch::new(),
            wakes: WakeQueue::new(&context::WAKER_VTABLE, context::has_ready_tasks),
        })
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Runs the ready tasks and the driver, without waiting. Returns the time of the next step, or `None` if only an
    /// event from outside can cause one. The time is one on the network. A time in the past requests a step as soon as
    /// possible.
    ///
    /// # Errors
    /// Returns the error of the driver.
    ///
    /// # Panics
    /// Panics if a runtime is running on this thread.
    #[track_caller]
    pub fn step(&mut self) -> io::Result<Option<u64>> {
        assert!(!is_running(), "a runtime already runs on this thread (run the simulation outside of it)");
        let shared = &self.runtime.shared;
        let _entered = RunGuard::new(shared);
        let mailbox = &shared.inbox.mailbox;
        mailbox.finish_sleep();
        let mut is_busy = true;
        for _ in 0..TURNS_PER_STEP {
            run_ready(shared, &mut self.batch);
            take_turn(shared, &mut self.wakes, true, &AtomicBool::new(false))?;
            #[cfg(debug_assertions)]
            shared.check(&self.batch);
            is_busy = !shared.tasks.ready.borrow().is_empty();
            if !is_busy {
                break;
            }
        }
        if is_busy || !mailbox.prepare_to_sleep() {
            return Ok(Some(0));
        }
        let event_ns = shared.driver.borrow().next_event_ns();
        let deadline_ns = shared.time.wheel.borrow().next_deadline_ns();
        let deadline_ns = deadline_ns.map(|deadline_ns| shared.clock().network_ns(deadline_ns));
        Ok(event_ns.into_iter().chain(deadline_ns).min())
    }
}

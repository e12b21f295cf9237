//! Load of a worker, and of its connections while the worker is overloaded.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use super::plan::Loads;
use crate::driver::log_event;

/// Maximum number of intervals without measurement after a measurement that led to no move.
const MAX_PAUSE: u32 = 8;

/// Counts the work of one worker, and selects connections to move.
///
/// ```text
///   Counting ── overloaded ──► Measuring ── still overloaded ──► Moving
///      ▲                           │ nothing to move                │
///      └───────────────────────────┴────────── next interval ◄──────┘
/// ```
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Work since the start of the interval.
    work: Cell<u64>,
    /// Set in all phases except `Counting`.
    uses_connections: Cell<bool>,
    phase: RefCell<Phase>,
    /// Intervals to wait before the next measurement, and the length of the next wait.
    pause: Cell<u32>,
    next_pause: Cell<u32>,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Counting,
    /// Work of each connection in this interval.
    Measuring(HashMap<usize, u64>),
    /// New worker of each selected connection that has not moved yet.
    Moving(HashMap<usize, usize>),
}

impl Load {
    /// Counts `work` of a connection. Returns whether the connection should move.
    #[inline]
    pub fn record(&self, connection: usize, work: u64) -> bool {
        self.work.set(self.work.get() + work);
        self.uses_connections.get() && self.record_connection(connection, work)
    }

    #[cold]
    fn record_connection(&self, connection: usize, work: u64) -> bool {
        match &mut *self.phase.borrow_mut() {
            Phase::Counting => false,
            Phase::Measuring(connections) => {
                *connections.entry(connection).or_default() += work;
                false
            }
            Phase::Moving(targets) => targets.contains_key(&connection),
        }
    }

    /// Returns the new worker of a connection, once.
    pub fn take_target(&self, connection: usize) -> Option<usize> {
        match &mut *self.phase.borrow_mut() {
            Phase::Moving(targets) => targets.remove(&connection),
            Phase::Counting | Phase::Measuring(_) => None,
        }
    }

    /// Returns the work since the last call.
    pub fn take_work(&self) -> u64 {
        self.work.take()
    }

    /// Decides what to do in the next interval. `work` was counted in the last one.
    pub fn decide(&self, loads: &Loads, work: u64) {
        let phase = match self.phase.take() {
            _ if !loads.is_overloaded(work) => Phase::Counting,
            Phase::Counting if self.pause.get() > 0 => {
                self.pause.set(self.pause.get() - 1);
                Phase::Counting
            }
            Phase::Counting => Phase::Measuring(HashMap::new()),
            Phase::Measuring(connections) => {
                let moves = loads.plan(connections.into_iter().collect());
                if moves.is_empty() {
                    // For example, a single connection causes the load.
                    self.pause.set(self.next_pause.get());
                    self.next_pause.set((self.next_pause.get() * 2).clamp(1, MAX_PAUSE));
                    Phase::Counting
                } else {
                    let (worker, connections) = (loads.worker, moves.len());
                    log_event!(DEBUG, worker, connections, "moving connections to less busy workers");
                    self.next_pause.set(0);
                    Phase::Moving(moves.into_iter().collect())
                }
            }
            // The load of this interval includes connections that have moved.
            Phase::Moving(_) => Phase::Counting,
        };
        self.set_phase(phase);
    }

    /// Selects no more connections until the next measurement.
    pub fn reset(&self) {
        self.set_phase(Phase::Counting);
    }

    fn set_phase(&self, phase: Phase) {
        self.uses_connections.set(!matches!(phase, Phase::Counting));
        self.phase.replace(phase);
    }
}

//! Load of a worker, and of its connections while the worker is overloaded.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use super::plan::Loads;

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
    phase: Cell<Phase>,
    /// In `Measuring`, the work of each connection in this interval; in `Moving`, the new worker of each connection that
    /// has not moved yet.
    connections: RefCell<HashMap<usize, u64>>,
    /// Intervals to wait before the next measurement, and the length of the next wait.
    pause: Cell<u32>,
    next_pause: Cell<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Counting,
    Measuring,
    Moving,
}

impl Load {
    /// Counts `work` of a connection. Returns whether the connection should move.
    #[inline]
    pub fn record(&self, connection: usize, work: u64) -> bool {
        self.work.set(self.work.get() + work);
        self.phase.get() != Phase::Counting && self.record_connection(connection, work)
    }

    #[cold]
    fn record_connection(&self, connection: usize, work: u64) -> bool {
        let mut connections = self.connections.borrow_mut();
        if self.phase.get() == Phase::Moving {
            return connections.contains_key(&connection);
        }
        *connections.entry(connection).or_default() += work;
        false
    }

    /// Returns the new worker of a connection, once.
    pub fn take_target(&self, connection: usize) -> Option<usize> {
        if self.phase.get() != Phase::Moving {
            return None;
        }
        let target = self.connections.borrow_mut().remove(&connection);
        target.and_then(|worker| usize::try_from(worker).ok())
    }

    /// Returns the work since the last call.
    pub fn take_work(&self) -> u64 {
        self.work.take()
    }

    /// Decides what to do in the next interval. `work` was counted in the last one.
    pub fn decide(&self, loads: &Loads, work: u64) {
        let connections = self.connections.take();
        let phase = match self.phase.get() {
            _ if !loads.is_overloaded(work) => Phase::Counting,
            Phase::Counting if self.pause.get() > 0 => {
                self.pause.set(self.pause.get() - 1);
                Phase::Counting
            }
            Phase::Counting => Phase::Measuring,
            Phase::Measuring => {
                let moves = loads.plan(connections.into_iter().collect());
                if moves.is_empty() {
                    // For example, a single connection causes the load.
                    self.pause.set(self.next_pause.get());
                    self.next_pause.set((self.next_pause.get() * 2).clamp(1, MAX_PAUSE));
                    Phase::Counting
                } else {
                    let (worker, connections) = (loads.worker, moves.len());
                    tracing::debug!(worker, connections, "moving connections to less busy workers");
                    self.next_pause.set(0);
                    let moves = moves.into_iter().map(|(connection, worker)| (connection, worker as u64));
                    self.connections.replace(moves.collect());
                    Phase::Moving
                }
            }
            // The load of this interval includes connections that have moved.
            Phase::Moving => Phase::Counting,
        };
        self.phase.set(phase);
    }

    /// Selects no more connections until the next measurement.
    pub fn reset(&self) {
        self.connections.take();
        self.phase.set(Phase::Counting);
    }
}

//! Cells with idle connections, which measure memory instead of speed.

use std::collections::HashSet;
use std::net::SocketAddr;

use crate::plan::cell::Cell;
use crate::plan::schedule::Random;
use crate::result::{Consequence, Quality};
use crate::run::load::{LoadSession, SliceLoad};
use crate::run::machine::MachineError;
use crate::run::progress::Progress;
use crate::run::runner::slices::Measured;
use crate::run::runner::{CellOfContender, Runner, SliceError, SlicePosition, check};

/// Number of connections opened before the first memory sample. By then, the server has allocated the memory that does
/// not depend on the number of connections.
const FIRST_BATCH: usize = 10;

impl Runner<'_> {
    /// Runs a cell with idle connections. Every slice starts its own server process, because a process rarely returns
    /// memory to the kernel.
    pub(super) fn run_idle_cell(&mut self, pass: usize, cell: usize) -> Result<(), MachineError> {
        self.stop_all()?;
        self.start_cell(pass, cell);
        let mut random = Random::for_position(self.config.timing.seed, pass, Some(cell));
        let mut skipped = HashSet::new();
        for round in 0..self.config.timing.rounds {
            for index in random.order(self.config.contenders.len()) {
                if self.stopped() {
                    return Ok(());
                }
                if skipped.contains(&index) || !self.participates(index, cell) {
                    continue;
                }
                if let Err(error) = self.measure_idle(index, SlicePosition { pass, cell, round }) {
                    skipped.insert(index);
                    let (what, consequence) = match error {
                        SliceError::WrongReply(what) => {
                            self.disqualified.insert(CellOfContender { contender: index, cell });
                            (what, Consequence::Disqualified)
                        }
                        SliceError::Broken(what) if self.running[index].is_none() => {
                            (what, Consequence::SkippedPass)
                        }
                        SliceError::Broken(what) => (self.root_cause(index, what)?, Consequence::LeftOut),
                        SliceError::Lost(error) => return Err(error),
                    };
                    let failed_cell = (consequence != Consequence::SkippedPass).then_some(cell);
                    self.report(index, failed_cell, pass, what, consequence);
                }
                self.stop_contender(index)?;
                self.done += 1;
                self.observer.progress(Progress::Slices { done: self.done });
            }
        }
        Ok(())
    }

    fn measure_idle(&mut self, index: usize, position: SlicePosition) -> Result<(), SliceError> {
        let cell = self.config.cells[position.cell];
        self.announce_slice(index, position);
        let address = self.start(index, self.config.cores_of(&cell))?;
        let pid = self.pid(index)?;
        let start_ns = self.since_start_ns();
        // Open at least half of the connections after the first sample, because the result is the growth after it.
        let first = FIRST_BATCH.min(cell.connections / 2);
        // Take both samples after the same idle time.
        let first_session = if first > 0 { Some(self.open_idle(address, &cell, first)?) } else { None };
        let before = self.machine.usage(pid)?;
        let (session, load) = self.open_idle(address, &cell, cell.connections - first)?;
        let after = self.machine.usage(pid)?;
        drop((first_session, session));
        let measured = Measured { load, before, after, stolen_ns: 0, throttled_ns: 0, load_cpu_ns: 0 };
        let mut slice = self.slice_record(index, position, start_ns, &measured);
        slice.resident_before_bytes = before.resident_bytes;
        slice.connections_before = first;
        let memory = slice.memory_per_connection(cell.connections);
        slice.quality = if memory.is_some() { Quality::Clean } else { Quality::Invalid };
        self.push_slice(slice);
        Ok(())
    }

    /// Opens connections for an idle cell and keeps them idle for the length of a slice.
    fn open_idle(
        &mut self,
        address: SocketAddr,
        cell: &Cell,
        connections: usize,
    ) -> Result<(Box<dyn LoadSession>, SliceLoad), SliceError> {
        let mut session = self.load.connect(address, &Cell { connections, ..*cell })?;
        let load = session.run_slice(self.config.timing.slice)?;
        check(&load)?;
        Ok((session, load))
    }
}

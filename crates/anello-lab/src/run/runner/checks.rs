//! Functional checks on every contender before the measurement.

use crate::plan::site::SupportedTargets;
use crate::result::{CheckRecord, Consequence, Failure};
use crate::run::load::Check;
use crate::run::machine::MachineError;
use crate::run::progress::Progress;
use crate::run::runner::{RunError, Runner};

/// Number of connections in the many-connections check, unless the contender or the machine supports fewer.
const CHECK_CONNECTIONS: usize = 5000;

/// Number for TLS: all handshakes, each as costly as a hundred requests, must fit in the server's handshake timeout.
const CHECK_TLS_CONNECTIONS: usize = 1000;

const START: &str = "start";

/// The checks of a contender.
#[derive(Default)]
struct PlannedChecks {
    /// Empty if the contender is only started.
    checks: Vec<Check>,
    /// Reason why [`Check::ManyConnections`] uses fewer connections than usual.
    connections_note: Option<String>,
}

impl Runner<'_> {
    /// Checks all contenders, once per run. A contender that fails is excluded from the run. One that cannot be started
    /// ends the run, unless the run keeps going: it is usually a mistake in its command. A predefined command has none, so
    /// one that exits is excluded, too.
    pub(super) fn check_all(&mut self) -> Result<(), RunError> {
        if !self.config.check {
            return Ok(());
        }
        for index in 0..self.config.contenders.len() {
            let contender = &self.config.contenders[index];
            if self.failed_check.contains(&index) {
                continue;
            }
            // A twin is a second instance of the same program, so the result of the first instance applies, unless that
            // instance failed to start.
            let original = contender.twin_of.as_ref();
            let original = self.config.contenders.iter().position(|other| Some(&other.name) == original);
            if let Some(original) = original
                && !self.failed_to_start(original)
            {
                if self.failed_check.contains(&original) {
                    self.failed_check.insert(index);
                }
                continue;
            }
            if self.stopped() {
                return Ok(());
            }
            self.check(index)?;
        }
        Ok(())
    }

    fn check(&mut self, index: usize) -> Result<(), RunError> {
        let PlannedChecks { checks, connections_note } = self.planned_checks(index)?;
        let only_starts = checks.is_empty();
        // A resumed run may have completed some of the checks.
        let pending: Vec<Check> =
            checks.into_iter().filter(|check| !self.has_passed(index, &check.to_string())).collect();
        if pending.is_empty() && (!only_starts || self.has_passed(index, START)) {
            return Ok(());
        }
        let start_ns = self.machine.now_ns();
        match self.start(index, &self.config.cores.server[..1]) {
            Ok(_) if only_starts => {
                let elapsed_ns = self.machine.now_ns().saturating_sub(start_ns);
                self.record(index, START.to_owned(), Ok(Vec::new()), elapsed_ns);
            }
            Ok(_) => {}
            Err(error) => return self.start_failed(index, error, start_ns),
        }
        for check in pending {
            let has_note = matches!(check, Check::ManyConnections(..));
            if !self.run_check(index, check, connections_note.as_deref().filter(|_| has_note))? {
                break;
            }
        }
        Ok(self.stop_contender(index)?)
    }

    /// Returns the checks of a contender. A disk worker has no clients: it is only started.
    fn planned_checks(&mut self, index: usize) -> Result<PlannedChecks, MachineError> {
        let workload = self.config.cells[0].workload;
        if workload.is_disk() {
            return Ok(PlannedChecks::default());
        }
        let contender = &self.config.contenders[index];
        let max_open_connections = self.machine.max_open_connections()?;
        let limit = contender.connections_limit.unwrap_or(usize::MAX);
        let default_connections =
            if workload.cipher().is_some() { CHECK_TLS_CONNECTIONS } else { CHECK_CONNECTIONS };
        let connections = default_connections.min(limit).min(max_open_connections);
        let connections_note = (connections < default_connections).then(|| {
            let is_own_limit = limit < max_open_connections;
            let cause = if is_own_limit { "limit of the contender" } else { "open file limit of the lab" };
            format!("{connections} instead of {default_connections} connections: {cause}")
        });
        let targets = workload.target().map(|_| SupportedTargets::of(&contender.serves));
        // Small responses fit into the socket buffers, so a stalled reader has no effect.
        let has_large_replies = targets.is_none_or(|targets| targets.files);
        let stalled = has_large_replies.then_some(Check::StalledReader(targets));
        let checks = [Check::CompleteBytes(targets)].into_iter().chain(stalled);
        let checks = checks.chain([Check::ManyConnections(targets, connections)]).collect();
        Ok(PlannedChecks { checks, connections_note })
    }

    /// Ends the run, or excludes the contender if the run keeps going.
    fn start_failed(&mut self, index: usize, error: MachineError, start_ns: u64) -> Result<(), RunError> {
        if let MachineError::Lost(_) = error {
            return Err(error.into());
        }
        let (what, consequence) = (error.to_string(), Consequence::SkippedPass);
        let contender = &self.config.contenders[index];
        // An error on another host does not show the difference.
        let has_exited = matches!(error, MachineError::Exited(_) | MachineError::Host(_));
        if !(self.config.keep_going || contender.is_predefined && has_exited) {
            let contender = contender.name.clone();
            return Err(RunError::Contender(Failure { contender, cell: None, pass: 0, what, consequence }));
        }
        // The contender cannot be checked and is therefore not measured, even if a later start would succeed.
        let elapsed_ns = self.machine.now_ns().saturating_sub(start_ns);
        self.record(index, START.to_owned(), Err(vec![what.clone()]), elapsed_ns);
        self.report(index, None, 0, what, consequence);
        Ok(())
    }

    /// Returns whether the remaining checks of the contender are to be performed. Adds the note to the details of the
    /// outcome.
    fn run_check(&mut self, index: usize, check: Check, note: Option<&str>) -> Result<bool, MachineError> {
        let Some(address) = self.running[index].as_ref().map(|running| running.address) else {
            return Ok(false);
        };
        if self.stopped() {
            return Ok(false);
        }
        let (contender, what) = (self.config.contenders[index].name.clone(), check.to_string());
        self.observer.progress(Progress::Checking { contender, what: what.clone() });
        let start_ns = self.machine.now_ns();
        let outcome = self.load.check(address, check, self.stop);
        if self.stopped() && outcome.is_err() {
            return Ok(false); // The check was interrupted.
        }
        let elapsed_ns = self.machine.now_ns().saturating_sub(start_ns);
        let with_note =
            |details: Vec<String>| details.into_iter().chain(note.map(str::to_owned)).collect::<Vec<_>>();
        match outcome {
            Ok(details) => {
                self.record(index, what, Ok(with_note(details)), elapsed_ns);
                Ok(true)
            }
            Err(cause) => {
                let details = with_note(vec![self.root_cause(index, cause.to_string())?]);
                let failure = format!("{what}: {}", details.join("; "));
                self.record(index, what, Err(details), elapsed_ns);
                self.report(index, None, 0, failure, Consequence::NotTimed);
                Ok(false)
            }
        }
    }

    fn has_passed(&self, index: usize, what: &str) -> bool {
        self.check_records(index).any(|record| record.passed && record.what == what)
    }

    fn failed_to_start(&self, index: usize) -> bool {
        self.check_records(index).any(|record| !record.passed && record.what == START)
    }

    fn check_records(&self, index: usize) -> impl Iterator<Item = &CheckRecord> {
        let name = &self.config.contenders[index].name;
        self.result.checks.iter().filter(move |record| record.contender == *name)
    }

    /// Records the outcome of a check, and excludes the contender if the check failed.
    fn record(
        &mut self,
        index: usize,
        what: String,
        outcome: Result<Vec<String>, Vec<String>>,
        elapsed_ns: u64,
    ) {
        let passed = outcome.is_ok();
        if !passed {
            self.failed_check.insert(index);
        }
        let record = CheckRecord {
            contender: self.config.contenders[index].name.clone(),
            what,
            passed,
            details: outcome.unwrap_or_else(|details| details),
            elapsed_ns,
        };
        self.observer.progress(Progress::Checked(record.clone()));
        self.result.checks.push(record);
    }
}

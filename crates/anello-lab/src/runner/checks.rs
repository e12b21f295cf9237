//! Before anything is timed: does every contender do what a server must?

use crate::cell::Workload;
use crate::load::Check;
use crate::result::{CheckRecord, Consequence};
use crate::run::Progress;
use crate::runner::Runner;
use crate::site::SupportedTargets;

/// Connections of the check with many, where contender and machine allow so many.
const CHECK_CONNECTIONS: usize = 5000;

/// The same under TLS: a handshake takes what a hundred requests take, and all of them have to be done before a server gives
/// up those that wait.
const CHECK_TLS_CONNECTIONS: usize = 1000;

/// The name of the first thing that a contender is checked for: that it starts.
const START: &str = "start";

/// What is tried of a contender, in order. Without large files it has nothing that a stalled reader could leave unread: what
/// its connections take in is a matter of requests, of which it is asked one at a time.
fn checks_of(workload: Workload, served: SupportedTargets, connections: usize) -> Vec<Check> {
    match workload {
        Workload::Http { .. } => {
            let stalled = served.files.then_some(Check::StalledDownload(served));
            let last = Check::ManyRequests(served, connections);
            [Check::CompleteAnswers(served)].into_iter().chain(stalled).chain([last]).collect()
        }
        _ => vec![Check::CompleteBytes, Check::StalledReader, Check::ManyConnections(connections)],
    }
}

impl Runner<'_> {
    /// Checks all contenders, once in a run; who fails takes no further part. So nobody is timed who has not passed:
    /// whoever returns from here has passed all, has failed, or belongs to a run that was stopped.
    pub fn check_all(&mut self) {
        let servers = self.config.cells.iter().any(|cell| !matches!(cell.workload, Workload::Disk { .. }));
        if !self.config.check || !servers {
            return;
        }
        for index in 0..self.config.contenders.len() {
            let contender = &self.config.contenders[index];
            if self.failed_check.contains(&index) {
                continue;
            }
            // A twin is the same program: what the first did holds for it, too, unless that did not even start.
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
                return;
            }
            self.check(index);
        }
    }

    fn check(&mut self, index: usize) {
        let contender = &self.config.contenders[index];
        let most = self.machine.max_open_connections();
        let limit = contender.connections_limit.unwrap_or(usize::MAX);
        let workload = self.config.cells[0].workload;
        let wanted_connections =
            if workload.cipher().is_some() { CHECK_TLS_CONNECTIONS } else { CHECK_CONNECTIONS };
        let connections = wanted_connections.min(limit).min(most);
        let checks = checks_of(workload, SupportedTargets::of(&contender.serves), connections);
        // A run that is taken up again may have some of them behind it.
        let passed = |check: &Check| {
            let mut records = self.result.checks.iter().filter(|record| record.contender == contender.name);
            records.any(|record| record.passed && record.what == check.to_string())
        };
        let ahead: Vec<Check> = checks.into_iter().filter(|check| !passed(check)).collect();
        if ahead.is_empty() {
            return;
        }
        let began_ns = self.machine.now_ns();
        if let Err(what) = self.start(index, &self.config.server_cores[..1]) {
            let elapsed_ns = self.machine.now_ns().saturating_sub(began_ns);
            // It cannot be checked, so it is not timed, even if another start should work.
            let (contender, details) = (contender.name.clone(), vec![what.clone()]);
            let what_for = START.to_owned();
            self.record(CheckRecord { contender, what: what_for, passed: false, details, elapsed_ns });
            self.failed_check.insert(index);
            self.report(index, None, 0, what, Consequence::SkippedPass);
            return;
        }
        for check in ahead {
            if self.stopped() {
                break;
            }
            let Some(address) = self.running[index].as_ref().map(|running| running.address) else { break };
            let name = contender.name.clone();
            self.observer.progress(Progress::Checking { contender: name.clone(), what: check.to_string() });
            let began_ns = self.machine.now_ns();
            let outcome = self.load.check(address, check, self.stop);
            if self.stopped() && outcome.is_err() {
                break; // It was not given the time to end.
            }
            let elapsed_ns = self.machine.now_ns().saturating_sub(began_ns);
            let passed = outcome.is_ok();
            let mut details = match outcome {
                Ok(details) => details,
                Err(what) => vec![self.root_cause(index, what)],
            };
            let many = matches!(check, Check::ManyConnections(_) | Check::ManyRequests(..));
            if connections < wanted_connections && many {
                let whose = if limit < most { "it is made for no more" } else { "the open files of the lab" };
                details.push(format!("{connections} instead of {wanted_connections} connections: {whose}"));
            }
            if !passed {
                self.failed(index, check.to_string(), details, elapsed_ns);
                break;
            }
            self.record(CheckRecord {
                contender: name,
                what: check.to_string(),
                passed,
                details,
                elapsed_ns,
            });
        }
        self.stop_contender(index);
    }

    fn failed_to_start(&self, index: usize) -> bool {
        let name = &self.config.contenders[index].name;
        self.result.checks.iter().any(|check| check.contender == *name && check.what == START)
    }

    fn failed(&mut self, index: usize, what: String, details: Vec<String>, elapsed_ns: u64) {
        let contender = self.config.contenders[index].name.clone();
        let why = format!("{what}: {}", details.join("; "));
        self.record(CheckRecord { contender, what, passed: false, details, elapsed_ns });
        self.failed_check.insert(index);
        self.report(index, None, 0, why, Consequence::NotTimed);
    }

    fn record(&mut self, record: CheckRecord) {
        self.observer.progress(Progress::Checked(record.clone()));
        self.result.checks.push(record);
    }
}

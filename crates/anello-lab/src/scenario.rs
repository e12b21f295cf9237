//! What a run of the lab does: who competes, in which cells, for how long.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contender::Contender;
use crate::machine::allowed_cores;

/// How long a server that shows signs of death is waited for until it counts as alive.
///
/// The kernel closes the descriptors of a dying process before it can be reaped: peers see the end of their streams
/// while the last threads have still to run their own exits. What is missing then is a little work of the kernel for
/// each thread, but each must get a turn on a core to do it: with 300 threads and a few milliseconds of others before
/// each of them, that is about a second, and on a machine that is starved of time two have been seen. This is as
/// patient as the load is with a reply. A server that hangs up and lives costs it once for each failure.
pub const DYING_TIME: Duration = Duration::from_secs(5);

/// One place in the matrix: so many connections with messages of such a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// Payload of one request, and of its reply.
    pub message_bytes: usize,
    /// Connections open at once, each with one request in flight.
    pub connections: usize,
}

impl fmt::Display for Cell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.connections == 1 { "" } else { "s" };
        write!(formatter, "{} connection{plural}, {} bytes", self.connections, self.message_bytes)
    }
}

/// A run of the lab.
///
/// The run is made of `passes`; each starts every contender anew and walks through all cells in random order. In a
/// cell every contender's connections are open at once and the idle ones sleep, while `rounds` rounds give each of
/// them one slice of load, in random order.
#[derive(Debug, Clone)]
pub struct LabConfig {
    /// Who competes. One of them is the reference; one may be its twin.
    pub contenders: Vec<Contender>,
    /// Numbers of connections to measure.
    pub connections: Vec<usize>,
    /// Message sizes to measure.
    pub message_bytes: Vec<usize>,
    /// Length of one slice of load.
    pub slice: Duration,
    /// Load that is not counted, once after connecting.
    pub warm_up: Duration,
    /// How often all contenders are started anew.
    pub passes: usize,
    /// Rounds in each cell of each pass.
    pub rounds: usize,
    /// Decides the order of everything, and the bootstrap.
    pub seed: u64,
    /// Core that all contenders run on, one at a time awake.
    pub server_core: usize,
    /// Core that the load runs on. The same as `server_core` where there is only one.
    pub load_core: usize,
    /// Name of the contender that the others are compared with.
    pub reference: String,
    /// A slice is dropped if the hypervisor took more than this fraction of it.
    pub stolen_fraction_limit: f64,
    /// Words put before every contender's command when it is started, but not when it is shown: a program that makes
    /// the process ready and then becomes the contender (`execve(2)`). Empty: contenders are started directly.
    pub launcher: Vec<String>,
    /// How long a contender may take to print its ready line.
    pub start_timeout: Duration,
    /// How long a server whose connections broke is waited for until it counts as alive; see [`DYING_TIME`].
    pub dying_time: Duration,
    /// The command line that repeats this run, for the report.
    pub repeat_command: String,
    /// Version of the program under test, for the report.
    pub version: String,
    /// Where the reports go.
    pub output_directory: PathBuf,
}

impl LabConfig {
    /// About a minute: anello on both drivers and the bare servers, at 1, 50 and 300 connections with 128 and 1024
    /// bytes. `executable` is the `anello` command.
    #[must_use]
    pub fn quick(executable: PathBuf) -> LabConfig {
        let cores = allowed_cores();
        let server_core = cores.first().copied().unwrap_or(0);
        LabConfig {
            contenders: Contender::all_of_anello(&executable, server_core),
            connections: vec![1, 50, 300],
            message_bytes: vec![128, 1024],
            slice: Duration::from_millis(64),
            warm_up: Duration::from_millis(20),
            passes: 5,
            rounds: 3,
            seed: 1,
            server_core,
            load_core: cores.get(1).copied().unwrap_or(server_core),
            reference: "bare epoll".to_owned(),
            stolen_fraction_limit: 0.01,
            launcher: Vec::new(),
            start_timeout: Duration::from_secs(10),
            dying_time: DYING_TIME,
            repeat_command: "anello lab run --seed 1".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            output_directory: PathBuf::from("results"),
        }
    }

    /// A few seconds, to see that everything works; too short for fine differences.
    #[must_use]
    pub fn smoke(executable: PathBuf) -> LabConfig {
        LabConfig {
            connections: vec![1, 20],
            message_bytes: vec![128],
            slice: Duration::from_millis(25),
            warm_up: Duration::from_millis(10),
            passes: 2,
            rounds: 4,
            ..LabConfig::quick(executable)
        }
    }

    /// All cells, by message size and then connections.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        let cell = |&message_bytes: &usize| {
            self.connections.iter().map(move |&connections| Cell { message_bytes, connections })
        };
        self.message_bytes.iter().flat_map(cell).collect()
    }

    /// Slices in the whole run if nothing fails or is repeated.
    #[must_use]
    pub fn slice_count(&self) -> usize {
        self.cells().len() * self.contenders.len() * self.passes * self.rounds
    }

    /// Time that the slices and warm-ups will take, without starting and connecting.
    #[must_use]
    pub fn load_time(&self) -> Duration {
        let warm_ups = self.cells().len() * self.contenders.len() * self.passes;
        self.slice * saturating_u32(self.slice_count()) + self.warm_up * saturating_u32(warm_ups)
    }

    /// Where the reference stands among the contenders.
    #[must_use]
    pub fn reference_index(&self) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.name == self.reference)
    }

    /// Says what is wrong with this configuration.
    ///
    /// # Errors
    /// The first fault found, with the remedy.
    pub fn check(&self) -> Result<(), String> {
        if self.reference_index().is_none() {
            let names: Vec<&str> = self.contenders.iter().map(|contender| contender.name.as_str()).collect();
            return Err(format!(
                "the reference \"{}\" is not among the contenders: choose one of {}",
                self.reference,
                names.join(", ")
            ));
        }
        for (index, contender) in self.contenders.iter().enumerate() {
            if self.contenders[..index].iter().any(|earlier| earlier.name == contender.name) {
                return Err(format!("two contenders are called \"{}\": rename one", contender.name));
            }
        }
        if self.passes == 0 || self.rounds == 0 || self.slice.is_zero() {
            return Err("passes, rounds and the slice must all be greater than 0".to_owned());
        }
        if !(0.0..=1e9).contains(&self.stolen_fraction_limit) {
            return Err("the limit of stolen time must be a fraction, 0 or more".to_owned());
        }
        if self.connections.is_empty() || self.connections.contains(&0) {
            return Err("give at least one number of connections, each at least 1".to_owned());
        }
        if self.message_bytes.is_empty() || self.message_bytes.contains(&0) {
            return Err("give at least one message size, each at least 1 byte".to_owned());
        }
        Ok(())
    }
}

fn saturating_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_run_takes_about_a_minute_and_the_smoke_run_seconds() {
        let quick = LabConfig::quick(PathBuf::from("anello"));
        assert_eq!(quick.check(), Ok(()));
        assert_eq!(quick.cells().len(), 6);
        assert!((35..55).contains(&quick.load_time().as_secs()), "{:?}", quick.load_time());
        let smoke = LabConfig::smoke(PathBuf::from("anello"));
        assert_eq!(smoke.check(), Ok(()));
        assert!(smoke.load_time().as_secs() < 5, "{:?}", smoke.load_time());
    }

    #[test]
    fn faults_in_the_configuration_are_named() {
        let good = LabConfig::quick(PathBuf::from("anello"));
        let fault = |change: &dyn Fn(&mut LabConfig)| {
            let mut config = good.clone();
            change(&mut config);
            config.check().unwrap_err()
        };
        assert!(fault(&|config| config.reference = "nginx".into()).contains("bare epoll"));
        assert!(fault(&|config| config.stolen_fraction_limit = f64::NAN).contains("stolen"));
        assert!(fault(&|config| config.rounds = 0).contains("rounds"));
        assert!(fault(&|config| config.connections = vec![50, 0]).contains("at least 1"));
        assert!(fault(&|config| config.message_bytes.clear()).contains("message size"));
        assert!(fault(&|config| config.contenders[0].name = "bare epoll".into()).contains("rename"));
    }
}

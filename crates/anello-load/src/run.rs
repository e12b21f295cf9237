//! One whole measurement: connect, warm up, measure.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::config::TcpLoad;
use crate::cpu::{own_cpu_ns, process_cpu_ns};
use crate::report::{Latency, Report, SCHEMA, SCHEMA_VERSION, ServerCpu, Spread};
use crate::session::{Session, Slice, Standing, nanoseconds};

/// What a load is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Connections are opened.
    Connecting,
    /// Load that is not counted.
    WarmUp,
    /// Load that is counted.
    Measuring,
}

/// How far a load has come; told about ten times a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// How long the phase has lasted.
    pub elapsed: Duration,
    /// How long the phase may last, or is to last.
    pub planned: Duration,
    /// Connections that are open.
    pub connections: usize,
    /// Requests answered in this phase.
    pub requests: u64,
    /// Troubles in this phase.
    pub errors: u64,
}

/// Runs a load to its end, or until `progress` breaks, which ends it within a second.
///
/// The report is `Ok` also when the server was dead, stalled or lied: [`Report::is_good`] says so. The load ends early
/// when no connection is left. Dropping the future closes all connections.
///
/// # Errors
/// When the configuration is unusable (`InvalidInput`, [`TcpLoad::check`]), or the CPU time of the server's process
/// cannot be read at the beginning.
///
/// # Panics
/// When no runtime runs on this thread.
pub async fn run(config: &TcpLoad, progress: impl FnMut(&Progress) -> ControlFlow<()>) -> io::Result<Report> {
    // Asked first, so that a mistyped process id does not cost the whole duration.
    config.server_pid.map(process_cpu_ns).transpose()?;
    let mut watcher = Watcher { progress, interrupted: false };
    let mut session =
        Session::open(config, &mut watcher.watch(Phase::Connecting, config.connect_timeout)).await?;
    let opened = session.open_connections();
    let mut errors = session.connect_errors().clone();
    if !watcher.interrupted && !config.warm_up.is_zero() {
        let slice = session.drive(config.warm_up, &mut watcher.watch(Phase::WarmUp, config.warm_up)).await;
        errors.merge(slice.errors);
    }
    let before = Spent::now(config);
    let mut slice = match watcher.interrupted {
        true => Slice::empty(),
        false => session.drive(config.duration, &mut watcher.watch(Phase::Measuring, config.duration)).await,
    };
    let after = Spent::now(config);
    let left = session.open_connections();
    session.close().await;
    errors.merge(std::mem::take(&mut slice.errors));
    let per_request = |cpu_ns: u64| (slice.requests > 0).then(|| cpu_ns as f64 / slice.requests as f64);
    let driver = anello::current_driver();
    let load_cpu_ns = after.own_ns.saturating_sub(before.own_ns);
    Ok(Report {
        schema: SCHEMA.to_owned(),
        schema_version: SCHEMA_VERSION,
        target: config.target.to_string(),
        driver: driver.as_ref().map_or("", |driver| driver.name).to_owned(),
        driver_features: driver.map_or_else(String::new, |driver| driver.features),
        connections: config.connections,
        connections_opened: opened,
        connections_left: left,
        sources: config.sources_in_use(),
        message_bytes: config.message_bytes,
        verified: config.verify,
        duration_ns: nanoseconds(config.duration),
        warm_up_ns: nanoseconds(config.warm_up),
        interrupted: watcher.interrupted,
        requests: slice.requests,
        elapsed_ns: slice.elapsed_ns,
        requests_per_second: slice.requests as f64 * 1e9 / slice.elapsed_ns.max(1) as f64,
        latency: Latency::of(&slice.latency),
        requests_per_connection: Spread::of(&slice.requests_by_connection),
        errors,
        server_cpu: after.server_since(&before).map(|(pid, cpu_ns)| ServerCpu {
            pid,
            cpu_ns,
            cpu_ns_per_request: per_request(cpu_ns),
        }),
        load_cpu_ns,
        load_cpu_ns_per_request: per_request(load_cpu_ns),
    })
}

/// Tells progress, and remembers whether it was asked to stop.
struct Watcher<P> {
    progress: P,
    interrupted: bool,
}

impl<P: FnMut(&Progress) -> ControlFlow<()>> Watcher<P> {
    fn watch(&mut self, phase: Phase, planned: Duration) -> impl FnMut(Standing) -> ControlFlow<()> + '_ {
        let began = Instant::now();
        move |standing| {
            let flow = (self.progress)(&Progress {
                phase,
                elapsed: began.elapsed(),
                planned,
                connections: standing.open,
                requests: standing.requests,
                errors: standing.errors,
            });
            self.interrupted |= flow.is_break();
            flow
        }
    }
}

/// CPU time spent up to some moment.
struct Spent {
    own_ns: u64,
    server: Option<(u32, u64)>,
}

impl Spent {
    fn now(config: &TcpLoad) -> Self {
        // A server that is gone by now shows in the errors.
        let server = config.server_pid.and_then(|pid| Some((pid, process_cpu_ns(pid).ok()?)));
        Self { own_ns: own_cpu_ns(), server }
    }

    /// Process and CPU time of the server since an earlier moment; none if it has lost threads, or is gone.
    fn server_since(&self, earlier: &Self) -> Option<(u32, u64)> {
        let ((pid, after_ns), (_, before_ns)) = (self.server?, earlier.server?);
        Some((pid, after_ns.checked_sub(before_ns)?))
    }
}

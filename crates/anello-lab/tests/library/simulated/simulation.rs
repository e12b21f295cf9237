//! Simulated machine and servers that let the lab run without sockets, processes or clocks.
//!
//! Each server has a known cost per request. The machine adds noise, slow drift, a random factor per process, and
//! stolen time. The correct result of a run is therefore known in advance.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hdrhistogram::Histogram;

use anello_lab::load::latency_histogram;
use anello_lab::schedule::Random;
use anello_lab::{
    Cell, Check, Contender, Environment, Executable, LabConfig, Load, LoadError, LoadSession, LocalMachine,
    Machine, MachineError, Running, SliceLoad, Usage, Workload,
};

/// CPU time of the load generator per request. A server that is faster than the load generator is not always busy.
const LOAD_NS_PER_REQUEST: f64 = 3_000.0;

/// Time per request on a single connection for the transfer and two wake-ups.
const WAKE_UP_NS: f64 = 9_000.0;

/// Resident memory of a process before its first connection.
const BASE_RESIDENT_BYTES: u64 = 3 << 20;

/// Port of the first simulated process. The port identifies the process.
const FIRST_PORT: u16 = 10_000;

/// Behaviour of a simulated server.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedServer {
    /// CPU time per request with few connections and small messages.
    pub cpu_ns: f64,
    /// Additional CPU time per request for each open connection, for example in servers that scan all connections.
    pub cpu_ns_per_connection: f64,
    /// Memory per connection.
    pub bytes_per_connection: u64,
    /// Memory allocated once, at the first connection, in bytes.
    pub base_bytes: u64,
    /// Simulated fault.
    pub fault: Fault,
}

/// Fault of a simulated server.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// No fault.
    None,
    /// Fails to start, with this message.
    CannotStart(String),
    /// Fails to start only the first time.
    CannotStartOnce,
    /// Starts only the first time.
    StartsOnce,
    /// Exits only once, in its n-th slice.
    DiesOnce(usize),
    /// Exits in every slice with at least this many connections.
    DiesAbove(usize),
    /// Keeps running, but closes its connections in every slice.
    ClosesConnections,
    /// Sends wrong bytes if the message has at least this many bytes.
    WrongBytesFrom(usize),
    /// Loses bytes when a reader stalls.
    LosesBytes,
    /// Uses this fraction of its core while idle.
    BusyWhenIdle(f64),
}

impl SimulatedServer {
    /// Creates a server with this cost per request and no faults.
    pub fn costing(cpu_ns: f64) -> SimulatedServer {
        SimulatedServer {
            cpu_ns,
            cpu_ns_per_connection: 0.0,
            bytes_per_connection: 4096,
            base_bytes: 0,
            fault: Fault::None,
        }
    }

    /// Returns this server with a fault.
    pub fn with_fault(self, fault: Fault) -> SimulatedServer {
        SimulatedServer { fault, ..self }
    }

    /// Returns this server with this much memory per connection.
    pub fn with_bytes_per_connection(self, bytes_per_connection: u64) -> SimulatedServer {
        SimulatedServer { bytes_per_connection, ..self }
    }

    /// Returns this server with this much memory allocated once, at the first connection.
    pub fn with_base_bytes(self, base_bytes: u64) -> SimulatedServer {
        SimulatedServer { base_bytes, ..self }
    }

    /// Returns this server with the given additional cost per request for each open connection.
    pub fn with_cpu_ns_per_connection(self, cpu_ns_per_connection: f64) -> SimulatedServer {
        SimulatedServer { cpu_ns_per_connection, ..self }
    }
}

/// Noise of the simulated machine. Values are fractions unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// Standard deviation between slices.
    pub slice: f64,
    /// Standard deviation between processes.
    pub process: f64,
    /// Amplitude of a slow drift over the run, common to all servers.
    pub drift: f64,
    /// Probability that the hypervisor steals 10 ms from a slice.
    pub stolen: f64,
    /// Fraction of the cores' time that other programs use.
    pub foreign: f64,
    /// Probability that a CPU limit throttles the lab for 10 ms of a slice.
    pub throttled: f64,
    /// Slowdown factor of the machine in its slow phases. 1 disables slow phases.
    pub slow_factor: f64,
    /// Mean duration of a phase, in seconds.
    pub phase_s: f64,
}

impl Noise {
    /// A machine without noise.
    pub const NONE: Noise = Noise {
        slice: 0.0,
        process: 0.0,
        drift: 0.0,
        stolen: 0.0,
        foreign: 0.0,
        throttled: 0.0,
        slow_factor: 1.0,
        phase_s: 3.0,
    };

    /// A typical virtual machine with moderate noise.
    pub const USUAL: Noise =
        Noise { slice: 0.015, process: 0.004, drift: 0.05, stolen: 0.05, foreign: 0.004, ..Noise::NONE };
}

/// A simulated machine. Creates the implementations of [`Machine`] and [`Load`] that the lab uses.
#[derive(Debug, Clone)]
pub struct Simulation {
    state: Rc<RefCell<SimulationState>>,
}

#[derive(Debug)]
struct SimulationState {
    servers: HashMap<String, SimulatedServer>,
    noise: Noise,
    random: Random,
    clock_ns: u64,
    stolen_ns: u64,
    throttled_ns: u64,
    is_slow: bool,
    phase_ends_ns: u64,
    processes: Vec<Process>,
    open_sessions: usize,
    max_open_sessions: usize,
    max_open_connections: usize,
    throttle_error: Option<String>,
    /// Number of calls of the machine after which its host is lost.
    calls_left: usize,
    /// First call that was not executed.
    lost_in: Option<&'static str>,
}

#[derive(Debug)]
struct Process {
    server: String,
    process_factor: f64,
    cpu_ns: u64,
    resident_bytes: u64,
    is_alive: bool,
    is_stopped: bool,
    is_paused: bool,
}

impl Simulation {
    /// Creates a machine that has these named servers.
    pub fn new(seed: u64, noise: Noise, servers: &[(&str, SimulatedServer)]) -> Simulation {
        let servers = servers.iter().map(|(name, server)| ((*name).to_owned(), server.clone())).collect();
        let state = SimulationState {
            servers,
            noise,
            random: Random::stream(seed, 77),
            clock_ns: 0,
            stolen_ns: 0,
            throttled_ns: 0,
            is_slow: false,
            phase_ends_ns: 0,
            processes: Vec::new(),
            open_sessions: 0,
            max_open_sessions: 0,
            max_open_connections: 1 << 20,
            throttle_error: None,
            calls_left: usize::MAX,
            lost_in: None,
        };
        Simulation { state: Rc::new(RefCell::new(state)) }
    }

    /// Returns the simulated [`Machine`].
    pub fn machine(&self) -> impl Machine + use<> {
        self.clone()
    }

    /// Returns the simulated [`Load`].
    pub fn load(&self) -> impl Load + use<> {
        self.clone()
    }

    /// Returns this machine with an open file limit that allows only this many connections.
    pub fn with_max_open_connections(self, connections: usize) -> Simulation {
        self.state.borrow_mut().max_open_connections = connections;
        self
    }

    /// Returns this machine, on which throttling the servers fails with this message.
    pub fn with_throttle_error(self, reason: &str) -> Simulation {
        self.state.borrow_mut().throttle_error = Some(reason.to_owned());
        self
    }

    /// Loses the host of the machine after this many calls.
    pub fn lost_after(self, calls: usize) -> Simulation {
        self.state.borrow_mut().calls_left = calls;
        self
    }

    /// Returns the first call that failed because the host was lost.
    pub fn lost_in(&self) -> Option<&'static str> {
        self.state.borrow().lost_in
    }

    /// Fails if the host is lost.
    fn call(&self, name: &'static str) -> Result<(), MachineError> {
        let mut state = self.state.borrow_mut();
        match state.calls_left.checked_sub(1) {
            Some(left) => state.calls_left = left,
            None => {
                state.lost_in.get_or_insert(name);
                return Err(MachineError::Lost("lost the connection to the simulated host".to_owned()));
            }
        }
        Ok(())
    }

    /// Returns the number of processes that have been started but not stopped.
    pub fn processes_left(&self) -> usize {
        self.state.borrow().processes.iter().filter(|process| !process.is_stopped).count()
    }

    /// Returns the maximum number of sessions that were open at the same time.
    pub fn max_open_sessions(&self) -> usize {
        self.state.borrow().max_open_sessions
    }

    /// Returns the number of processes that have ever been started.
    pub fn processes_started(&self) -> usize {
        self.state.borrow().processes.len()
    }

    /// Returns the number of open sessions.
    pub fn sessions_left(&self) -> usize {
        self.state.borrow().open_sessions
    }
}

impl SimulationState {
    /// Returns a random number with mean 0 and standard deviation 1, approximately normal.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.random.unit()).sum::<f64>() - 6.0
    }

    fn slice(&mut self, pid: usize, cell: &Cell, duration: Duration) -> Result<SliceLoad, LoadError> {
        let name = self.processes[pid].server.clone();
        let mut server = self.servers[&name].clone();
        if !self.processes[pid].is_alive || self.processes[pid].is_paused {
            return Err(LoadError::Failed("connection refused".to_owned()));
        }
        let dies = match &mut server.fault {
            Fault::DiesOnce(slices) => {
                *slices = slices.saturating_sub(1);
                *slices == 0
            }
            Fault::DiesAbove(limit) => cell.connections >= *limit,
            _ => false,
        };
        if server.fault == Fault::DiesOnce(0) {
            server.fault = Fault::None;
        }
        self.processes[pid].is_alive = !dies;
        self.servers.insert(name, server.clone());
        let mut load = SliceLoad::empty();
        match server.fault {
            _ if dies => return Err(LoadError::Failed("connection reset".to_owned())),
            Fault::ClosesConnections => return Err(LoadError::Failed("connection reset".to_owned())),
            Fault::WrongBytesFrom(bytes) if message_bytes(cell) >= bytes => {
                load.wrong_replies = 7;
                return Ok(load);
            }
            _ => {}
        }
        self.simulate_slice(&mut load, pid, &server, cell, duration);
        Ok(load)
    }

    /// Returns the fraction of its core that a process uses while idle.
    fn idle_cpu_fraction(&self, index: usize) -> f64 {
        let process = &self.processes[index];
        match self.servers[&process.server].fault {
            Fault::BusyWhenIdle(fraction) if process.is_alive && !process.is_paused => fraction,
            _ => 0.0,
        }
    }

    /// Returns the slowdown factor of the machine for this slice.
    fn machine_factor(&mut self) -> f64 {
        while self.clock_ns >= self.phase_ends_ns {
            self.is_slow = self.random.unit() < 0.5;
            let length_s = self.noise.phase_s * (0.5 + self.random.unit());
            self.phase_ends_ns = self.clock_ns + (length_s * 1e9) as u64 + 1;
        }
        let drift_angle = self.clock_ns as f64 / 20e9 * std::f64::consts::TAU;
        let phase = if self.is_slow { self.noise.slow_factor } else { 1.0 };
        phase * (1.0 + self.noise.drift * drift_angle.sin()) * (1.0 + self.noise.slice * self.normal())
    }

    fn simulate_slice(
        &mut self,
        load: &mut SliceLoad,
        pid: usize,
        server: &SimulatedServer,
        cell: &Cell,
        duration: Duration,
    ) {
        let connections = cell.connections;
        let machine_factor = self.machine_factor();
        let batching = if connections == 1 { 1.0 } else { 0.75 };
        let per_connection = server.cpu_ns_per_connection * connections as f64;
        let cost = server.cpu_ns * batching + per_connection + message_bytes(cell) as f64 * 0.4;
        // A process that uses CPU time without requests evicts this server's data from the caches.
        let others = (0..self.processes.len()).filter(|&other| other != pid);
        let disturbance: f64 = others.map(|other| self.idle_cpu_fraction(other)).sum();
        let cpu_ns =
            (cost * machine_factor * self.processes[pid].process_factor * (1.0 + disturbance)).max(1.0);
        let wake_ns = if connections == 1 { WAKE_UP_NS * machine_factor + LOAD_NS_PER_REQUEST } else { 0.0 };
        let request_ns = if connections == 1 {
            cpu_ns + wake_ns
        } else {
            cpu_ns.max(LOAD_NS_PER_REQUEST * machine_factor)
        };
        let duration_ns = duration.as_nanos() as u64;
        let capacity = duration_ns as f64 / request_ns;
        let mut latency_ns = (request_ns * connections as f64) as u64;
        load.requests = capacity.round() as u64;
        load.elapsed_ns = duration_ns;
        if let Some(rate) = cell.offered_per_second {
            let offered = rate as f64 * duration.as_secs_f64();
            load.requests = offered.min(capacity).round() as u64;
            load.offered = Some(offered.round() as u64);
            load.unsent = (offered - capacity).max(0.0).round() as u64;
            load.late = load.unsent;
            // Under overload, the queue grows for the whole slice. Otherwise, latency rises with the server's
            // utilization.
            let headroom = 1.0 - offered / capacity;
            latency_ns = if headroom > 0.01 { (request_ns / headroom) as u64 } else { duration_ns / 2 };
            load.uncorrected = Some(latencies_around(request_ns as u64));
        }
        load.latency = latencies_around(latency_ns);
        self.clock_ns += duration_ns;
        let process = &mut self.processes[pid];
        process.cpu_ns += (cpu_ns * load.requests as f64) as u64;
        if cell.workload == Workload::Idle {
            let process_factor = process.process_factor;
            if process.resident_bytes == BASE_RESIDENT_BYTES {
                process.resident_bytes += server.base_bytes;
            }
            process.resident_bytes +=
                (server.bytes_per_connection as f64 * connections as f64 * process_factor).round() as u64;
        }
        if self.random.unit() < self.noise.stolen {
            self.stolen_ns += 10_000_000;
        }
        if self.noise.throttled > 0.0 && self.random.unit() < self.noise.throttled {
            self.throttled_ns += 10_000_000;
        }
    }
}

/// Returns the size of a message, response or disk block in bytes, or 1 for idle connections.
fn message_bytes(cell: &Cell) -> usize {
    match cell.workload {
        Workload::Echo { message_bytes } => message_bytes,
        Workload::Http { target, .. } => target.bytes(),
        Workload::Disk { block_bytes, .. } => block_bytes,
        _ => 1,
    }
}

fn latencies_around(latency_ns: u64) -> Histogram<u64> {
    let mut latencies = latency_histogram();
    for percent in 1..=100u64 {
        latencies.saturating_record(latency_ns * (90 + percent / 4 + u64::from(percent > 98) * 40) / 100);
    }
    latencies
}

fn not_ready(description: impl Into<String>) -> MachineError {
    MachineError::NotReady(description.into())
}

impl Machine for Simulation {
    fn prepare(&mut self, _config: &LabConfig) -> Result<Vec<String>, MachineError> {
        self.call("prepare").map(|()| Vec::new())
    }

    fn now_ns(&mut self) -> u64 {
        self.state.borrow().clock_ns
    }

    fn unix_time_s(&mut self) -> u64 {
        1_795_000_000
    }

    fn stolen_ns(&mut self, _cores: &[usize]) -> Result<Option<u64>, MachineError> {
        self.call("stolen_ns").map(|()| Some(self.state.borrow().stolen_ns))
    }

    fn max_open_connections(&mut self) -> Result<usize, MachineError> {
        self.call("max_open_connections").map(|()| self.state.borrow().max_open_connections)
    }

    fn throttled_ns(&mut self) -> Result<u64, MachineError> {
        self.call("throttled_ns").map(|()| self.state.borrow().throttled_ns)
    }

    fn usage(&mut self, pid: u32) -> Result<Usage, MachineError> {
        self.call("usage")?;
        let process = &self.state.borrow().processes[pid as usize];
        Ok(Usage {
            cpu_ns: process.cpu_ns,
            voluntary_switches: Some(process.cpu_ns / 50_000),
            involuntary_switches: Some(0),
            resident_bytes: Some(process.resident_bytes),
        })
    }

    fn load_cpu_ns(&mut self) -> Result<u64, MachineError> {
        self.call("load_cpu_ns").map(|()| self.state.borrow().clock_ns)
    }

    fn other_cpu_ns(&mut self, cores: &[usize]) -> Result<Option<u64>, MachineError> {
        self.call("other_cpu_ns")?;
        let state = self.state.borrow();
        Ok(Some((state.clock_ns as f64 * state.noise.foreign * cores.len() as f64) as u64))
    }

    fn start(
        &mut self,
        contender: &Contender,
        _config: &LabConfig,
        _cores: &[usize],
    ) -> Result<Running, MachineError> {
        self.call("start")?;
        let mut state = self.state.borrow_mut();
        let name = &contender.name;
        let server = state
            .servers
            .get_mut(name)
            .ok_or_else(|| not_ready(format!("cannot start {name}: no such program")))?;
        if let Fault::CannotStart(reason) = &server.fault {
            return Err(MachineError::Exited(format!("exited with status 1: {reason}")));
        }
        if server.fault == Fault::CannotStartOnce {
            server.fault = Fault::None;
            return Err(MachineError::Exited("exited with status 1: first start fails".to_owned()));
        }
        if server.fault == Fault::StartsOnce {
            server.fault = Fault::CannotStart("starts only once".to_owned());
        }
        state.clock_ns += 5_000_000;
        let process_factor = 1.0 + state.noise.process * state.normal();
        state.processes.push(Process {
            server: name.clone(),
            process_factor,
            cpu_ns: 0,
            resident_bytes: BASE_RESIDENT_BYTES,
            is_alive: true,
            is_stopped: false,
            is_paused: false,
        });
        let pid = state.processes.len() - 1;
        let port = FIRST_PORT + u16::try_from(pid).map_err(|_| not_ready("too many simulated processes"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let ready_line = format!("ready addr={address} driver=simulated features=none");
        Ok(Running { pid: pid as u32, address, ready_line })
    }

    fn exit_description(&mut self, pid: u32, _timeout: Duration) -> Result<Option<String>, MachineError> {
        self.call("exit_description")?;
        let is_alive = self.state.borrow().processes[pid as usize].is_alive;
        Ok((!is_alive).then(|| "was killed by signal 9 (SIGKILL)".to_owned()))
    }

    fn sleep(&mut self, duration: Duration) {
        let mut state = self.state.borrow_mut();
        let duration_ns = duration.as_nanos() as u64;
        state.clock_ns += duration_ns;
        for index in 0..state.processes.len() {
            let idle = state.idle_cpu_fraction(index);
            state.processes[index].cpu_ns += (idle * duration_ns as f64) as u64;
        }
    }

    fn throttle_servers(&mut self, _cores: &[usize], _share: f64) -> Result<(), MachineError> {
        self.call("throttle_servers")?;
        let error = self.state.borrow().throttle_error.clone();
        error.map_or(Ok(()), |error| Err(MachineError::Throttle(io::Error::other(error))))
    }

    fn unthrottle_servers(&mut self) -> Result<(), MachineError> {
        self.call("unthrottle_servers")
    }

    fn set_paused(&mut self, pid: u32, is_paused: bool) -> Result<(), MachineError> {
        self.call("set_paused")?;
        self.state.borrow_mut().processes[pid as usize].is_paused = is_paused;
        Ok(())
    }

    fn stop(&mut self, pids: &[u32]) -> Result<(), MachineError> {
        self.call("stop")?;
        for &pid in pids {
            let process = &mut self.state.borrow_mut().processes[pid as usize];
            process.is_alive = false;
            process.is_stopped = true;
        }
        Ok(())
    }

    fn executables(&mut self, contenders: &[Contender]) -> Result<Vec<Vec<Executable>>, MachineError> {
        self.call("executables")?;
        LocalMachine::new(None).executables(contenders)
    }

    fn environment(&mut self, _config: &LabConfig) -> Result<Environment, MachineError> {
        self.call("environment")?;
        Ok(Environment {
            kernel: "Linux 0.0-simulated".to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            cpu_model: "Simulated CPU".to_owned(),
            cores_online: 2,
            cores_allowed: "0-1".to_owned(),
            stolen_ticks: Some(self.state.borrow().stolen_ns / 10_000_000),
            load_average: Some([0.4, 0.3, 0.2]),
            congestion_control: Some("cubic".to_owned()),
            somaxconn: Some(4096),
            io_uring_disabled: Some(0),
            open_files: Some("1024, 524288".to_owned()),
            ..Environment::default()
        })
    }
}

impl Load for Simulation {
    fn connect(&mut self, target: SocketAddr, cell: &Cell) -> Result<Box<dyn LoadSession>, LoadError> {
        let pid = usize::from(target.port() - FIRST_PORT);
        let mut state = self.state.borrow_mut();
        if !state.processes[pid].is_alive {
            return Err(LoadError::Failed("connection refused".to_owned()));
        }
        state.open_sessions += 1;
        state.max_open_sessions = state.max_open_sessions.max(state.open_sessions);
        Ok(Box::new(SimulatedSession { state: Rc::clone(&self.state), pid, cell: *cell }))
    }

    fn check(
        &mut self,
        target: SocketAddr,
        check: Check,
        _stop: &AtomicBool,
    ) -> Result<Vec<String>, LoadError> {
        let mut state = self.state.borrow_mut();
        state.clock_ns += 1_000_000;
        let process = &state.processes[usize::from(target.port() - FIRST_PORT)];
        match (&state.servers[&process.server].fault, check) {
            (Fault::LosesBytes, Check::StalledReader(_)) => {
                Err(LoadError::Failed("sent 2097152 bytes, received 1048576".to_owned()))
            }
            _ => Ok(vec![format!("{check}: all data received")]),
        }
    }
}

struct SimulatedSession {
    state: Rc<RefCell<SimulationState>>,
    pid: usize,
    cell: Cell,
}

impl LoadSession for SimulatedSession {
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, LoadError> {
        self.state.borrow_mut().slice(self.pid, &self.cell, duration)
    }
}

impl Drop for SimulatedSession {
    fn drop(&mut self) {
        self.state.borrow_mut().open_sessions -= 1;
    }
}

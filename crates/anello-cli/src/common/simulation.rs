//! Servers of this command on several simulated hosts, with signals and under all faults of the simulator.
//!
//! `ANELLO_SEEDS` sets the number of seeds (default: 6, each model with each kind of faults). A failed test prints the
//! command that replays it.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anello::server::{ListenerGroup, PendingConnections};
use anello::signal::SignalKind;
use anello::sim::{Control, Error, LinkOptions, SimFaults, SimModel, Simulation, SimulationBuilder};
use anello::time::{sleep, timeout};
use anello::{JoinHandle, RuntimeMetrics};
use anello_test::short_or_long;
use futures_util::future::select;

use super::listening::{FINAL_ACCEPT_TIMEOUT, Listening};

pub const SERVERS: [&str; 3] = ["one", "two", "three"];
pub const CLIENTS: [&str; 3] = ["ada", "grace", "jean"];

/// Number of workers of each server.
pub const WORKERS: usize = 2;

/// Time in which each client must succeed with each server after the faults, and in which everything is released.
pub const PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);

pub fn seeds() -> u64 {
    std::env::var("ANELLO_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(6)
}

/// Returns a simulation whose kernels, faults and buffers depend on the seed.
pub fn builder(seed: u64) -> SimulationBuilder {
    let model = [SimModel::Completion, SimModel::Readiness][seed as usize % 2];
    let faults =
        [SimFaults::none(), SimFaults::lossless(30), SimFaults::all(30)][seed as usize / 2 % 3].clone();
    let socket_buffer_bytes = [16 * 1024, 1000][seed as usize / 6 % 2];
    Simulation::builder().seed(seed).model(model).faults(faults).socket_buffer_bytes(socket_buffer_bytes)
}

/// The state of a host that its program and the test share.
#[derive(Debug)]
pub struct HostState {
    name: &'static str,
    control: Control,
    /// Virtual time of the first signal to the server that is running.
    pub signalled_at: Cell<Option<Duration>>,
    /// Number of servers that have exited after a signal.
    pub exits: Cell<u64>,
}

impl HostState {
    pub fn new(name: &'static str, sim: &Simulation) -> Rc<Self> {
        Rc::new(Self { name, control: sim.control(), signalled_at: Cell::default(), exits: Cell::default() })
    }

    /// Sends SIGTERM to the host. The first signal starts a drain, and the second one ends it.
    pub fn terminate(&self) {
        self.signalled_at.set(self.signalled_at.get().or_else(|| Some(self.control.elapsed())));
        self.control.signal(self.name, SignalKind::terminate());
    }

    /// Runs servers one after another, like a service manager. `start` starts the workers of a server, and returns a
    /// function that counts its connections. Each server must drain in time after a signal, and leave nothing behind.
    pub async fn supervise<F: Fn() -> usize>(
        &self,
        drain_timeout: Duration,
        start: impl Fn() -> io::Result<(Vec<JoinHandle<io::Result<()>>>, F)>,
    ) -> io::Result<()> {
        loop {
            self.signalled_at.set(None);
            let (workers, connections) = start()?;
            for worker in workers {
                worker.await.map_err(io::Error::other)??;
            }
            let signalled_at = self.signalled_at.get().expect("a server exits only after a signal");
            let drained_in = self.control.elapsed() - signalled_at;
            // The sockets are closed first. A server waits for up to a second for the connections that it aborts.
            let limit = FINAL_ACCEPT_TIMEOUT + drain_timeout + Duration::from_millis(1100);
            assert!(drained_in <= limit, "the drain took {drained_in:?}");
            // The process exits now. Here, the connections end once the client reads or closes.
            let counts = || {
                let RuntimeMetrics { tasks, driver, .. } = RuntimeMetrics::current().expect("a runtime");
                (tasks, driver.sockets, driver.buffers_leased, connections())
            };
            let released = timeout(PROGRESS_TIMEOUT, async {
                while counts() != (1, 0, 0, 0) {
                    sleep(Duration::from_millis(100)).await;
                }
            });
            assert!(released.await.is_ok(), "left over: {:?} tasks, sockets, buffers, connections", counts());
            self.exits.set(self.exits.get() + 1);
        }
    }
}

/// Adds the servers and the clients to a simulation, and injects faults and signals. `client` creates the program of a
/// client from a flag that is set when the faults have ended. Returns the hash of the run.
pub fn run_with_faults<S, C>(
    seed: u64,
    server: impl Fn(Rc<HostState>) -> S + Clone + 'static,
    client: impl Fn(Control, Vec<Rc<HostState>>, Rc<Cell<bool>>) -> C,
) -> Result<u64, Error>
where
    S: Future<Output = io::Result<()>> + 'static,
    C: Future<Output = io::Result<()>> + 'static,
{
    let mut sim = builder(seed).link(LinkOptions::default().loss(10).resets(2)).build();
    let states: Vec<_> = SERVERS.iter().map(|name| HostState::new(name, &sim)).collect();
    for (name, state) in SERVERS.into_iter().zip(&states) {
        let (server, state) = (server.clone(), Rc::clone(state));
        sim.host(name, move || server(Rc::clone(&state)));
        sim.set_disk_delay(name, Duration::ZERO..=Duration::from_millis(5));
    }
    let faults_ended = Rc::new(Cell::new(false));
    for name in CLIENTS {
        sim.client(name, client(sim.control(), states.clone(), Rc::clone(&faults_ended)));
    }
    let (control, signalled) = (sim.control(), states.clone());
    sim.client("faults", async move {
        let signals = async {
            loop {
                sleep(Duration::from_millis(control.random() % 8000)).await;
                signalled[(control.random() % 3) as usize].terminate();
            }
        };
        let injecting = control.inject_faults(&SERVERS, Duration::from_secs(short_or_long(20, 60)));
        select(pin!(injecting), pin!(signals)).await;
        faults_ended.set(true);
        Ok(())
    });
    sim.run()?;
    // The last drains: nothing of all the connections may be left.
    let exits: Vec<u64> = states.iter().map(|state| state.exits.get()).collect();
    states.iter().for_each(|state| state.terminate());
    sim.run_for(PROGRESS_TIMEOUT)?;
    for (state, exits) in states.iter().zip(exits) {
        assert!(state.exits.get() > exits, "a server has not exited");
    }
    Ok(sim.trace_hash())
}

impl Listening {
    /// Binds the workers' listeners on a simulated host.
    pub fn simulated(address: &str) -> io::Result<Self> {
        let group = ListenerGroup::bind(address.parse().map_err(io::Error::other)?, WORKERS)?;
        Ok(Self {
            addresses: address.to_owned(),
            internet: Some(group),
            unix: None,
            sockets: WORKERS,
            pending: PendingConnections::Serve,
            files: Vec::new(),
            is_transferred: AtomicBool::new(false),
        })
    }
}

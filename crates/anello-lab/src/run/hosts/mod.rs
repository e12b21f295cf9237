//! Runs across hosts: servers on one host, the load generator on another one.
//!
//! ```text
//!  lab ── RemoteMachine ─┬─ ssh ── agent on the server host ── LocalMachine ── servers
//!                        └─ ssh ── agent on the load host ──── LocalMachine      ▲
//!      ── RemoteLoad ─────────────────┘                   └─── Load ─────────────┘ measured connections
//! ```
//!
//! An agent (`anello lab agent`) executes the calls of [`Machine`](crate::Machine) and [`Load`](crate::Load) on its host
//! with the implementations of a run on one machine. Calls are lines of JSON on its standard input, in strict
//! alternation with the replies on its standard output. No call is in progress on the server host during a slice.
//!
//! Invariant: an agent terminates its servers and exits when its input reaches EOF, or when it has received nothing for
//! a minute, although the lab sends an empty line every 10 s. No process outlives the lab by more than that.

mod agent;
mod call;
mod connection;
mod network;
mod remote;

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::plan::config::{CoreLayout, LabConfig};
use crate::plan::network::{Endpoint, Interface, NetworkPath};
use crate::plan::scenario::Resources;
use crate::run::tls::Identity;

pub use agent::Agent;
pub use call::{Greeting, Setup};
pub use connection::{AgentProgram, default_address};
pub use remote::{RemoteLoad, RemoteMachine};

use call::Call;
use connection::{Connection, Shared, other};

/// Connections to an agent on each host. Dropping it and everything created from it stops the agents and their servers.
#[derive(Debug)]
pub struct Hosts {
    server: Shared,
    load: Shared,
}

impl Hosts {
    /// Starts an agent for the servers and for the load generator: over ssh on a host, or as a child process if the host
    /// is `None`. If a connection is lost later, `stop` is set.
    ///
    /// # Errors
    /// Returns an error with a remedy if ssh cannot log in, or if the program is missing or has another version.
    pub fn connect(
        server: Option<&str>,
        load: Option<&str>,
        program: &AgentProgram<'_>,
        stop: &Arc<AtomicBool>,
    ) -> io::Result<Hosts> {
        let connect = |host| io::Result::Ok(Rc::new(RefCell::new(Connection::open(host, program, stop)?)));
        Ok(Hosts { server: connect(server)?, load: connect(load)? })
    }

    /// Replaces the cores and the connection limit of this machine with those of the hosts.
    pub fn apply_resources(&self, resources: Resources) -> Resources {
        let (server, load) = (self.server.borrow(), self.load.borrow());
        Resources {
            cores: server.greeting.cores.clone(),
            siblings: server.greeting.siblings.clone(),
            load_core: load.greeting.cores.first().copied().filter(|_| !self.is_same_machine()),
            connections_limit: load.greeting.connections_limit,
            ..resources
        }
    }

    fn is_same_machine(&self) -> bool {
        self.server.borrow().greeting.boot_id == self.load.borrow().greeting.boot_id
    }

    /// Resolves the address of the server host on the load host, and measures the path between them with TCP
    /// handshakes. `server_address` is the name or address under which the load host reaches the server host.
    ///
    /// # Errors
    /// Returns an error with a remedy if the name has no address, or if the server host is unreachable at it.
    pub fn measure_path(&self, server_address: &str) -> io::Result<NetworkPath> {
        let same_machine = self.is_same_machine();
        let (mut server, mut load) = (self.server.borrow_mut(), self.load.borrow_mut());
        let address: IpAddr = load.try_call(&Call::Resolve(server_address.to_owned()))?;
        let listener: SocketAddr = server.try_call(&Call::Listen(address))?;
        let mut round_trips_ns: Vec<u64> = load.try_call(&Call::RoundTrips(listener))?;
        round_trips_ns.sort_unstable();
        let load_interface: Interface = load.try_call(&Call::Interface(address))?;
        let server_interface: Interface = server.try_call(&Call::Interface(load_interface.address))?;
        Ok(NetworkPath {
            server: endpoint(&server, Interface { address, ..server_interface }),
            load: endpoint(&load, load_interface),
            same_machine,
            min_round_trip_ns: round_trips_ns.first().copied().unwrap_or(0),
            median_round_trip_ns: round_trips_ns.get(round_trips_ns.len() / 2).copied().unwrap_or(0),
        })
    }

    /// Prepares the agents for a run with this configuration. Returns the machine, the load generator and the name of
    /// its driver. `load_driver` is a name that the agent's program knows.
    ///
    /// # Errors
    /// Returns an error if the files of `identity` cannot be read, or if an agent rejects the configuration.
    pub fn set_up(
        &self,
        config: &LabConfig,
        identity: Option<&Identity>,
        load_driver: &str,
    ) -> io::Result<(RemoteMachine, RemoteLoad, String)> {
        let identity = identity.map(Identity::to_pem).transpose()?;
        let CoreLayout { server, load, further, .. } = &config.cores;
        // The agent must not run on the cores of the servers if there are others.
        let mut spare = self.server.borrow().greeting.cores.clone();
        spare.retain(|core| !server.contains(core) && Some(*core) != *further);
        let spare = if spare.is_empty() { server.clone() } else { spare };
        let set_up = |connection: &Shared, load_driver: &str, server: &[usize], load: &[usize]| {
            let cores = CoreLayout { server: server.to_vec(), load: load.to_vec(), ..config.cores.clone() };
            let config = LabConfig { cores, network: None, ..config.clone() };
            let setup = Setup { config, identity: identity.clone(), load_driver: load_driver.to_owned() };
            connection.borrow_mut().call::<String>(&Call::Setup(Box::new(setup))).map_err(other)
        };
        // The agent on the server host generates no load: its driver is available everywhere.
        set_up(&self.server, "epoll", server, &spare)?;
        let driver = set_up(&self.load, load_driver, load, load)?;
        let address = config.network.as_ref().map(|path| path.server.interface.address);
        let machine = RemoteMachine::new(&self.server, &self.load, &config.cores, address);
        Ok((machine, RemoteLoad::new(&self.load), driver))
    }

    /// Returns why a connection was lost during the run, which ended it.
    pub fn lost(&self) -> Option<String> {
        let reason = |connection: &Shared| connection.borrow().lost().map(str::to_owned);
        reason(&self.server).or_else(|| reason(&self.load))
    }
}

fn endpoint(connection: &Connection, interface: Interface) -> Endpoint {
    let Greeting { kernel, cpu_model, .. } = &connection.greeting;
    Endpoint {
        host: connection.host.clone(),
        kernel: kernel.clone(),
        cpu_model: cpu_model.clone(),
        interface,
    }
}

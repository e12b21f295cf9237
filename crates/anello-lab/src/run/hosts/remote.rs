//! [`Machine`] and [`Load`] on the agents' hosts.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::plan::cell::Cell;
use crate::plan::config::{CoreLayout, LabConfig};
use crate::plan::contender::Contender;
use crate::result::Environment;
use crate::result::executable::Executable;
use crate::run::hosts::call::Call;
use crate::run::hosts::connection::Shared;
use crate::run::load::{Check, Load, LoadError, LoadSession, SliceLoad};
use crate::run::local::LocalMachine;
use crate::run::machine::{Machine, MachineError, Running, Usage};

/// The hosts of the servers and of the load generator. The clock is that of the lab.
#[derive(Debug)]
pub struct RemoteMachine {
    server: Shared,
    load: Shared,
    clock: LocalMachine,
    server_cores: Vec<usize>,
    load_cores: Vec<usize>,
    server_address: Option<IpAddr>,
}

impl RemoteMachine {
    pub(super) fn new(
        server: &Shared,
        load: &Shared,
        cores: &CoreLayout,
        server_address: Option<IpAddr>,
    ) -> RemoteMachine {
        RemoteMachine {
            server: Rc::clone(server),
            load: Rc::clone(load),
            clock: LocalMachine::new(None),
            server_cores: cores.server.iter().chain(&cores.further).copied().collect(),
            load_cores: cores.load.clone(),
            server_address,
        }
    }

    /// Returns the sum over both hosts of a time on the cores that they use.
    fn sum(&mut self, call: fn(Vec<usize>) -> Call) -> Option<u64> {
        let on = |connection: &Shared, cores: &[usize]| -> Option<u64> {
            connection.borrow_mut().call(&call(cores.to_vec())).ok()?
        };
        Some(on(&self.server, &self.server_cores)? + on(&self.load, &self.load_cores)?)
    }
}

/// Calls for which the trait returns no error return the default if the connection is lost, which also ends the run.
impl Machine for RemoteMachine {
    fn prepare(&mut self, _config: &LabConfig) -> Vec<String> {
        // The notes of the server host are about a load generator there.
        self.server.borrow_mut().call::<Vec<String>>(&Call::Prepare).ok();
        self.load.borrow_mut().call(&Call::Prepare).unwrap_or_default()
    }

    fn max_open_connections(&mut self) -> usize {
        self.load.borrow_mut().call(&Call::MaxOpenConnections).unwrap_or_default()
    }

    fn now_ns(&mut self) -> u64 {
        self.clock.now_ns()
    }

    fn unix_time_s(&mut self) -> u64 {
        self.clock.unix_time_s()
    }

    fn stolen_ns(&mut self, _cores: &[usize]) -> Option<u64> {
        self.sum(Call::Stolen)
    }

    fn throttled_ns(&mut self) -> u64 {
        let on = |connection: &Shared| -> u64 {
            connection.borrow_mut().call(&Call::Throttled).unwrap_or_default()
        };
        on(&self.server) + on(&self.load)
    }

    fn usage(&mut self, pid: u32) -> Result<Usage, MachineError> {
        let usage = self.server.borrow_mut().try_call(&Call::Usage(pid));
        usage.map_err(|error| MachineError::Host(error.to_string()))
    }

    fn load_cpu_ns(&mut self) -> u64 {
        self.load.borrow_mut().call(&Call::LoadCpu).unwrap_or_default()
    }

    fn other_cpu_ns(&mut self, _cores: &[usize]) -> Option<u64> {
        self.sum(Call::OtherCpu)
    }

    fn start(
        &mut self,
        contender: &Contender,
        _config: &LabConfig,
        cores: &[usize],
    ) -> Result<Running, MachineError> {
        let mut contender = contender.clone();
        let copy = self.server.borrow().copy(&contender.program);
        if let Some(copy) = copy.map_err(|error| MachineError::Host(error.to_string()))? {
            contender.program = copy;
        }
        let call = Call::Start { contender: Box::new(contender), cores: cores.to_vec() };
        let running = self.server.borrow_mut().try_call(&call);
        let mut running: Running = running.map_err(|error| MachineError::Host(error.to_string()))?;
        if let Some(address) = self.server_address {
            if running.address.ip().is_unspecified() {
                running.address.set_ip(address);
            } else if running.address.ip().is_loopback() && !address.is_loopback() {
                self.stop(&[running.pid]);
                let problem = format!(
                    "listens on {}, which the load generator cannot reach from another host (let it listen on {address})",
                    running.address
                );
                return Err(MachineError::Host(problem));
            }
        }
        Ok(running)
    }

    fn exit_description(&mut self, pid: u32, timeout: Duration) -> Option<String> {
        self.server.borrow_mut().call(&Call::ExitDescription { pid, timeout }).unwrap_or_else(Some)
    }

    fn sleep(&mut self, duration: Duration) {
        self.clock.sleep(duration);
    }

    fn throttle_servers(&mut self, cores: &[usize], share: f64) -> Result<(), MachineError> {
        let call = Call::Throttle { cores: cores.to_vec(), share };
        self.server.borrow_mut().try_call(&call).map_err(|error| MachineError::Host(error.to_string()))
    }

    fn unthrottle_servers(&mut self) {
        self.server.borrow_mut().call(&Call::Unthrottle).unwrap_or_default()
    }

    fn set_paused(&mut self, pid: u32, is_paused: bool) {
        self.server.borrow_mut().call(&Call::SetPaused { pid, is_paused }).unwrap_or_default()
    }

    fn stop(&mut self, pids: &[u32]) {
        self.server.borrow_mut().call(&Call::Stop(pids.to_vec())).unwrap_or_default()
    }

    fn executables(&mut self, contenders: &[Contender]) -> Vec<Vec<Executable>> {
        if self.server.borrow().copies_programs() {
            // Copies equal the programs on this machine.
            return self.clock.executables(contenders);
        }
        let hashes = self.server.borrow_mut().call(&Call::Executables(contenders.to_vec()));
        hashes.unwrap_or_else(|_| vec![Vec::new(); contenders.len()])
    }

    fn environment(&mut self, _config: &LabConfig) -> Environment {
        self.server.borrow_mut().call(&Call::Environment).unwrap_or_default()
    }
}

/// The load generator on its host.
#[derive(Debug)]
pub struct RemoteLoad {
    connection: Shared,
}

impl RemoteLoad {
    pub(super) fn new(connection: &Shared) -> RemoteLoad {
        RemoteLoad { connection: Rc::clone(connection) }
    }
}

impl Load for RemoteLoad {
    fn connect(&mut self, target: SocketAddr, cell: &Cell) -> Result<Box<dyn LoadSession>, LoadError> {
        let session = self.connection.borrow_mut().try_call(&Call::Connect { target, cell: *cell })?;
        Ok(Box::new(RemoteSession { connection: Rc::clone(&self.connection), session }))
    }

    fn check(
        &mut self,
        target: SocketAddr,
        check: Check,
        _stop: &AtomicBool,
    ) -> Result<Vec<String>, LoadError> {
        // The connection has the same stop flag.
        Ok(self.connection.borrow_mut().try_call(&Call::Check { target, check })?)
    }

    fn notes(&mut self) -> Vec<String> {
        self.connection.borrow_mut().call(&Call::Notes).unwrap_or_default()
    }
}

struct RemoteSession {
    connection: Shared,
    session: usize,
}

impl LoadSession for RemoteSession {
    fn run_slice(&mut self, duration: Duration) -> Result<SliceLoad, LoadError> {
        Ok(self.connection.borrow_mut().try_call(&Call::RunSlice { session: self.session, duration })?)
    }

    fn settle(&mut self) -> Result<(), LoadError> {
        Ok(self.connection.borrow_mut().try_call(&Call::Settle { session: self.session })?)
    }
}

impl Drop for RemoteSession {
    fn drop(&mut self) {
        self.connection.borrow_mut().call(&Call::Close { session: self.session }).unwrap_or_default()
    }
}

//! [`Machine`] and [`Load`] on the agents' hosts.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::de::DeserializeOwned;

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

    /// Returns the sum over both hosts of a time on the cores that they use. `None` if it is unknown on one of them.
    fn sum(&mut self, call: fn(Vec<usize>) -> Call) -> Result<Option<u64>, MachineError> {
        let server: Option<u64> = send(&self.server, &call(self.server_cores.clone()))?;
        let load: Option<u64> = send(&self.load, &call(self.load_cores.clone()))?;
        Ok(server.zip(load).map(|(server, load)| server + load))
    }
}

/// Sends a call, whose reply is a result.
fn send<T: DeserializeOwned>(host: &Shared, call: &Call) -> Result<T, MachineError> {
    let reply: Result<T, String> = host.borrow_mut().call(call).map_err(MachineError::Lost)?;
    reply.map_err(MachineError::Host)
}

impl Machine for RemoteMachine {
    fn prepare(&mut self, _config: &LabConfig) -> Result<Vec<String>, MachineError> {
        // The notes of the server host are about a load generator there.
        send::<Vec<String>>(&self.server, &Call::Prepare)?;
        send(&self.load, &Call::Prepare)
    }

    fn max_open_connections(&mut self) -> Result<usize, MachineError> {
        send(&self.load, &Call::MaxOpenConnections)
    }

    fn now_ns(&mut self) -> u64 {
        self.clock.now_ns()
    }

    fn unix_time_s(&mut self) -> u64 {
        self.clock.unix_time_s()
    }

    fn stolen_ns(&mut self, _cores: &[usize]) -> Result<Option<u64>, MachineError> {
        self.sum(Call::Stolen)
    }

    fn throttled_ns(&mut self) -> Result<u64, MachineError> {
        let server: u64 = send(&self.server, &Call::Throttled)?;
        let load: u64 = send(&self.load, &Call::Throttled)?;
        Ok(server + load)
    }

    fn usage(&mut self, pid: u32) -> Result<Usage, MachineError> {
        send(&self.server, &Call::Usage(pid))
    }

    fn load_cpu_ns(&mut self) -> Result<u64, MachineError> {
        send(&self.load, &Call::LoadCpu)
    }

    fn other_cpu_ns(&mut self, _cores: &[usize]) -> Result<Option<u64>, MachineError> {
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
        let mut running: Running = send(&self.server, &call)?;
        if let Some(address) = self.server_address {
            if running.address.ip().is_unspecified() {
                running.address.set_ip(address);
            } else if running.address.ip().is_loopback() && !address.is_loopback() {
                self.stop(&[running.pid])?;
                let problem = format!(
                    "listens on {}, which the load generator cannot reach from another host (let it listen on {address})",
                    running.address
                );
                return Err(MachineError::Host(problem));
            }
        }
        Ok(running)
    }

    fn exit_description(&mut self, pid: u32, timeout: Duration) -> Result<Option<String>, MachineError> {
        send(&self.server, &Call::ExitDescription { pid, timeout })
    }

    fn sleep(&mut self, duration: Duration) {
        self.clock.sleep(duration);
    }

    fn throttle_servers(&mut self, cores: &[usize], share: f64) -> Result<(), MachineError> {
        send(&self.server, &Call::Throttle { cores: cores.to_vec(), share })
    }

    fn unthrottle_servers(&mut self) -> Result<(), MachineError> {
        send(&self.server, &Call::Unthrottle)
    }

    fn set_paused(&mut self, pid: u32, is_paused: bool) -> Result<(), MachineError> {
        send(&self.server, &Call::SetPaused { pid, is_paused })
    }

    fn stop(&mut self, pids: &[u32]) -> Result<(), MachineError> {
        send(&self.server, &Call::Stop(pids.to_vec()))
    }

    fn executables(&mut self, contenders: &[Contender]) -> Result<Vec<Vec<Executable>>, MachineError> {
        if self.server.borrow().copies_programs() {
            // Copies equal the programs on this machine.
            return self.clock.executables(contenders);
        }
        send(&self.server, &Call::Executables(contenders.to_vec()))
    }

    fn environment(&mut self, _config: &LabConfig) -> Result<Environment, MachineError> {
        send(&self.server, &Call::Environment)
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

    fn notes(&mut self) -> Result<Vec<String>, LoadError> {
        Ok(self.connection.borrow_mut().try_call(&Call::Notes)?)
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
        // Without a connection, the agent has closed the session.
        self.connection.borrow_mut().call::<()>(&Call::Close { session: self.session }).ok();
    }
}

//! The agent: executes the lab's calls on its host.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde::Serialize;

use crate::plan::config::LabConfig;
use crate::run::hosts::call::{Call, Greeting, MAX_SILENCE, STOP, Setup};
use crate::run::hosts::network::{interface_to, resolve, round_trips};
use crate::run::load::Load;
use crate::run::machine::Machine;

/// An agent on standard input and output.
#[derive(Debug)]
pub struct Agent {
    calls: Receiver<String>,
    /// Set when the lab stops a check, and when the input ends.
    stop: Arc<AtomicBool>,
}

impl Agent {
    /// Sends the greeting, and answers questions about the network until the lab sends the configuration. Returns `None`
    /// if the connection was closed before.
    ///
    /// # Errors
    /// Returns an error if standard output is closed, or if a call is invalid.
    pub fn start(greeting: &Greeting) -> io::Result<Option<(Agent, Setup)>> {
        let stop = Arc::new(AtomicBool::new(false));
        // Unbounded, so that the thread also reads a stop or EOF while heartbeats wait behind a long call.
        let (sender, calls) = channel();
        let flag = Arc::clone(&stop);
        thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                if line == STOP {
                    flag.store(true, Ordering::Relaxed);
                } else if sender.send(line).is_err() {
                    break;
                }
            }
            flag.store(true, Ordering::Relaxed);
        });
        let agent = Agent { calls, stop };
        reply(greeting)?;
        // Open until the lab has measured the round-trip times.
        let mut listener = None;
        while let Some(call) = agent.next_call()? {
            match call {
                Call::Setup(setup) => return Ok(Some((agent, *setup))),
                Call::Resolve(name) => reply(&resolve(&name))?,
                Call::Listen(address) => {
                    let bound = TcpListener::bind((address, 0));
                    let bound =
                        bound.and_then(|socket| Ok((socket.local_addr()?, listener.insert(socket)).0));
                    reply(&bound.map_err(|error| {
                        format!(
                            "the server host cannot listen on {address}: {error} (pass an address of the server host as \
                             --server-address)"
                        )
                    }))?;
                }
                Call::RoundTrips(listener) => reply(&round_trips(listener))?,
                Call::Interface(peer) => reply(&interface_to(peer))?,
                other => return Err(io::Error::other(format!("call before the configuration: {other:?}"))),
            }
        }
        Ok(None)
    }

    /// Executes calls until the connection is closed. `load_driver` is the name of the load generator's driver.
    ///
    /// # Errors
    /// Returns an error if standard output is closed, or if a call is invalid.
    pub fn serve(
        self,
        config: &LabConfig,
        machine: &mut dyn Machine,
        load: &mut dyn Load,
        load_driver: &str,
    ) -> io::Result<()> {
        reply(&load_driver)?;
        let (mut sessions, mut next_session) = (HashMap::new(), 0);
        while let Some(call) = self.next_call()? {
            match call {
                Call::Prepare => reply(&text(machine.prepare(config))),
                Call::MaxOpenConnections => reply(&text(machine.max_open_connections())),
                Call::Stolen(cores) => reply(&text(machine.stolen_ns(&cores))),
                Call::Throttled => reply(&text(machine.throttled_ns())),
                Call::Usage(pid) => reply(&text(machine.usage(pid))),
                Call::LoadCpu => reply(&text(machine.load_cpu_ns())),
                Call::OtherCpu(cores) => reply(&text(machine.other_cpu_ns(&cores))),
                Call::Start { contender, cores } => reply(&text(machine.start(&contender, config, &cores))),
                Call::ExitDescription { pid, timeout } => {
                    reply(&text(machine.exit_description(pid, timeout)))
                }
                Call::Throttle { cores, share } => reply(&text(machine.throttle_servers(&cores, share))),
                Call::Unthrottle => reply(&text(machine.unthrottle_servers())),
                Call::SetPaused { pid, is_paused } => reply(&text(machine.set_paused(pid, is_paused))),
                Call::Stop(pids) => reply(&text(machine.stop(&pids))),
                Call::Executables(contenders) => reply(&text(machine.executables(&contenders))),
                Call::Environment => reply(&text(machine.environment(config))),
                Call::Connect { target, cell } => reply(&text(load.connect(target, &cell).map(|session| {
                    next_session += 1;
                    sessions.insert(next_session, session);
                    next_session
                }))),
                Call::Check { target, check } => reply(&text(load.check(target, check, &self.stop))),
                Call::RunSlice { session, duration } => match sessions.get_mut(&session) {
                    Some(session) => reply(&text(session.run_slice(duration))),
                    None => Err(unknown(session)),
                },
                Call::Settle { session } => match sessions.get_mut(&session) {
                    Some(session) => reply(&text(session.settle())),
                    None => Err(unknown(session)),
                },
                Call::Close { session } => reply(&drop(sessions.remove(&session))),
                Call::Notes => reply(&text(load.notes())),
                other => return Err(io::Error::other(format!("call after the configuration: {other:?}"))),
            }?;
        }
        Ok(())
    }

    /// Returns the next call. `None` if the connection was closed or is silent.
    fn next_call(&self) -> io::Result<Option<Call>> {
        loop {
            match self.calls.recv_timeout(MAX_SILENCE) {
                Ok(line) if line.is_empty() => {}
                Ok(line) => return Ok(Some(serde_json::from_str(&line)?)),
                Err(_) => return Ok(None),
            }
        }
    }
}

fn reply(value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    let mut output = io::stdout().lock();
    output.write_all(line.as_bytes())?;
    output.flush()
}

fn text<T, E: ToString>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn unknown(session: usize) -> io::Error {
    io::Error::other(format!("unknown session {session}"))
}

//! The scheduler of a simulation.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::check::keep_trace;
use super::control::{Command, Control, State};
use super::error::Error;
use super::host::{Host, Program};
use crate::driver::{
    Due, HostId, LinkOptions, SimOptions, WokenHosts, World, duration_ns, wake_all, with_context,
};
use crate::signal::SignalKind;

/// Signals that have no effect by default.
const IGNORED_SIGNALS: [i32; 5] = [libc::SIGCHLD, libc::SIGCONT, libc::SIGPIPE, libc::SIGURG, libc::SIGWINCH];

/// Several simulated hosts on one thread, with one virtual clock.
///
/// Each host has its own runtime, a name and addresses. A host's program uses the same API as on a real machine:
/// sockets, timers, tasks and files. See the [module](super).
///
/// ```
/// use anello::net::{TcpListener, TcpStream};
/// use anello::sim::Simulation;
///
/// let mut sim = Simulation::builder().seed(17).build();
/// sim.host("server", async || {
///     let listener = TcpListener::bind("0.0.0.0:80")?;
///     loop {
///         let mut stream = listener.accept().await?;
///         while let Some(chunk) = stream.recv().await? {
///             stream.send(chunk).await?;
///         }
///     }
/// });
/// sim.client("client", async {
///     let mut stream = TcpStream::connect("server:80").await?;
///     stream.write_all(b"ciao").await?;
///     assert_eq!(stream.recv().await?.as_deref(), Some(&b"ciao"[..]));
///     Ok(())
/// });
/// sim.run()?;
/// # Ok::<(), anello::sim::Error>(())
/// ```
pub struct Simulation {
    control: Control,
    hosts: Vec<Host>,
    /// Hosts that can run now.
    ready: Vec<HostId>,
    unfinished_clients: usize,
    is_started: bool,
    options: SimOptions,
    time_limit_ns: u64,
    woken: Arc<WokenHosts>,
}

/// Options of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub seed: u64,
    pub options: SimOptions,
    pub link: LinkOptions,
    pub tcp_timeout: Option<Duration>,
    pub time_limit: Duration,
    pub trace_events: usize,
    pub start_time: Option<SystemTime>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            options: SimOptions::new(0),
            link: LinkOptions::default(),
            tcp_timeout: None,
            time_limit: Duration::from_secs(3600),
            trace_events: 200,
            start_time: None,
        }
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Simulation").field("seed", &self.seed()).finish_non_exhaustive()
    }
}

/// A simulation is controlled like by its [`Control`].
impl Deref for Simulation {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl Simulation {
    pub(super) fn new(settings: Settings) -> Self {
        let Settings { seed, options, link, tcp_timeout, time_limit, trace_events, start_time } = settings;
        let mut world = World::new(seed, link, trace_events);
        world.start_time = start_time;
        if let Some(timeout) = tcp_timeout {
            world.tcp_timeout_ns = duration_ns(timeout);
        }
        let woken = Arc::clone(world.woken());
        let world = Rc::new(RefCell::new(world));
        let state = State { seed, world, commands: RefCell::default(), has_commands: Cell::new(false) };
        Self {
            control: Control { state: Rc::new(state) },
            hosts: Vec::new(),
            ready: Vec::new(),
            unfinished_clients: 0,
            is_started: false,
            options,
            time_limit_ns: duration_ns(time_limit),
            woken,
        }
    }

    /// Adds a host. `program` is called when the simulation starts, and again at each restart. If its future returns an
    /// error, the simulation fails.
    ///
    /// Only the future runs on the host. What the closure does before it returns the future is not simulated.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().build();
    /// sim.host("server", async || {
    ///     anello::net::TcpListener::bind("0.0.0.0:80")?.accept().await?;
    ///     Ok(())
    /// });
    /// ```
    ///
    /// # Panics
    /// Panics if a host with this name exists, or the simulation has started.
    #[track_caller]
    pub fn host<F>(&mut self, name: &str, program: impl Fn() -> F + 'static)
    where
        F: Future<Output = io::Result<()>> + 'static,
    {
        self.add(name, Program::Host(Box::new(move || Box::pin(program()))));
    }

    /// Adds a host that runs a future once. [`run`](Self::run) returns when all clients have finished.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().build();
    /// sim.client("client", async { Ok(()) });
    /// sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if a host with this name exists, or the simulation has started.
    #[track_caller]
    pub fn client(&mut self, name: &str, program: impl Future<Output = io::Result<()>> + 'static) {
        self.add(name, Program::Client(Some(Box::pin(program))));
        self.unfinished_clients += 1;
    }

    #[track_caller]
    fn add(&mut self, name: &str, program: Program) {
        assert!(!self.is_started, "cannot add host {name:?}: the simulation has started");
        let id = self.control.state.world.borrow_mut().add_host(name);
        self.hosts.push(Host::new(id.unwrap_or_else(|| panic!("host {name:?} exists")), program));
    }

    /// Returns a handle that controls the simulation while it runs.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().seed(17).build();
    /// let control = sim.control();
    /// sim.client("client", async move {
    ///     assert_eq!(control.seed(), 17);
    ///     Ok(())
    /// });
    /// sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Runs until all clients have finished.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().build();
    /// sim.client("client", async { Ok(()) });
    /// sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of the first host that fails, `Deadlock` if no host has anything to do, and `TimedOut` at the
    /// [time limit](super::SimulationBuilder::time_limit).
    ///
    /// # Panics
    /// Panics if a program panics, or a runtime is running on this thread.
    #[track_caller]
    pub fn run(&mut self) -> Result<(), Error> {
        while !self.step()? {}
        Ok(())
    }

    /// Runs for a period of virtual time, even if there are no clients or all of them have finished.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().build();
    /// sim.host("server", async || Ok(()));
    /// sim.run_for(Duration::from_secs(3))?;
    /// assert!(sim.is_running("server"));
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of the first host that fails.
    ///
    /// # Panics
    /// Panics if a program panics, or a runtime is running on this thread.
    #[track_caller]
    pub fn run_for(&mut self, period: Duration) -> Result<(), Error> {
        let until_ns = self.now_ns().saturating_add(duration_ns(period));
        while self.now_ns() < until_ns {
            self.start()?;
            self.collect_due()?;
            if self.run_one()? {
                continue;
            }
            let next_ns = self.control.state.world.borrow().next_event_ns().unwrap_or(until_ns);
            self.set_clock(next_ns.min(until_ns));
        }
        Ok(())
    }

    /// Runs one host until it waits or, if no host can run, advances the clock to the next event. Returns whether all
    /// clients have finished.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().build();
    /// sim.client("client", async { Ok(()) });
    /// while !sim.step()? {}
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`run`](Self::run).
    ///
    /// # Panics
    /// Panics if a program panics, or a runtime is running on this thread.
    #[track_caller]
    pub fn step(&mut self) -> Result<bool, Error> {
        self.start()?;
        if self.unfinished_clients == 0 {
            return Ok(true);
        }
        self.collect_due()?;
        if self.run_one()? {
            return Ok(self.unfinished_clients == 0);
        }
        let next_ns = self.control.state.world.borrow().next_event_ns();
        let Some(next_ns) = next_ns else {
            let text = "deadlock: no host has anything to do, and clients have not finished";
            return Err(self.error(None, io::Error::new(io::ErrorKind::Deadlock, text)));
        };
        if next_ns > self.time_limit_ns {
            self.set_clock(self.time_limit_ns);
            let text = "time limit reached before all clients finished (increase time_limit)";
            return Err(self.error(None, io::Error::new(io::ErrorKind::TimedOut, text)));
        }
        self.set_clock(next_ns);
        Ok(false)
    }

    fn now_ns(&self) -> u64 {
        self.control.state.world.borrow().now_ns()
    }

    fn set_clock(&self, to_ns: u64) {
        let world = self.control.state.world.borrow();
        world.clock().set(world.now_ns().max(to_ns));
    }

    fn start(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.is_started, true) {
            for host in 0..self.hosts.len() as HostId {
                self.start_host(host)?;
            }
        }
        if self.control.state.has_commands.replace(false) {
            self.run_commands()?;
        }
        Ok(())
    }

    fn start_host(&mut self, host: HostId) -> Result<(), Error> {
        let started = self.hosts[host as usize].start(&self.control.state, &self.options);
        started.map_err(|error| self.error(Some(host), error))?;
        self.make_ready(host);
        Ok(())
    }

    #[cold]
    fn run_commands(&mut self) -> Result<(), Error> {
        let state = Rc::clone(&self.control.state);
        loop {
            // A destructor that runs during a crash may add commands.
            let command = state.commands.borrow_mut().pop_front();
            match command {
                None => return Ok(()),
                Some(Command::Crash(host)) => self.crash(host)?,
                Some(Command::Restart(host)) => {
                    self.crash(host)?;
                    self.start_host(host)?;
                }
                Some(Command::Signal(host, kind)) => self.signal(host, kind)?,
                Some(Command::RestartAll) => {
                    for host in 0..self.hosts.len() {
                        if self.hosts[host].running.is_none() && !self.hosts[host].is_client() {
                            self.start_host(host as HostId)?;
                        }
                    }
                }
            }
        }
    }

    fn crash(&mut self, id: HostId) -> Result<(), Error> {
        let host = &mut self.hosts[id as usize];
        let (was_running, was_finished) = (host.running.is_some(), host.is_finished);
        host.crash(&self.control.state);
        self.unfinished_clients -= usize::from(host.is_client() && host.is_finished && !was_finished);
        if was_running {
            let lost = self.control.state.world.borrow_mut().lose_unsynced(id);
            lost.map_err(|error| self.error(Some(id), with_context("cannot undo unsynced changes", error)))?;
        }
        Ok(())
    }

    /// Delivers a signal, or performs its default action.
    fn signal(&mut self, host: HostId, kind: SignalKind) -> Result<(), Error> {
        if self.hosts[host as usize].running.is_none() {
            return Ok(());
        }
        let number = kind.as_raw_value();
        let wakers = self.control.state.world.borrow_mut().deliver_signal(host, number);
        match wakers {
            Some(wakers) => wake_all(wakers),
            None if IGNORED_SIGNALS.contains(&number) => {}
            None => self.crash(host)?,
        }
        Ok(())
    }

    fn make_ready(&mut self, host: HostId) {
        if !std::mem::replace(&mut self.hosts[host as usize].is_ready, true) {
            self.ready.push(host);
        }
    }

    /// Handles the events that are due.
    fn collect_due(&mut self) -> Result<(), Error> {
        loop {
            let due = self.control.state.world.borrow_mut().next_due();
            match due {
                None => return Ok(()),
                Some(Due::Segment(segment)) => {
                    let host = segment.host();
                    if let Some(running) = &self.hosts[host as usize].running {
                        running.network.deliver(segment);
                        self.make_ready(host);
                    }
                }
                Some(Due::Wake(host)) => {
                    self.hosts[host as usize].wake_ns = None;
                    self.make_ready(host);
                }
            }
        }
    }

    /// Runs a host that can run, if there is one. The order is random.
    fn run_one(&mut self) -> Result<bool, Error> {
        while let Some(host) = self.woken.pop() {
            self.make_ready(host);
        }
        let index = match self.ready.len() {
            0 => return Ok(false),
            1 => 0,
            count => self.control.state.world.borrow_mut().random().usize(..count),
        };
        let id = self.ready.swap_remove(index);
        let host = &mut self.hosts[id as usize];
        host.is_ready = false;
        let Some(running) = &mut host.running else { return Ok(true) };
        let stepped = running.step();
        let result = running.take_result();
        let next_ns = stepped.map_err(|error| self.error(Some(id), error))?;
        if let Some(next_ns) = next_ns {
            self.wake_at(id, next_ns);
        }
        match result {
            None => {}
            Some(Ok(Ok(()))) => {
                let host = &mut self.hosts[id as usize];
                host.is_finished = true;
                self.unfinished_clients -= usize::from(host.is_client());
            }
            Some(Ok(Err(error))) => return Err(self.error(Some(id), error)),
            Some(Err(error)) => {
                eprintln!("{}", self.error(Some(id), io::Error::other("the program panicked")));
                match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(error) => return Err(self.error(Some(id), io::Error::other(error))),
                }
            }
        }
        Ok(true)
    }

    fn wake_at(&mut self, id: HostId, at_ns: u64) {
        let mut world = self.control.state.world.borrow_mut();
        let at_ns = at_ns.max(world.now_ns());
        let host = &mut self.hosts[id as usize];
        // An event that is too early only causes an unnecessary step.
        if host.wake_ns.is_none_or(|wake_ns| wake_ns > at_ns) {
            host.wake_ns = Some(at_ns);
            world.wake_at(id, at_ns);
        }
    }

    fn error(&self, host: Option<HostId>, source: io::Error) -> Error {
        let host = host.map(|host| self.control.state.world.borrow().name(host).to_owned());
        Error { seed: self.seed(), elapsed: self.elapsed(), host, source }
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        keep_trace(|| self.trace());
        for host in &mut self.hosts {
            host.crash(&self.control.state);
        }
    }
}

//! A simulated host and its runtime.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::control::State;
use crate::driver::{Driver, DriverOptions, HostId, SimNetwork, SimOptions, Uplink};
use crate::executor::{JoinError, JoinHandle, SteppedRuntime};

pub(super) type Main = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// Number of receive buffers at the start. A simulated host rarely has many connections.
const RECEIVE_BUFFERS: u32 = 2;
const MAX_RECEIVE_BUFFERS: u32 = 64;

/// The program of a host.
pub(super) enum Program {
    /// Creates the main future, again at each restart.
    Host(Box<dyn Fn() -> Main>),
    /// The main future of a client, until it starts.
    Client(Option<Main>),
}

pub(super) struct Host {
    pub id: HostId,
    pub program: Program,
    pub running: Option<Running>,
    /// Set once the program has returned, or a client has crashed.
    pub is_finished: bool,
    /// Time of the earliest event in the queue that wakes this host.
    pub wake_ns: Option<u64>,
    /// Set while the host is in the scheduler's list of hosts to run.
    pub is_ready: bool,
    starts: u64,
}

/// The parts of a host that a crash drops.
pub(super) struct Running {
    main: Option<JoinHandle<io::Result<()>>>,
    pub network: SimNetwork,
    stepped: SteppedRuntime,
}

impl Host {
    pub fn new(id: HostId, program: Program) -> Self {
        Self { id, program, running: None, is_finished: false, wake_ns: None, is_ready: false, starts: 0 }
    }

    pub fn is_client(&self) -> bool {
        matches!(self.program, Program::Client(_))
    }

    /// Starts the host.
    #[track_caller]
    pub fn start(&mut self, state: &State, options: &SimOptions) -> io::Result<()> {
        let main = match &mut self.program {
            Program::Host(make) => make(),
            Program::Client(main) => main.take().expect("a client cannot be restarted"),
        };
        state.world.borrow_mut().start(self.id);
        self.starts += 1;
        let mut options = options.clone();
        options.seed = mix(state.seed, u64::from(self.id) << 32 | self.starts);
        let network =
            SimNetwork::for_host(&options, Uplink { world: Rc::clone(&state.world), host: self.id });
        let mut driver_options = DriverOptions::default().max_receive_buffers(MAX_RECEIVE_BUFFERS);
        driver_options.testing.initial_receive_buffers = RECEIVE_BUFFERS;
        let driver = Driver::simulated(network.clone(), &options, &driver_options);
        let stepped = SteppedRuntime::new(driver)?;
        let main = stepped.runtime().spawn(main);
        (self.is_finished, self.wake_ns) = (false, None);
        self.running = Some(Running { main: Some(main), network, stepped });
        Ok(())
    }

    /// Drops the runtime without sending anything. The clock does not advance in the meantime.
    pub fn crash(&mut self, state: &State) {
        let Some(running) = self.running.take() else { return };
        state.world.borrow_mut().crash(self.id);
        let clock = Rc::clone(state.world.borrow().clock());
        let now_ns = clock.get();
        drop(running);
        clock.set(now_ns);
        self.is_finished |= self.is_client();
    }
}

impl Running {
    /// Runs the host as far as possible. Returns the time at which it wants to run again.
    pub fn step(&mut self) -> io::Result<Option<u64>> {
        self.stepped.step()
    }

    /// Returns the result of the program, once.
    pub fn take_result(&mut self) -> Option<Result<io::Result<()>, JoinError>> {
        if !self.main.as_ref()?.is_finished() {
            return None;
        }
        let main = pin!(self.main.take()?);
        match main.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => unreachable!("the task has finished"),
        }
    }
}

/// Returns a seed that depends on both numbers.
fn mix(seed: u64, number: u64) -> u64 {
    fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).u64(..)
}

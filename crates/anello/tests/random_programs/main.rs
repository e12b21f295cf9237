//! Random programs: accept, connect, receive, send, sleep, spawn and abort, with futures dropped at any await point, the
//! runtime dropped at any moment, objects that live longer than it, and wakers and destructors that misbehave.
//!
//! Checked of each program, on the simulated kernels and in every way to run on Linux:
//! - every accepted byte arrives once and in order, or the connection reports an error that something explains;
//! - no wake-up is lost: a program that waits for its connections comes to its end;
//! - what the runtime was given is dropped once, and descriptors and memory return to the base line.
//!
//! `ANELLO_SEEDS` says how many seeds run on the simulated kernels (1000 by default) and, by a fiftieth of it, in each way
//! to run on Linux; `ANELLO_SEED` runs one alone, as a failure tells.

#[path = "../common/mod.rs"]
mod common;

mod actors;
mod hostile;
mod memory;
mod model;
mod workers;

use std::future::Future;
use std::io::Read;
use std::net::TcpListener as StdListener;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use anello::net::{Chunk, TcpListener};
use anello::time::sleep;
use anello::{DriverKind, JoinHandle, Runtime, SimFaults, SimModel, SimOptions, spawn, yield_now};
use common::{Random, Setup, hangs_after, on_each, within};
use hostile::{Deliberate, Hostility};
use model::{Connection, World};

/// In virtual time: long after the last retry of anything.
const LIMIT: Duration = Duration::from_secs(600);

/// What lives longer than the task that made it, and perhaps than the runtime.
enum Survivor {
    Task(JoinHandle<()>),
    Future(Pin<Box<dyn Future<Output = ()>>>),
    Chunk(Chunk),
}

/// What happened in a program, in order.
type Trace = Vec<(&'static str, u64)>;

/// Runs the program of a seed. What it returns is equal for equal seeds on the simulated kernels.
fn run(seed: u64, setup: &Setup, is_lossy: bool) -> Outcome {
    let mut random = Random::new(seed);
    let panics = random.below(2) == 0;
    let ends_early = random.below(2) == 0;
    let runtime =
        setup.builder().drain_timeout(Duration::from_millis(random.below(3) as u64)).build().unwrap();
    let elsewhere = Elsewhere::of(setup, &runtime);
    let world = Rc::new(World::new(ends_early, Hostility::new(panics), elsewhere.sender()));
    for _ in 0..1 + random.below(2) {
        let program = program(Rc::clone(&world), Random::new(random.next()), is_lossy);
        // A program panics when its main future is told to; the runtime goes on.
        contain(|| hostile::while_running(|| runtime.block_on(program)));
    }
    end(runtime, &world, &mut random);
    elsewhere.join(&world);
    let has_leaked = world.has_leaked.get();
    assert!(has_leaked || Rc::strong_count(&world) == 1, "a task was neither run to its end nor dropped");
    if !has_leaked {
        expect_all_dropped(&world);
    }
    Outcome { trace: world.trace.take(), has_leaked, panics }
}

/// Runs senders to peers outside of the runtime, and drops the runtime at some moment: what it had accepted arrives.
fn run_with_peers(seed: u64, setup: &Setup) {
    let mut random = Random::new(seed);
    let runtime = setup.builder().drain_timeout(hangs_after()).build().unwrap();
    let elsewhere = Elsewhere::of(setup, &runtime);
    let hostility = Hostility::new(random.below(2) == 0);
    let world = Rc::new(World::new(false, hostility, elsewhere.sender()));
    let mut peers = Vec::new();
    for _ in 0..1 + random.below(4) {
        let listener = StdListener::bind(common::ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        let connection = Connection::new(random.next(), false);
        world.connections.borrow_mut().push(Rc::clone(&connection));
        let task = actors::send_to_peer(address, connection, Rc::clone(&world), Random::new(random.next()));
        let thread = thread::spawn(move || {
            let mut received = Vec::new();
            listener.accept().and_then(|(mut stream, _)| stream.read_to_end(&mut received)).map(|_| received)
        });
        peers.push((address, thread, task));
    }
    let steps = random.below(60);
    let mut threads = Vec::new();
    contain(|| {
        hostile::while_running(|| {
            runtime.block_on(async {
                for (address, thread, task) in peers {
                    threads.push((address, thread));
                    world.survivors.borrow_mut().push(Survivor::Task(spawn(task)));
                }
                for _ in 0..steps {
                    pause(&mut random).await;
                    abort_one(&world, &mut random);
                }
            });
        });
    });
    end(runtime, &world, &mut random);
    elsewhere.join(&world);
    for ((address, thread), connection) in threads.into_iter().zip(world.connections.take()) {
        // For a peer that the program ended too early to connect to.
        drop(std::net::TcpStream::connect(address));
        let received = thread.join().unwrap().expect("the connection is ended, not broken");
        connection.directions[0].receive(&received);
        // Also when the task was dropped before it was connected.
        connection.directions[0].end();
        connection.directions[0].check_end(false);
    }
    expect_all_dropped(&world);
}

/// Waits for jobs of the blocking pool that go on without their runtime, and then for no more foreign objects.
fn expect_all_dropped(world: &World) {
    let started = Instant::now();
    while world.hostility.alive() != 0 {
        assert!(started.elapsed() < hangs_after() / 4, "foreign objects were not dropped");
        thread::yield_now();
    }
}

/// The other thread of a program, where there is one.
struct Elsewhere(Option<(Sender<Waker>, thread::JoinHandle<()>)>);

impl Elsewhere {
    fn of(setup: &Setup, runtime: &Runtime) -> Self {
        if matches!(setup.kind, DriverKind::Sim(_)) {
            return Self(None);
        }
        let handle = runtime.handle();
        let (sender, receiver) = mpsc::channel::<Waker>();
        let thread = thread::spawn(move || {
            for (number, waker) in receiver.into_iter().enumerate() {
                match number % 3 {
                    0 => waker.wake(),
                    1 => handle.spawn(async move { waker.wake() }).detach(),
                    _ => {
                        waker.wake_by_ref();
                        handle.spawn(yield_now()).abort();
                    }
                }
            }
        });
        Self(Some((sender, thread)))
    }

    fn sender(&self) -> Option<Sender<Waker>> {
        self.0.as_ref().map(|(sender, _)| sender.clone())
    }

    /// Ends the thread, which may still have had wakers of the runtime's tasks when that was dropped.
    fn join(self, world: &World) {
        if let Some((sender, thread)) = self.0 {
            drop((sender, world.elsewhere.take()));
            thread.join().unwrap();
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    trace: Trace,
    has_leaked: bool,
    panics: bool,
}

/// Opens connections, lets them run, and ends when they have, or before.
async fn program(world: Rc<World>, mut random: Random, is_lossy: bool) {
    let listener = TcpListener::bind(common::ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = spawn(actors::accept_all(listener, Rc::clone(&world), Random::new(random.next())));
    let sweeping = spawn(sweep());
    let first = world.connections.borrow().len();
    let clients: Vec<_> = (first..first + 1 + random.below(4))
        .map(|number| {
            world.connections.borrow_mut().push(Connection::new(random.next(), is_lossy));
            spawn(actors::client(address, number, Rc::clone(&world), Random::new(random.next())))
        })
        .collect();
    if world.ends_early {
        world.survivors.borrow_mut().extend(clients.into_iter().map(Survivor::Task));
        for _ in 0..random.below(60) {
            pause(&mut random).await;
            abort_one(&world, &mut random);
        }
        if world.hostility.panics && random.below(4) == 0 {
            hostile::panic_deliberately();
        }
        return;
    }
    for client in clients {
        check_task(client.await);
    }
    loop {
        let survivor = world.survivors.borrow_mut().pop();
        match survivor {
            Some(Survivor::Task(task)) => check_task(task.await),
            Some(_) => {}
            None => break,
        }
    }
    accepting.abort();
    sweeping.abort();
}

/// Lets the tasks of a program run for a moment.
async fn pause(random: &mut Random) {
    match random.below(4) {
        0 => sleep(Duration::from_micros(random.below(100) as u64)).await,
        _ => yield_now().await,
    }
}

/// Aborts a task of a connection, which may break that.
fn abort_one(world: &World, random: &mut Random) {
    let survivors = world.survivors.borrow();
    if random.below(10) == 0
        && !survivors.is_empty()
        && let Survivor::Task(task) = &survivors[random.below(survivors.len())]
    {
        task.abort();
        // The task may own a connection whose number it does not know yet.
        world.connections.borrow().iter().for_each(|connection| connection.may_break.set(true));
    }
}

/// Drops what was left for hostile code and that did not drop.
async fn sweep() {
    let mut pause = Duration::from_micros(100);
    let mut waited = Duration::ZERO;
    while waited < LIMIT {
        sleep(pause).await;
        waited += pause;
        pause = (pause * 2).min(Duration::from_secs(1));
        catch_unwind(hostile::drop_victims).ok();
    }
    panic!("the program hangs: a wake-up was lost");
}

#[track_caller]
fn check_task(result: Result<(), anello::JoinError>) {
    if let Err(error) = result
        && let Some(payload) = error.into_panic()
    {
        expect_deliberate(payload);
    }
}

/// Goes on after a panic that was intended, and passes on any other.
fn expect_deliberate(payload: Box<dyn std::any::Any + Send>) {
    if !payload.is::<Deliberate>() {
        panic::resume_unwind(payload);
    }
}

/// Ends a program's runtime and what has outlived it, in one order or another.
fn end(runtime: Runtime, world: &World, random: &mut Random) {
    let order = random.below(4);
    match order {
        // Everything first that the runtime's tasks do not own.
        0 => {
            drop_survivors(world, random);
            contain(hostile::drop_victims);
            drop(runtime);
        }
        1 => drop(runtime),
        // The runtime by foreign code, from which ever place that calls it.
        _ => hostile::leave_victim(runtime),
    }
    drop_survivors(world, random);
    contain(hostile::drop_victims);
    // What these have left behind in turn.
    drop_survivors(world, random);
    contain(hostile::drop_victims);
}

/// Polls and drops what has outlived the runtime.
fn drop_survivors(world: &World, random: &mut Random) {
    let survivors = world.survivors.take();
    for survivor in survivors {
        match survivor {
            Survivor::Task(task) => contain(|| drop(task)),
            Survivor::Chunk(chunk) => drop(chunk),
            Survivor::Future(mut future) => {
                let mut is_ready = false;
                for _ in 0..random.below(3) {
                    let waker = if random.below(2) == 0 {
                        Waker::noop().clone()
                    } else {
                        world.hostility.waker(random)
                    };
                    // After a panic it must not be polled again, either.
                    let mut polled = Poll::Ready(());
                    contain(|| polled = future.as_mut().poll(&mut Context::from_waker(&waker)));
                    actors::drop_hostile(waker);
                    is_ready = polled.is_ready();
                    if is_ready {
                        break;
                    }
                }
                world.note("outlived", u64::from(is_ready));
                contain(|| drop(future));
            }
        }
    }
}

/// Does what hostile code may make panic.
fn contain(what: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(what)) {
        expect_deliberate(payload);
    }
}

fn seeds(default: u64, divisor: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match number("ANELLO_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("ANELLO_SEEDS").unwrap_or(default).div_ceil(divisor)).collect(),
    }
}

/// Runs the program of a seed; a failure tells the seed.
fn with_seed<T>(seed: u64, setup: &Setup, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        eprintln!("failed on {}: run it alone with ANELLO_SEED={seed}", setup.name);
        panic::resume_unwind(payload)
    })
}

fn run_seed(seed: u64, setup: &Setup, is_lossy: bool) -> Outcome {
    with_seed(seed, setup, || run(seed, setup, is_lossy))
}

/// Only one test at a time: descriptors and memory are those of the process.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Panics on purpose are no news.
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Deliberate>() {
            before(info);
        }
    }));
    guard
}

/// The simulated kernel of a seed, with options and faults of its own. Whether it loses connections.
fn simulated(seed: u64) -> (Setup, bool) {
    let mut random = Random::new(!seed);
    let model = if random.below(2) == 0 { SimModel::Completion } else { SimModel::Readiness };
    let rate = [0, 5, 50, 300][random.below(4)];
    let is_lossy = random.below(3) == 0;
    let mut faults = if is_lossy { SimFaults::all(rate) } else { SimFaults::lossless(rate) };
    if !is_lossy {
        // A listener without descriptors refuses its clients: politely, but they are lost.
        faults.descriptor_exhaustion = 0;
    }
    let kind = DriverKind::Sim(SimOptions::new(seed).model(model).faults(faults));
    let setup = Setup::new("sim", kind, |options| {
        options.initial_receive_buffers = 1 << random.below(7);
        options.max_receive_buffers = options.initial_receive_buffers << random.below(3);
        options.receive_buffer_bytes = 64 << random.below(7);
        options.max_send_queue_bytes = 1 << (6 + random.below(11));
        options.max_received_chunks = 1 + random.below(16);
        options.max_accept_queue = 1 + random.below(8);
        options.direct_send_threshold_bytes = 1 << (6 + random.below(11));
        options.deferred_send_threshold_edges = random.below(4);
    });
    (setup, is_lossy)
}

#[test]
fn random_programs_on_the_simulated_kernels() {
    let _alone = alone();
    for seed in seeds(1000, 1) {
        within(hangs_after(), "sim", move || {
            let (setup, is_lossy) = simulated(seed);
            let first = run_seed(seed, &setup, is_lossy);
            // The first run has filled caches; from then on memory returns to where it was.
            let before = memory::live_bytes();
            let second = run_seed(seed, &setup, is_lossy);
            assert_eq!(first, second, "seed {seed} gives two different runs");
            drop(second);
            if !first.has_leaked {
                let grown = memory::live_bytes() - before;
                assert!(grown <= 0, "seed {seed}: {grown} bytes were not freed (ANELLO_SEED={seed})");
            }
        });
    }
}

#[test]
fn random_programs_on_every_driver() {
    let _alone = alone();
    on_each(common::all_drivers(), |setup| {
        for seed in seeds(1000, 50) {
            let before = open_descriptors();
            let outcome = run_seed(seed, setup, false);
            if !outcome.has_leaked {
                assert_eq!(open_descriptors(), before, "{}, seed {seed}: descriptors", setup.name);
            }
        }
    });
}

#[test]
fn accepted_bytes_reach_peers_whenever_the_runtime_is_dropped() {
    let _alone = alone();
    on_each(common::all_drivers(), |setup| {
        for seed in seeds(1000, 50) {
            with_seed(seed, setup, || run_with_peers(seed, setup));
        }
    });
}

#[test]
fn random_wakes_among_workers_are_not_lost() {
    let _alone = alone();
    on_each(common::all_drivers(), |setup| {
        for seed in seeds(1000, 50) {
            with_seed(seed, setup, || workers::run(seed, setup));
        }
    });
}

/// The descriptors of this process.
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

//! Random programs that accept, connect, receive, send, exchange datagrams, sleep, spawn and abort, and perform the other
//! operations of the runtime. Futures are dropped or leaked at any await point, and the runtime is dropped at any moment.
//! Some objects outlive the runtime, and some wakers, destructors and log subscribers misbehave, or exit the process. Some
//! programs fork, and a child drops or leaks its copy. The programs in `event_loops.rs` do so on an event loop, which may
//! be dropped at the end of a thread.
//!
//! Each program is checked on the simulated kernels and with every setup on Linux:
//! - Every accepted byte arrives once and in order, or the connection reports an error that the program can account
//!   for.
//! - No wake-up is lost: a program that waits for its connections completes.
//! - Every object passed to the runtime is dropped once, and descriptors and memory return to the baseline.
//! - A slow peer receives every accepted byte, or a reset.
//!
//! `ANELLO_SEEDS` sets the number of seeds on the simulated kernels (10,000 in `.ci/nightly`). For each setup on Linux,
//! the number is divided by 50. A failed test prints its seed, and `ANELLO_SEED` selects a single seed, or a range
//! `FROM..TO`.

mod actors;
mod datagrams;
mod event_loops;
mod hostile;
mod model;
mod waits;
mod workers;

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::io::{self, Read};
use std::net::TcpListener as StdListener;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use anello::net::{Chunk, TcpListener};
use anello::time::sleep;
use anello::{DriverKind, JoinHandle, Runtime, spawn, yield_now};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use self::hostile::Hostility;
use self::model::{Connection, Leaked, World};
use crate::allocator::live_bytes;
use crate::common::fork::{exit_child, fork, in_child, wait_for};
use crate::common::{
    OwnProcess, Rng, Setup, hang_timeout, in_own_process, is_own_process, on_every_driver, random_simulator,
    seeds, variable, within,
};
use crate::deliberate::{Deliberate, contain, contain_lost_timers, panic_deliberately, silence};
use crate::operations::Kind;

/// Number of seeds on the simulated kernels, unless `ANELLO_SEEDS` sets another one.
const DEFAULT_SEEDS: u64 = 100;

/// Number of seeds for each setup on Linux, unless `ANELLO_SEEDS` is set.
const DEFAULT_LINUX_SEEDS: u64 = 10;

/// Virtual time after which no retry can be pending.
const LIMIT: Duration = Duration::from_secs(600);

/// Object that outlives the task that created it, and possibly the runtime.
enum Survivor {
    Task(JoinHandle<()>),
    Future(Pin<Box<dyn Future<Output = ()>>>),
    Chunk(Chunk),
}

/// Events in a program, in order.
type Trace = Vec<(&'static str, u64)>;

thread_local! {
    /// The runtime of a program, which is dropped if hostile code ends the process.
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

/// Runs the program for a seed. On the simulated kernels, the same seed always gives the same result.
fn run(seed: u64, setup: &Setup, is_lossy: bool) -> Outcome {
    let mut random = Rng::with_seed(seed);
    // A panic in the destructor of a thread-local value would abort the process.
    let panics = random.usize(..2) == 0 && !hostile::will_exit();
    let ends_early = random.usize(..2) == 0;
    let forgets = random.usize(..4) == 0;
    let runtime =
        setup.builder().drain_timeout(Duration::from_millis(random.usize(..3) as u64)).build().unwrap();
    let elsewhere = WakerThread::of(setup, &runtime);
    RUNTIME.set(Some(runtime));
    let world = Rc::new(World::new(ends_early, forgets, Hostility::new(panics), elsewhere.sender()));
    hostile::set_hostile_events(hostile_events(&mut random, &world.hostility));
    world.forks.set(random.usize(..3) == 0 && may_fork());
    let kinds = waits::usable_kinds(setup, is_lossy);
    for _ in 0..1 + random.usize(..2) {
        let program = program(Rc::clone(&world), &kinds, Rng::with_seed(random.u64(..)), is_lossy);
        // The main future panics if the program requests it, and the runtime is used again afterwards.
        contain(|| {
            RUNTIME.with_borrow(|runtime| {
                let runtime = runtime.as_ref().expect("a runtime");
                hostile::while_running(|| runtime.block_on(program));
            });
        });
    }
    end(RUNTIME.take().expect("a runtime"), &world, &mut random);
    elsewhere.join(&world);
    let leaked = world.leaked.get();
    let is_owned = Rc::strong_count(&world) > 1;
    assert!(leaked == Leaked::Everything || !is_owned, "a task has neither completed nor been dropped");
    if leaked == Leaked::Nothing {
        expect_all_dropped(&world.hostility);
    }
    Outcome { trace: world.trace.take(), leaked, panics }
}

/// Runs tasks that send to slow peers outside the runtime, and drops the runtime at a random moment. A peer receives all
/// accepted bytes, or the reset of a connection for which the runtime did not wait.
fn run_with_peers(seed: u64, setup: &Setup) {
    let mut random = Rng::with_seed(seed);
    let waits_for_peers = random.bool();
    let patience = if waits_for_peers { hang_timeout() } else { Duration::from_micros(random.u64(..3000)) };
    let setup = setup.with(|options| {
        options.testing.linger = patience;
        // All peers read until the end, some of them slowly.
        options.testing.zero_copy_ack_timeout = hang_timeout();
    });
    let runtime = setup.builder().drain_timeout(patience).build().unwrap();
    let elsewhere = WakerThread::of(&setup, &runtime);
    let (hostility, forgets) = (Hostility::new(random.bool()), random.usize(..4) == 0);
    hostile::set_hostile_events(hostile_events(&mut random, &hostility));
    let world = Rc::new(World::new(false, forgets, hostility, elsewhere.sender()));
    let mut peers = Vec::new();
    for _ in 0..1 + random.usize(..4) {
        let listener = Arc::new(StdListener::bind(crate::common::ANY_PORT).unwrap());
        if random.usize(..4) != 0 {
            set_socket_recv_buffer_size(&listener, 1 << random.usize(12..16)).unwrap();
        }
        let address = listener.local_addr().unwrap();
        // A peer that closes the connection before EOF resets it.
        let connection = Connection::new(random.u64(..), random.usize(..5) == 0);
        let closes_early = connection.may_break.get();
        world.connections.borrow_mut().push(Rc::clone(&connection));
        let task =
            actors::send_to_peer(address, connection, Rc::clone(&world), Rng::with_seed(random.u64(..)));
        let (accepting, random) = (Arc::clone(&listener), Rng::with_seed(random.u64(..)));
        let thread = thread::spawn(move || receive_slowly(&accepting, closes_early, random));
        peers.push((listener, thread, task));
    }
    let steps = random.usize(..60);
    let mut threads = Vec::new();
    contain(|| {
        hostile::while_running(|| {
            runtime.block_on(async {
                for (listener, thread, task) in peers {
                    threads.push((listener, thread));
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
    for ((listener, thread), connection) in threads.into_iter().zip(world.connections.take()) {
        // Unblocks a peer if the program ended before connecting to it. The listener is still open, so that the port
        // belongs to no other program.
        drop(std::net::TcpStream::connect(listener.local_addr().unwrap()));
        let (received, ended) = thread.join().unwrap();
        let incoming = &connection.directions[0];
        incoming.receive(&received);
        // Marks this direction as finished even if the task was dropped before connecting.
        incoming.end();
        match ended {
            Ok(closes_early) => incoming.check_end(closes_early),
            Err(error) => {
                assert!(!waits_for_peers, "the runtime does not wait for a peer: {error}");
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            }
        }
    }
    if world.leaked.get() == Leaked::Nothing {
        expect_all_dropped(&world.hostility);
    }
}

/// Accepts a connection, and receives a random number of small parts with pauses, then everything until EOF unless the
/// peer closes the connection early. Returns the bytes, and whether it has closed the connection early.
fn receive_slowly(
    listener: &StdListener,
    closes_early: bool,
    mut random: Rng,
) -> (Vec<u8>, io::Result<bool>) {
    let mut received = Vec::new();
    let ended = listener.accept().and_then(|(mut stream, _)| {
        for _ in 0..random.usize(..60) {
            (&stream).take(1 + random.u64(..2000)).read_to_end(&mut received)?;
            // Longer than the runtime waits for some peers.
            let is_long = random.usize(..10) == 0;
            thread::sleep(Duration::from_micros(if is_long { 5_000 } else { random.u64(..200) }));
        }
        if !closes_early {
            stream.read_to_end(&mut received)?;
        }
        Ok(closes_early)
    });
    (received, ended)
}

/// Waits for blocking-pool jobs that outlive their runtime, and then waits until no hostile object is left.
fn expect_all_dropped(hostility: &Hostility) {
    let started = Instant::now();
    while hostility.alive() != 0 {
        assert!(started.elapsed() < hang_timeout() / 4, "hostile objects were not dropped");
        thread::yield_now();
    }
}

/// The second thread of a program, if any.
struct WakerThread(Option<(Sender<Waker>, thread::JoinHandle<()>)>);

impl WakerThread {
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

    /// Joins the thread, which may still have owned wakers of the runtime's tasks when the runtime was dropped.
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
    leaked: Leaked,
    panics: bool,
}

/// Opens connections and lets them run. Returns when they have completed, or earlier if `ends_early` is set.
async fn program(world: Rc<World>, kinds: &[Kind], mut random: Rng, is_lossy: bool) {
    let listener = TcpListener::bind(crate::common::ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = spawn(actors::accept_all(listener, Rc::clone(&world), Rng::with_seed(random.u64(..))));
    let sweeping = spawn(sweep());
    let first = world.connections.borrow().len();
    let clients: Vec<_> = (first..first + 1 + random.usize(..4))
        .map(|number| {
            world.connections.borrow_mut().push(Connection::new(random.u64(..), is_lossy));
            spawn(actors::client(address, number, Rc::clone(&world), Rng::with_seed(random.u64(..))))
        })
        .collect();
    if random.usize(..3) == 0 {
        datagrams::start(&world, &mut random, is_lossy).await;
    }
    // The child would remove the temporary files of some operations.
    if random.usize(..3) == 0 && !world.forks.get() {
        waits::start(&world, kinds, &mut random);
    }
    if world.ends_early {
        world.survivors.borrow_mut().extend(clients.into_iter().map(Survivor::Task));
        for _ in 0..random.usize(..60) {
            pause(&mut random).await;
            abort_one(&world, &mut random);
        }
        if world.hostility.panics && random.usize(..4) == 0 {
            panic_deliberately();
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
async fn pause(random: &mut Rng) {
    match random.usize(..4) {
        0 => sleep(Duration::from_micros(random.usize(..100) as u64)).await,
        _ => yield_now().await,
    }
}

/// Aborts one of a connection's tasks, which may break the connection.
fn abort_one(world: &World, random: &mut Rng) {
    let survivors = world.survivors.borrow();
    if random.usize(..10) == 0
        && !survivors.is_empty()
        && let Survivor::Task(task) = &survivors[random.usize(..survivors.len())]
    {
        task.abort();
        // The task may own a connection whose number it has not read yet.
        world.connections.borrow().iter().for_each(|connection| connection.may_break.set(true));
    }
}

/// Drops objects that were left for hostile code and were not dropped by it.
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
        && let Ok(payload) = error.try_into_panic()
    {
        expect_deliberate(payload);
    }
}

/// Continues after a deliberate panic, and resumes any other panic.
fn expect_deliberate(payload: Box<dyn Any + Send>) {
    if !payload.is::<Deliberate>() {
        panic::resume_unwind(payload);
    }
}

/// Returns whether a program may fork: no other test is running, and the child does not exit early.
fn may_fork() -> bool {
    is_own_process() && !hostile::will_exit()
}

/// Forks a child that drops or leaks its copies of objects while the runtime is running.
fn fork_while_running(world: &World, random: &mut Rng) {
    in_child("a child of a task", || {
        hostile::stop_running();
        let (mut victims, survivors) = (hostile::take_victims(), world.survivors.take());
        victims.extend(survivors.into_iter().map(|it| Box::new(it) as Box<dyn Any>));
        random.shuffle(&mut victims);
        match random.usize(..3) {
            0 => std::mem::forget(victims),
            _ => victims.into_iter().for_each(|victim| contain(|| drop(victim))),
        }
    });
}

/// Ends a program, and before that, its copy in a child process.
fn end(runtime: Runtime, world: &World, random: &mut Rng) {
    if world.forks.get() {
        let Some(child) = fork() else {
            let ended = catch_unwind(AssertUnwindSafe(|| drop_all(runtime, world, random, true)));
            exit_child(ended.is_ok());
        };
        let status = wait_for(child);
        assert_eq!(status.exit_status(), Some(0), "a child at the end of a program: {status:?}");
    }
    drop_all(runtime, world, random, false);
}

/// Drops the runtime of a program and the objects that outlive it, in random order.
fn drop_all(runtime: Runtime, world: &World, random: &mut Rng, is_child: bool) {
    let order = random.usize(..4);
    match order {
        // First drops everything that is not owned by the runtime's tasks.
        0 => {
            drop_survivors(world, random, is_child);
            contain(hostile::drop_victims);
            drop(runtime);
        }
        1 => drop(runtime),
        // The runtime is dropped by hostile code, whenever that code is called.
        _ => hostile::leave_victim(runtime),
    }
    drop_survivors(world, random, is_child);
    contain(hostile::drop_victims);
    // Drops the objects that the destructors above left behind.
    drop_survivors(world, random, is_child);
    contain(hostile::drop_victims);
}

/// Drops the objects that have outlived the runtime, and before that polls them, which a child process cannot.
fn drop_survivors(world: &World, random: &mut Rng, is_child: bool) {
    let survivors = world.survivors.take();
    for survivor in survivors {
        match survivor {
            Survivor::Task(task) => contain(|| drop(task)),
            Survivor::Chunk(chunk) => drop(chunk),
            Survivor::Future(mut future) => {
                let mut is_ready = false;
                for _ in 0..if is_child { 0 } else { random.usize(..3) } {
                    let waker = if random.usize(..2) == 0 {
                        Waker::noop().clone()
                    } else {
                        world.hostility.waker(random)
                    };
                    // After a panic, the future must not be polled again.
                    let mut polled = Poll::Ready(());
                    contain_lost_timers(|| polled = future.as_mut().poll(&mut Context::from_waker(&waker)));
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

/// Returns the seeds for a setup on Linux: a fiftieth of their number on the simulated kernels.
fn seeds_on_linux() -> Range<u64> {
    match variable("ANELLO_SEEDS") {
        Some(count) if std::env::var_os("ANELLO_SEED").is_none() => 0..u64::div_ceil(count, 50),
        _ => seeds(DEFAULT_LINUX_SEEDS),
    }
}

/// Runs a program on an event loop.
fn run_event_loop(seed: u64, setup: &Setup, is_lossy: bool) -> Outcome {
    with_seed(seed, setup, || {
        let mut random = Rng::with_seed(!seed);
        let hostility = Hostility::new(random.bool());
        let events = hostile_events(&mut random, &hostility);
        let ends_thread = random.usize(..4) == 0;
        let trace = if ends_thread {
            event_loops::run_on_thread(seed, setup, is_lossy, &hostility, events)
        } else {
            hostile::set_hostile_events(events);
            event_loops::run(seed, setup, is_lossy, &hostility, None)
        };
        expect_all_dropped(&hostility);
        let leaked = if ends_thread { Leaked::Memory } else { Leaked::Nothing };
        Outcome { trace, leaked, panics: hostility.panics }
    })
}

/// Runs a program in a child process that hostile code ends, perhaps while the runtime or the event loop is in use.
fn run_until_exit(seed: u64, setup: &Setup, is_lossy: bool) {
    let Some(child) = fork() else {
        let mut random = Rng::with_seed(!seed);
        // Thread-local values are dropped in the reverse order of their first use.
        if random.bool() {
            RUNTIME.with(|_| ());
        }
        hostile::exit_in_action(1 + random.usize(..40));
        let run = || match random.usize(..3) {
            0 => event_loops::run_in_thread_local(seed, setup, is_lossy),
            1 => drop(event_loops::run_on_thread(seed, setup, is_lossy, &Hostility::new(false), None)),
            _ => drop(run(seed, setup, is_lossy)),
        };
        exit_child(catch_unwind(AssertUnwindSafe(run)).is_ok());
    };
    let status = wait_for(child);
    // A program may end without this number of hostile actions.
    assert!(matches!(status.exit_status(), Some(hostile::EXIT_CODE | 0)), "{status:?}");
}

/// Returns what the events of a program do, if anything.
fn hostile_events(random: &mut Rng, hostility: &Hostility) -> Option<(Rng, bool)> {
    (random.usize(..4) == 0).then(|| (random.fork(), hostility.panics))
}

/// Runs the program for a seed, and prints the seed on failure.
fn with_seed<T>(seed: u64, setup: &Setup, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        eprintln!("failed on {}: run it alone with ANELLO_SEED={seed}", setup.name);
        panic::resume_unwind(payload)
    })
}

fn run_seed(seed: u64, setup: &Setup, is_lossy: bool) -> Outcome {
    with_seed(seed, setup, || run(seed, setup, is_lossy))
}

type RunSeed = fn(u64, &Setup, bool) -> Outcome;

/// Runs each program twice: the results must be equal, and memory must return to the baseline. Other tests in the process
/// would change the memory that all of its threads share.
fn on_simulated_kernels(run_seed: RunSeed) {
    silence();
    for seed in seeds(DEFAULT_SEEDS) {
        within(hang_timeout(), "sim", move || {
            let (setup, is_lossy) = random_simulator(seed);
            let first = run_seed(seed, &setup, is_lossy);
            // The first run has filled the caches, so memory must return to the baseline after the second run.
            let before = live_bytes();
            let second = run_seed(seed, &setup, is_lossy);
            assert_eq!(first, second, "seed {seed} gives two different results");
            drop(second);
            let mut grown = live_bytes() - before;
            if first.leaked == Leaked::Nothing && grown > 0 {
                // The second run may have added to the caches. A leak recurs.
                let before = live_bytes();
                drop(run_seed(seed, &setup, is_lossy));
                grown = grown.min(live_bytes() - before);
                assert!(grown <= 0, "seed {seed}: {grown} bytes were not freed (ANELLO_SEED={seed})");
            }
        });
    }
}

/// Runs the programs on Linux: descriptors must return to the baseline. Their number is process-wide.
fn on_linux(run_seed: RunSeed) {
    silence();
    on_every_driver(move |setup| {
        for seed in seeds_on_linux() {
            let (before, sockets_before) = (open_descriptors(), open_sockets());
            let outcome = run_seed(seed, setup, false);
            let has_grown = || match outcome.leaked {
                Leaked::Nothing | Leaked::Memory => open_descriptors() > before,
                Leaked::Driver => open_sockets() > sockets_before,
                Leaked::Everything => false,
            };
            // Operations on other threads outlive their runtime. One of an earlier program may end only now.
            let started = Instant::now();
            while has_grown() {
                let is_late = started.elapsed() > hang_timeout() / 4;
                assert!(!is_late, "{}, seed {seed}: descriptors were not closed", setup.name);
                thread::yield_now();
            }
        }
    });
}

#[test]
fn random_programs_on_simulated_kernels() {
    in_own_process(|| on_simulated_kernels(run_seed));
}

#[test]
fn random_programs_on_every_driver() {
    in_own_process(|| on_linux(run_seed));
}

#[test]
fn random_event_loops_on_simulated_kernels() {
    in_own_process(|| on_simulated_kernels(run_event_loop));
}

#[test]
fn random_event_loops_on_every_driver() {
    in_own_process(|| on_linux(run_event_loop));
}

/// Returns the configuration of a process in which leaks are expected.
fn leaking() -> OwnProcess {
    OwnProcess::default().variable("LSAN_OPTIONS", "detect_leaks=0")
}

#[test]
fn random_programs_exit_in_destructors_on_simulated_kernels() {
    leaking().run(|| {
        silence();
        for seed in seeds(DEFAULT_SEEDS) {
            let (setup, is_lossy) = random_simulator(seed);
            with_seed(seed, &setup, || run_until_exit(seed, &setup, is_lossy));
        }
    });
}

#[test]
fn random_programs_exit_in_destructors_on_every_driver() {
    leaking().run(|| {
        silence();
        on_every_driver(|setup| {
            for seed in seeds_on_linux() {
                with_seed(seed, setup, || run_until_exit(seed, setup, false));
            }
        });
    });
}

#[test]
fn accepted_bytes_reach_peers_when_runtime_is_dropped() {
    silence();
    on_every_driver(|setup| {
        for seed in seeds_on_linux() {
            with_seed(seed, setup, || run_with_peers(seed, setup));
        }
    });
}

#[test]
fn random_wakes_among_workers_are_not_lost() {
    silence();
    on_every_driver(|setup| {
        for seed in seeds_on_linux() {
            with_seed(seed, setup, || workers::run(seed, setup));
        }
    });
}

/// Returns the number of open descriptors of this process.
fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the number of open sockets of this process.
fn open_sockets() -> usize {
    let is_socket = |path: &PathBuf| path.to_string_lossy().starts_with("socket:");
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).filter(is_socket).count()
}

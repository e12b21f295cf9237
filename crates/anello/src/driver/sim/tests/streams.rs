//! Tests of streams on both state machines under seeded faults: bytes, order, wake-ups and descriptors.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::task::Poll;

use fastrand::Rng;

use super::super::super::op::Wait;
use super::super::super::options::{DriverOptions, SendCompletion, TaskWork, ZeroCopy};
use super::super::super::wake::WakeQueue;
use super::super::network::chance;
use super::super::{SimFaults, SimModel, SimOptions};
use super::{Listener, MODELS, Stream, Task, World, both, for_seeds, for_seeds_and_models, scaled};

/// Returns random driver options, which together cover many code paths of a driver.
fn driver_options(random: &mut Rng) -> DriverOptions {
    let mut options = DriverOptions::default();
    options.initial_receive_buffers = 1 << random.u64(..4);
    options.max_receive_buffers = options.initial_receive_buffers << random.u64(..4);
    options.receive_buffer_bytes = 64 << random.u64(..7);
    options.max_received_chunks = 1 + random.usize(..8);
    options.max_send_queue_bytes = 1 << (8 + random.u64(..9));
    options.direct_send_threshold_bytes = 1 << (6 + random.u64(..9));
    options.deferred_send_threshold_edges = random.usize(..4);
    options.cq_entries = 1 << random.u64(..8);
    options.max_accept_queue = 1 + random.usize(..3);
    options.send_completion =
        if chance(random, 700) { SendCompletion::Inline } else { SendCompletion::PerSend };
    options.one_shot_receive = chance(random, 200);
    options.disabled_features.multishot_accept = chance(random, 200);
    options.task_work = if chance(random, 700) { TaskWork::Deferred } else { TaskWork::Cooperative };
    options.disabled_features.buffer_ring = chance(random, 100);
    options.disabled_features.cqe_skip = chance(random, 100);
    if chance(random, 300) {
        options.zero_copy = ZeroCopy::Always { threshold_bytes: 1 << (4 + random.u64(..10)) };
    }
    options
}

fn pattern(random: &mut Rng, length: usize) -> Vec<u8> {
    (0..length.div_ceil(8)).flat_map(|_| random.u64(..).to_ne_bytes()).take(length).collect()
}

/// Sends all received bytes back until EOF.
async fn echo(stream: Stream) {
    let mut chunks = 0;
    let result: io::Result<()> = async {
        while let Some(chunk) = stream.receive().await? {
            stream.world.note(chunk.len() as u64);
            chunks += 1;
            if chunks % 3 == 0 { stream.write(&chunk).await? } else { stream.send(chunk).await? }
        }
        stream.finish().await
    }
    .await;
    stream.world.note(u64::from(result.is_ok()));
}

/// Sends `data` in chunks of random sizes, then shuts down the write half.
async fn send_all(stream: &Stream, data: &[u8], seed: u64) -> io::Result<()> {
    let (mut random, mut rest) = (Rng::with_seed(seed), data);
    while !rest.is_empty() {
        let bound = if chance(&mut random, 300) { 20_000 } else { 300 };
        let (chunk, tail) = rest.split_at(rest.len().min(1 + random.usize(..bound)));
        match random.u64(..3) {
            0 => stream.write(chunk).await?,
            _ => stream.send(chunk.to_vec()).await?,
        }
        if chance(&mut random, 100) {
            stream.flush().await?;
        }
        rest = tail;
    }
    stream.finish().await
}

/// Receives until EOF, with `read` and `receive` in random order.
async fn receive_all(stream: &Stream, received: &RefCell<Vec<u8>>, seed: u64) -> io::Result<()> {
    let mut random = Rng::with_seed(seed);
    loop {
        let count = if chance(&mut random, 300) {
            let mut buffer = vec![0; 1 + random.usize(..3000)];
            let count = stream.read(&mut buffer).await?;
            received.borrow_mut().extend_from_slice(&buffer[..count]);
            count
        } else {
            let chunk = stream.receive().await?;
            received.borrow_mut().extend_from_slice(chunk.as_deref().unwrap_or_default());
            chunk.map_or(0, |chunk| chunk.len())
        };
        stream.world.note(count as u64);
        if count == 0 {
            return Ok(());
        }
    }
}

/// Bytes sent and received by a client, and the result.
#[derive(Default)]
pub(super) struct Client {
    pub(super) sent: Vec<u8>,
    pub(super) received: RefCell<Vec<u8>>,
    /// True if both directions reached EOF without an error.
    pub(super) whole: Cell<bool>,
}

impl Client {
    /// Asserts that the received bytes are a prefix of the sent bytes.
    fn assert_received_prefix(&self) {
        assert!(self.sent.starts_with(&self.received.borrow()), "echoed bytes differ");
    }
}

async fn client(world: World, address: SocketAddr, client: Rc<Client>, seed: u64) {
    let Ok(stream) = world.connect(address).await else { return };
    let sending = send_all(&stream, &client.sent, seed);
    let receiving = receive_all(&stream, &client.received, seed);
    let (sent, received) = both(sending, receiving).await;
    client.whole.set(sent.is_ok() && received.is_ok());
}

/// Polls a future for at most `turns` turns, then drops the future.
async fn drop_after(turns: u64, future: impl Future<Output = ()>) {
    let (mut remaining, mut future) = (turns, Box::pin(future));
    poll_fn(|context| {
        // Ensures that the future is polled in each turn.
        context.waker().wake_by_ref();
        let polled = future.as_mut().poll(context);
        if remaining == 0 {
            return Poll::Ready(());
        }
        remaining -= 1;
        polled
    })
    .await;
}

/// Accepts connections and echoes their bytes.
async fn serve(listener: Listener) {
    loop {
        let stream = listener.accept().await;
        listener.world.spawn(echo(stream));
    }
}

/// Runs an echo server and a few clients, which send `bytes` bytes in total. With `abandon`, streams and clients are
/// dropped at random times. Returns the world and the clients.
pub(super) fn run_echo(options: &SimOptions, bytes: u64, abandon: bool) -> (World, Vec<Rc<Client>>) {
    let bytes = scaled(bytes) as usize;
    let mut random = Rng::with_seed(options.seed ^ 0xec40);
    let world = World::new(options, &driver_options(&mut random));
    world.abort_rate.set(if abandon { 300 } else { 0 });
    let (listener, address) = world.listen();
    world.spawn(serve(listener));
    let (mut clients, mut tasks) = (Vec::new(), Vec::<Task>::new());
    let count = 1 + random.u64(..4);
    for _ in 0..count {
        let sent = pattern(&mut random, bytes / count as usize);
        let one = Rc::new(Client { sent, ..Client::default() });
        clients.push(Rc::clone(&one));
        let task = client(world.clone(), address, one, random.u64(..));
        tasks.push(if abandon { Box::pin(drop_after(random.u64(..500), task)) } else { Box::pin(task) });
    }
    world.run(tasks).unwrap();
    (world, clients)
}

pub(super) fn options(seed: u64, model: SimModel, faults: SimFaults) -> SimOptions {
    let bytes = 64 << Rng::with_seed(seed).u64(..9);
    SimOptions::new(seed).model(model).faults(faults).socket_buffer_bytes(bytes as usize)
}

#[test]
fn lossless_faults_preserve_all_bytes_in_order() {
    for_seeds_and_models(200, |seed, model| {
        let faults = SimFaults::lossless([0, 20, 100, 300, 600][seed as usize % 5]);
        let (world, clients) = run_echo(&options(seed, model, faults), 100 * 1024, false);
        for client in clients {
            assert!(client.whole.get(), "a stream ended early");
            assert!(*client.received.borrow() == client.sent, "echoed bytes differ");
        }
        world.shut_down().unwrap();
    });
}

#[test]
fn bytes_received_before_connection_error_are_prefix() {
    for_seeds_and_models(200, |seed, model| {
        let faults = SimFaults::all(50 + seed as u16 % 500);
        let (world, clients) = run_echo(&options(seed, model, faults), 20 * 1024, false);
        clients.iter().for_each(|client| client.assert_received_prefix());
        world.shut_down().unwrap();
    });
}

#[test]
fn fault_10_dropped_futures_leave_no_operation_in_flight() {
    for_seeds_and_models(500, |seed, model| {
        let faults = SimFaults { late_completions: 0, ..SimFaults::all(seed as u16 % 300) };
        let (world, clients) = run_echo(&options(seed, model, faults), 20 * 1024, true);
        clients.iter().for_each(|client| client.assert_received_prefix());
        let metrics = world.shut_down().unwrap();
        assert_eq!(metrics.late_completions, 0, "a slot was released too early");
    });
}

#[test]
fn same_seed_produces_same_run() {
    for_seeds_and_models(20, |seed, model| {
        let run = || {
            let options = options(seed, model, SimFaults::all(200));
            let (world, clients) = run_echo(&options, 20 * 1024, false);
            let received: Vec<_> = clients.iter().map(|client| client.received.borrow().clone()).collect();
            let metrics = world.shut_down().unwrap();
            (world.trace.get(), received, metrics)
        };
        assert_eq!(run(), run());
    });
}

#[test]
fn fault_11_cancelled_connect_or_accept_leaves_no_socket_open() {
    for_seeds_and_models(200, |seed, model| {
        let faults = SimFaults { late_completions: 0, ..SimFaults::lossless(300) };
        let options = options(seed, model, faults);
        let world = World::new(&options, &driver_options(&mut Rng::with_seed(seed)));
        let (listener, address) = world.listen();
        let mut random = Rng::with_seed(seed);
        let mut tasks = Vec::<Task>::new();
        for _ in 0..8 {
            let world = world.clone();
            let connect = async move { drop(world.connect(address).await) };
            tasks.push(Box::pin(drop_after(random.u64(..100), connect)));
        }
        let accept = async move {
            for _ in 0..4 {
                drop(listener.accept().await);
            }
        };
        tasks.push(Box::pin(drop_after(random.u64(..100), accept)));
        world.run(tasks).unwrap();
        let metrics = world.shut_down().unwrap();
        assert_eq!(metrics.late_completions, 0, "a slot was released too early");
    });
}

#[test]
fn dropped_stream_sends_accepted_bytes() {
    for_seeds_and_models(200, |seed, model| {
        let options = options(seed, model, SimFaults::lossless([0, 100, 400][seed as usize % 3]));
        let mut random = Rng::with_seed(seed);
        let world = World::new(&options, &driver_options(&mut random));
        let (listener, address) = world.listen();
        let data = pattern(&mut random, 3000);
        let (sent, received) = (data.clone(), Rc::new(RefCell::new(Vec::new())));
        let (sender, into) = (world.clone(), Rc::clone(&received));
        let send = async move {
            let stream = sender.connect(address).await.unwrap();
            for chunk in sent.chunks(700) {
                stream.send(chunk.to_vec()).await.unwrap();
            }
        };
        let receive = async move {
            let stream = listener.accept().await;
            receive_all(&stream, &into, seed).await.unwrap();
        };
        world.run(vec![Box::pin(send), Box::pin(receive)]).unwrap();
        assert!(*received.borrow() == data, "{} bytes received", received.borrow().len());
        world.shut_down().unwrap();
    });
}

#[test]
fn connect_without_listener_is_refused() {
    for_seeds_and_models(50, |seed, model| {
        let world = World::new(&options(seed, model, SimFaults::lossless(300)), &DriverOptions::default());
        let connecting = world.clone();
        let connect = async move {
            let unused = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
            let refused = connecting.connect(unused).await.err().map(|error| error.kind());
            assert_eq!(refused, Some(io::ErrorKind::ConnectionRefused));
        };
        world.run(vec![Box::pin(connect)]).unwrap();
        world.shut_down().unwrap();
    });
}

#[test]
fn fault_12_late_completion_after_slot_reuse_is_ignored_and_counted() {
    for model in MODELS {
        let (mut late, mut runs) = (0, 0);
        for_seeds(50, model, |seed| {
            let faults = SimFaults { late_completions: 900, ..SimFaults::none() };
            let options = options(seed, model, faults);
            let world = World::new(&options, &DriverOptions::default());
            let (listener, address) = world.listen();
            world.spawn(serve(listener));
            let dialogues = {
                let world = world.clone();
                async move {
                    // Each connection reuses the slot of the previous one, whose late completions arrive in the
                    // meantime.
                    for number in 0..20u8 {
                        let stream = world.connect(address).await.unwrap();
                        stream.send(vec![number; 100]).await.unwrap();
                        stream.finish().await.unwrap();
                        let received = RefCell::default();
                        receive_all(&stream, &received, 0).await.unwrap();
                        assert_eq!(*received.borrow(), [number; 100]);
                    }
                }
            };
            world.run(vec![Box::pin(dialogues)]).unwrap();
            late += world.shut_down().unwrap().late_completions;
            runs += 1;
        });
        assert!(late >= runs, "{model:?}: {late} late completions in {runs} runs");
    }
}

#[test]
fn fault_13_terminated_multishot_operations_are_rearmed() {
    for_seeds_and_models(50, |seed, model| {
        let faults = SimFaults { multishot_terminations: 900, short_receives: 300, ..SimFaults::none() };
        let (world, clients) = run_echo(&options(seed, model, faults), 20 * 1024, false);
        assert!(clients.iter().all(|client| client.whole.get() && *client.received.borrow() == client.sent));
        world.shut_down().unwrap();
    });
}

#[test]
fn fault_22_reset_missed_by_receive_is_detected() {
    let resets = Rc::new(Cell::new(0));
    let runs = scaled(200);
    for_seeds(200, SimModel::Completion, |seed| {
        let faults = SimFaults { missed_resets: 900, delays: 500, ..SimFaults::none() };
        let world = World::new(&SimOptions::new(seed).faults(faults), &DriverOptions::default());
        let (listener, address) = world.listen();
        let client = {
            let world = world.clone();
            async move {
                let stream = world.connect(address).await.unwrap();
                stream.send(b"the last".to_vec()).await.unwrap();
                stream.flush().await.unwrap();
                // Dropped here, usually before the greeting has been read.
            }
        };
        let resets = Rc::clone(&resets);
        let server = async move {
            let stream = listener.accept().await;
            stream.send(b"a greeting".to_vec()).await.unwrap();
            let error = loop {
                match stream.receive().await {
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(error) => break Some(error.kind()),
                }
            };
            assert!(error.is_none_or(|kind| kind == io::ErrorKind::ConnectionReset), "{error:?}");
            resets.set(resets.get() + u64::from(error.is_some()));
        };
        let tasks: Vec<Task> = vec![Box::pin(client), Box::pin(server)];
        world.run(tasks).unwrap();
        world.shut_down().unwrap();
    });
    assert!(resets.get() > runs / 4, "{} resets in {runs} runs", resets.get());
}

#[test]
fn flush_completes_with_partial_submissions() {
    for_seeds(100, SimModel::Completion, |seed| {
        let faults = SimFaults { partial_submissions: 500, ..SimFaults::none() };
        let world = World::new(&SimOptions::new(seed).faults(faults), &DriverOptions::default());
        let (listener, address) = world.listen();
        let opening = world.clone();
        let pair = world.run_one(async move { opening.connect_pair(&listener, address).await });
        // Only the sends of the other stream are in flight, and they do not end a wait.
        let streams: Rc<[Stream; 2]> = Rc::new(pair.into());
        let flushes = [0, 1].map(|index| -> Task {
            let streams = Rc::clone(&streams);
            Box::pin(async move {
                let stream = &streams[index];
                for number in 0..20u8 {
                    stream.send(vec![number; 10]).await.unwrap();
                    stream.flush().await.unwrap();
                }
            })
        });
        world.run(flushes.into()).unwrap();
        drop(streams);
        world.shut_down().unwrap();
    });
}

#[test]
fn wait_without_possible_event_is_deadlock_error() {
    for model in MODELS {
        let world = World::new(&SimOptions::new(1).model(model), &DriverOptions::default());
        let (listener, _) = world.listen();
        let error = world.run(vec![Box::pin(async move { drop(listener.accept().await) })]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Deadlock, "{model:?}");
        world.shut_down().unwrap();
    }
}

#[test]
fn wait_with_deadline_takes_given_time() {
    for model in MODELS {
        let world = World::new(&SimOptions::new(1).model(model), &DriverOptions::default());
        let mut driver = world.driver.borrow_mut();
        let before_ns = driver.now_ns();
        driver.turn(Wait::For(3_600_000_000_000), &mut WakeQueue::default()).unwrap();
        let took_ns = driver.now_ns() - before_ns;
        assert!((3_600_000_000_000..3_600_000_010_000).contains(&took_ns), "{model:?}: {took_ns} ns");
    }
}

//! A replicated key-value store, and a simulation that checks it for linearizability.
//!
//! The leader orders all writes, and acknowledges a write once both followers have stored it. It keeps the values in
//! memory only: after a crash, it recovers them from the followers. Each start of the leader has a new term; followers
//! reject the writes of earlier terms, which may still be in transit.
//!
//! `cargo run --release --example replicated_store` runs the simulation with 1000 seeds, and then searches for a seed
//! that shows the bug of a leader that acknowledges writes too early.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::sim::{Control, Simulation};
use anello::spawn;
use anello::time::{sleep, timeout};

const FOLLOWERS: [&str; 2] = ["follower1", "follower2"];
const PORT: u16 = 80;

// ---- Messages ---------------------------------------------------------------------------------------------------------

/// A request consists of five numbers: one of these operations, and four arguments.
type Request = [u64; 5];
const PUT: u64 = 1; // key, value
const GET: u64 = 2; // key
const STORE: u64 = 3; // term, sequence number, key, value
const RECOVER: u64 = 4; // term

async fn receive_numbers(stream: &mut TcpStream, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = Vec::new();
    while bytes.len() < count * 8 {
        match stream.recv().await? {
            Some(chunk) => bytes.extend_from_slice(&chunk),
            None => return Err(ErrorKind::UnexpectedEof.into()),
        }
    }
    Ok(bytes
        .chunks_exact(8)
        .map(|number| number.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
        .collect())
}

async fn send_numbers(stream: &mut TcpStream, numbers: &[u64]) -> io::Result<()> {
    stream.write_all(&numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>()).await
}

/// Sends a request on a connection of its own, and receives the response, which ends with the connection.
async fn call(host: &str, request: Request) -> io::Result<Vec<u64>> {
    let mut stream = TcpStream::connect((host, PORT)).await?;
    send_numbers(&mut stream, &request).await?;
    let count = receive_numbers(&mut stream, 1).await?[0];
    receive_numbers(&mut stream, count as usize).await
}

/// Calls until there is a response.
async fn call_until_done(host: &str, request: Request) -> Vec<u64> {
    loop {
        if let Ok(Ok(response)) = timeout(Duration::from_millis(300), call(host, request)).await {
            return response;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn serve<F: Future<Output = Vec<u64>>>(
    handle: impl Fn(Request) -> F + Clone + 'static,
) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0".parse::<std::net::IpAddr>().expect("valid"), PORT))?;
    loop {
        let mut stream = listener.accept().await?;
        let handle = handle.clone();
        spawn(async move {
            let numbers = receive_numbers(&mut stream, 5).await?;
            let response = handle(numbers.try_into().expect("five numbers")).await;
            send_numbers(&mut stream, &[response.len() as u64]).await?;
            send_numbers(&mut stream, &response).await
        })
        .detach();
    }
}

// ---- Servers ----------------------------------------------------------------------------------------------------------

/// The value of each key, with the sequence number of its write.
type Values = BTreeMap<u64, (u64, u64)>;

/// Stores a value unless a later write has been stored.
fn store(values: &mut Values, sequence: u64, key: u64, value: u64) {
    let current = values.entry(key).or_default();
    *current = (*current).max((sequence, value));
}

async fn follower() -> io::Result<()> {
    let state = Rc::new(RefCell::new((0, Values::new())));
    serve(move |request| {
        let state = Rc::clone(&state);
        async move {
            let (term, values) = &mut *state.borrow_mut();
            match request {
                [STORE, of, sequence, key, value] if of == *term => {
                    store(values, sequence, key, value);
                    vec![]
                }
                [RECOVER, new, ..] => {
                    *term = (*term).max(new);
                    let entries =
                        values.iter().flat_map(|(key, (sequence, value))| [*sequence, *key, *value]);
                    [*term].into_iter().chain(entries).collect()
                }
                // The sender is an earlier leader, which has crashed.
                _ => vec![],
            }
        }
    })
    .await
}

struct Leader {
    term: u64,
    sequence: Cell<u64>,
    values: RefCell<Values>,
    acknowledges_early: bool,
}

impl Leader {
    async fn recover(acknowledges_early: bool) -> Self {
        let mut term = 0;
        for name in FOLLOWERS {
            term = term.max(call_until_done(name, [RECOVER, 0, 0, 0, 0]).await[0]);
        }
        term += 1;
        let mut values = Values::new();
        for name in FOLLOWERS {
            let response = call_until_done(name, [RECOVER, term, 0, 0, 0]).await;
            for entry in response[1..].chunks_exact(3) {
                store(&mut values, entry[0], entry[1], entry[2]);
            }
        }
        let sequence = values.values().map(|(sequence, _)| *sequence).max().unwrap_or(0);
        Self { term, sequence: Cell::new(sequence), values: RefCell::new(values), acknowledges_early }
    }

    async fn replicate(&self, sequence: u64, key: u64, value: u64) {
        for name in FOLLOWERS {
            call_until_done(name, [STORE, self.term, sequence, key, value]).await;
        }
    }

    async fn handle(self: Rc<Self>, request: Request) -> Vec<u64> {
        match request {
            [PUT, key, value, ..] => {
                let sequence = self.sequence.get() + 1;
                self.sequence.set(sequence);
                if self.acknowledges_early {
                    // The bug: if the leader crashes now, the write is lost.
                    let leader = Rc::clone(&self);
                    spawn(async move { leader.replicate(sequence, key, value).await }).detach();
                } else {
                    self.replicate(sequence, key, value).await;
                }
                store(&mut self.values.borrow_mut(), sequence, key, value);
                vec![]
            }
            [GET, key, ..] => vec![self.values.borrow().get(&key).map_or(0, |(_, value)| *value)],
            _ => vec![],
        }
    }
}

async fn lead(acknowledges_early: bool) -> io::Result<()> {
    let leader = Rc::new(Leader::recover(acknowledges_early).await);
    serve(move |request| Rc::clone(&leader).handle(request)).await
}

// ---- Simulation -------------------------------------------------------------------------------------------------------

/// A write of a value, or a read that has returned one.
#[derive(Clone, Copy, Debug)]
struct Event {
    is_write: bool,
    value: u64,
    start: u64,
    /// `u64::MAX` for a write without a response, which may take effect at any later time, or never.
    end: u64,
}

/// Operations on each key, and a counter that orders their starts and ends.
#[derive(Default)]
struct History {
    events: BTreeMap<u64, Vec<Event>>,
    clock: u64,
}

impl History {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

async fn client(number: u64, control: Control, history: Rc<RefCell<History>>) -> io::Result<()> {
    for index in 1..=12 {
        let key = control.random() % 2;
        let is_write = control.random() % 2 == 1;
        let written = number * 1000 + index;
        let start = history.borrow_mut().tick();
        let request = if is_write { [PUT, key, written, 0, 0] } else { [GET, key, 0, 0, 0] };
        let response = match is_write {
            // A repeated write could take effect twice.
            true => {
                timeout(Duration::from_millis(500), call("leader", request)).await.ok().and_then(Result::ok)
            }
            false => Some(call_until_done("leader", request).await),
        };
        let end = if response.is_some() { history.borrow_mut().tick() } else { u64::MAX };
        let value = if is_write { written } else { response.expect("a read is repeated")[0] };
        history.borrow_mut().events.entry(key).or_default().push(Event { is_write, value, start, end });
        sleep(Duration::from_millis(control.random() % 50)).await;
    }
    Ok(())
}

/// Crashes the leader, and separates it from a follower, again and again.
async fn cause_chaos(control: Control) -> io::Result<()> {
    for _ in 0..5 {
        sleep(Duration::from_millis(control.random() % 200)).await;
        let name = FOLLOWERS[(control.random() % 2) as usize];
        control.partition("leader", name);
        sleep(Duration::from_millis(control.random() % 100)).await;
        control.crash("leader");
        control.repair("leader", name);
        sleep(Duration::from_millis(control.random() % 100)).await;
        control.restart("leader");
    }
    Ok(())
}

/// Runs the simulation with a seed. Returns an error if the history is not linearizable.
pub fn run(seed: u64, acknowledges_early: bool) -> Result<(), String> {
    let mut sim = Simulation::builder().seed(seed).build();
    let history = Rc::<RefCell<History>>::default();
    for name in FOLLOWERS {
        sim.host(name, follower);
    }
    sim.host("leader", move || lead(acknowledges_early));
    for number in 1..=3 {
        let program = client(number, sim.control(), Rc::clone(&history));
        sim.client(&format!("client{number}"), program);
    }
    sim.client("chaos", cause_chaos(sim.control()));
    sim.run().map_err(|error| error.to_string())?;
    for (key, events) in &history.borrow().events {
        if !is_linearizable(events) {
            return Err(format!("seed {seed}: history of key {key} is not linearizable: {events:?}"));
        }
    }
    Ok(())
}

/// Returns whether the operations on one key can be ordered so that each read returns the value of the last write, and
/// an operation that ends before another one starts precedes it.
fn is_linearizable(events: &[Event]) -> bool {
    fn search(events: &[Event], done: u64, value: u64, visited: &mut HashSet<(u64, u64)>) -> bool {
        let remaining = || events.iter().enumerate().filter(|(index, _)| done & 1 << index == 0);
        if remaining().all(|(_, event)| event.end == u64::MAX) {
            return true;
        }
        if !visited.insert((done, value)) {
            return false;
        }
        let first_end = remaining().map(|(_, event)| event.end).min().unwrap_or(u64::MAX);
        remaining().filter(|(_, event)| event.start < first_end).any(|(index, event)| {
            (event.is_write || event.value == value)
                && search(events, done | 1 << index, event.value, visited)
        })
    }
    search(events, 0, 0, &mut HashSet::new())
}

fn main() {
    const SEEDS: u64 = 1000;
    anello::sim::check("replicated_store", 0..SEEDS, |seed| run(seed, false));
    println!("{SEEDS} seeds: linearizable");
    match (0..SEEDS).find_map(|seed| run(seed, true).err()) {
        Some(error) => println!("acknowledging early: {error}"),
        None => println!("acknowledging early: not found within {SEEDS} seeds"),
    }
}

//! Random programs on an event loop, without tasks: they open, use, cancel and close objects of every kind, and then
//! react to events only until every connection has ended. A lost event makes such a program hang.
//!
//! In addition to the bytes, the model contains the calls that have returned `Pending`. Each of them is followed by one
//! event of its kind or of its deadline, unless it is cancelled or its object is closed. No other event may occur.

mod transfer;

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::mem::{forget, replace, take};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::mpsc::{self, Sender};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use anello::DriverKind;
use anello::event_loop::{
    Direction, EventKind, EventLoop, Events, FileId, Interest, ListenerId, LoopWaker, ObjectId,
    OutgoingDatagram, RecvBatch, SourceId, StreamId, TimerId, UdpId,
};
use anello::fs::{AlignedBuf, File};
use anello::net::Chunk;

use super::actors::{HEADER_BYTES, drop_hostile};
use super::datagrams::{Exchange, SILENCE, check_all, payload};
use super::hostile::{Hostility, drop_victims, leave_victim, set_hostile_events, take_victims};
use super::model::Connection;
use super::{Trace, may_fork};
use crate::common::event_loops::open;
use crate::common::fork::in_child;
use crate::common::{Rng, Setup};
use crate::deliberate::contain;

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Token of the objects of other loops.
const FOREIGN: usize = 1 << 40;

/// A token, and whether the call sends. Connecting and writing are sending.
type Call = (usize, bool);

enum Object {
    TcpListener(ListenerId, SocketAddr),
    UnixListener(ListenerId, UnixAddress),
    Stream(Endpoint),
    UdpSender { id: UdpId, to: SocketAddr, left: usize, exchange: Rc<Exchange> },
    UdpReceiver { id: UdpId, exchange: Rc<Exchange> },
    File { file: File, block: Vec<u8>, offset: u64, operation: Option<FileId>, is_written: bool },
    Source { id: SourceId, near: UnixStream, far: UnixStream, written: u8, read: u8, left: u8 },
}

/// One side of a connection.
struct Endpoint {
    id: StreamId,
    /// `None` until an accepted stream has received the number of its connection.
    side: Option<(Rc<Connection>, usize)>,
    /// Bytes of the number that a client has not sent yet, or that an accepted stream has received.
    header: Vec<u8>,
    is_connecting: bool,
    sends_left: usize,
    is_shut: bool,
    has_eof: bool,
}

impl Endpoint {
    /// Returns whether an error is expected. If the number of the connection is unknown, any error is.
    fn may_break(&self) -> bool {
        self.side.as_ref().is_none_or(|(connection, _)| connection.may_break.get())
    }
}

impl Object {
    /// Returns whether something is left to receive, and to send.
    fn activity(&self) -> [bool; 2] {
        match self {
            Self::Stream(it) => [!it.is_connecting && !it.has_eof, it.side.is_some() && !it.is_shut],
            // Without its receiver, the sender ends.
            Self::UdpSender { exchange, .. } => {
                [false, exchange.has_room() || exchange.is_receiver_gone.get()]
            }
            Self::Source { written, read, left, .. } => [read < written || *left > 0, *left > 0],
            _ => [true, false],
        }
    }

    fn id(&self) -> Option<ObjectId> {
        Some(match self {
            Self::TcpListener(id, _) | Self::UnixListener(id, _) => (*id).into(),
            Self::Stream(it) => it.id.into(),
            Self::UdpSender { id, .. } | Self::UdpReceiver { id, .. } => (*id).into(),
            Self::Source { id, .. } => (*id).into(),
            Self::File { .. } => return None,
        })
    }

    fn is_listener(&self) -> bool {
        matches!(self, Self::TcpListener(..) | Self::UnixListener(..))
    }
}

/// A call that has returned `Pending`.
struct Wait {
    kind: EventKind,
    /// Cleared if a later call has completed although no event was reported: the event may still follow.
    is_certain: bool,
}

struct Program<'a> {
    event_loop: EventLoop,
    setup: &'a Setup,
    random: Rng,
    ends_early: bool,
    steps: usize,
    is_lossy: bool,
    hostility: &'a Hostility,
    objects: BTreeMap<usize, Object>,
    last_token: usize,
    waits: BTreeMap<Call, Wait>,
    deadlines: BTreeMap<Call, Duration>,
    timers: BTreeMap<usize, (TimerId, Duration)>,
    connections: Vec<Rc<Connection>>,
    stale: Vec<ObjectId>,
    aborted: Vec<StreamId>,
    kept: Vec<Chunk>,
    is_wake_expected: bool,
    /// A thread that calls wakers. `None` on the simulated kernels.
    elsewhere: Option<Sender<LoopWaker>>,
    trace: Trace,
}

/// Objects that are dropped while their thread ends.
struct EndOfThread {
    objects: Vec<Box<dyn Any>>,
    ended: Sender<thread::Result<()>>,
}

impl Drop for EndOfThread {
    fn drop(&mut self) {
        let objects = take(&mut self.objects);
        self.ended.send(catch_unwind(AssertUnwindSafe(|| drop(objects)))).ok();
    }
}

thread_local! {
    static END: RefCell<Option<EndOfThread>> = const { RefCell::new(None) };
}

/// An event loop that is used by the destructor.
struct TurnsOnDrop(EventLoop);

impl Drop for TurnsOnDrop {
    fn drop(&mut self) {
        self.0.turn(&mut Events::new(), Some(Duration::ZERO)).unwrap();
    }
}

/// Runs the program on a thread of its own, in whose thread-local values the loop may be left.
pub fn run_on_thread(
    seed: u64,
    setup: &Setup,
    is_lossy: bool,
    hostility: &Hostility,
    events: Option<(Rng, bool)>,
) -> Trace {
    let (ended, ends) = mpsc::channel();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_hostile_events(events);
            // Thread-local values are dropped in the reverse order of their first use.
            if seed.is_multiple_of(3) {
                END.with(|_| ());
            }
            run(seed, setup, is_lossy, hostility, Some(ended))
        });
        let trace = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        ends.recv().expect("a destructor").unwrap_or_else(|panic| resume_unwind(panic));
        trace
    })
}

/// Runs the program for a seed. On the simulated kernels, the same seed always gives the same trace. With
/// `end_of_thread`, the loop is dropped when the thread ends.
pub fn run(
    seed: u64,
    setup: &Setup,
    is_lossy: bool,
    hostility: &Hostility,
    end_of_thread: Option<Sender<thread::Result<()>>>,
) -> Trace {
    let (mut program, thread) = Program::new(seed, setup, is_lossy, hostility);
    program.run();
    let trace = program.end(end_of_thread);
    thread.into_iter().for_each(|thread| thread.join().unwrap());
    trace
}

thread_local! {
    static PROGRAM: RefCell<Option<Program<'static>>> = const { RefCell::new(None) };
}

/// Runs the program in a thread-local value, which is dropped if hostile code ends the process.
pub fn run_in_thread_local(seed: u64, setup: &Setup, is_lossy: bool) {
    let (setup, hostility) = (Box::leak(Box::new(setup.clone())), Box::leak(Box::default()));
    if seed.is_multiple_of(2) {
        PROGRAM.with(|_| ());
    }
    PROGRAM.set(Some(Program::new(seed, setup, is_lossy, hostility).0));
    PROGRAM.with_borrow_mut(|program| program.as_mut().unwrap().run());
    PROGRAM.take().unwrap().end(None);
}

impl<'a> Program<'a> {
    /// Returns the program for a seed, and the thread that calls its wakers.
    fn new(
        seed: u64,
        setup: &'a Setup,
        is_lossy: bool,
        hostility: &'a Hostility,
    ) -> (Self, Option<thread::JoinHandle<()>>) {
        let mut random = Rng::with_seed(seed);
        let (ends_early, steps) = (random.bool(), random.usize(..300));
        let is_simulated = matches!(setup.kind, DriverKind::Sim(_));
        let (elsewhere, wakers) = mpsc::channel::<LoopWaker>();
        let call_all = move || wakers.into_iter().for_each(|waker| waker.wake());
        let thread = (!is_simulated).then(|| thread::spawn(call_all));
        let program = Self {
            event_loop: open(setup),
            setup,
            random,
            ends_early,
            steps,
            is_lossy,
            hostility,
            objects: BTreeMap::new(),
            last_token: 0,
            waits: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            timers: BTreeMap::new(),
            connections: Vec::new(),
            stale: Vec::new(),
            aborted: Vec::new(),
            kept: Vec::new(),
            is_wake_expected: false,
            elsewhere: thread.as_ref().map(|_| elsewhere),
            trace: Vec::new(),
        };
        (program, thread)
    }

    fn run(&mut self) {
        (0..self.steps).for_each(|_| self.act());
        if !self.ends_early {
            self.finish();
        }
    }
}

impl Program<'_> {
    /// Performs one random action.
    fn act(&mut self) {
        let token = self.random.choice(self.objects.keys().copied().collect::<Vec<_>>());
        match (self.random.usize(..20), token) {
            (0..3, _) => self.open(),
            (3..13, Some(token)) => {
                let is_send = self.random.bool();
                // The call is repeated even if no event has been reported.
                if self.objects[&token].activity()[usize::from(is_send)] {
                    self.step(token, is_send);
                }
            }
            (13, Some(token)) => self.cancel(token),
            (14, Some(token)) if self.random.usize(..4) == 0 => self.abandon(token),
            (14, _) => self.use_stale(),
            (15, _) if !self.is_wake_expected => {
                self.is_wake_expected = true;
                let waker = self.event_loop.waker();
                match &self.elsewhere {
                    Some(elsewhere) => elsewhere.send(waker).unwrap(),
                    None => waker.wake(),
                }
            }
            (16, _) if may_fork() && self.random.usize(..10) == 0 => self.fork(),
            _ => {
                let timeout = Duration::from_micros(self.random.u64(..100));
                self.turn(Some(timeout));
            }
        }
    }

    /// Forks a child that drops or leaks its copy of the loop, and creates a loop of its own.
    fn fork(&mut self) {
        in_child("a child of an event loop", || {
            let event_loop = replace(&mut self.event_loop, open(self.setup));
            match self.random.bool() {
                true => drop(event_loop),
                false => forget(event_loop),
            }
            self.kept.clear();
            contain(drop_victims);
        });
    }

    /// Reacts to events only, until everything has ended, and then until the kernel has closed all sockets.
    fn finish(&mut self) {
        loop {
            let mut is_idle = true;
            for token in self.objects.keys().copied().collect::<Vec<_>>() {
                while let Some(is_send) = [false, true].into_iter().find(|it| self.is_runnable((token, *it)))
                {
                    self.step(token, is_send);
                    is_idle = false;
                }
            }
            let is_over = self.objects.values().all(Object::is_listener);
            if is_idle && is_over && self.timers.is_empty() && !self.is_wake_expected {
                break;
            }
            if is_idle {
                self.turn(None);
            }
        }
        while let Some((token, _)) = self.objects.first_key_value() {
            self.abandon(*token);
        }
        while self.event_loop.metrics().sockets > 0 {
            self.turn(Some(Duration::from_millis(1)));
        }
    }

    /// Ends the loop, and drops what may outlive it before or afterwards.
    fn end(mut self, end_of_thread: Option<Sender<thread::Result<()>>>) -> Trace {
        if let Some(ended) = end_of_thread {
            let mut objects = take_victims();
            match self.random.bool() {
                true => objects.push(Box::new(TurnsOnDrop(self.event_loop))),
                false => objects.push(Box::new(self.event_loop)),
            }
            objects.push(Box::new(self.kept));
            self.random.shuffle(&mut objects);
            END.set(Some(EndOfThread { objects, ended }));
            return self.trace;
        }
        if self.random.bool() {
            self.kept.clear();
        }
        match self.random.usize(..3) {
            0 => drop(self.event_loop),
            1 => self.event_loop.shutdown(Duration::from_millis(self.random.u64(..3))).unwrap(),
            _ => leave_victim(self.event_loop),
        }
        contain(drop_victims);
        self.trace
    }

    fn is_runnable(&self, call: Call) -> bool {
        let is_active = |object: &Object| object.activity()[usize::from(call.1)];
        self.objects.get(&call.0).is_some_and(is_active)
            && self.waits.get(&call).is_none_or(|wait| !wait.is_certain)
    }

    fn turn(&mut self, timeout: Option<Duration>) {
        let mut events = Events::new();
        self.event_loop.turn(&mut events, timeout).unwrap();
        let now = self.event_loop.monotonic_now();
        for event in events.iter() {
            let (token, kind) = (event.token(), event.kind());
            self.trace.push(("event", (token * 16 + kind as usize) as u64));
            let call = (token, is_send(kind));
            match kind {
                EventKind::Wake => assert!(take(&mut self.is_wake_expected), "{event:?}"),
                EventKind::Timer => {
                    let timer = self.timers.remove(&token);
                    assert!(timer.is_some_and(|(_, due)| due <= now), "{event:?}");
                }
                EventKind::ReceiveDeadline | EventKind::SendDeadline => {
                    assert!(self.waits.remove(&call).is_some(), "{event:?}, but no call is pending");
                    assert!(self.deadlines.remove(&call).is_some_and(|due| due <= now), "{event:?}");
                }
                _ => {
                    let wait = self.waits.remove(&call);
                    assert!(wait.is_some_and(|wait| wait.kind == kind), "{event:?}, but no call is pending");
                }
            }
        }
    }

    /// Records the result of a call. Sets a deadline for some pending calls.
    fn record<T>(
        &mut self,
        id: Option<ObjectId>,
        token: usize,
        kind: EventKind,
        polled: Poll<T>,
    ) -> Option<T> {
        let call = (token, is_send(kind));
        match (polled, id) {
            (Poll::Ready(output), _) => {
                self.waits.entry(call).and_modify(|wait| wait.is_certain = false);
                self.deadlines.remove(&call);
                return Some(output);
            }
            (Poll::Pending, Some(id)) if self.random.usize(..8) == 0 => {
                let after = Duration::from_micros(self.random.u64(..300));
                self.set_deadline(id, call, after);
            }
            (Poll::Pending, _) => {}
        }
        self.waits.insert(call, Wait { kind, is_certain: true });
        None
    }

    fn set_deadline(&mut self, id: ObjectId, call: Call, after: Duration) {
        // The call reads the clock later.
        let due = self.event_loop.monotonic_now() + after;
        self.event_loop.set_deadline(id, direction(call.1), after).unwrap();
        self.deadlines.insert(call, due);
    }

    // ---- Opening and closing ---------------------------------------------------------------------------------------

    fn new_token(&mut self) -> usize {
        self.last_token += 1;
        self.last_token
    }

    /// Opens an object of a random kind.
    fn open(&mut self) {
        let token = self.new_token();
        let object = match self.random.usize(..10) {
            0 => {
                let id = self.event_loop.listen(ANY_PORT, token).unwrap();
                Object::TcpListener(id, self.event_loop.local_addr(id).unwrap())
            }
            1 => {
                let name = format!("anello-{}-{:x}-{token}", std::process::id(), self.random.u64(..));
                let address = UnixAddress::from_abstract_name(name).unwrap();
                Object::UnixListener(self.event_loop.listen_unix(&address, token).unwrap(), address)
            }
            2..6 => return self.connect(token),
            6 if self.elsewhere.is_some() => {
                let (one, other) = UnixStream::pair().unwrap();
                let connection = self.new_connection();
                let tokens = [token, self.new_token()];
                for (side, (stream, token)) in [one, other].into_iter().zip(tokens).enumerate() {
                    let id = self.event_loop.import_stream(stream, token).unwrap();
                    self.insert_stream(id, Some((Rc::clone(&connection), side)), Vec::new(), false);
                }
                return;
            }
            6 | 7 => return self.open_udp([token, self.last_token + 1]),
            8 if self.elsewhere.is_some() && self.random.bool() => {
                let (near, far) = UnixStream::pair().unwrap();
                near.set_nonblocking(true).unwrap();
                let interest = Interest::READABLE | Interest::WRITABLE;
                let id = self.event_loop.register(&near, interest, token).unwrap();
                Object::Source { id, near, far, written: 0, read: 0, left: self.random.u8(1..6) }
            }
            8 => {
                let block = vec![token as u8; 1 + self.random.usize(..150_000)];
                let (file, offset) = (File::from(tempfile::tempfile().unwrap()), self.random.u64(..9000));
                Object::File { file, block, offset, operation: None, is_written: false }
            }
            9 if self.random.usize(..4) == 0 => {
                // Hostile code drops another loop, in which calls are pending.
                let mut other = open(self.setup);
                let listener = other.listen(ANY_PORT, FOREIGN).unwrap();
                let socket = other.bind_udp(ANY_PORT, FOREIGN).unwrap();
                assert!(!matches!(other.accept(listener, FOREIGN), Poll::Ready(Ok(_))));
                assert!(other.recv_from(socket, &mut [0; 9]).is_pending());
                return leave_victim(other);
            }
            _ => {
                let after = Duration::from_micros(self.random.u64(..1000));
                let due = self.event_loop.monotonic_now() + after;
                self.timers.insert(token, (self.event_loop.add_timer(after, token), due));
                return;
            }
        };
        self.objects.insert(token, object);
    }

    fn new_connection(&mut self) -> Rc<Connection> {
        self.connections.push(Connection::new(self.random.u64(..), self.is_lossy));
        Rc::clone(&self.connections[self.connections.len() - 1])
    }

    /// Connects to a random listener.
    fn connect(&mut self, token: usize) {
        let listeners = self.objects.values().filter(|object| object.is_listener());
        let (connected, is_connecting) = match self.random.choice(listeners.collect::<Vec<_>>()) {
            Some(Object::TcpListener(_, address)) => (self.event_loop.connect(*address, token), true),
            Some(Object::UnixListener(_, address)) => (self.event_loop.connect_unix(address, token), false),
            _ => return,
        };
        match connected {
            Ok(id) => {
                let header = (self.connections.len() as u64).to_ne_bytes().to_vec();
                let side = Some((self.new_connection(), 0));
                self.insert_stream(id, side, header, is_connecting);
            }
            Err(error) => assert!(self.is_lossy, "{error}"),
        }
    }

    fn insert_stream(
        &mut self,
        id: StreamId,
        side: Option<(Rc<Connection>, usize)>,
        header: Vec<u8>,
        is_connecting: bool,
    ) {
        let sends_left = self.random.usize(..12);
        let (is_shut, has_eof) = (false, false);
        let endpoint = Endpoint { id, side, header, is_connecting, sends_left, is_shut, has_eof };
        self.objects.insert(id.token(), Object::Stream(endpoint));
    }

    fn open_udp(&mut self, tokens: [usize; 2]) {
        self.last_token = tokens[1];
        let [sender, receiver] = tokens.map(|token| self.event_loop.bind_udp(ANY_PORT, token).unwrap());
        let to = self.event_loop.udp_local_addr(receiver).unwrap();
        if self.random.bool() {
            self.event_loop.connect_udp(sender, to).unwrap();
        }
        let (exchange, left) = (Exchange::new(self.is_lossy), self.random.usize(..30));
        let object = Object::UdpSender { id: sender, to, left, exchange: Rc::clone(&exchange) };
        self.objects.insert(tokens[0], object);
        self.objects.insert(tokens[1], Object::UdpReceiver { id: receiver, exchange });
    }

    /// Cancels a timer, or a call of an object: no event may follow.
    fn cancel(&mut self, token: usize) {
        if self.random.bool()
            && let Some((_, (timer, _))) = self.timers.pop_first()
        {
            assert!(self.event_loop.cancel_timer(timer), "the event of a timer was lost");
            return assert!(!self.event_loop.cancel_timer(timer));
        }
        let Some(id) = self.objects[&token].id() else { return self.abandon(token) };
        let call = (token, self.random.bool());
        let was_waiting = self.event_loop.cancel(id, direction(call.1));
        self.deadlines.remove(&call);
        match self.waits.remove(&call) {
            Some(wait) => assert!(was_waiting || !wait.is_certain, "an event was lost"),
            None => assert!(!was_waiting, "a call is pending although its event was reported"),
        }
    }

    /// Closes an object before it has ended.
    fn abandon(&mut self, token: usize) {
        let object = self.objects.remove(&token).unwrap();
        if matches!(object, Object::Stream(Endpoint { side: None, .. })) {
            // The model would not know that its connection has been broken.
            self.objects.insert(token, object);
        } else {
            self.close(token, object, true);
        }
    }

    /// Closes an object. If it has not ended, its connections break.
    fn close(&mut self, token: usize, object: Object, is_early: bool) {
        self.stale.extend(object.id());
        match object {
            Object::TcpListener(id, _) | Object::UnixListener(id, _) => {
                // Connections that have not been accepted are reset.
                self.connections.iter().for_each(|connection| connection.may_break.set(true));
                self.event_loop.close_listener(id);
            }
            Object::Stream(endpoint) => {
                if let Some((connection, side)) = &endpoint.side {
                    connection.directions[*side].end();
                    connection.may_break.set(connection.may_break.get() || is_early);
                }
                if endpoint.may_break() && self.random.bool() {
                    self.event_loop.abort(endpoint.id);
                    self.aborted.push(endpoint.id);
                } else {
                    self.event_loop.close(endpoint.id);
                }
            }
            Object::UdpSender { id, exchange, .. } => {
                exchange.is_sender_gone.set(true);
                self.event_loop.close_udp(id);
            }
            Object::UdpReceiver { id, exchange } => {
                exchange.is_receiver_gone.set(true);
                self.event_loop.close_udp(id);
            }
            Object::Source { id, .. } => self.event_loop.deregister(id),
            Object::File { operation, .. } => {
                let is_cancelled = operation.is_none_or(|id| self.event_loop.cancel_file(id));
                assert!(is_cancelled && operation.is_none_or(|id| !self.event_loop.cancel_file(id)));
            }
        }
        for is_send in [false, true] {
            self.waits.remove(&(token, is_send));
            self.deadlines.remove(&(token, is_send));
        }
    }

    /// Uses identifiers of closed objects, whose slots may have been reused.
    fn use_stale(&mut self) {
        let direction = direction(self.random.bool());
        if let Some(id) = self.random.choice(&self.stale) {
            assert!(!self.event_loop.cancel(*id, direction));
            let error = self.event_loop.set_deadline(*id, direction, Duration::ZERO).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotConnected);
        }
        if let Some(id) = self.random.choice(&self.aborted) {
            assert!(matches!(self.event_loop.recv(*id), Poll::Ready(Err(_))));
            assert!(matches!(self.event_loop.write(*id, b"x"), Poll::Ready(Err(_))));
            self.event_loop.abort(*id);
        }
    }

    // ---- Calls -----------------------------------------------------------------------------------------------------

    /// Makes one call, and closes the object if it has ended.
    fn step(&mut self, token: usize, is_send: bool) {
        let mut object = self.objects.remove(&token).unwrap();
        let id = object.id();
        let is_over = match &mut object {
            Object::TcpListener(listener, _) | Object::UnixListener(listener, _) => {
                let new_token = self.new_token();
                let accepted = self.event_loop.accept(*listener, new_token);
                // An error may concern one client only.
                if let Some(Ok(stream)) = self.record(id, token, EventKind::Accept, accepted) {
                    self.insert_stream(stream, None, Vec::new(), false);
                }
                false
            }
            Object::Stream(it) => {
                let result = if is_send { self.send(it, token) } else { self.receive(it, token) };
                if let Err(error) = result {
                    assert!(it.may_break(), "unexplained error: {error}");
                    return self.close(token, object, true);
                }
                it.has_eof && (it.is_shut || it.side.is_none())
            }
            Object::UdpSender { id, to, left, exchange } => {
                // Another socket can have the address of a receiver that has been closed.
                let is_over = *left == 0 || exchange.is_receiver_gone.get();
                if !is_over {
                    *left -= 1;
                    self.send_datagrams(*id, *to, exchange);
                }
                is_over
            }
            Object::UdpReceiver { id, exchange } => {
                if !self.receive_datagrams(*id, exchange) {
                    self.set_deadline((*id).into(), (token, false), SILENCE);
                }
                exchange.is_sender_gone.get() && (exchange.is_lossy || exchange.in_flight() == 0)
            }
            Object::File { file, block, offset, operation, is_written } => {
                let operation_id = *operation.get_or_insert_with(|| match is_written {
                    false => self.event_loop.write_at(file, block[..].into(), *offset, token),
                    true => self.event_loop.read_at(file, AlignedBuf::new(block.len()), *offset, token),
                });
                let polled = self.event_loop.poll_file(operation_id);
                match self.record(None, token, EventKind::File, polled) {
                    None => false,
                    Some((count, buffer)) => {
                        let count = count.unwrap();
                        // Data that is only partly in the page cache is read partly.
                        assert!(count == block.len() || *is_written && count > 0);
                        assert!(buffer[..count] == block[..count]);
                        assert!(!self.event_loop.cancel_file(operation.take().unwrap()), "it is stale");
                        replace(is_written, true)
                    }
                }
            }
            Object::Source { id: source, near, far, written, read, left } => {
                let (interest, kind) = match is_send {
                    true => (Interest::WRITABLE, EventKind::Writable),
                    false => (Interest::READABLE, EventKind::Readable),
                };
                let ready = self.event_loop.poll_ready(*source, interest);
                let is_ready = self.record(id, token, kind, ready).transpose().unwrap().is_some();
                if is_ready && is_send {
                    far.write_all(&[*written]).unwrap();
                    (*written, *left) = (*written + 1, *left - 1);
                } else if is_ready {
                    let mut byte = [0];
                    while near.read(&mut byte).is_ok() {
                        assert_eq!(byte, [*read]);
                        *read += 1;
                    }
                    self.event_loop.clear_ready(*source, interest);
                }
                *left == 0 && read == written
            }
        };
        match is_over {
            true => self.close(token, object, false),
            false => drop(self.objects.insert(token, object)),
        }
    }
}

fn is_send(kind: EventKind) -> bool {
    matches!(kind, EventKind::Connect | EventKind::Send | EventKind::SendDeadline | EventKind::Writable)
}

fn direction(is_send: bool) -> Direction {
    if is_send { Direction::Send } else { Direction::Receive }
}

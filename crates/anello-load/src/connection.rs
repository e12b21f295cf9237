//! One connection: request, reply, request, reply, until the slice is over or something breaks.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Instant;

use anello::net::{Closer, TcpStream};
use hdrhistogram::Histogram;

use crate::errors::{ErrorKind, Errors};
use crate::message::Messages;
use crate::session::latency_histogram;

/// What [`Watch::since_ns`] says while nothing is in flight.
const IDLE: u64 = u64::MAX;

/// What all connections of a session share.
#[derive(Debug)]
pub(crate) struct Shared {
    origin: Instant,
    pub messages: Messages,
    pub message_bytes: usize,
    pub verify: bool,
    /// No request begins after this moment.
    pub deadline_ns: Cell<u64>,
    pub tally: Tally,
}

/// What the connections have counted in this slice.
#[derive(Debug)]
pub(crate) struct Tally {
    pub requests: Cell<u64>,
    pub latency: RefCell<Histogram<u64>>,
    pub errors: RefCell<Errors>,
    /// The last reply or trouble.
    pub last_ns: Cell<u64>,
    /// Connections that did not break.
    pub open: Cell<usize>,
}

impl Shared {
    pub fn new(messages: Messages, message_bytes: usize, verify: bool) -> Self {
        let tally = Tally {
            requests: Cell::new(0),
            latency: RefCell::new(latency_histogram()),
            errors: RefCell::default(),
            last_ns: Cell::new(0),
            open: Cell::new(0),
        };
        Self { origin: Instant::now(), messages, message_bytes, verify, deadline_ns: Cell::new(0), tally }
    }

    /// Nanoseconds since the session began.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}

/// How an overseer looks after a connection without costing it a timer per request.
#[derive(Debug)]
pub(crate) struct Watch {
    /// When the request in flight began.
    since_ns: Cell<u64>,
    given_up: Cell<Option<GivenUp>>,
    closer: Closer,
}

/// Why the overseer ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    /// The reply took too long.
    TimedOut,
    /// The user wants to stop.
    Abandoned,
}

impl Watch {
    /// Breaks the connection if its request has been in flight for too long. Its task then sees the end.
    pub fn check(&self, now_ns: u64, stall_timeout_ns: u64) {
        let since_ns = self.since_ns.get();
        if since_ns != IDLE && now_ns.saturating_sub(since_ns) > stall_timeout_ns {
            self.give_up(GivenUp::TimedOut);
        }
    }

    /// Breaks the connection if a request is in flight, because nobody wants to wait for it any more.
    pub fn abandon(&self) {
        if self.since_ns.get() != IDLE {
            self.give_up(GivenUp::Abandoned);
        }
    }

    fn give_up(&self, why: GivenUp) {
        if self.given_up.get().is_none() {
            self.given_up.set(Some(why));
            self.closer.end();
        }
    }
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    index: u64,
    next_request: u64,
    /// Requests answered in this slice.
    pub answered: u64,
    stream: TcpStream,
    pub watch: Rc<Watch>,
}

/// What a reply was, if there was one.
enum Reply {
    Right,
    Wrong,
}

/// Why a connection is of no more use.
struct Fault {
    kind: ErrorKind,
    text: String,
}

impl Connection {
    pub fn new(index: u64, stream: TcpStream) -> Self {
        let watch = Watch { since_ns: Cell::new(IDLE), given_up: Cell::new(None), closer: stream.closer() };
        Self { index, next_request: 0, answered: 0, stream, watch: Rc::new(watch) }
    }

    /// Keeps a request in flight until the deadline. Gives the connection back if it is still good.
    pub async fn run(mut self, shared: Rc<Shared>) -> Option<Self> {
        let tally = &shared.tally;
        self.answered = 0;
        let mut began_ns = shared.now_ns();
        loop {
            self.watch.since_ns.set(began_ns);
            let reply = self.exchange(&shared).await;
            // The end of one request is the beginning of the next: one look at the clock for each.
            let ended_ns = shared.now_ns();
            tally.last_ns.set(ended_ns);
            match reply {
                Ok(Reply::Right) => {
                    self.answered += 1;
                    tally.requests.set(tally.requests.get() + 1);
                    tally.latency.borrow_mut().saturating_record(ended_ns - began_ns);
                }
                Ok(Reply::Wrong) => {
                    let (index, request) = (self.index, self.next_request - 1);
                    tally.errors.borrow_mut().add(ErrorKind::WrongBytes, || {
                        format!("the reply to request {request} of connection {index} is not what was sent")
                    });
                }
                Err(fault) => {
                    self.bury(fault, &shared);
                    return None;
                }
            }
            if ended_ns >= shared.deadline_ns.get() {
                self.watch.since_ns.set(IDLE);
                return Some(self);
            }
            began_ns = ended_ns;
        }
    }

    /// Sends one message and receives its reply.
    #[inline]
    async fn exchange(&mut self, shared: &Shared) -> Result<Reply, Fault> {
        let (connection, request) = (self.index, self.next_request);
        self.next_request += 1;
        self.stream
            .send(shared.messages.message(connection, request))
            .await
            .map_err(|error| Fault::io(&error))?;
        let (mut received_bytes, mut right) = (0, true);
        while received_bytes < shared.message_bytes {
            let chunk = match self.stream.recv().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Err(Fault::closed(received_bytes, shared.message_bytes)),
                Err(error) => return Err(Fault::io(&error)),
            };
            if chunk.len() > shared.message_bytes - received_bytes {
                return Err(Fault::long(received_bytes + chunk.len(), shared.message_bytes));
            }
            if shared.verify {
                right &= shared.messages.is_right(connection, request, received_bytes, &chunk);
            }
            received_bytes += chunk.len();
        }
        Ok(if right { Reply::Right } else { Reply::Wrong })
    }

    /// Counts what broke the connection, and closes it without sending what is left.
    fn bury(self, fault: Fault, shared: &Shared) {
        let tally = &shared.tally;
        tally.open.set(tally.open.get() - 1);
        match self.watch.given_up.get() {
            Some(GivenUp::Abandoned) => {}
            Some(GivenUp::TimedOut) => tally.errors.borrow_mut().add(ErrorKind::Timeout, || {
                format!("connection {} waited for its reply for too long", self.index)
            }),
            None => tally.errors.borrow_mut().add(fault.kind, || fault.text),
        }
        self.watch.since_ns.set(IDLE);
        self.stream.abort();
    }
}

impl Fault {
    #[cold]
    fn io(error: &io::Error) -> Self {
        Self { kind: ErrorKind::of_exchange(error), text: error.to_string() }
    }

    #[cold]
    fn closed(received_bytes: usize, message_bytes: usize) -> Self {
        let kind = if received_bytes == 0 { ErrorKind::ClosedEarly } else { ErrorKind::ShortReply };
        Self {
            kind,
            text: format!("the server closed after {received_bytes} of {message_bytes} bytes of a reply"),
        }
    }

    #[cold]
    fn long(received_bytes: usize, message_bytes: usize) -> Self {
        let text = format!("at least {received_bytes} bytes came back for a request of {message_bytes}");
        Self { kind: ErrorKind::LongReply, text }
    }
}

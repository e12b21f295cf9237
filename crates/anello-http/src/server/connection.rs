//! One connection: request after request, until one of the two sides has had enough.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use super::ending::End;
use super::input::{Failure, Input};
use super::observer::Observed;
use super::options::ServerOptions;
use super::output::{Outcome, Output, is_of_handler, no_valid_answer, valid_status};
use super::panics::guarded;
use super::transport::{Receiver, Sender};
use super::upgrade::Upgraded;
use super::watch::{Cut, Watch};
use super::worker::Worker;
use crate::h1::{CONTINUE, Head, Rejection};
use crate::observe::metrics::CloseReason;
use crate::request::{Request, RequestBody};
use crate::response::{Response, Upgrade};

/// A connection and what it needs of its worker.
pub(crate) struct Connection<R: Receiver, W> {
    /// The first to be dropped.
    _cut: Cut,
    input: Rc<RefCell<Input<R>>>,
    output: Output<W>,
    watch: Rc<Watch>,
    worker: Rc<Worker>,
    /// There if somebody counts or logs.
    observed: Option<Box<Observed>>,
}

/// What is counted and logged of requests whose handlers were given up, though nothing was answered: where the server did
/// it, and where the client is gone (nginx's word for that).
const CUT_SHORT: u16 = 503;
const CLIENT_GONE: u16 = 499;

/// What to do next.
enum Next {
    Request(Head),
    /// The connection ends, after this answer if there is one.
    End(Option<Rejection>),
}

/// What becomes of the connection after an answer.
enum Goes {
    On,
    Away,
    /// While the client may still be sending.
    AwayInTheMiddle,
    /// To another protocol.
    Over(Box<Upgrade>),
}

impl<R: Receiver, W: Sender> Connection<R, W> {
    pub fn new(receiver: R, sender: W, watch: Rc<Watch>, worker: Rc<Worker>) -> Self {
        let metrics = worker.observer.metrics.clone();
        let input = Input::new(receiver, worker.options.limits, Rc::clone(&watch), metrics);
        let output = Output::new(sender, Rc::clone(&watch));
        let observed = Observed::new(&worker.observer, &watch);
        let cut = Cut(Rc::clone(&watch));
        Self { _cut: cut, input: Rc::new(RefCell::new(input)), output, watch, worker, observed }
    }

    /// Serves it to its end, and says what ended it. An error is one of the connection, which is broken then.
    pub async fn serve<H: AsyncFn(Request) -> Response>(mut self, handler: &H) -> io::Result<CloseReason> {
        loop {
            let head = match self.next().await? {
                Next::Request(head) => head,
                Next::End(None) => {
                    self.output.flush().await?;
                    // The client has ended it: whether it still takes a farewell changes nothing.
                    self.output.shutdown().await.ok();
                    return Ok(CloseReason::Peer);
                }
                Next::End(Some(refusal)) => {
                    self.worker.observer.parse_refusal(refusal.status);
                    let method = self.input.borrow().refused_method();
                    self.output.refuse(&refusal, method, &self.worker.clock.date());
                    if let Some(observed) = &mut self.observed {
                        let input = self.input.borrow();
                        let (status, body_bytes) = (refusal.status, self.output.body_bytes);
                        observed.refused(&self.worker.observer, input.first_line(), status, body_bytes);
                    }
                    self.end_and_linger().await?;
                    return Ok(CloseReason::ProtocolError);
                }
            };
            match self.exchange(head, handler).await? {
                Goes::On => {}
                // The client has said that it sends no more, and nothing has come.
                Goes::Away => {
                    self.output.finish().await?;
                    return Ok(CloseReason::Complete);
                }
                Goes::AwayInTheMiddle => {
                    self.end_and_linger().await?;
                    return Ok(CloseReason::Complete);
                }
                Goes::Over(upgrade) => {
                    self.go_over(upgrade).await?;
                    return Ok(CloseReason::Upgrade);
                }
            }
        }
    }

    /// The next request: of what has come already, or else what was gathered is sent first.
    #[allow(
        clippy::await_holding_refcell_ref,
        reason = "no handler runs meanwhile, and a body that somebody has kept only tries to borrow"
    )]
    #[inline]
    async fn next(&mut self) -> io::Result<Next> {
        let at_hand = self.input.borrow_mut().head_at_hand();
        match at_hand {
            Ok(Some(head)) if !self.output.is_full() => return Ok(Next::Request(head)),
            Ok(Some(head)) => {
                self.output.flush().await?;
                return Ok(Next::Request(head));
            }
            Ok(None) => self.output.settle().await?,
            Err(refusal) => return Ok(Next::End(Some(refusal))),
        }
        // Nobody else has it: bodies of former requests have been received whole.
        let next = self.input.borrow_mut().next_head().await;
        match next {
            Ok(Some(head)) => Ok(Next::Request(head)),
            Ok(None) => Ok(Next::End(None)),
            Err(Failure::Refused(refusal)) => Ok(Next::End(Some(refusal))),
            Err(Failure::Broken(error)) => Err(error),
        }
    }

    /// One request and its answer.
    #[inline]
    async fn exchange<H: AsyncFn(Request) -> Response>(
        &mut self,
        head: Head,
        handler: &H,
    ) -> io::Result<Goes> {
        let (exchange, may_keep_alive) = (head.exchange(), head.may_keep_alive());
        let options: &ServerOptions = &self.worker.options;
        let (has_body, most_discarded) = (head.framing().has_body(), options.max_discarded_body_bytes);
        let protocols = head.upgrade().map(|_| protocols_of(&head));
        self.watch.begin_request(options.request_timeout.is_some());
        let body = if has_body {
            let input: Rc<RefCell<Input<R>>> = Rc::clone(&self.input);
            RequestBody::new(input)
        } else {
            RequestBody::default()
        };
        if let Some(observed) = &mut self.observed {
            observed.begin(&head);
        }
        let request = Request::new(head, body, Rc::clone(&self.watch));
        let mut response = {
            let handling = pin!(async { handler(request).await });
            let mut handling = pin!(guarded(handling));
            let at_once = poll_fn(|context| Poll::Ready(handling.as_mut().poll(context))).await;
            match at_once {
                Poll::Ready(response) => response,
                Poll::Pending => match self.attend(handling).await {
                    Ok(response) => response,
                    Err(error) => return Err(self.unanswered(error)),
                },
            }
        };
        if response.status() == 101 {
            check_upgrade(&mut response, protocols.as_deref());
        }
        let goes_on = has_body && self.reads_on(&response);
        let is_little = !has_body || goes_on || self.input.borrow_mut().end_body(most_discarded);
        // One that was struck receives no more.
        let closes = !is_little || self.worker.is_draining() || self.watch.late().is_some();
        if !is_little && response.status() == 101 {
            // What follows would be taken for the other protocol.
            response = body_in_the_way();
        }
        let date = self.worker.clock.date();
        let status = response.status();
        let outcome = self.output.respond(exchange, response, &date, closes).await;
        if let Some(observed) = &mut self.observed {
            observed.end(&self.worker.observer, valid_status(status), self.output.body_bytes);
        }
        if goes_on {
            self.input.borrow_mut().end_body(most_discarded);
        }
        self.watch.end_request();
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return Err(Box::pin(self.broken_off(error)).await),
        };
        Ok(match outcome {
            // What nobody has read has to be out of the way before the next request.
            Outcome::KeepsAlive if !has_body || self.discard(most_discarded).await? => Goes::On,
            Outcome::Tunnel(Some(upgrade)) if !has_body || self.discard(most_discarded).await? => {
                Goes::Over(upgrade)
            }
            Outcome::Closes if !may_keep_alive && !has_body && !self.input.borrow().has_more_at_hand() => {
                Goes::Away
            }
            _ => Goes::AwayInTheMiddle,
        })
    }

    /// Whether the body of the request is still read while the answer goes out: what streams the answer may have kept it. A
    /// client that waits to be asked for it is asked now, since the answer's head is the last word otherwise.
    fn reads_on(&mut self, response: &Response) -> bool {
        let may_be_read = response.body().is_stream() && Rc::weak_count(&self.input) > 0;
        if !may_be_read || !self.input.borrow().is_in_body() {
            return false;
        }
        if self.input.borrow_mut().take_awaited_continue() {
            self.output.push(CONTINUE);
        }
        true
    }

    /// Awaits a handler that was not done at once: answers before its own do not wait for it, and the client is asked for its
    /// body when the handler does. An error when the connection has broken or was ended: then there will be no answer.
    async fn attend(
        &mut self,
        mut handling: Pin<&mut impl Future<Output = Response>>,
    ) -> io::Result<Response> {
        // It was polled just now, unless something else is waited for first.
        let mut is_polled = self.output.is_empty() && !self.input.borrow().wants_continue();
        loop {
            if self.input.borrow_mut().take_wanted_continue() {
                self.output.push(CONTINUE);
            }
            self.output.flush().await?;
            let handled = poll_fn(|context| {
                if !std::mem::take(&mut is_polled)
                    && let Poll::Ready(response) = handling.as_mut().poll(context)
                {
                    return Poll::Ready(Some(response));
                }
                if self.input.borrow().wants_continue() {
                    return Poll::Ready(None);
                }
                self.output.pass_on(context);
                Poll::Pending
            });
            if let Some(response) = self.watch.ending.before(handled).await? {
                return Ok(response);
            }
        }
    }

    /// The answer at hand has come to no end. When that is its handler's doing, those before it, and what there is of it,
    /// reach the client all the same, which may still be sending.
    #[cold]
    #[allow(
        clippy::await_holding_refcell_ref,
        reason = "the handler has ended, and a body that somebody has kept only tries to borrow"
    )]
    async fn broken_off(&mut self, error: io::Error) -> io::Error {
        if is_of_handler(&error) {
            match self.output.shutdown().await {
                Ok(()) => self.input.borrow_mut().linger().await,
                Err(broken) => {
                    tracing::debug!(%broken, "a connection broke while its last answers were sent");
                }
            }
        }
        error
    }

    /// The request at hand gets no answer, as its handler was given up.
    #[cold]
    fn unanswered(&mut self, error: io::Error) -> io::Error {
        let status = match self.watch.ending.get() {
            Some(End::Deadline | End::Server) => CUT_SHORT,
            Some(End::Client) | None => CLIENT_GONE,
        };
        if let Some(observed) = &mut self.observed {
            observed.end(&self.worker.observer, status, 0);
        }
        error
    }

    #[allow(
        clippy::await_holding_refcell_ref,
        reason = "the handler has ended, and a body that it has kept only tries to borrow"
    )]
    async fn discard(&mut self, most_bytes: u64) -> io::Result<bool> {
        if !self.input.borrow().is_in_body() {
            return Ok(true);
        }
        // What was answered must not wait for what is dropped.
        self.output.flush().await?;
        let is_whole = self.input.borrow_mut().discard_body(most_bytes).await;
        Ok(is_whole)
    }

    /// Another protocol is spoken from now on.
    async fn go_over(mut self, upgrade: Box<Upgrade>) -> io::Result<()> {
        self.output.hand_over().await?;
        self.watch.go_over();
        let Some(input) = Rc::into_inner(self.input) else {
            // A body that somebody has kept holds it only while it is polled.
            return Err(io::Error::other("a request's body is in use, whose answer changes the protocol"));
        };
        let (receiver, first) = input.into_inner().into_receiver();
        if let Some(speak) = upgrade.speak {
            let upgraded = Upgraded::new(receiver, self.output.into_sender(), first);
            self.watch.ending.before_server_ends(speak(upgraded)).await?;
        }
        Ok(())
    }

    /// The server has something to say last, while the client may still be sending.
    #[allow(
        clippy::await_holding_refcell_ref,
        reason = "no handler runs any more, and a body that somebody has kept only tries to borrow"
    )]
    async fn end_and_linger(mut self) -> io::Result<()> {
        self.output.shutdown().await?;
        self.input.borrow_mut().linger().await;
        Ok(())
    }
}

#[cold]
fn body_in_the_way() -> Response {
    Response::text("413 Content Too Large: a body is in the way of the other protocol\n").with_status(413)
}

/// The protocols that a client asks for, if it does.
#[cold]
fn protocols_of(head: &Head) -> Box<[u8]> {
    head.fields_named("upgrade").collect::<Vec<_>>().join(&b',').into_boxed_slice()
}

/// Changes an answer that goes over to what its client has not asked for (RFC 9110, section 7.8), or to nothing.
#[cold]
fn check_upgrade(response: &mut Response, asked: Option<&[u8]>) {
    match &response.upgrade {
        Some(upgrade) if upgrade.speak.is_some() => {
            if !upgrade.is_among(asked.unwrap_or_default()) {
                *response = Response::upgrade_required(&*upgrade.protocol);
            }
        }
        _ => {
            tracing::error!("a handler answered 101 without Response::upgrade, which was sent as 500");
            *response = no_valid_answer();
        }
    }
}

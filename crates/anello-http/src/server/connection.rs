//! One connection: request after request, until one of the two sides has had enough.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use super::cancellation::CancelReason;
use super::input::{Input, InputError};
use super::observer::RequestRecord;
use super::options::ServerOptions;
use super::output::{Outcome, Output, invalid_response_fallback, is_handler_error, valid_status};
use super::panics::catch_handler_panic;
use super::timer::{ConnectionTimer, ResetOnDrop};
use super::transport::{Receiver, Sender};
use super::upgrade::Upgraded;
use super::worker::Worker;
use crate::h1::{CONTINUE, Head, Rejection};
use crate::observe::metrics::CloseReason;
use crate::request::{Request, RequestBody};
use crate::response::{Response, Upgrade};

/// A connection and what it needs of its worker.
pub(crate) struct Connection<R: Receiver, W> {
    /// The first to be dropped.
    _reset_on_drop: ResetOnDrop,
    input: Rc<RefCell<Input<R>>>,
    output: Output<W>,
    timer: Rc<ConnectionTimer>,
    worker: Rc<Worker>,
    /// There if somebody counts or logs.
    record: Option<Box<RequestRecord>>,
}

/// What is counted and logged of requests whose handlers were given up, though nothing was answered: where the server did
/// it, and where the client is gone (nginx's word for that).
const STATUS_ABORTED: u16 = 503;
const STATUS_CLIENT_CLOSED: u16 = 499;

/// What to do next.
enum NextStep {
    Request(Head),
    /// The connection ends, after this answer if there is one.
    Close(Option<Rejection>),
}

/// What becomes of the connection after an answer.
enum AfterResponse {
    KeepAlive,
    Close,
    /// While the client may still be sending.
    CloseAndLinger,
    /// To another protocol.
    Upgrade(Box<Upgrade>),
}

impl<R: Receiver, W: Sender> Connection<R, W> {
    pub fn new(receiver: R, sender: W, timer: Rc<ConnectionTimer>, worker: Rc<Worker>) -> Self {
        let metrics = worker.observer.metrics.clone();
        let input = Input::new(receiver, worker.options.limits, Rc::clone(&timer), metrics);
        let output = Output::new(sender, Rc::clone(&timer));
        let record = RequestRecord::new(&worker.observer, &timer);
        let reset_on_drop = ResetOnDrop(Rc::clone(&timer));
        Self {
            _reset_on_drop: reset_on_drop,
            input: Rc::new(RefCell::new(input)),
            output,
            timer,
            worker,
            record,
        }
    }

    /// Serves it to its end, and says what ended it. An error is one of the connection, which is broken then.
    pub async fn serve<H: AsyncFn(Request) -> Response>(mut self, handler: &H) -> io::Result<CloseReason> {
        loop {
            let head = match self.next_step().await? {
                NextStep::Request(head) => head,
                NextStep::Close(None) => {
                    self.output.flush().await?;
                    // The client has ended it: whether it still takes a farewell changes nothing.
                    self.output.shutdown().await.ok();
                    return Ok(CloseReason::Peer);
                }
                NextStep::Close(Some(rejection)) => {
                    self.worker.observer.parse_error(rejection.status);
                    let method = self.input.borrow().rejected_method();
                    self.output.push_rejection(&rejection, method, &self.worker.clock.date());
                    if let Some(record) = &mut self.record {
                        let input = self.input.borrow();
                        let (status, body_bytes) = (rejection.status, self.output.body_bytes);
                        record.record_rejection(
                            &self.worker.observer,
                            input.first_line(),
                            status,
                            body_bytes,
                        );
                    }
                    self.shutdown_and_linger().await?;
                    return Ok(CloseReason::ProtocolError);
                }
            };
            match self.serve_request(head, handler).await? {
                AfterResponse::KeepAlive => {}
                // The client has said that it sends no more, and nothing has come.
                AfterResponse::Close => {
                    self.output.finish().await?;
                    return Ok(CloseReason::Complete);
                }
                AfterResponse::CloseAndLinger => {
                    self.shutdown_and_linger().await?;
                    return Ok(CloseReason::Complete);
                }
                AfterResponse::Upgrade(upgrade) => {
                    self.upgrade(upgrade).await?;
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
    async fn next_step(&mut self) -> io::Result<NextStep> {
        let buffered = self.input.borrow_mut().try_next_head();
        match buffered {
            Ok(Some(head)) if !self.output.is_full() => return Ok(NextStep::Request(head)),
            Ok(Some(head)) => {
                self.output.flush().await?;
                return Ok(NextStep::Request(head));
            }
            Ok(None) => self.output.flush_all().await?,
            Err(rejection) => return Ok(NextStep::Close(Some(rejection))),
        }
        // Nobody else has it: bodies of former requests have been received whole.
        let next_step = self.input.borrow_mut().next_head().await;
        match next_step {
            Ok(Some(head)) => Ok(NextStep::Request(head)),
            Ok(None) => Ok(NextStep::Close(None)),
            Err(InputError::Rejected(rejection)) => Ok(NextStep::Close(Some(rejection))),
            Err(InputError::Io(error)) => Err(error),
        }
    }

    /// One request and its answer.
    #[inline]
    async fn serve_request<H: AsyncFn(Request) -> Response>(
        &mut self,
        head: Head,
        handler: &H,
    ) -> io::Result<AfterResponse> {
        let (request_context, may_keep_alive) = (head.context(), head.may_keep_alive());
        let options: &ServerOptions = &self.worker.options;
        let (has_body, max_discarded) = (head.framing().has_body(), options.max_discarded_body_bytes);
        let protocols = head.upgrade().map(|_| protocols_of(&head));
        self.timer.begin_request(options.request_timeout.is_some());
        let body = if has_body {
            let input: Rc<RefCell<Input<R>>> = Rc::clone(&self.input);
            RequestBody::new(input)
        } else {
            RequestBody::default()
        };
        if let Some(record) = &mut self.record {
            record.begin(&head);
        }
        let request = Request::new(head, body, Rc::clone(&self.timer));
        let mut response = {
            let handler_future = pin!(async { handler(request).await });
            let mut handler_future = pin!(catch_handler_panic(handler_future));
            let first_poll = poll_fn(|context| Poll::Ready(handler_future.as_mut().poll(context))).await;
            match first_poll {
                Poll::Ready(response) => response,
                Poll::Pending => match self.await_handler(handler_future).await {
                    Ok(response) => response,
                    Err(error) => return Err(self.record_aborted(error)),
                },
            }
        };
        if response.status() == 101 {
            check_upgrade(&mut response, protocols.as_deref());
        }
        let body_continues = has_body && self.body_still_read(&response);
        let is_body_consumed =
            !has_body || body_continues || self.input.borrow_mut().finish_body(max_discarded);
        // One that was struck receives no more.
        let closes = !is_body_consumed || self.worker.is_draining() || self.timer.expired_phase().is_some();
        if !is_body_consumed && response.status() == 101 {
            // What follows would be taken for the other protocol.
            response = unread_body_response();
        }
        let date = self.worker.clock.date();
        let status = response.status();
        let outcome = self.output.respond(request_context, response, &date, closes).await;
        if let Some(record) = &mut self.record {
            record.finish(&self.worker.observer, valid_status(status), self.output.body_bytes);
        }
        if body_continues {
            self.input.borrow_mut().finish_body(max_discarded);
        }
        self.timer.end_request();
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return Err(Box::pin(self.abort_response(error)).await),
        };
        Ok(match outcome {
            // What nobody has read has to be out of the way before the next request.
            Outcome::KeepAlive if !has_body || self.discard(max_discarded).await? => AfterResponse::KeepAlive,
            Outcome::Tunnel(Some(upgrade)) if !has_body || self.discard(max_discarded).await? => {
                AfterResponse::Upgrade(upgrade)
            }
            Outcome::Close if !may_keep_alive && !has_body && !self.input.borrow().has_buffered_input() => {
                AfterResponse::Close
            }
            _ => AfterResponse::CloseAndLinger,
        })
    }

    /// Whether the body of the request is still read while the answer goes out: what streams the answer may have kept it. A
    /// client that waits to be asked for it is asked now, since the answer's head is the last word otherwise.
    fn body_still_read(&mut self, response: &Response) -> bool {
        let may_be_read = response.body().is_stream() && Rc::weak_count(&self.input) > 0;
        if !may_be_read || !self.input.borrow().is_in_body() {
            return false;
        }
        if self.input.borrow_mut().take_continue_pending() {
            self.output.push(CONTINUE);
        }
        true
    }

    /// Awaits a handler that was not done at once: answers before its own do not wait for it, and the client is asked for its
    /// body when the handler does. An error when the connection has broken or was ended: then there will be no answer.
    async fn await_handler(
        &mut self,
        mut handler_future: Pin<&mut impl Future<Output = Response>>,
    ) -> io::Result<Response> {
        // It was polled just now, unless something else is waited for first.
        let mut is_polled = self.output.is_empty() && !self.input.borrow().continue_requested();
        loop {
            if self.input.borrow_mut().take_continue_requested() {
                self.output.push(CONTINUE);
            }
            self.output.flush().await?;
            let handled = poll_fn(|context| {
                if !std::mem::take(&mut is_polled)
                    && let Poll::Ready(response) = handler_future.as_mut().poll(context)
                {
                    return Poll::Ready(Some(response));
                }
                if self.input.borrow().continue_requested() {
                    return Poll::Ready(None);
                }
                self.output.poll_progress(context);
                Poll::Pending
            });
            if let Some(response) = self.timer.cancellation.run_until_cancelled(handled).await? {
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
    async fn abort_response(&mut self, error: io::Error) -> io::Error {
        if is_handler_error(&error) {
            match self.output.shutdown().await {
                Ok(()) => self.input.borrow_mut().linger().await,
                Err(close_error) => {
                    tracing::debug!(%close_error, "a connection broke while its last answers were sent");
                }
            }
        }
        error
    }

    /// The request at hand gets no answer, as its handler was given up.
    #[cold]
    fn record_aborted(&mut self, error: io::Error) -> io::Error {
        let status = match self.timer.cancellation.get() {
            Some(CancelReason::Deadline | CancelReason::ServerShutdown) => STATUS_ABORTED,
            Some(CancelReason::ClientReset) | None => STATUS_CLIENT_CLOSED,
        };
        if let Some(record) = &mut self.record {
            record.finish(&self.worker.observer, status, 0);
        }
        error
    }

    #[allow(
        clippy::await_holding_refcell_ref,
        reason = "the handler has ended, and a body that it has kept only tries to borrow"
    )]
    async fn discard(&mut self, max_bytes: u64) -> io::Result<bool> {
        if !self.input.borrow().is_in_body() {
            return Ok(true);
        }
        // What was answered must not wait for what is dropped.
        self.output.flush().await?;
        let is_whole = self.input.borrow_mut().discard_body(max_bytes).await;
        Ok(is_whole)
    }

    /// Another protocol is spoken from now on.
    async fn upgrade(mut self, upgrade: Box<Upgrade>) -> io::Result<()> {
        self.output.flush_to_socket().await?;
        self.timer.disable();
        let Some(input) = Rc::into_inner(self.input) else {
            // A body that somebody has kept holds it only while it is polled.
            return Err(io::Error::other("a request's body is in use, whose answer changes the protocol"));
        };
        let (receiver, buffered) = input.into_inner().into_receiver();
        if let Some(handler) = upgrade.handler {
            let upgraded = Upgraded::new(receiver, self.output.into_sender(), buffered);
            self.timer.cancellation.run_until_shutdown(handler(upgraded)).await?;
        }
        Ok(())
    }

    /// The server has something to say last, while the client may still be sending.
    #[allow(
        clippy::await_holding_refcell_ref,
        reason = "no handler runs any more, and a body that somebody has kept only tries to borrow"
    )]
    async fn shutdown_and_linger(mut self) -> io::Result<()> {
        self.output.shutdown().await?;
        self.input.borrow_mut().linger().await;
        Ok(())
    }
}

#[cold]
fn unread_body_response() -> Response {
    Response::text("413 Content Too Large: a body is in the way of the other protocol\n").with_status(413)
}

/// The protocols that a client asks for, if it does.
#[cold]
fn protocols_of(head: &Head) -> Box<[u8]> {
    head.fields_named("upgrade").collect::<Vec<_>>().join(&b',').into_boxed_slice()
}

/// Changes an answer that goes over to what its client has not asked for (RFC 9110, section 7.8), or to nothing.
#[cold]
fn check_upgrade(response: &mut Response, requested: Option<&[u8]>) {
    match &response.upgrade {
        Some(upgrade) if upgrade.handler.is_some() => {
            if !upgrade.is_among(requested.unwrap_or_default()) {
                *response = Response::upgrade_required(&*upgrade.protocol);
            }
        }
        _ => {
            tracing::error!("a handler answered 101 without Response::upgrade, which was sent as 500");
            *response = invalid_response_fallback();
        }
    }
}

//! One connection: serves requests until the client or the server closes it.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use anello::log_event;

#[cfg(feature = "http2")]
use super::deadline::Phase;
#[cfg(feature = "http2")]
use super::http2::{Http2Connection, PREFACE};
use super::input::{Input, NextHead};
use super::input_owner::InputOwner;
use super::observer::RequestRecord;
use super::output::{
    Outcome, Output, catch_handler_panic, invalid_response_fallback, is_handler_error, valid_status,
};
use super::timer::{CancelReason, ConnectionTimer, ResetOnDrop, Suspension, Wait};
use super::worker::Worker;
use crate::h1::{Head, Rejection};
use crate::message::{
    BodyKind, Peer, Request, RequestBody, RequestBodyError as InputError, Response, Upgrade, Upgraded,
};
use crate::observe::metrics::{CloseReason, ParseErrorKind};
use crate::transport::{Receiver, Sender};

pub(crate) struct Connection<R: Receiver, W> {
    /// Declared first, so that it is dropped before the output.
    _reset_on_drop: ResetOnDrop,
    input: InputOwner<R>,
    output: Output<W>,
    timer: Rc<ConnectionTimer>,
    worker: Rc<Worker>,
    peer: Rc<Peer>,
    /// `Some` if requests are counted or logged.
    record: Option<Box<RequestRecord>>,
    migration: Migration,
}

/// Permission to move the connection to another worker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Migration {
    Disallowed,
    Allowed,
    /// The connection moves to another worker as soon as it has no request in progress.
    Requested,
}

/// The state of a connection that was suspended, or moved from another worker. [`Connection::serve`] ends when it is idle
/// again, and should be suspended or move.
pub(crate) struct Resumed<C> {
    /// Start of the first request.
    pub received: C,
    /// Number of further requests that the client may send.
    pub requests_left: u64,
    pub may_move: bool,
}

/// Why a connection is no longer served, other than an error.
pub(crate) enum End<R, W> {
    Closed(CloseReason),
    /// It is idle, and should move to another worker or be suspended.
    Idle {
        receiver: R,
        sender: W,
        peer: Rc<Peer>,
        requests_left: u64,
        is_moving: bool,
    },
}

impl<R, W> End<R, W> {
    /// Returns `None` if the connection is idle.
    pub fn reason(self) -> Option<CloseReason> {
        match self {
            Self::Closed(reason) => Some(reason),
            Self::Idle { .. } => None,
        }
    }
}

/// Status counted and logged if the server cancels a handler before the response is sent.
const STATUS_ABORTED: u16 = 503;
/// Status counted and logged if the client disconnects before the response is sent, as in nginx.
const STATUS_CLIENT_CLOSED: u16 = 499;

enum AfterResponse {
    KeepAlive,
    Close,
    /// Closes a connection whose client may still be sending.
    Linger,
    Upgrade(Box<Upgrade>),
}

impl<R: Receiver, W: Sender> Connection<R, W> {
    pub fn new(
        receiver: R,
        sender: W,
        timer: Rc<ConnectionTimer>,
        worker: Rc<Worker>,
        peer: Option<Rc<Peer>>,
        resumed: Option<Resumed<R::Chunk>>,
    ) -> Self {
        let mut input = Input::new(receiver, Rc::clone(&timer), &worker);
        let mut migration = Migration::Disallowed;
        if let Some(Resumed { received, requests_left, may_move }) = resumed {
            input.resume(received, worker.options.limits, requests_left);
            timer.suspension.set(Suspension::Unregistered);
            if may_move {
                migration = Migration::Allowed;
            }
        }
        let (input, output) = (InputOwner::new(input), Output::new(sender, Rc::clone(&timer)));
        let peer = peer.unwrap_or_else(|| Peer::new(timer.shutdown_handle.clone()));
        let record = RequestRecord::new(&worker.observer, &worker.options, &peer);
        let _reset_on_drop = ResetOnDrop(Rc::clone(&timer));
        Self { _reset_on_drop, input, output, timer, worker, peer, record, migration }
    }

    /// Serves the connection until it is closed, should move to another worker, or should be suspended.
    pub async fn serve<H: AsyncFn(Request) -> Response>(mut self, handler: &H) -> io::Result<End<R, W>> {
        #[cfg(feature = "http2")]
        if self.worker.may_use_http2() && self.timer.deadlines.phase.get() == Phase::FirstHead {
            let start = self.input.get()?.http2_start(PREFACE, self.worker.options.http2).await;
            match start {
                Ok(None) => {}
                Ok(Some(received)) => {
                    return Box::pin(self.into_http2(received)?.serve(handler)).await.map(End::Closed);
                }
                Err(error) => return self.fail(error).await,
            }
        }
        loop {
            let head = match self.next_head().await {
                Ok(NextHead::Head(head)) => head,
                Ok(NextHead::Suspend) => return self.into_halves(false),
                Ok(NextHead::Closed) => {
                    self.output.flush().await?;
                    // The client has closed the connection, so an error during shutdown does not matter.
                    self.output.shutdown().await.ok();
                    return Ok(End::Closed(CloseReason::Peer));
                }
                Err(error) => return self.fail(error).await,
            };
            return match self.serve_request(head, handler).await? {
                AfterResponse::KeepAlive => {
                    if self.record_work() && self.migration == Migration::Allowed {
                        self.migration = Migration::Requested;
                    }
                    if self.migration == Migration::Requested && self.is_ready_to_move().await? {
                        return self.into_halves(true);
                    }
                    continue;
                }
                // The client announced that this was its last request, and has sent nothing after it.
                AfterResponse::Close => {
                    self.output.finish().await.map(|()| End::Closed(CloseReason::Complete))
                }
                AfterResponse::Linger => {
                    self.shutdown_and_linger().await.map(|()| End::Closed(CloseReason::Complete))
                }
                AfterResponse::Upgrade(upgrade) => {
                    self.upgrade(upgrade).await.map(|()| End::Closed(CloseReason::Upgrade))
                }
            };
        }
    }

    /// Records the last request. Returns `true` if the connection should move to another worker.
    #[inline]
    fn record_work(&self) -> bool {
        self.worker.record_request(self.timer.rebalancer_key(), self.output.body_bytes)
    }

    /// Sends everything that is buffered unless another request has arrived. Returns `true` if the connection has no
    /// request in progress and nothing left to send.
    #[cold]
    async fn is_ready_to_move(&mut self) -> io::Result<bool> {
        if !self.input.get()?.is_between_requests() {
            return Ok(false);
        }
        Box::pin(self.output.flush_to_kernel()).await?;
        Ok(self.timer.deadlines.expired.get().is_none())
    }

    /// Returns the halves of the stream of an idle connection.
    #[cold]
    fn into_halves(self, is_moving: bool) -> io::Result<End<R, W>> {
        let input = self.input.into_input()?;
        let requests_left = input.decoder.requests_left();
        let (receiver, sender) = (input.into_receiver().0, self.output.sender);
        Ok(End::Idle { receiver, sender, peer: self.peer, requests_left, is_moving })
    }

    /// Continues the connection with HTTP/2. `received` is all that the client has sent.
    #[cfg(feature = "http2")]
    #[cold]
    fn into_http2(self, received: Vec<u8>) -> io::Result<Http2Connection<R, W>> {
        let Self { input, output, timer, worker, peer, .. } = self;
        timer.suspension.set(Suspension::Never);
        let (receiver, _) = input.into_input()?.into_receiver();
        Ok(Http2Connection { receiver, sender: output.sender, received, timer, worker, peer })
    }

    /// Rejects invalid input and closes the connection.
    #[cold]
    async fn fail(mut self, error: InputError) -> io::Result<End<R, W>> {
        match error {
            InputError::Rejected(rejection) => {
                self.reject(&rejection)?;
                self.shutdown_and_linger().await?;
                Ok(End::Closed(CloseReason::ProtocolError))
            }
            InputError::Io(error) => Err(error),
        }
    }

    #[cold]
    fn reject(&mut self, rejection: &Rejection) -> io::Result<()> {
        let observer = &self.worker.observer;
        observer.count(|metrics| metrics.parse_error(ParseErrorKind::of(rejection.status)));
        let input = self.input.get()?;
        self.output.push_rejection(rejection, input.decoder.rejected_method());
        if let Some(record) = &self.record {
            let first_line = input.decoder.first_line();
            record.reject(observer, first_line, rejection.status, self.output.body_bytes);
        }
        Ok(())
    }

    /// Decodes the next request from the received data. If there is none, flushes the buffered responses before
    /// receiving.
    #[inline]
    async fn next_head(&mut self) -> Result<NextHead, InputError> {
        let input = self.input.get().map_err(InputError::Io)?;
        if let Some(head) = input.try_next_head().map_err(InputError::Rejected)? {
            if self.output.is_full() {
                self.output.flush().await.map_err(InputError::Io)?;
            }
            return Ok(NextHead::Head(head));
        }
        self.output.flush_all().await.map_err(InputError::Io)?;
        self.input.get().map_err(InputError::Io)?.next_head().await
    }

    #[inline]
    async fn serve_request<H: AsyncFn(Request) -> Response>(
        &mut self,
        head: Head,
        handler: &H,
    ) -> io::Result<AfterResponse> {
        let (mut context, may_keep_alive) = (head.context(), head.may_keep_alive());
        let (has_body, max_discarded) =
            (head.framing().has_body(), self.worker.options.max_discarded_body_bytes);
        let protocols = head.upgrade().map(|_| protocols_of(&head));
        let request = self.begin_request(head, has_body)?;
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
        let (body_continues, closes) = self.conclude_body(&mut response, has_body);
        context.keeps_alive &= !closes;
        let status = response.status();
        let outcome = self.output.respond(context, response).await;
        self.end_request(status, body_continues);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return Err(Box::pin(self.abort_response(error)).await),
        };
        Ok(match outcome {
            // Any unread part of the body must be discarded before the next request.
            Outcome::KeepAlive if !has_body || self.discard(max_discarded).await? => AfterResponse::KeepAlive,
            Outcome::Tunnel(Some(upgrade)) if !has_body || self.discard(max_discarded).await? => {
                AfterResponse::Upgrade(upgrade)
            }
            Outcome::Close if !may_keep_alive && !has_body && !self.input.get()?.has_buffered_input() => {
                AfterResponse::Close
            }
            _ => AfterResponse::Linger,
        })
    }

    #[inline]
    fn begin_request(&mut self, head: Head, has_body: bool) -> io::Result<Request> {
        let has_timeout = self.worker.options.request_timeout.is_some();
        self.timer.deadlines.begin_request(self.timer.now(), has_timeout);
        let body = if has_body { self.input.lend()? } else { RequestBody::default() };
        if let Some(record) = &mut self.record {
            record.begin(&head, &self.worker.options);
        }
        Ok(Request::new(head, body, Rc::clone(&self.peer)))
    }

    /// Decides how to handle the rest of the request body. Returns whether a streamed response may still read the rest,
    /// and whether the connection must be closed after the response.
    #[inline]
    fn conclude_body(&mut self, response: &mut Response, has_body: bool) -> (bool, bool) {
        let body_continues = has_body && self.body_still_read(response);
        let max_discarded = self.worker.options.max_discarded_body_bytes;
        let is_consumed = !has_body || body_continues || self.finish_body(max_discarded);
        // After a timeout, no more requests are received.
        let closes =
            !is_consumed || self.worker.is_draining.get() || self.timer.deadlines.expired.get().is_some();
        if !is_consumed && response.status() == 101 {
            // The handler for the other protocol would receive the rest of the body as data.
            *response = unread_body_response();
        }
        (body_continues, closes)
    }

    #[inline]
    fn end_request(&mut self, status: u16, body_continues: bool) {
        if let Some(record) = &mut self.record {
            record.finish(&self.worker.observer, valid_status(status), self.output.body_bytes);
        }
        if body_continues {
            self.finish_body(self.worker.options.max_discarded_body_bytes);
        }
        self.timer.deadlines.end_request();
    }

    /// Ends the request body. Returns `true` if the connection can be kept alive.
    fn finish_body(&mut self, max_discarded: u64) -> bool {
        self.input.take_back().is_ok_and(|input| input.finish_body(max_discarded))
    }

    /// Returns `true` if a streamed response may still read the request body. First sends `100 Continue` if the client
    /// is waiting for it, because it must not follow the response head.
    fn body_still_read(&mut self, response: &Response) -> bool {
        if !matches!(response.body().0, BodyKind::Stream { .. }) || !self.input.may_be_read() {
            return false;
        }
        if self.input.take_continue_request(true) {
            self.output.push_continue();
        }
        true
    }

    /// Awaits a handler that did not complete on its first poll. Meanwhile, flushes earlier responses, and sends
    /// `100 Continue` when the handler is waiting for the body. Returns an error if the connection fails or is
    /// cancelled; in that case, no response is sent.
    async fn await_handler(
        &mut self,
        mut handler_future: Pin<&mut impl Future<Output = Response>>,
    ) -> io::Result<Response> {
        // The handler has just been polled, so the first iteration skips the poll unless it flushes data first.
        let mut is_polled = self.output.is_empty() && !self.input.is_continue_requested();
        loop {
            if self.input.take_continue_request(false) {
                self.output.push_continue();
            }
            self.output.flush().await?;
            let step = poll_fn(|context| {
                if !std::mem::take(&mut is_polled)
                    && let Poll::Ready(response) = handler_future.as_mut().poll(context)
                {
                    return Poll::Ready(Some(response));
                }
                if self.input.is_continue_requested() {
                    return Poll::Ready(None);
                }
                self.output.sender.poll_progress(context);
                Poll::Pending
            });
            if let Some(response) = self.timer.cancellation.run_until_cancelled(Wait::Response, step).await? {
                return Ok(response);
            }
        }
    }

    /// Handles a response that could not be completed. If the handler caused the error, sends the earlier responses and
    /// the incomplete one, then discards data that the client may still be sending.
    #[cold]
    async fn abort_response(&mut self, error: io::Error) -> io::Error {
        if is_handler_error(&error) {
            match self.output.shutdown().await {
                Ok(()) => match self.input.get() {
                    Ok(input) => input.linger().await,
                    Err(lost) => return lost,
                },
                Err(close_error) => {
                    log_event!(DEBUG, %close_error, "connection failed while sending the last responses");
                }
            }
        }
        error
    }

    /// Records a request that gets no response because its handler was cancelled.
    #[cold]
    fn record_aborted(&mut self, error: io::Error) -> io::Error {
        let status = match self.timer.cancellation.reason.get() {
            Some(CancelReason::Deadline(_) | CancelReason::ServerShutdown) => STATUS_ABORTED,
            Some(CancelReason::ClientGone | CancelReason::ReceiveFailed) | None => STATUS_CLIENT_CLOSED,
        };
        if let Some(record) = &mut self.record {
            record.finish(&self.worker.observer, status, 0);
        }
        error
    }

    async fn discard(&mut self, max_bytes: u64) -> io::Result<bool> {
        if !self.input.get()?.body.is_complete() {
            // The response must not wait for the data to be discarded.
            self.output.flush().await?;
        }
        Ok(self.input.get()?.discard_body(max_bytes).await)
    }

    async fn upgrade(mut self, upgrade: Box<Upgrade>) -> io::Result<()> {
        self.output.flush_to_socket().await?;
        self.timer.deadlines.disable();
        let (receiver, buffered) = self.input.into_input()?.into_receiver();
        if let Some(handler) = upgrade.handler {
            let upgraded = Upgraded::new(receiver, self.output.sender, buffered);
            let cancellation = &self.timer.cancellation;
            cancellation.run_until_cancelled(Wait::UpgradeHandler, handler(upgraded)).await?;
        }
        Ok(())
    }

    /// Shuts down the connection while the client may still be sending.
    async fn shutdown_and_linger(mut self) -> io::Result<()> {
        self.output.shutdown().await?;
        self.input.get()?.linger().await;
        Ok(())
    }
}

#[cold]
fn unread_body_response() -> Response {
    Response::text("413 Content Too Large: cannot upgrade before the request body has been read\n")
        .with_status(413)
}

#[cold]
fn protocols_of(head: &Head) -> Box<[u8]> {
    head.fields_named("upgrade").collect::<Vec<_>>().join(&b',').into_boxed_slice()
}

/// Replaces the response if the client did not request the protocol (RFC 9110, section 7.8), or if it is a 101 response
/// without a handler.
#[cold]
fn check_upgrade(response: &mut Response, requested: Option<&[u8]>) {
    match &response.upgrade {
        Some(upgrade) if upgrade.handler.is_some() => {
            if !upgrade.is_among(requested.unwrap_or_default()) {
                *response = Response::upgrade_required(&*upgrade.protocol);
            }
        }
        _ => {
            log_event!(ERROR, "a handler returned status 101 without Response::upgrade; sending 500");
            *response = invalid_response_fallback();
        }
    }
}

//! HTTP/2 connections, with the framing and flow control of the crate `h2`.
//!
//! ```text
//!   Transport ──► h2 ──┬──► stream: head, request body ──► handler ──► response     all in the connection's task
//!                      ├──► stream
//!                      └──► stream
//! ```
//!
//! # Limits
//!
//! | attack or fault | limit |
//! |---|---|
//! | many streams | [`max_concurrent_streams`](crate::ServerOptions::http2_max_concurrent_streams), refused above |
//! | long head, many `CONTINUATION` frames | `Limits::max_head_bytes`, sent as `SETTINGS_MAX_HEADER_LIST_SIZE`: 431; far above: GOAWAY |
//! | rapid reset: streams that are reset before they are served | [`MAX_PENDING_RESETS`] waiting, then GOAWAY |
//! | protocol errors that make the server reset streams | [`MAX_LOCAL_RESETS`] per connection, then GOAWAY |
//! | small or empty `DATA` frames | the data frame budget of `h2`, then GOAWAY |
//! | `PING` and `SETTINGS` floods | the replies share the output buffer; nothing is read while it is full |
//! | data that no handler reads | [`STREAM_WINDOW_BYTES`] per stream, [`CONNECTION_WINDOW_BYTES`] per connection |
//! | responses that the client does not read | [`SEND_BUFFER_BYTES`] per stream; then the send timeout |

mod poll_waker;
mod request_body;
mod response;
mod timers;
mod transport;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use anello::log_event;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h2::server::{Builder, SendResponse};
use h2::{Ping, Reason, RecvStream};

use self::poll_waker::PollWaker;
use self::request_body::StreamBody;
use self::response::{ResponseSender, StreamError};
use self::timers::{StreamTimers, Task};
use self::transport::{Eof, Output, Transport, TransportState};
use super::deadline::Phase;
use super::observer::RequestRecord;
use super::output::{catch_handler_panic, invalid_response_fallback, valid_status};
use super::timer::{CancelReason, ConnectionTimer, Wait};
use super::worker::Worker;
use crate::h1::{Http2Heads, Rejection};
use crate::message::{Peer, Request, RequestBody, Response, spare_head};
use crate::observe::metrics::{CloseReason, ParseErrorKind};
use crate::transport::{PollSender, Receiver};

/// First bytes of a client's connection.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Receive window of a stream: the part of a request body that is buffered when its handler does not read.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Receive window of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Response data that a stream queues before the connection has sent it.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Streams that the client has reset and the server has not accepted yet.
const MAX_PENDING_RESETS: usize = 20;
/// Streams that the server has reset because of errors of the client.
const MAX_LOCAL_RESETS: usize = 1024;

/// Maximum number of requests per poll of the connection's task that are served as soon as they are accepted. Later
/// ones are served after all of them have been accepted, so that the limit for concurrent streams also limits the number
/// of requests per poll.
const MAX_IMMEDIATE_REQUESTS: usize = 64;

/// Status counted and logged if the server cancels a handler before the response is sent.
const STATUS_ABORTED: u16 = 503;
/// Status counted and logged if the client disconnects before the response is sent, as in nginx.
const STATUS_CLIENT_CLOSED: u16 = 499;

/// The state that the streams of one connection share.
struct Shared {
    timer: Rc<ConnectionTimer>,
    worker: Rc<Worker>,
    peer: Rc<Peer>,
    heads: RefCell<Http2Heads>,
    /// Records that are not in use.
    #[allow(clippy::vec_box, reason = "a record is boxed in each stream")]
    records: RefCell<Vec<Box<RequestRecord>>>,
    timers: Rc<StreamTimers>,
    state: Rc<TransportState>,
}

/// A connection whose client uses HTTP/2.
pub(super) struct Http2Connection<R, W> {
    pub receiver: R,
    pub sender: W,
    /// Bytes that were received before the protocol was known.
    pub received: Vec<u8>,
    pub timer: Rc<ConnectionTimer>,
    pub worker: Rc<Worker>,
    pub peer: Rc<Peer>,
}

impl<R: Receiver, W: PollSender> Http2Connection<R, W> {
    /// Serves the connection until it is closed.
    pub async fn serve<H: AsyncFn(Request) -> Response>(self, handler: &H) -> io::Result<CloseReason> {
        let Self { receiver, sender, received, timer, worker, peer } = self;
        let (state, timers) = (Rc::new(TransportState::new()), Rc::new(StreamTimers::default()));
        timer.set_streams(timers.clone());
        let metrics = worker.observer.metrics.clone();
        let output = Output::new(sender, Rc::clone(&timer));
        let (transport_output, transport_state) = (Rc::clone(&output), Rc::clone(&state));
        let transport =
            Transport::new(receiver, transport_output, received, transport_state, Rc::clone(&timer), metrics);
        let heads = RefCell::new(Http2Heads::new(worker.options.limits));
        let records = RefCell::default();
        let shared = Shared { timer: Rc::clone(&timer), worker, peer, heads, records, timers, state };
        let serving = serve_streams(transport, &output, &shared, handler);
        timer.cancellation.run_until_cancelled(Wait::Streams, serving).await?
    }
}

/// State of a connection: open, or being closed by the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shutdown {
    None,
    /// GOAWAY has asked the client to send no more requests.
    Graceful,
    /// GOAWAY has named the last request that was served.
    Abrupt,
}

fn builder(worker: &Worker) -> Builder {
    let options = &worker.options;
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(options.http2_max_concurrent_streams)
        .max_header_list_size(u32::try_from(options.limits.max_head_bytes).unwrap_or(u32::MAX))
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(Some(MAX_LOCAL_RESETS));
    builder
}

async fn serve_streams<R, W, H>(
    transport: Transport<R, W>,
    output: &RefCell<Output<W>>,
    shared: &Shared,
    handler: &H,
) -> io::Result<CloseReason>
where
    R: Receiver,
    W: PollSender,
    H: AsyncFn(Request) -> Response,
{
    let (timer, worker, state) = (&shared.timer, &shared.worker, &shared.state);
    let mut connection = builder(worker).handshake::<_, Bytes>(transport).await.map_err(into_io)?;
    state.is_established.set(true);
    let mut streams = FuturesUnordered::new();
    let mut requests_left = worker.options.limits.max_requests_per_connection.max(1);
    let mut shutdown = Shutdown::None;
    let mut probe = None;
    let poll_waker = PollWaker::new();
    let waker = Waker::from(Arc::clone(&poll_waker));
    let mut h2_context = Context::from_waker(&waker);
    poll_fn(|context| {
        poll_waker.set_task(context.waker());
        state.set_task(context.waker());
        let mut accepted = 0;
        loop {
            poll_waker.start();
            match connection.poll_accept(&mut h2_context) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    if streams.is_empty() {
                        // The deadlines of the streams replace that of the connection.
                        timer.deadlines.begin_request(timer.now(), false);
                    }
                    requests_left = requests_left.saturating_sub(1);
                    let mut stream = Box::pin(shared.serve_stream(request, respond, handler));
                    accepted += 1;
                    // Most handlers complete in the first poll. The next call of `poll_accept` sends their responses.
                    if accepted > MAX_IMMEDIATE_REQUESTS || stream.as_mut().poll(context).is_pending() {
                        streams.push(stream);
                    }
                }
                // The client has received GOAWAY.
                Poll::Ready(Some(Err(error))) if error.is_library() && !error.is_io() => {
                    log_event!(DEBUG, %error, "connection closed");
                    return Poll::Ready(Ok(CloseReason::ProtocolError));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(into_io(error))),
                Poll::Ready(None) if shutdown == Shutdown::None => {
                    return Poll::Ready(Ok(CloseReason::Peer));
                }
                Poll::Ready(None) => return Poll::Ready(Ok(CloseReason::Complete)),
                Poll::Pending
                    if (worker.is_draining.get() || requests_left == 0)
                        && shutdown == Shutdown::None
                        && state.eof.get() == Eof::NotReceived =>
                {
                    shutdown = Shutdown::Graceful;
                    connection.graceful_shutdown();
                }
                Poll::Pending => break,
            }
        }
        let is_flushed = match output.borrow_mut().poll_flush(context) {
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            flush_result => flush_result.is_ready(),
        };
        let was_idle = streams.is_empty();
        while let Poll::Ready(Some(())) = streams.poll_next_unpin(context) {}
        if state.eof.get() == Eof::Received && shutdown != Shutdown::Abrupt {
            if !streams.is_empty() {
                // A client that has only shut down its write half receives its responses. If it is gone, its kernel
                // responds to the PING with a reset.
                if probe.is_none() {
                    probe = connection.ping_pong();
                    if let Some(probe) = &mut probe {
                        probe.send_ping(Ping::opaque()).ok();
                    }
                    shared.timers.wake_body_readers();
                    context.waker().wake_by_ref();
                }
            } else {
                // The responses that were queued in this poll are sent in the next one.
                if was_idle && is_flushed {
                    if timer.deadlines.expired.get().is_some() || worker.is_draining.get() {
                        shutdown = Shutdown::Abrupt;
                        // The server has shut down the read half. GOAWAY names the last request that was served.
                        connection.abrupt_shutdown(Reason::NO_ERROR);
                    } else {
                        state.eof.set(Eof::Reported);
                    }
                }
                if is_flushed || !was_idle {
                    context.waker().wake_by_ref();
                }
            }
        }
        if streams.is_empty() && timer.deadlines.phase.get() == Phase::Handling {
            timer.deadlines.enter(Phase::Idle, timer.now());
        }
        if poll_waker.finish() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

impl Shared {
    /// Serves one request.
    async fn serve_stream<H: AsyncFn(Request) -> Response>(
        &self,
        request: http::Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        handler: &H,
    ) {
        let entry = self.timers.add(self.timer.now());
        let (worker, connection) = (&self.worker, &self.timer);
        let (parts, body) = request.into_parts();
        let has_body = !body.is_end_stream();
        let head = match self.heads.borrow_mut().read(&parts, has_body, spare_head()) {
            Ok(head) => head,
            Err(rejection) => return self.reject(&rejection, &parts, respond),
        };
        drop(parts);
        let mut record = StreamRecord::begin(self, &head);
        let timer = &entry.timer;
        // HTTP/2 connections do not move, but their requests are load.
        worker.record_request(0, 0);
        timer.deadlines.begin_request(connection.now(), worker.options.request_timeout.is_some());
        let method = head.method();
        let source = has_body.then(|| {
            let (limits, expects_continue) = (worker.options.limits, head.expects_continue());
            let (timer, connection, state) =
                (Rc::clone(timer), Rc::clone(connection), Rc::clone(&self.state));
            let body = StreamBody::new(body, limits, expects_continue, timer, connection, state);
            Rc::new(RefCell::new(body))
        });
        let request_body =
            source.as_ref().map_or_else(RequestBody::default, |source| RequestBody::new(source.clone()));
        let request = Request::new(head, request_body, Rc::clone(&self.peer));
        let result = {
            let handling = pin!(async { handler(request).await });
            self.await_handler(pin!(catch_handler_panic(handling)), &mut respond, source.as_deref(), timer)
                .await
        };
        let mut response = match result {
            Ok(response) => response,
            Err(error) => return record.abort(&error, &mut respond),
        };
        let status = valid_status(response.status());
        if status == 101 {
            // There are no upgrades in HTTP/2; clients repeat the request with HTTP/1.1.
            record.status = 426;
            return respond.send_reset(Reason::HTTP_1_1_REQUIRED);
        }
        if status != response.status() {
            log_event!(
                ERROR,
                status = response.status(),
                "a handler returned an invalid status; sending 500"
            );
            response = invalid_response_fallback();
        }
        record.status = status;
        let mut sender =
            ResponseSender { timer: Rc::clone(timer), connection: Rc::clone(connection), body_bytes: 0 };
        let result = sender.respond(&mut respond, method, response).await;
        record.body_bytes = sender.body_bytes;
        if let Err(error) = result {
            error.log();
            respond.send_reset(error.reason());
        }
    }

    /// Awaits a handler. Meanwhile, sends `100 Continue` when the handler is waiting for the body. Returns an error if
    /// the client resets the stream or a deadline expires; in that case, the handler is dropped.
    async fn await_handler(
        &self,
        mut handling: Pin<&mut impl Future<Output = Response>>,
        respond: &mut SendResponse<Bytes>,
        source: Option<&RefCell<StreamBody>>,
        timer: &timers::StreamTimer,
    ) -> Result<Response, StreamError> {
        poll_fn(|context| {
            if let Some(timeout) = timer.expired.get() {
                return Poll::Ready(Err(StreamError::Timeout(timeout)));
            }
            if let Poll::Ready(response) = handling.as_mut().poll(context) {
                return Poll::Ready(Ok(response));
            }
            if source.is_some_and(|source| source.borrow_mut().progress.take_continue_request()) {
                let mut head = http::Response::new(());
                *head.status_mut() = http::StatusCode::CONTINUE;
                if let Err(error) = respond.send_informational(head) {
                    return Poll::Ready(Err(error.into()));
                }
            }
            timer.register(Task::Server, context);
            match respond.poll_reset(context) {
                Poll::Ready(Ok(reason)) => Poll::Ready(Err(h2::Error::from(reason).into())),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    #[cold]
    fn reject(&self, rejection: &Rejection, parts: &http::request::Parts, mut respond: SendResponse<Bytes>) {
        let observer = &self.worker.observer;
        observer.count(|metrics| metrics.parse_error(ParseErrorKind::of(rejection.status)));
        let text = format!("{rejection}\n");
        if let Some(record) = self.record() {
            let target = parts.uri.path_and_query().map_or("/", |path| path.as_str());
            let line = format!("{} {target} HTTP/2.0", parts.method);
            record.reject(observer, Some(line.as_bytes()), rejection.status, text.len() as u64);
            self.records.borrow_mut().push(record);
        }
        let mut head = http::Response::new(());
        *head.status_mut() = http::StatusCode::from_u16(rejection.status).unwrap_or_default();
        let value = http::HeaderValue::from_static("text/plain; charset=utf-8");
        head.headers_mut().insert(http::header::CONTENT_TYPE, value);
        let is_head = parts.method == http::Method::HEAD;
        let sent = respond
            .send_response(head, is_head)
            .and_then(|mut stream| if is_head { Ok(()) } else { stream.send_data(text.into(), true) });
        if let Err(error) = sent {
            log_event!(DEBUG, %error, "cannot reject a request");
        }
    }

    fn record(&self) -> Option<Box<RequestRecord>> {
        let spare = self.records.borrow_mut().pop();
        spare.or_else(|| RequestRecord::new(&self.worker.observer, &self.worker.options, &self.peer))
    }
}

/// Reports a request when it is dropped, so that requests without a response are reported as well.
struct StreamRecord<'a> {
    shared: &'a Shared,
    record: Option<Box<RequestRecord>>,
    status: u16,
    body_bytes: u64,
}

impl<'a> StreamRecord<'a> {
    fn begin(shared: &'a Shared, head: &crate::h1::Head) -> Self {
        let mut record = shared.record();
        if let Some(record) = &mut record {
            record.begin(head, &shared.worker.options);
        }
        let status = STATUS_CLIENT_CLOSED;
        Self { shared, record, status, body_bytes: 0 }
    }

    /// Ends a request whose handler was dropped.
    #[cold]
    fn abort(&mut self, error: &StreamError, respond: &mut SendResponse<Bytes>) {
        if let StreamError::Timeout(_) = error {
            self.status = STATUS_ABORTED;
        }
        error.log();
        respond.send_reset(error.reason());
    }
}

impl Drop for StreamRecord<'_> {
    fn drop(&mut self) {
        let Some(mut record) = self.record.take() else { return };
        let is_shutdown = self.shared.timer.cancellation.reason.get() == Some(CancelReason::ServerShutdown);
        let status =
            if is_shutdown && self.status == STATUS_CLIENT_CLOSED { STATUS_ABORTED } else { self.status };
        record.finish(&self.shared.worker.observer, status, self.body_bytes);
        self.shared.records.borrow_mut().push(record);
    }
}

fn into_io(error: h2::Error) -> io::Error {
    if error.is_io() {
        error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionAborted.into())
    } else {
        io::Error::other(error)
    }
}

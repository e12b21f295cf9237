//! The input of a connection: decodes received bytes into requests.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;

use super::body_progress::BodyProgress;
use super::deadline::{Phase, Timeout};
#[cfg(feature = "http2")]
use super::options::Http2Mode;
use super::timer::ConnectionTimer;
use super::worker::Worker;
use crate::h1::{Decoder, Event, Head, Limits, Rejection, Trailers};
use crate::message::{RequestBodyError as InputError, spare_head};
use crate::observe::metrics::WorkerMetrics;
use crate::transport::Receiver;

pub(crate) struct Input<R: Receiver> {
    receiver: R,
    pub decoder: Decoder,
    /// The last received chunk, and the number of its bytes that have been decoded.
    chunk: Option<R::Chunk>,
    decoded_bytes: usize,
    at_eof: bool,
    has_served_request: bool,
    /// Progress of the body of the current request.
    pub(super) body: BodyProgress,
    /// Bytes of this body that have been discarded.
    discarded_bytes: u64,
    trailers: Option<Trailers>,
    timer: Rc<ConnectionTimer>,
    metrics: Option<Rc<WorkerMetrics>>,
}

/// Result of waiting for a request.
pub(crate) enum NextHead {
    Head(Head),
    /// EOF between requests, or the keep-alive timeout.
    Closed,
    /// The connection is idle, and should be suspended.
    Suspend,
}

const REQUEST_TIMEOUT: Rejection = Rejection::new(408, "request not received in time");

impl<R: Receiver> Input<R> {
    pub fn new(receiver: R, timer: Rc<ConnectionTimer>, worker: &Worker) -> Self {
        Self {
            receiver,
            decoder: Decoder::new(worker.options.limits),
            chunk: None,
            decoded_bytes: 0,
            at_eof: false,
            has_served_request: false,
            body: BodyProgress::Complete,
            discarded_bytes: 0,
            trailers: None,
            timer,
            metrics: worker.observer.metrics.clone(),
        }
    }

    /// Decodes the next head. Returns `None` if more data is needed.
    #[inline]
    pub fn try_next_head(&mut self) -> Result<Option<Head>, Rejection> {
        debug_assert!(self.body.is_complete());
        let Some(chunk) = &self.chunk else { return Ok(None) };
        if self.decoded_bytes == chunk.len() {
            // The chunk is fully decoded, which is the usual case after a request.
            self.chunk = None;
            return Ok(None);
        }
        if let Some(spare) = spare_head() {
            self.decoder.recycle(spare);
        }
        let mut remaining = &chunk[self.decoded_bytes..];
        let event = self.decoder.decode(&mut remaining)?;
        self.decoded_bytes = chunk.len() - remaining.len();
        let Some(Event::Head(head)) = event else {
            // All of the input was consumed.
            self.chunk = None;
            return Ok(None);
        };
        self.begin_request(&head);
        Ok(Some(head))
    }

    fn begin_request(&mut self, head: &Head) {
        self.has_served_request = true;
        if head.framing().has_body() {
            (self.body, self.discarded_bytes) = (BodyProgress::begin(head.expects_continue()), 0);
            self.timer.deadlines.begin_body();
        } else {
            self.decoder.skip_end();
        }
    }

    /// Receives the first bytes of the connection and returns them if the client uses HTTP/2. Otherwise they are decoded
    /// as usual.
    #[cfg(feature = "http2")]
    pub async fn http2_start(
        &mut self,
        preface: &[u8],
        mode: Http2Mode,
    ) -> Result<Option<Vec<u8>>, InputError> {
        let mut seen = Vec::new();
        while self.chunk.is_some()
            || poll_fn(|context| self.poll_more(context)).await.map_err(InputError::Io)?
        {
            let chunk = self.chunk.as_deref().unwrap_or_default();
            match self.receiver.has_negotiated_http2() {
                Some(true) => return Ok(Some(chunk.to_vec())),
                None if mode == Http2Mode::Cleartext => {}
                _ => return Ok(None),
            }
            let start = seen.len();
            seen.extend_from_slice(chunk);
            if seen.starts_with(preface) {
                return Ok(Some(seen));
            }
            if !preface.starts_with(&seen) {
                seen.truncate(start);
                // The decoder buffers the start of a head that has arrived in several chunks.
                let decoded = self.decoder.decode(&mut &seen[..]).map_err(InputError::Rejected)?;
                debug_assert!(decoded.is_none(), "{decoded:?}");
                return Ok(None);
            }
            self.chunk = None;
        }
        self.decoder.decode(&mut &seen[..]).map_err(InputError::Rejected)?;
        Ok(None)
    }

    /// Waits for the next head.
    pub async fn next_head(&mut self) -> Result<NextHead, InputError> {
        loop {
            if let Some(head) = self.try_next_head().map_err(InputError::Rejected)? {
                return Ok(NextHead::Head(head));
            }
            if self.at_eof || self.decoder.is_closed() {
                return Ok(NextHead::Closed);
            }
            let received = poll_fn(|context| match self.poll_more(context) {
                Poll::Pending
                    if self.timer.poll_suspension(context.waker()) && self.is_between_requests() =>
                {
                    Poll::Ready(Ok(None))
                }
                received => received.map_ok(Some),
            });
            match received.await.map_err(InputError::Io)? {
                Some(true) => {}
                Some(false) => {
                    // A request completed at the last moment has been answered; this is the EOF after its response. The
                    // start of a head may have arrived when the server had already stopped to wait for it.
                    let is_late = matches!(
                        self.timer.deadlines.expired.get(),
                        Some(Timeout::Phase(Phase::FirstHead | Phase::Idle | Phase::Head))
                    );
                    if is_late && !self.decoder.is_idle() {
                        return Err(InputError::Rejected(REQUEST_TIMEOUT));
                    }
                    let end = self.decoder.finish_eof().map_err(InputError::Rejected);
                    return end.map(|()| NextHead::Closed);
                }
                None => return Ok(NextHead::Suspend),
            }
        }
    }

    /// Returns `false` at EOF.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.at_eof {
            return Poll::Ready(Ok(false));
        }
        let Poll::Ready(received) = self.receiver.poll_receive(context) else {
            let phase = if !self.body.is_complete() {
                Phase::Body
            } else if !self.decoder.is_idle() {
                Phase::Head
            } else if self.has_served_request {
                Phase::Idle
            } else {
                Phase::FirstHead
            };
            self.timer.deadlines.enter(phase, self.timer.now());
            return Poll::Pending;
        };
        match received? {
            Some(chunk) => {
                self.count(chunk.len());
                self.chunk = Some(chunk);
                self.decoded_bytes = 0;
                Poll::Ready(Ok(true))
            }
            None => {
                self.at_eof = true;
                Poll::Ready(Ok(false))
            }
        }
    }

    #[inline]
    fn count(&self, bytes: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.add_received_bytes(bytes as u64);
        }
    }

    pub fn has_buffered_input(&self) -> bool {
        self.chunk.as_ref().is_some_and(|chunk| self.decoded_bytes < chunk.len())
    }

    /// Returns `true` if all received data has been decoded, and the next byte starts a request.
    pub fn is_between_requests(&self) -> bool {
        self.body.is_complete() && !self.at_eof && !self.has_buffered_input() && self.decoder.is_idle()
    }

    /// Sets what the client has sent before the input was created, and the number of further requests that it may send.
    pub fn resume(&mut self, received: R::Chunk, limits: Limits, requests_left: u64) {
        self.decoder = Decoder::new(Limits { max_requests_per_connection: requests_left, ..limits });
        self.has_served_request = self.timer.deadlines.phase.get() == Phase::Idle;
        self.count(received.len());
        self.chunk = Some(received);
    }

    /// Stops reading the current body and discards the part received so far. Returns `true` if this part and the rest have
    /// at most `max_bytes`, so that the connection can be kept alive.
    pub fn finish_body(&mut self, max_bytes: u64) -> bool {
        // The handler may have stopped while it was waiting for data.
        self.pause_body();
        if self.body.lacks_continue() {
            // The client may or may not send the body.
            return false;
        }
        let mut context = Context::from_waker(Waker::noop());
        while !self.body.is_complete() && self.discarded_bytes <= max_bytes {
            match self.poll_body(&mut context) {
                Poll::Ready(Ok(Some(chunk))) => self.discarded_bytes += chunk.len() as u64,
                Poll::Ready(Ok(None)) => break,
                Poll::Ready(Err(_)) => return false,
                Poll::Pending => {
                    // The response is sent before the rest is received.
                    self.pause_body();
                    let bytes_left = self.decoder.body_bytes_left();
                    return bytes_left.is_some_and(|bytes| bytes <= max_bytes - self.discarded_bytes);
                }
            }
        }
        self.trailers = None;
        self.body.is_complete() && self.discarded_bytes <= max_bytes
    }

    /// Receives and discards the rest of the body. Returns `true` if at most `max_bytes` of it have been discarded, so that
    /// another request can follow.
    pub async fn discard_body(&mut self, max_bytes: u64) -> bool {
        while !self.body.is_complete() && self.discarded_bytes <= max_bytes {
            match poll_fn(|context| self.poll_body(context)).await {
                Ok(Some(chunk)) => self.discarded_bytes += chunk.len() as u64,
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        self.trailers = None;
        self.discarded_bytes <= max_bytes
    }

    /// Returns the receiver and the received bytes that belong to the other protocol.
    pub fn into_receiver(mut self) -> (R, Vec<u8>) {
        let mut buffered = self.decoder.begin_upgrade();
        if let Some(chunk) = &self.chunk {
            buffered.extend_from_slice(&chunk[self.decoded_bytes..]);
        }
        (self.receiver, buffered)
    }

    /// Receives and discards data until EOF or an error. Without this, unread data would cause a reset on close, and
    /// the client could lose the last response.
    pub async fn linger(&mut self) {
        self.chunk = None;
        while !self.at_eof {
            let received = poll_fn(|context| {
                let received = self.receiver.poll_receive(context);
                if received.is_pending() {
                    self.timer.deadlines.enter(Phase::Linger, self.timer.now());
                }
                received
            });
            match received.await {
                Ok(Some(chunk)) => self.count(chunk.len()),
                Ok(None) | Err(_) => self.at_eof = true,
            }
        }
    }

    /// Polls for the next part of the body of the current request. Returns `None` at its end.
    pub fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, InputError>> {
        if self.body.is_complete() {
            return Poll::Ready(Ok(None));
        }
        let result = ready!(self.poll_body_data(context));
        self.pause_body();
        self.body = match result {
            Ok(None) => BodyProgress::Complete,
            // The client does not wait for `100 Continue`.
            _ => BodyProgress::Receiving,
        };
        Poll::Ready(result)
    }

    /// Called when a task waits for the body. `100 Continue` is sent by the connection's task, which may not be the
    /// current task.
    pub fn request_continue(&mut self) {
        if self.body.request_continue() {
            self.timer.cancellation.wake();
        }
    }

    /// Pauses the body timeout, because no task is waiting for the body.
    pub fn pause_body(&self) {
        self.timer.deadlines.pause_body(self.timer.now());
    }

    /// Takes the trailers of a body that has been received completely.
    pub fn take_trailers(&mut self) -> Option<Trailers> {
        self.trailers.take()
    }

    /// Receives until the decoder returns body data or the end of the body.
    fn poll_body_data(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, InputError>> {
        loop {
            let chunk = self.chunk.as_deref().unwrap_or_default();
            let mut remaining = &chunk[self.decoded_bytes.min(chunk.len())..];
            let event = self.decoder.decode(&mut remaining).map_err(InputError::Rejected)?;
            self.decoded_bytes = chunk.len() - remaining.len();
            match event {
                Some(Event::Data(data)) => {
                    self.timer.deadlines.add_body_bytes(data.len());
                    return Poll::Ready(Ok(Some(Bytes::copy_from_slice(data))));
                }
                Some(Event::End(trailers)) => {
                    self.trailers = trailers;
                    return Poll::Ready(Ok(None));
                }
                // The decoder returns no head within a body.
                Some(Event::Head(_)) => {
                    return Poll::Ready(Err(InputError::Io(io::ErrorKind::InvalidData.into())));
                }
                None => {}
            }
            self.chunk = None;
            self.decoded_bytes = 0;
            if !ready!(self.poll_more(context)).map_err(InputError::Io)? {
                if self.timer.deadlines.expired.get() == Some(Timeout::Phase(Phase::Body)) {
                    return Poll::Ready(Err(InputError::Rejected(REQUEST_TIMEOUT)));
                }
                return Poll::Ready(Err(InputError::Io(io::ErrorKind::UnexpectedEof.into())));
            }
        }
    }
}

//! What a connection receives: bytes in, parts of requests out.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;

use super::timer::{ConnectionTimer, Phase};
use super::transport::Receiver;
use crate::h1::{Decoder, Event, Head, Limits, Method, Rejection, Trailers};
use crate::observe::metrics::WorkerMetrics;
use crate::request::{BodySource, RequestBodyError, spare_head};

/// The receiving side of a connection.
pub(crate) struct Input<R: Receiver> {
    receiver: R,
    decoder: Decoder,
    /// What was received last, and how much of it was decoded.
    chunk: Option<R::Chunk>,
    decoded_bytes: usize,
    at_eof: bool,
    /// A request has come.
    has_served_request: bool,
    /// Requests with a body so far.
    body_number: u64,
    /// The body of the request at hand has not been received whole.
    is_in_body: bool,
    /// The client waits to be asked for its body.
    expects_continue: bool,
    /// It is to be asked.
    continue_requested: bool,
    trailers: Option<Trailers>,
    body_waker: BodyWaker,
    timer: Rc<ConnectionTimer>,
    /// Where what comes is counted, if anywhere.
    metrics: Option<Rc<WorkerMetrics>>,
}

/// Who waits for more of the body of the request at hand: the connection's task, or another that its handler has given the
/// body to. The socket knows only who waits for it last, and tells nobody when it is closed; so this one is woken when no
/// more of the body will come, and when the connection has ended.
#[derive(Default)]
struct BodyWaker(Option<Waker>);

/// What comes next.
enum InputEvent {
    /// Which cannot be within a body.
    Head,
    Data(Bytes),
    End(Option<Trailers>),
    /// The client has ended its side.
    Eof,
}

/// Why there is no next request.
pub(crate) enum InputError {
    /// What came is no request: to be answered, and the connection closed.
    Rejected(Rejection),
    /// The connection is broken.
    Io(io::Error),
}

const REQUEST_TIMEOUT: Rejection = Rejection::new(408, "the request did not come in time");

impl<R: Receiver> Input<R> {
    pub fn new(
        receiver: R,
        limits: Limits,
        timer: Rc<ConnectionTimer>,
        metrics: Option<Rc<WorkerMetrics>>,
    ) -> Self {
        Self {
            receiver,
            decoder: Decoder::new(limits),
            chunk: None,
            decoded_bytes: 0,
            at_eof: false,
            has_served_request: false,
            body_number: 0,
            is_in_body: false,
            expects_continue: false,
            continue_requested: false,
            trailers: None,
            body_waker: BodyWaker::default(),
            timer,
            metrics,
        }
    }

    /// The next head, if it can be had from what was received: `None` when more has to come.
    #[inline]
    pub fn try_next_head(&mut self) -> Result<Option<Head>, Rejection> {
        debug_assert!(!self.is_in_body);
        let Some(chunk) = &self.chunk else { return Ok(None) };
        if self.decoded_bytes == chunk.len() {
            // Nothing is left of it: nearly always, behind a request.
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
            // All of it was taken.
            self.chunk = None;
            return Ok(None);
        };
        self.begin_request(&head);
        Ok(Some(head))
    }

    fn begin_request(&mut self, head: &Head) {
        self.has_served_request = true;
        if head.framing().has_body() {
            self.is_in_body = true;
            self.body_number += 1;
            self.expects_continue = head.expects_continue();
            self.continue_requested = false;
            self.timer.begin_body();
        } else {
            // The end needs no bytes, and there is nothing else to come.
            let end = self.decoder.decode(&mut &[][..]);
            debug_assert!(matches!(end, Ok(Some(Event::End(None)))), "{end:?}");
        }
    }

    /// Waits for the next head; `None` when the client has ended its side between requests, or was idle for too long.
    pub async fn next_head(&mut self) -> Result<Option<Head>, InputError> {
        loop {
            if let Some(head) = self.try_next_head().map_err(InputError::Rejected)? {
                return Ok(Some(head));
            }
            if self.at_eof || self.decoder.is_closed() {
                return Ok(None);
            }
            if !poll_fn(|context| self.poll_more(context)).await.map_err(InputError::Io)? {
                // A head that came whole at the last moment was answered, and this is the end behind that answer.
                if self.timer.expired_phase() == Some(Phase::Head) && !self.decoder.is_idle() {
                    return Err(InputError::Rejected(REQUEST_TIMEOUT));
                }
                return self.decoder.finish_eof().map(|()| None).map_err(InputError::Rejected);
            }
        }
    }

    /// Receives; whether anything came.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.at_eof {
            return Poll::Ready(Ok(false));
        }
        let Poll::Ready(received) = self.receiver.poll_receive(context) else {
            let phase = match () {
                () if self.is_in_body => Phase::Body,
                () if !self.decoder.is_idle() => Phase::Head,
                () if self.has_served_request => Phase::Idle,
                () => Phase::FirstHead,
            };
            self.timer.enter_phase(phase);
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

    /// So much has come.
    #[inline]
    fn count(&self, bytes: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.add_received_bytes(bytes as u64);
        }
    }

    /// The next part of the body.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Result<InputEvent, InputError>> {
        loop {
            let chunk = self.chunk.as_deref().unwrap_or_default();
            let mut remaining = &chunk[self.decoded_bytes.min(chunk.len())..];
            let event = self.decoder.decode(&mut remaining).map_err(InputError::Rejected)?;
            let input_event = match event {
                Some(Event::Head(_)) => Some(InputEvent::Head),
                Some(Event::Data(data)) => Some(InputEvent::Data(Bytes::copy_from_slice(data))),
                Some(Event::End(trailers)) => Some(InputEvent::End(trailers)),
                None => None,
            };
            self.decoded_bytes = chunk.len() - remaining.len();
            if let Some(input_event) = input_event {
                return Poll::Ready(Ok(input_event));
            }
            self.chunk = None;
            self.decoded_bytes = 0;
            if !ready!(self.poll_more(context)).map_err(InputError::Io)? {
                return Poll::Ready(Ok(InputEvent::Eof));
            }
        }
    }

    /// Returns the method of a head that was refused, as far as it is known.
    pub fn rejected_method(&self) -> Method {
        self.decoder.rejected_method()
    }

    /// The first line of a head that was refused.
    pub fn first_line(&self) -> Option<&[u8]> {
        self.decoder.first_line()
    }

    /// Whether bytes have come that were not decoded.
    pub fn has_buffered_input(&self) -> bool {
        self.chunk.as_ref().is_some_and(|chunk| self.decoded_bytes < chunk.len())
    }

    /// Whether the body of the request at hand is not whole.
    pub fn is_in_body(&self) -> bool {
        self.is_in_body
    }

    /// Whether the client is to be asked for its body.
    pub fn continue_requested(&self) -> bool {
        self.continue_requested
    }

    /// As [`continue_requested`](Self::continue_requested), once.
    pub fn take_continue_requested(&mut self) -> bool {
        std::mem::take(&mut self.continue_requested)
    }

    /// Whether the client waits to be asked for its body, also where nobody has wanted it yet, once.
    pub fn take_continue_pending(&mut self) -> bool {
        let was_wanted = self.take_continue_requested();
        std::mem::take(&mut self.expects_continue) || was_wanted
    }

    /// Ends the body's request, of which nobody will ask for more: drops what has come of the body. Whether the rest is at
    /// most so many bytes, so that it can be waited for and the connection go on.
    pub fn finish_body(&mut self, max_bytes: u64) -> bool {
        self.body_number += 1;
        // It finds another number, or, if it is polled at once, all this in use, which it takes for the same.
        self.body_waker.wake();
        // The handler may have left it in the middle of waiting.
        self.timer.pause_body_timer();
        if self.is_in_body && (self.expects_continue || self.take_continue_requested()) {
            // It was not asked for, and may come or not.
            return false;
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut discarded_bytes = 0;
        while self.is_in_body && discarded_bytes <= max_bytes {
            match self.poll_body(&mut context) {
                Poll::Ready(Ok(Some(chunk))) => discarded_bytes += chunk.len() as u64,
                Poll::Ready(Ok(None)) => break,
                Poll::Ready(Err(_)) => return false,
                Poll::Pending => {
                    // The answer comes first.
                    self.timer.pause_body_timer();
                    return self.decoder.body_bytes_left().is_some_and(|left| left <= max_bytes);
                }
            }
        }
        self.trailers = None;
        !self.is_in_body
    }

    /// Waits for what is left of the body, at most so many bytes; whether it is whole, so that another request may follow.
    pub async fn discard_body(&mut self, mut max_bytes: u64) -> bool {
        while self.is_in_body {
            match poll_fn(|context| self.poll_body(context)).await {
                Ok(Some(chunk)) => match max_bytes.checked_sub(chunk.len() as u64) {
                    Some(left) => max_bytes = left,
                    None => return false,
                },
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        self.trailers = None;
        true
    }

    /// What receives, and what of another protocol has come already.
    pub fn into_receiver(mut self) -> (R, Vec<u8>) {
        let mut buffered = self.decoder.begin_upgrade();
        if let Some(chunk) = &self.chunk {
            buffered.extend_from_slice(&chunk[self.decoded_bytes..]);
        }
        (self.receiver, buffered)
    }

    /// Reads and drops what still comes, until the client has ended its side or the connection is broken: a socket that is
    /// closed with bytes unread resets the connection, and what was sent last is lost.
    pub async fn linger(&mut self) {
        self.chunk = None;
        while !self.at_eof {
            let received = poll_fn(|context| {
                let received = self.receiver.poll_receive(context);
                if received.is_pending() {
                    self.timer.enter_phase(Phase::Linger);
                }
                received
            });
            match received.await {
                Ok(Some(chunk)) => self.count(chunk.len()),
                Ok(None) | Err(_) => self.at_eof = true,
            }
        }
    }

    /// The next piece of the body, for whoever has the word.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        if !self.is_in_body {
            return Poll::Ready(Ok(None));
        }
        let result = match ready!(self.poll_event(context)) {
            Ok(InputEvent::Data(data)) => {
                self.expects_continue = false;
                self.timer.add_body_bytes(data.len());
                self.timer.pause_body_timer();
                return Poll::Ready(Ok(Some(data)));
            }
            Ok(InputEvent::End(trailers)) => {
                self.trailers = trailers;
                Ok(None)
            }
            Ok(InputEvent::Eof) if self.timer.expired_phase() == Some(Phase::Body) => {
                Err(RequestBodyError::Rejected(REQUEST_TIMEOUT))
            }
            // There is no head within a body.
            Ok(InputEvent::Eof | InputEvent::Head) => {
                Err(RequestBodyError::Io(io::ErrorKind::UnexpectedEof.into()))
            }
            Err(InputError::Rejected(rejection)) => Err(RequestBodyError::Rejected(rejection)),
            Err(InputError::Io(error)) => Err(RequestBodyError::Io(error)),
        };
        self.timer.pause_body_timer();
        self.is_in_body = result.is_err();
        self.expects_continue = false;
        Poll::Ready(result)
    }
}

impl<R: Receiver> BodySource for Input<R> {
    fn body_number(&self) -> u64 {
        self.body_number
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        let polled = self.poll_body(context);
        if polled.is_ready() {
            self.body_waker.clear();
            return polled;
        }
        self.body_waker.register(context.waker());
        if std::mem::take(&mut self.expects_continue) {
            self.continue_requested = true;
            // The connection's task asks the client, and may not be the one that runs.
            self.timer.cancellation.wake();
        }
        polled
    }

    fn pause(&self) {
        self.timer.pause_body_timer();
    }

    fn take_trailers(&mut self) -> Option<Trailers> {
        self.trailers.take()
    }
}

impl BodyWaker {
    fn register(&mut self, waker: &Waker) {
        if !self.0.as_ref().is_some_and(|previous| previous.will_wake(waker)) {
            self.0 = Some(waker.clone());
        }
    }

    fn clear(&mut self) {
        self.0 = None;
    }

    fn wake(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

impl Drop for BodyWaker {
    fn drop(&mut self) {
        self.wake();
    }
}

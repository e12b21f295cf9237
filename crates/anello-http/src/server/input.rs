//! What a connection receives: bytes in, parts of requests out.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;

use super::transport::Receiver;
use super::watch::{Phase, Watch};
use crate::h1::{Decoder, Event, Head, Limits, Method, Rejection, Trailers};
use crate::observe::metrics::WorkerMetrics;
use crate::request::{BodySource, RequestBodyError, spare_head};

/// The receiving side of a connection.
pub(crate) struct Input<R: Receiver> {
    receiver: R,
    decoder: Decoder,
    /// What was received last, and how much of it was decoded.
    piece: Option<R::ChunkedEvent>,
    decoded_bytes: usize,
    has_ended: bool,
    /// A request has come.
    has_served: bool,
    /// Requests with a body so far.
    bodies: u64,
    /// The body of the request at hand has not been received whole.
    is_in_body: bool,
    /// The client waits to be asked for its body.
    expects_continue: bool,
    /// It is to be asked.
    wants_continue: bool,
    trailers: Option<Trailers>,
    reader: Reader,
    watch: Rc<Watch>,
    /// Where what comes is counted, if anywhere.
    metrics: Option<Rc<WorkerMetrics>>,
}

/// Who waits for more of the body of the request at hand: the connection's task, or another that its handler has given the
/// body to. The socket knows only who waits for it last, and tells nobody when it is closed; so this one is woken when no
/// more of the body will come, and when the connection has ended.
#[derive(Default)]
struct Reader(Option<Waker>);

/// What comes next.
enum Part {
    /// Which cannot be within a body.
    Head,
    Data(Bytes),
    End(Option<Trailers>),
    /// The client has ended its side.
    Ended,
}

/// Why there is no next request.
pub(crate) enum Failure {
    /// What came is no request: to be answered, and the connection closed.
    Refused(Rejection),
    /// The connection is broken.
    Broken(io::Error),
}

const TOO_SLOW: Rejection = Rejection::new(408, "the request did not come in time");

impl<R: Receiver> Input<R> {
    pub fn new(receiver: R, limits: Limits, watch: Rc<Watch>, metrics: Option<Rc<WorkerMetrics>>) -> Self {
        Self {
            receiver,
            decoder: Decoder::new(limits),
            piece: None,
            decoded_bytes: 0,
            has_ended: false,
            has_served: false,
            bodies: 0,
            is_in_body: false,
            expects_continue: false,
            wants_continue: false,
            trailers: None,
            reader: Reader::default(),
            watch,
            metrics,
        }
    }

    /// The next head, if it can be had from what was received: `None` when more has to come.
    #[inline]
    pub fn head_at_hand(&mut self) -> Result<Option<Head>, Rejection> {
        debug_assert!(!self.is_in_body);
        let Some(piece) = &self.piece else { return Ok(None) };
        if self.decoded_bytes == piece.len() {
            // Nothing is left of it: nearly always, behind a request.
            self.piece = None;
            return Ok(None);
        }
        if let Some(spare) = spare_head() {
            self.decoder.recycle(spare);
        }
        let mut rest = &piece[self.decoded_bytes..];
        let event = self.decoder.decode(&mut rest)?;
        self.decoded_bytes = piece.len() - rest.len();
        let Some(Event::Head(head)) = event else {
            // All of it was taken.
            self.piece = None;
            return Ok(None);
        };
        self.begin(&head);
        Ok(Some(head))
    }

    fn begin(&mut self, head: &Head) {
        self.has_served = true;
        if head.framing().has_body() {
            self.is_in_body = true;
            self.bodies += 1;
            self.expects_continue = head.expects_continue();
            self.wants_continue = false;
            self.watch.begin_body();
        } else {
            // The end needs no bytes, and there is nothing else to come.
            let end = self.decoder.decode(&mut &[][..]);
            debug_assert!(matches!(end, Ok(Some(Event::End(None)))), "{end:?}");
        }
    }

    /// Waits for the next head; `None` when the client has ended its side between requests, or was idle for too long.
    pub async fn next_head(&mut self) -> Result<Option<Head>, Failure> {
        loop {
            if let Some(head) = self.head_at_hand().map_err(Failure::Refused)? {
                return Ok(Some(head));
            }
            if self.has_ended || self.decoder.is_closed() {
                return Ok(None);
            }
            if !poll_fn(|context| self.poll_more(context)).await.map_err(Failure::Broken)? {
                // A head that came whole at the last moment was answered, and this is the end behind that answer.
                if self.watch.late() == Some(Phase::Head) && !self.decoder.is_idle() {
                    return Err(Failure::Refused(TOO_SLOW));
                }
                return self.decoder.finish_eof().map(|()| None).map_err(Failure::Refused);
            }
        }
    }

    /// Receives; whether anything came.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.has_ended {
            return Poll::Ready(Ok(false));
        }
        let Poll::Ready(received) = self.receiver.poll_receive(context) else {
            let phase = match () {
                () if self.is_in_body => Phase::Body,
                () if !self.decoder.is_idle() => Phase::Head,
                () if self.has_served => Phase::Idle,
                () => Phase::Fresh,
            };
            self.watch.wait_for(phase);
            return Poll::Pending;
        };
        match received? {
            Some(piece) => {
                self.count(piece.len());
                self.piece = Some(piece);
                self.decoded_bytes = 0;
                Poll::Ready(Ok(true))
            }
            None => {
                self.has_ended = true;
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
    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Result<Part, Failure>> {
        loop {
            let piece = self.piece.as_deref().unwrap_or_default();
            let mut rest = &piece[self.decoded_bytes.min(piece.len())..];
            let event = self.decoder.decode(&mut rest).map_err(Failure::Refused)?;
            let part = match event {
                Some(Event::Head(_)) => Some(Part::Head),
                Some(Event::Data(data)) => Some(Part::Data(Bytes::copy_from_slice(data))),
                Some(Event::End(trailers)) => Some(Part::End(trailers)),
                None => None,
            };
            self.decoded_bytes = piece.len() - rest.len();
            if let Some(part) = part {
                return Poll::Ready(Ok(part));
            }
            self.piece = None;
            self.decoded_bytes = 0;
            if !ready!(self.poll_more(context)).map_err(Failure::Broken)? {
                return Poll::Ready(Ok(Part::Ended));
            }
        }
    }

    /// Returns the method of a head that was refused, as far as it is known.
    pub fn refused_method(&self) -> Method {
        self.decoder.refused_method()
    }

    /// The first line of a head that was refused.
    pub fn first_line(&self) -> Option<&[u8]> {
        self.decoder.first_line()
    }

    /// Whether bytes have come that were not decoded.
    pub fn has_more_at_hand(&self) -> bool {
        self.piece.as_ref().is_some_and(|piece| self.decoded_bytes < piece.len())
    }

    /// Whether the body of the request at hand is not whole.
    pub fn is_in_body(&self) -> bool {
        self.is_in_body
    }

    /// Whether the client is to be asked for its body.
    pub fn wants_continue(&self) -> bool {
        self.wants_continue
    }

    /// As [`wants_continue`](Self::wants_continue), once.
    pub fn take_wanted_continue(&mut self) -> bool {
        std::mem::take(&mut self.wants_continue)
    }

    /// Whether the client waits to be asked for its body, also where nobody has wanted it yet, once.
    pub fn take_awaited_continue(&mut self) -> bool {
        let was_wanted = self.take_wanted_continue();
        std::mem::take(&mut self.expects_continue) || was_wanted
    }

    /// Ends the body's request, of which nobody will ask for more: drops what has come of the body. Whether the rest is at
    /// most so many bytes, so that it can be waited for and the connection go on.
    pub fn end_body(&mut self, most_bytes: u64) -> bool {
        self.bodies += 1;
        // It finds another number, or, if it is polled at once, all this in use, which it takes for the same.
        self.reader.wake();
        // The handler may have left it in the middle of waiting.
        self.watch.rest_from_body();
        if self.is_in_body && (self.expects_continue || self.take_wanted_continue()) {
            // It was not asked for, and may come or not.
            return false;
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut dropped_bytes = 0;
        while self.is_in_body && dropped_bytes <= most_bytes {
            match self.poll_body(&mut context) {
                Poll::Ready(Ok(Some(piece))) => dropped_bytes += piece.len() as u64,
                Poll::Ready(Ok(None)) => break,
                Poll::Ready(Err(_)) => return false,
                Poll::Pending => {
                    // The answer comes first.
                    self.watch.rest_from_body();
                    return self.decoder.body_bytes_left().is_some_and(|left| left <= most_bytes);
                }
            }
        }
        self.trailers = None;
        !self.is_in_body
    }

    /// Waits for what is left of the body, at most so many bytes; whether it is whole, so that another request may follow.
    pub async fn discard_body(&mut self, mut most_bytes: u64) -> bool {
        while self.is_in_body {
            match poll_fn(|context| self.poll_body(context)).await {
                Ok(Some(piece)) => match most_bytes.checked_sub(piece.len() as u64) {
                    Some(left) => most_bytes = left,
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
        let mut first = self.decoder.begin_upgrade();
        if let Some(piece) = &self.piece {
            first.extend_from_slice(&piece[self.decoded_bytes..]);
        }
        (self.receiver, first)
    }

    /// Reads and drops what still comes, until the client has ended its side or the connection is broken: a socket that is
    /// closed with bytes unread resets the connection, and what was sent last is lost.
    pub async fn linger(&mut self) {
        self.piece = None;
        while !self.has_ended {
            let received = poll_fn(|context| {
                let received = self.receiver.poll_receive(context);
                if received.is_pending() {
                    self.watch.wait_for(Phase::Linger);
                }
                received
            });
            match received.await {
                Ok(Some(piece)) => self.count(piece.len()),
                Ok(None) | Err(_) => self.has_ended = true,
            }
        }
    }

    /// The next piece of the body, for whoever has the word.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        if !self.is_in_body {
            return Poll::Ready(Ok(None));
        }
        let result = match ready!(self.poll_part(context)) {
            Ok(Part::Data(data)) => {
                self.expects_continue = false;
                self.watch.received_body(data.len());
                self.watch.rest_from_body();
                return Poll::Ready(Ok(Some(data)));
            }
            Ok(Part::End(trailers)) => {
                self.trailers = trailers;
                Ok(None)
            }
            Ok(Part::Ended) if self.watch.late() == Some(Phase::Body) => {
                Err(RequestBodyError::Rejected(TOO_SLOW))
            }
            // There is no head within a body.
            Ok(Part::Ended | Part::Head) => Err(RequestBodyError::Io(io::ErrorKind::UnexpectedEof.into())),
            Err(Failure::Refused(refusal)) => Err(RequestBodyError::Rejected(refusal)),
            Err(Failure::Broken(error)) => Err(RequestBodyError::Io(error)),
        };
        self.watch.rest_from_body();
        self.is_in_body = result.is_err();
        self.expects_continue = false;
        Poll::Ready(result)
    }
}

impl<R: Receiver> BodySource for Input<R> {
    fn number(&self) -> u64 {
        self.bodies
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        let polled = self.poll_body(context);
        if polled.is_ready() {
            self.reader.rests();
            return polled;
        }
        self.reader.waits(context.waker());
        if std::mem::take(&mut self.expects_continue) {
            self.wants_continue = true;
            // The connection's task asks the client, and may not be the one that runs.
            self.watch.ending.wake();
        }
        polled
    }

    fn rest(&self) {
        self.watch.rest_from_body();
    }

    fn take_trailers(&mut self) -> Option<Trailers> {
        self.trailers.take()
    }
}

impl Reader {
    fn waits(&mut self, waker: &Waker) {
        if !self.0.as_ref().is_some_and(|before| before.will_wake(waker)) {
            self.0 = Some(waker.clone());
        }
    }

    fn rests(&mut self) {
        self.0 = None;
    }

    fn wake(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.wake();
    }
}

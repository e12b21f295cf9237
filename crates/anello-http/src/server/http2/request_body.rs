//! Request bodies of HTTP/2 streams.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;

use super::timers::{StreamTimer, Task};
use super::transport::{Eof, TransportState};
use crate::h1::{Limits, Rejection, Trailers};
use crate::message::{BodySource, RequestBodyError};
use crate::server::body_progress::BodyProgress;
use crate::server::deadline::Phase;
use crate::server::timer::ConnectionTimer;

pub(super) const REQUEST_TIMEOUT: Rejection = Rejection::new(408, "request not received in time");

/// The body of one request. The flow-control window grows only as the handler reads, so at most one window is buffered.
pub(super) struct StreamBody {
    stream: RecvStream,
    left: u64,
    limits: Limits,
    pub progress: BodyProgress,
    trailers: Option<Trailers>,
    timer: Rc<StreamTimer>,
    connection: Rc<ConnectionTimer>,
    state: Rc<TransportState>,
}

impl StreamBody {
    pub fn new(
        stream: RecvStream,
        limits: Limits,
        expects_continue: bool,
        timer: Rc<StreamTimer>,
        connection: Rc<ConnectionTimer>,
        state: Rc<TransportState>,
    ) -> Self {
        Self {
            stream,
            left: limits.max_body_bytes,
            limits,
            progress: BodyProgress::begin(expects_continue),
            trailers: None,
            timer,
            connection,
            state,
        }
    }

    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        if let Some(data) = ready!(self.stream.poll_data(context)) {
            let data = data.map_err(into_body_error)?;
            let Some(left) = self.left.checked_sub(data.len() as u64) else {
                return Poll::Ready(Err(RequestBodyError::Rejected(Rejection::new(413, "body too long"))));
            };
            self.left = left;
            self.timer.deadlines.add_body_bytes(data.len());
            self.stream.flow_control().release_capacity(data.len()).map_err(into_body_error)?;
            return Poll::Ready(Ok(Some(data)));
        }
        let trailers = ready!(self.stream.poll_trailers(context)).map_err(into_body_error)?;
        self.progress = BodyProgress::Complete;
        if let Some(fields) = trailers {
            if fields.len() > self.limits.max_trailer_fields {
                return Poll::Ready(Err(RequestBodyError::Rejected(Rejection::new(
                    431,
                    "too many trailer fields",
                ))));
            }
            self.trailers = Some(Trailers::from_headers(&fields));
        }
        Poll::Ready(Ok(None))
    }
}

impl BodySource for StreamBody {
    fn body_number(&self) -> u64 {
        0
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        if self.progress.is_complete() {
            return Poll::Ready(Ok(None));
        }
        if self.timer.deadlines.expired.get().is_some() {
            return Poll::Ready(Err(RequestBodyError::Rejected(REQUEST_TIMEOUT)));
        }
        let poll_result = self.poll_data(context);
        if poll_result.is_ready() {
            self.pause();
            if self.progress.lacks_continue() {
                // The client does not wait for `100 Continue`.
                self.progress = BodyProgress::Receiving;
            }
            return poll_result;
        }
        if self.state.eof.get() != Eof::NotReceived {
            return Poll::Ready(Err(RequestBodyError::Io(io::ErrorKind::UnexpectedEof.into())));
        }
        self.timer.register(Task::BodyReader, context);
        self.timer.deadlines.enter(Phase::Body, self.connection.now());
        if self.progress.request_continue() {
            // `100 Continue` is sent by the task that serves the stream, which may not be the current task.
            self.timer.wake(Task::Server);
        }
        Poll::Pending
    }

    fn pause(&self) {
        self.timer.deadlines.pause_body(self.connection.now());
    }

    fn take_trailers(&mut self) -> Option<Trailers> {
        self.trailers.take()
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        // A task that is still reading finds that the body is gone.
        self.timer.wake(Task::BodyReader);
    }
}

fn into_body_error(error: h2::Error) -> RequestBodyError {
    let kind = if error.is_io() { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::ConnectionReset };
    RequestBodyError::Io(io::Error::new(kind, error))
}

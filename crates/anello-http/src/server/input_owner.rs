//! Ownership of the input of a connection.
//!
//! ```text
//!   Connection ── lend ──► Loan (Idle ◄──► Waiting ──► Dropped) ── take_back ──► Connection
//!                                      RequestBody
//! ```
//!
//! The connection owns the input between requests, and during a request without a body. For a request with a body, it
//! lends the input to the [`RequestBody`], which reads from it in the task of the connection or in any other task of the
//! thread. The connection takes it back when the handler has returned or, if the response is a stream, when that is
//! complete. Nothing depends on the body being dropped: a body that is kept or leaked can no longer be read after that,
//! and a task that is waiting for it is woken.
//!
//! If the connection is closed before, the input is dropped with the loan, which has the same effect on the body.

use std::cell::RefCell;
use std::io;
use std::mem;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use anello::wake_all;
use bytes::Bytes;

use super::body_progress::BodyProgress;
use super::input::Input;
use crate::h1::Trailers;
use crate::message::{BodySource, RequestBody, RequestBodyError};
use crate::transport::Receiver;

/// The input of a connection, or that a body has it.
pub(super) struct InputOwner<R: Receiver> {
    owner: Owner<R>,
    /// Allocated for the first request with a body, and used again by the following ones.
    loan: Option<Rc<RefCell<Loan<R>>>>,
}

enum Owner<R: Receiver> {
    /// Boxed, because the future of a connection would contain it several times: for each call that it is moved into.
    Connection(Box<Input<R>>),
    /// The input is in the loan.
    Body,
}

/// The place of the input while it is lent. Bodies refer to it weakly, so that they do not keep the connection open.
struct Loan<R: Receiver> {
    /// Number of the current or last body.
    body_number: u64,
    state: LoanState<R>,
}

enum LoanState<R: Receiver> {
    /// No body can be read.
    Ended,
    Lent {
        input: Box<Input<R>>,
        reader: Reader,
    },
}

/// The task that reads the body: the connection's task, or a task to which the handler has moved the body.
enum Reader {
    /// No task is waiting for the body.
    Idle,
    /// The socket stores only the last waker, and closing the socket does not wake it. This waker is therefore woken
    /// when the body can no longer be read.
    Waiting(Waker),
    /// The body has been dropped.
    Dropped,
}

impl<R: Receiver> InputOwner<R> {
    pub fn new(input: Input<R>) -> Self {
        Self { owner: Owner::Connection(Box::new(input)), loan: None }
    }

    /// Returns the input, which the connection must own.
    #[inline]
    pub fn get(&mut self) -> io::Result<&mut Input<R>> {
        match &mut self.owner {
            Owner::Connection(input) => Ok(input),
            Owner::Body => Err(lost()),
        }
    }

    pub fn into_input(self) -> io::Result<Input<R>> {
        match self.owner {
            Owner::Connection(input) => Ok(*input),
            Owner::Body => Err(lost()),
        }
    }

    /// Returns `true` if no request body can be read.
    pub fn is_owned_by_connection(&self) -> bool {
        matches!(self.owner, Owner::Connection(_))
    }

    /// Lends the input to the body of a request.
    pub fn lend(&mut self) -> io::Result<RequestBody> {
        let Owner::Connection(input) = mem::replace(&mut self.owner, Owner::Body) else { return Err(lost()) };
        let new_loan = || Rc::new(RefCell::new(Loan { body_number: 0, state: LoanState::Ended }));
        let loan = self.loan.get_or_insert_with(new_loan);
        {
            let mut loan = loan.try_borrow_mut().map_err(|_| lost())?;
            loan.body_number += 1;
            loan.state = LoanState::Lent { input, reader: Reader::Idle };
        }
        Ok(RequestBody::new(Rc::<RefCell<Loan<R>>>::clone(loan)))
    }

    /// Ends the loan, if there is one. The body can no longer be read, and the task that is waiting for it is woken.
    pub fn take_back(&mut self) -> io::Result<&mut Input<R>> {
        if let (Owner::Body, Some(loan)) = (&self.owner, &self.loan) {
            // The loan is borrowed only if a waker of the reader runs this task while the reader registers it.
            let state = loan.try_borrow_mut().map(|mut loan| mem::replace(&mut loan.state, LoanState::Ended));
            if let Ok(LoanState::Lent { input, reader }) = state {
                self.owner = Owner::Connection(input);
                // The loan is not borrowed here: a waker can run arbitrary code.
                reader.wake();
            }
        }
        self.get()
    }

    /// Returns `true` if a body has neither been dropped nor received completely.
    pub fn may_be_read(&self) -> bool {
        let may_be_read = |input: &mut Input<R>, reader: &Reader| {
            !input.body.is_complete() && !matches!(reader, Reader::Dropped)
        };
        self.with_loan(may_be_read).unwrap_or(false)
    }

    /// Returns `true` if `100 Continue` must be sent, because a task is waiting for the body.
    pub fn is_continue_requested(&self) -> bool {
        let is_requested = |input: &mut Input<R>, _: &Reader| input.body == BodyProgress::ContinueRequested;
        self.with_loan(is_requested).unwrap_or(false)
    }

    /// Returns `true` if `100 Continue` has not been sent to a client that may be waiting for it, and must be sent now:
    /// because a task is waiting for the body or, with `before_response`, because it must not follow the response.
    pub fn take_continue_request(&self, before_response: bool) -> bool {
        let take = |input: &mut Input<R>, _: &Reader| {
            if before_response {
                input.body.request_continue();
            }
            input.body.take_continue_request()
        };
        self.with_loan(take).unwrap_or(false)
    }

    /// Calls `action` if the input is lent.
    #[inline]
    fn with_loan<T>(&self, action: impl FnOnce(&mut Input<R>, &Reader) -> T) -> Option<T> {
        if self.is_owned_by_connection() {
            return None;
        }
        match &mut self.loan.as_ref()?.try_borrow_mut().ok()?.state {
            LoanState::Lent { input, reader } => Some(action(input, reader)),
            LoanState::Ended => None,
        }
    }
}

#[cold]
fn lost() -> io::Error {
    io::Error::other("cannot receive the next request: a request body is still being read")
}

impl<R: Receiver> BodySource for Loan<R> {
    fn body_number(&self) -> u64 {
        self.body_number
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        let LoanState::Lent { input, reader } = &mut self.state else {
            return Poll::Ready(Err(RequestBodyError::ended()));
        };
        let poll_result = input.poll_body(context);
        if poll_result.is_ready() {
            *reader = Reader::Idle;
        } else {
            reader.wait(context.waker());
            input.request_continue();
        }
        poll_result
    }

    fn pause(&self) {
        if let LoanState::Lent { input, .. } = &self.state {
            input.pause_body();
        }
    }

    fn take_trailers(&mut self) -> Option<Trailers> {
        match &mut self.state {
            LoanState::Lent { input, .. } => input.take_trailers(),
            LoanState::Ended => None,
        }
    }

    fn release(&mut self) {
        self.pause();
        if let LoanState::Lent { reader, .. } = &mut self.state {
            *reader = Reader::Dropped;
        }
    }
}

impl Reader {
    /// Registers the task that is waiting for the body.
    fn wait(&mut self, waker: &Waker) {
        match self {
            Self::Waiting(registered) => registered.clone_from(waker),
            Self::Idle | Self::Dropped => *self = Self::Waiting(waker.clone()),
        }
    }

    fn wake(self) {
        if let Self::Waiting(waker) = self {
            wake_all([waker]);
        }
    }
}

impl<R: Receiver> Drop for Loan<R> {
    fn drop(&mut self) {
        if let LoanState::Lent { reader, .. } = &mut self.state {
            mem::replace(reader, Reader::Dropped).wake();
        }
    }
}

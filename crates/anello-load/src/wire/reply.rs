//! Request identifiers, and the results of checking replies.

use crate::model::errors::{ConnectionError, ErrorKind};

/// A request of the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestId {
    /// Index of the connection.
    pub connection: u64,
    /// Number of the request on its connection.
    pub sequence: u64,
}

/// Result of checking the bytes received so far. `None` if the reply is not complete.
pub(crate) type ReceiveResult = Result<Option<ReplyCheck>, ConnectionError>;

/// Result of checking a complete reply.
#[derive(Debug)]
pub(crate) enum ReplyCheck {
    Valid,
    /// The request does not count as answered. The connection stays open.
    Invalid(Box<ConnectionError>),
}

impl ReplyCheck {
    #[cold]
    pub fn invalid(kind: ErrorKind, text: impl FnOnce() -> String) -> Self {
        Self::Invalid(Box::new(ConnectionError::new(kind, text())))
    }
}

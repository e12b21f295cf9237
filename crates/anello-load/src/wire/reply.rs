//! Result of checking a reply.

use crate::model::errors::{ConnectionError, ErrorKind};

/// Result of checking a complete reply.
#[derive(Debug)]
pub(crate) enum ReplyCheck {
    Valid,
    /// The reply does not count as a request. The connection stays open.
    Invalid(Box<ConnectionError>),
}

impl ReplyCheck {
    #[cold]
    pub fn invalid(kind: ErrorKind, text: impl FnOnce() -> String) -> Self {
        Self::Invalid(Box::new(ConnectionError::new(kind, text())))
    }
}

//! Progress of receiving a request body, with the handshake of `Expect: 100-continue` (RFC 9110, section 10.1.1).

/// ```text
///   AwaitingContinue ──► ContinueRequested ──► Receiving ──► Complete
///           └──────────── data arrives ────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyProgress {
    /// The client may wait for `100 Continue` before it sends the body. No task has read the body yet.
    AwaitingContinue,
    /// A task is reading the body, so `100 Continue` must be sent.
    ContinueRequested,
    /// The client is sending the body.
    Receiving,
    /// The whole body has been received, or there is none.
    Complete,
}

impl BodyProgress {
    /// Returns the progress at the start of a body.
    pub fn begin(expects_continue: bool) -> Self {
        if expects_continue { Self::AwaitingContinue } else { Self::Receiving }
    }

    pub fn is_complete(self) -> bool {
        self == Self::Complete
    }

    /// Returns `true` if the client may be waiting for `100 Continue`, so that it is unknown whether it sends the body.
    pub fn lacks_continue(self) -> bool {
        matches!(self, Self::AwaitingContinue | Self::ContinueRequested)
    }

    /// Called when a task waits for data. Returns `true` if `100 Continue` must be sent because of that.
    pub fn request_continue(&mut self) -> bool {
        let is_awaited = *self == Self::AwaitingContinue;
        if is_awaited {
            *self = Self::ContinueRequested;
        }
        is_awaited
    }

    /// Returns `true` if `100 Continue` must be sent now, which the caller then does.
    pub fn take_continue_request(&mut self) -> bool {
        let is_requested = *self == Self::ContinueRequested;
        if is_requested {
            *self = Self::Receiving;
        }
        is_requested
    }
}

//! The token by which a completion finds again what it belongs to.

/// What a completion belongs to, as it travels in `user_data`:
///
/// ```text
///    63      56 55           32 31            0
///   |   kind   |  generation   |     index     |
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Token(pub(crate) u64);

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Accept,
    AcceptPause,
    Receive,
    /// Of the server without options: a send that completes at submission.
    Send,
    /// Only of the server without options: a send that waits until all is taken.
    SendAll,
    /// Only of the server with options: the close of a registered file.
    Close,
    /// Only of the server with options: the cancellation of a receive.
    CancelReceive,
    /// Only of the server with options: the cancellation of a send.
    CancelSend,
    /// Of which nothing follows: cancellations of the server without options, linked timeouts.
    Ignored,
}

impl Token {
    const GENERATIONS: u32 = 1 << 24;

    #[inline]
    pub(crate) fn new(kind: Kind, generation: u32, index: u32) -> Token {
        Token((kind as u64) << 56 | u64::from(generation) << 32 | u64::from(index))
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        const KINDS: [Kind; 9] = [
            Kind::Accept,
            Kind::AcceptPause,
            Kind::Receive,
            Kind::Send,
            Kind::SendAll,
            Kind::Close,
            Kind::CancelReceive,
            Kind::CancelSend,
            Kind::Ignored,
        ];
        KINDS.get((self.0 >> 56) as usize).copied().unwrap_or(Kind::Ignored)
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32 % Token::GENERATIONS
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn next_generation(generation: u32) -> u32 {
        (generation + 1) % Token::GENERATIONS
    }
}

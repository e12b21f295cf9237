//! Token that identifies the operation of a completion.

/// Operation, generation and index in `user_data`:
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
    /// In the server without options: a send with inline completion. In the configurable server: any send.
    Send,
    /// Server without options only: a blocking send, which waits until all bytes are accepted.
    SendAll,
    /// Configurable server only: the close of a registered file.
    Close,
    /// Configurable server only: the cancellation of a receive.
    CancelReceive,
    /// Configurable server only: the cancellation of a send.
    CancelSend,
    /// Completions that need no action: cancellations in the server without options, linked timeouts.
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

//! Token that identifies the operation that a completion belongs to.
//!
//! ```text
//!    63      56 55           32 31            0
//!   |   kind   |  generation   |     index     |
//! ```

use strum::VariantArray;

#[derive(Clone, Copy)]
pub(super) struct Token(pub(super) u64);

#[derive(Clone, Copy, strum::VariantArray)]
#[repr(u8)]
pub(super) enum Kind {
    Accept,
    AcceptPause,
    Receive,
    /// A send from the receive buffers, which does not wait for space in the send buffer.
    Send,
    /// A blocking send, which waits until all bytes are accepted.
    SendAll,
    Cancel,
    /// A request to close a registered file.
    Close,
    /// A linked timeout.
    Timeout,
}

impl Token {
    const GENERATIONS: u32 = 1 << 24;

    #[inline]
    pub(super) fn new(kind: Kind, generation: u32, index: u32) -> Token {
        Token((kind as u64) << 56 | u64::from(generation) << 32 | u64::from(index))
    }

    #[inline]
    pub(super) fn kind(self) -> Kind {
        Kind::VARIANTS[(self.0 >> 56) as usize % Kind::VARIANTS.len()]
    }

    #[inline]
    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32 % Token::GENERATIONS
    }

    #[inline]
    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn next_generation(generation: u32) -> u32 {
        (generation + 1) % Token::GENERATIONS
    }
}

//! `user_data`: which operation of which socket a completion belongs to.
//!
//! ```text
//!  63      60 59                    32 31                     0
//! ┌──────────┬────────────────────────┬────────────────────────┐
//! │ kind (4) │ generation (28)        │ index (32)             │
//! └──────────┴────────────────────────┴────────────────────────┘
//! ```
//!
//! The index names a slot of a [`Table`](super::table::Table), the generation the occupant of that slot. A completion
//! that arrives after its slot was given to somebody else carries the old generation: it finds nobody, is counted as
//! late, and can never reach the wrong owner.

/// Bits of a generation that fit into a token.
pub(crate) const GENERATION_MASK: u32 = (1 << 28) - 1;

/// A slot of a table and the occupant that was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub index: u32,
    pub generation: u32,
}

/// What kind of operation a token stands for. The order is the wire format of `user_data`; zero is never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Accept on a listener.
    Accept = 1,
    /// Connect of a stream.
    Connect = 2,
    /// Receive into the buffer ring.
    Receive = 3,
    /// The send at the head of a stream's queue.
    Send = 4,
    /// Readiness to receive.
    Readable = 5,
    /// A cancellation: its own completion says nothing that matters.
    Cancel = 6,
    /// Something was put into the inbox by another thread.
    Wake = 7,
    /// A message to another ring: its key is that of the wake-up.
    Message = 8,
    /// A zero-copy send: its key is that of the memory that it holds.
    SendZeroCopy = 9,
    /// Readiness to send from a file.
    Writable = 10,
    /// The end of the connection, for a multishot receive that may miss it.
    Hangup = 11,
}

/// Kind and key in the 64 bits that the kernel hands back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(pub u64);

impl Token {
    pub fn new(kind: Kind, key: Key) -> Self {
        Self((kind as u64) << 60 | u64::from(key.generation & GENERATION_MASK) << 32 | u64::from(key.index))
    }

    /// A token of the driver itself, which belongs to no slot.
    pub fn internal(kind: Kind) -> Self {
        Self::new(kind, Key { index: 0, generation: 0 })
    }

    /// The kind, or `None` for a value that no token has.
    pub fn kind(self) -> Option<Kind> {
        Some(match self.0 >> 60 {
            1 => Kind::Accept,
            2 => Kind::Connect,
            3 => Kind::Receive,
            4 => Kind::Send,
            5 => Kind::Readable,
            6 => Kind::Cancel,
            7 => Kind::Wake,
            8 => Kind::Message,
            9 => Kind::SendZeroCopy,
            10 => Kind::Writable,
            11 => Kind::Hangup,
            _ => return None,
        })
    }

    pub fn key(self) -> Key {
        Key { index: self.0 as u32, generation: (self.0 >> 32) as u32 & GENERATION_MASK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_gives_back_what_was_put_in() {
        for kind in
            [Kind::Accept, Kind::Connect, Kind::Receive, Kind::Send, Kind::Readable, Kind::Cancel, Kind::Wake]
        {
            for (index, generation) in [(0, 0), (1, 2), (u32::MAX, GENERATION_MASK)] {
                let token = Token::new(kind, Key { index, generation });
                assert_eq!(token.kind(), Some(kind));
                assert_eq!(token.key(), Key { index, generation });
            }
        }
        assert_eq!(Token(0).kind(), None);
    }
}

//! Encoding of `user_data`, which identifies the operation and the socket that a completion belongs to.
//!
//! ```text
//!  63      60 59                    32 31                     0
//! ┌──────────┬────────────────────────┬────────────────────────┐
//! │ kind (4) │ generation (28)        │ index (32)             │
//! └──────────┴────────────────────────┴────────────────────────┘
//! ```
//!
//! The index selects a slot of a [`Table`](crate::driver::memory::table::Table); the generation identifies the occupant of that slot. A
//! completion that arrives after its slot was reused carries the old generation. It matches no entry, is counted as
//! late, and can never be delivered to the wrong owner.

use crate::driver::memory::key::{GENERATION_MASK, Key};
use crate::driver::source::interest::Direction;

/// Number of bits of the index in a source's token that hold the direction.
const DIRECTION_BITS: u32 = 2;

/// The discriminants are part of the `user_data` format; zero is never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Accept = 1,
    Connect = 2,
    /// Receive into the buffer ring.
    Receive = 3,
    /// Send from the front of a stream's queue.
    Send = 4,
    Readable = 5,
    /// A cancellation. Its own completion is usually ignored.
    Cancel = 6,
    /// Notification that another thread has added a message to the mailbox.
    Wake = 7,
    /// A message to another ring. The key identifies the wake-up.
    Message = 8,
    /// A zero-copy send. The key identifies an entry in the table of zero-copy sends, not a stream.
    SendZeroCopy = 9,
    /// Poll for writability before bytes from a file are sent.
    Writable = 10,
    /// Poll for a hangup, which a multishot receive can miss.
    Hangup = 11,
    /// Poll of a readiness source.
    Source = 12,
    /// A read or write of a file. The key identifies an entry in the table of file operations.
    File = 15,
}

/// A kind and a key, packed into the 64 bits that the kernel returns with each completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(pub u64);

impl Token {
    pub fn new(kind: Kind, key: Key) -> Self {
        debug_assert!(
            key.generation <= GENERATION_MASK,
            "invariant 7: the generation does not fit into a token"
        );
        Self((kind as u64) << 60 | u64::from(key.generation & GENERATION_MASK) << 32 | u64::from(key.index))
    }

    /// Creates a token that belongs to the driver itself rather than to a slot.
    pub fn internal(kind: Kind) -> Self {
        Self::new(kind, Key { index: 0, generation: 0 })
    }

    /// Creates the token of the poll of one direction of a readiness source. The direction is stored in the low bits of
    /// the index. On kernels that report readiness, a source has a single token without a direction.
    pub fn source(key: Key, direction: Direction) -> Self {
        debug_assert!(
            key.index.leading_zeros() >= DIRECTION_BITS,
            "invariant 7: the index of a source does not fit into a token"
        );
        let index = key.index << DIRECTION_BITS | direction as u32;
        Self::new(Kind::Source, Key { index, ..key })
    }

    /// Returns the key and the direction of a token that was created with [`source`](Self::source).
    pub fn source_key(self) -> (Key, Direction) {
        let Key { index, generation } = self.key();
        let direction = Direction::ALL[index as usize % Direction::ALL.len()];
        (Key { index: index >> DIRECTION_BITS, generation }, direction)
    }

    /// Returns the kind, or `None` if the value is not a valid token.
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
            12 => Kind::Source,
            15 => Kind::File,
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
    fn token_round_trips_kind_and_key() {
        for number in (1..=12).chain([15]) {
            let kind = Token(number << 60).kind().unwrap();
            for (index, generation) in [(0, 0), (1, 2), (u32::MAX, GENERATION_MASK)] {
                let (key, token) = (Key { index, generation }, Token::new(kind, Key { index, generation }));
                assert_eq!((kind as u64, token.kind(), token.key()), (number, Some(kind), key));
            }
        }
        assert_eq!(Token(0).kind(), None);
    }

    #[test]
    fn source_token_round_trips_key_and_direction() {
        for direction in Direction::ALL {
            let key = Key { index: u32::MAX >> DIRECTION_BITS, generation: GENERATION_MASK };
            let token = Token::source(key, direction);
            assert_eq!((token.kind(), token.source_key()), (Some(Kind::Source), (key, direction)));
        }
    }
}

//! The messages: what request number so-and-so of connection such-and-such consists of.
//!
//! All messages are windows into one block of random bytes, so that making one costs nothing and checking one is a
//! comparison of memory:
//!
//! ```text
//!  block:   |<----------- WINDOW_BYTES ---------->|<-- message_bytes -->|
//!  message:          |offset ------ message_bytes ------>|
//! ```
//!
//! The offset is a function of connection and request. Two requests of one connection that follow each other have
//! different offsets, as have neighbouring connections, and in random bytes different windows differ: a stale reply, a
//! swapped reply, a shift by one byte, each shows. (A window of a single byte is equal to another by chance once in
//! 256 times.)

use bytes::Bytes;

/// How many different messages there are; small enough for all of them to stay in the cache.
const WINDOW_BYTES: usize = 1 << 14;

/// Both odd, so that all offsets have their turn: steps from one connection, and one request, to the next.
const CONNECTION_STEP: u64 = 6007;
const REQUEST_STEP: u64 = 641;

/// All messages of a session.
#[derive(Clone, Debug)]
pub struct Messages {
    block: Bytes,
    message_bytes: usize,
    /// Whether messages differ. Those that nobody checks need not, and one that is always the same stays hot.
    vary: bool,
}

impl Messages {
    /// Messages of so many bytes.
    pub fn new(message_bytes: usize, vary: bool) -> Self {
        let window_bytes = if vary { WINDOW_BYTES } else { 0 };
        Self { block: random_bytes(window_bytes + message_bytes).into(), message_bytes, vary }
    }

    /// The message of this request of this connection.
    #[inline]
    pub fn message(&self, connection: u64, request: u64) -> Bytes {
        if !self.vary {
            return self.block.clone();
        }
        let offset = self.offset(connection, request);
        self.block.slice(offset..offset + self.message_bytes)
    }

    /// Whether `reply`, from byte `from` on, is what was sent.
    #[inline]
    pub fn is_right(&self, connection: u64, request: u64, from: usize, reply: &[u8]) -> bool {
        let from = self.offset(connection, request) + from;
        self.block.get(from..from + reply.len()) == Some(reply)
    }

    #[inline]
    fn offset(&self, connection: u64, request: u64) -> usize {
        if !self.vary {
            return 0;
        }
        let steps = connection.wrapping_mul(CONNECTION_STEP).wrapping_add(request.wrapping_mul(REQUEST_STEP));
        (steps % WINDOW_BYTES as u64) as usize
    }
}

/// The same random bytes every time (xorshift64*).
fn random_bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_right_for_its_own_request_alone() {
        let messages = Messages::new(32, true);
        for connection in 0..300 {
            for request in 0..50 {
                let message = messages.message(connection, request);
                assert_eq!(message.len(), 32);
                assert!(messages.is_right(connection, request, 0, &message));
                assert!(messages.is_right(connection, request, 10, &message[10..]));
                assert!(!messages.is_right(connection, request, 11, &message[10..31]), "shifted by one");
                assert!(!messages.is_right(connection, request + 1, 0, &message), "stale");
                assert!(!messages.is_right(connection + 1, request, 0, &message), "another connection's");
            }
        }
    }

    #[test]
    fn one_changed_bit_anywhere_is_found() {
        let messages = Messages::new(100, true);
        for byte in 0..100 {
            let mut reply = messages.message(3, 4).to_vec();
            reply[byte] ^= 1;
            assert!(!messages.is_right(3, 4, 0, &reply));
        }
    }

    #[test]
    fn more_than_the_message_is_wrong_and_no_panic() {
        let messages = Messages::new(4, true);
        assert!(!messages.is_right(0, 0, 0, &[0; 1 << 15]));
    }

    #[test]
    fn without_variation_all_messages_are_one() {
        let messages = Messages::new(16, false);
        assert_eq!(messages.message(0, 0), messages.message(7, 9));
        assert!(messages.is_right(7, 9, 0, &messages.message(1, 2)));
    }
}

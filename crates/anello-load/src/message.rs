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
//!
//! A reply may have another length than its request: its byte `i` is then byte `i mod message_bytes` of the request.

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
    response_bytes: usize,
    /// Whether replies are checked, and messages differ. Those that nobody checks need not, and one that is always the
    /// same stays hot.
    verify: bool,
}

impl Messages {
    /// Messages of so many bytes, whose replies have so many.
    pub fn new(message_bytes: usize, response_bytes: usize, verify: bool) -> Self {
        let window_bytes = if verify { WINDOW_BYTES } else { 0 };
        let block = random_bytes(window_bytes + message_bytes).into();
        Self { block, message_bytes, response_bytes, verify }
    }

    /// The length of a reply.
    #[inline]
    pub fn response_bytes(&self) -> usize {
        self.response_bytes
    }

    /// The message of this request of this connection.
    #[inline]
    pub fn message(&self, connection: u64, request: u64) -> Bytes {
        if !self.verify {
            return self.block.clone();
        }
        let offset = self.offset(connection, request);
        self.block.slice(offset..offset + self.message_bytes)
    }

    /// Whether `reply`, from byte `from` on, is what was asked for; whatever it is if replies are not checked.
    #[inline]
    pub fn matches_request(&self, connection: u64, request: u64, from: usize, reply: &[u8]) -> bool {
        if !self.verify {
            return true;
        }
        let begin = self.offset(connection, request);
        let message = &self.block[begin..begin + self.message_bytes];
        let end = from.saturating_add(reply.len());
        if let Some(part) = message.get(from..end) {
            return part == reply;
        }
        end <= self.response_bytes && is_repetition(message, from, reply)
    }

    #[inline]
    fn offset(&self, connection: u64, request: u64) -> usize {
        if !self.verify {
            return 0;
        }
        let steps = connection.wrapping_mul(CONNECTION_STEP).wrapping_add(request.wrapping_mul(REQUEST_STEP));
        (steps % WINDOW_BYTES as u64) as usize
    }
}

/// Whether `reply` is `message` again and again, from byte `from` of all that on.
fn is_repetition(message: &[u8], from: usize, reply: &[u8]) -> bool {
    let first = from % message.len();
    let (begin, rest) = reply.split_at(reply.len().min(message.len() - first));
    message[first..].starts_with(begin) && rest.chunks(message.len()).all(|part| message.starts_with(part))
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
        let messages = Messages::new(32, 32, true);
        for connection in 0..300 {
            for request in 0..50 {
                let message = messages.message(connection, request);
                assert_eq!(message.len(), 32);
                assert!(messages.matches_request(connection, request, 0, &message));
                assert!(messages.matches_request(connection, request, 10, &message[10..]));
                assert!(
                    !messages.matches_request(connection, request, 11, &message[10..31]),
                    "shifted by one"
                );
                assert!(!messages.matches_request(connection, request + 1, 0, &message), "stale");
                assert!(
                    !messages.matches_request(connection + 1, request, 0, &message),
                    "another connection's"
                );
            }
        }
    }

    #[test]
    fn one_changed_bit_anywhere_is_found() {
        let messages = Messages::new(100, 100, true);
        for byte in 0..100 {
            let mut reply = messages.message(3, 4).to_vec();
            reply[byte] ^= 1;
            assert!(!messages.matches_request(3, 4, 0, &reply));
        }
    }

    #[test]
    fn more_than_the_message_is_wrong_and_no_panic() {
        let messages = Messages::new(4, 4, true);
        assert!(!messages.matches_request(0, 0, 0, &[0; 1 << 15]));
    }

    #[test]
    fn longer_and_shorter_replies_repeat_the_message() {
        for (message_bytes, response_bytes) in [(7, 100), (100, 7), (1, 5), (8, 16)] {
            let messages = Messages::new(message_bytes, response_bytes, true);
            let message = messages.message(3, 4);
            let reply: Vec<u8> = (0..response_bytes).map(|byte| message[byte % message_bytes]).collect();
            for cut in 0..=response_bytes {
                let matches_request = |reply: &[u8], from| messages.matches_request(3, 4, from, reply);
                assert!(matches_request(&reply[..cut], 0) && matches_request(&reply[cut..], cut));
                let mut wrong = reply.clone();
                if let Some(byte) = wrong.get_mut(cut) {
                    *byte ^= 1;
                    assert!(!matches_request(&wrong, 0));
                }
            }
        }
    }

    #[test]
    fn without_variation_all_messages_are_one() {
        let messages = Messages::new(16, 16, false);
        assert_eq!(messages.message(0, 0), messages.message(7, 9));
        assert!(messages.matches_request(7, 9, 0, &messages.message(1, 2)));
    }
}

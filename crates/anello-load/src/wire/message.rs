//! Message payloads, derived from the numbers of the connection and the request.
//!
//! Every message is a window into one block of random bytes. Creating a message therefore requires no copy, and
//! checking a reply is a memory comparison:
//!
//! ```text
//!  block:   |<----------- WINDOW_BYTES ---------->|<-- message_bytes -->|
//!  message:          |offset ------ message_bytes ------>|
//! ```
//!
//! The offset is a function of the connection and request numbers. Consecutive requests on a connection have different
//! offsets, as do neighbouring connections. Different windows of random bytes differ, so stale replies, swapped replies
//! and shifts by one byte are detected. (Two windows of a single byte are equal with a probability of 1 in 256.)
//!
//! A reply can be shorter or longer than its request: byte `i` of the reply is byte `i mod message_bytes` of the
//! request.

use bytes::Bytes;

/// Number of different messages. Small enough for all messages to stay in the CPU cache.
const WINDOW_BYTES: usize = 1 << 14;

/// Offset steps from one connection to the next, and from one request to the next. Both are odd and therefore coprime
/// to [`WINDOW_BYTES`], so that all offsets are used.
const CONNECTION_STEP: u64 = 6007;
const REQUEST_STEP: u64 = 641;

/// Payloads of all messages of a session.
#[derive(Clone, Debug)]
pub struct Messages {
    block: Bytes,
    message_bytes: usize,
    /// Length of a reply.
    pub response_bytes: usize,
    /// Set if replies are checked. Otherwise, all messages are equal and stay in the CPU cache.
    verify: bool,
}

impl Messages {
    /// Creates messages of `message_bytes` bytes, with replies of `response_bytes` bytes.
    pub fn new(message_bytes: usize, response_bytes: usize, verify: bool) -> Self {
        let window_bytes = if verify { WINDOW_BYTES } else { 0 };
        let block = random_bytes(0, window_bytes + message_bytes).into();
        Self { block, message_bytes, response_bytes, verify }
    }

    /// Returns the message for a request on a connection.
    #[inline]
    pub fn message(&self, connection: u64, request: u64) -> Bytes {
        if !self.verify {
            return self.block.clone();
        }
        let offset = self.offset(connection, request);
        self.block.slice(offset..offset + self.message_bytes)
    }

    /// Returns `true` if `reply` equals the expected reply starting at byte `reply_offset`, or if replies are not
    /// checked.
    #[inline]
    pub fn matches_request(&self, connection: u64, request: u64, reply_offset: usize, reply: &[u8]) -> bool {
        if !self.verify {
            return true;
        }
        let start = self.offset(connection, request);
        let message = &self.block[start..start + self.message_bytes];
        let end = reply_offset.saturating_add(reply.len());
        if let Some(part) = message.get(reply_offset..end) {
            return part == reply;
        }
        end <= self.response_bytes && is_repetition(message, reply_offset, reply)
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

/// Returns `true` if `reply` equals the endless repetition of `message` starting at byte `reply_offset`.
fn is_repetition(message: &[u8], reply_offset: usize, reply: &[u8]) -> bool {
    let first = reply_offset % message.len();
    let (head, rest) = reply.split_at(reply.len().min(message.len() - first));
    message[first..].starts_with(head) && rest.chunks(message.len()).all(|part| message.starts_with(part))
}

/// Returns pseudo-random bytes, which depend only on `seed`.
pub(crate) fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_matches_only_its_own_request() {
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
                assert!(!messages.matches_request(connection + 1, request, 0, &message), "other connection");
            }
        }
    }

    #[test]
    fn single_bit_change_is_detected() {
        let messages = Messages::new(100, 100, true);
        for byte in 0..100 {
            let mut reply = messages.message(3, 4).to_vec();
            reply[byte] ^= 1;
            assert!(!messages.matches_request(3, 4, 0, &reply));
        }
    }

    #[test]
    fn overlong_reply_is_rejected_without_panic() {
        let messages = Messages::new(4, 4, true);
        assert!(!messages.matches_request(0, 0, 0, &[0; 1 << 15]));
    }

    #[test]
    fn longer_and_shorter_replies_repeat_message() {
        for (message_bytes, response_bytes) in [(7, 100), (100, 7), (1, 5), (8, 16)] {
            let messages = Messages::new(message_bytes, response_bytes, true);
            let message = messages.message(3, 4);
            let reply: Vec<u8> = (0..response_bytes).map(|byte| message[byte % message_bytes]).collect();
            for cut in 0..=response_bytes {
                let matches_request =
                    |reply: &[u8], reply_offset| messages.matches_request(3, 4, reply_offset, reply);
                assert!(matches_request(&reply[..cut], 0) && matches_request(&reply[cut..], cut));
                let mut corrupted = reply.clone();
                if let Some(byte) = corrupted.get_mut(cut) {
                    *byte ^= 1;
                    assert!(!matches_request(&corrupted, 0));
                }
            }
        }
    }

    #[test]
    fn without_verification_messages_are_equal() {
        let messages = Messages::new(16, 16, false);
        assert_eq!(messages.message(0, 0), messages.message(7, 9));
        assert!(messages.matches_request(7, 9, 0, &messages.message(1, 2)));
    }
}

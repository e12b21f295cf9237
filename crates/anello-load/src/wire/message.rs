//! Request identifiers, results of checking replies, and the payloads of the message protocol.
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
//! offsets, as do neighboring connections. Windows at different offsets contain different bytes, so stale replies,
//! swapped replies and shifts by one byte are detected. (Two windows of a single byte are equal with a probability of 1
//! in 256.)

use bytes::Bytes;

use crate::model::errors::{ConnectionError, ErrorKind};

/// Number of different messages. Small enough for all messages to stay in the CPU cache.
const WINDOW_BYTES: usize = 1 << 14;

/// Difference in offset from one connection to the next, and from one request to the next. Both are odd and therefore
/// coprime to [`WINDOW_BYTES`], so that all offsets are used.
const CONNECTION_STEP: u64 = 6007;
const REQUEST_STEP: u64 = 641;

/// Identifies a request within a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestId {
    /// Index of the connection.
    pub connection: u64,
    /// Number of the request on its connection.
    pub sequence: u64,
}

/// Result of checking the bytes received so far. `None` if the reply is not complete.
pub(crate) type ReceiveResult = Result<Option<ReplyCheck>, ConnectionError>;

/// Result of checking a complete reply.
#[derive(Debug)]
pub(crate) enum ReplyCheck {
    Valid,
    /// The request does not count as answered. The connection stays open.
    Invalid(Box<ConnectionError>),
}

impl ReplyCheck {
    #[cold]
    pub fn invalid(kind: ErrorKind, text: impl FnOnce() -> String) -> Self {
        Self::Invalid(Box::new(ConnectionError::new(kind, text())))
    }
}

/// Payloads of all messages of a session.
#[derive(Debug)]
pub(crate) struct Messages {
    block: Bytes,
    message_bytes: usize,
    pub response_bytes: usize,
    /// Set if replies are checked. Otherwise, all messages are equal and stay in the CPU cache.
    verify: bool,
}

impl Messages {
    pub fn new(message_bytes: usize, response_bytes: usize, verify: bool) -> Self {
        let window_bytes = if verify { WINDOW_BYTES } else { 0 };
        let block = random_bytes(0, window_bytes + message_bytes).into();
        Self { block, message_bytes, response_bytes, verify }
    }

    #[inline]
    pub fn message(&self, id: RequestId) -> Bytes {
        if !self.verify {
            return self.block.clone();
        }
        let offset = self.offset(id);
        self.block.slice(offset..offset + self.message_bytes)
    }

    /// Returns `true` if `reply` equals the part of the expected reply that starts at byte `reply_offset`, or if
    /// replies are not checked.
    #[inline]
    pub fn matches_request(&self, id: RequestId, reply_offset: usize, reply: &[u8]) -> bool {
        if !self.verify {
            return true;
        }
        let start = self.offset(id);
        let message = &self.block[start..start + self.message_bytes];
        let end = reply_offset.saturating_add(reply.len());
        if let Some(part) = message.get(reply_offset..end) {
            return part == reply;
        }
        end <= self.response_bytes && is_repetition(message, reply_offset, reply)
    }

    #[inline]
    fn offset(&self, RequestId { connection, sequence }: RequestId) -> usize {
        let steps =
            connection.wrapping_mul(CONNECTION_STEP).wrapping_add(sequence.wrapping_mul(REQUEST_STEP));
        (steps % WINDOW_BYTES as u64) as usize
    }
}

/// Returns `true` if an endless repetition of `message` contains `reply` at byte `reply_offset`.
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

    const ID: RequestId = RequestId { connection: 3, sequence: 4 };

    #[test]
    fn message_matches_only_its_own_request() {
        let messages = Messages::new(32, 32, true);
        for (connection, sequence) in
            (0..300).flat_map(|connection| (0..50).map(move |number| (connection, number)))
        {
            let id = RequestId { connection, sequence };
            let message = messages.message(id);
            assert_eq!(message.len(), 32);
            for (id, offset, reply, matches, case) in [
                (id, 0, &message[..], true, "equal"),
                (id, 10, &message[10..], true, "part"),
                (id, 11, &message[10..31], false, "shifted by one"),
                (RequestId { sequence: sequence + 1, ..id }, 0, &message, false, "stale"),
                (RequestId { connection: connection + 1, ..id }, 0, &message, false, "other connection"),
            ] {
                assert_eq!(messages.matches_request(id, offset, reply), matches, "{case}");
            }
        }
    }

    #[test]
    fn overlong_reply_is_rejected_without_panic() {
        assert!(!Messages::new(4, 4, true).matches_request(ID, 0, &[0; 1 << 15]));
    }

    #[test]
    fn longer_and_shorter_replies_repeat_message_and_single_bit_change_is_detected() {
        for (message_bytes, response_bytes) in [(100, 100), (7, 100), (100, 7), (1, 5), (8, 16)] {
            let messages = Messages::new(message_bytes, response_bytes, true);
            let message = messages.message(ID);
            let reply: Vec<u8> = (0..response_bytes).map(|byte| message[byte % message_bytes]).collect();
            for cut in 0..=response_bytes {
                let matches_request = |reply: &[u8], offset| messages.matches_request(ID, offset, reply);
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
        let (messages, other) = (Messages::new(16, 16, false), RequestId { connection: 7, sequence: 9 });
        assert_eq!(messages.message(ID), messages.message(other));
        assert!(messages.matches_request(other, 0, &messages.message(ID)));
    }
}

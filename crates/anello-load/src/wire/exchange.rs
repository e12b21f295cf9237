//! Encoding of requests and decoding of replies, for all protocols. `Exchange` and `ReplyDecoder` support every
//! protocol, so a connection needs no type parameter. A session uses one protocol, so the branch is predictable.

use bytes::Bytes;

use crate::model::errors::ErrorKind;
use crate::wire::http::{HttpReplyDecoder, HttpShared};
use crate::wire::message::{Messages, ReceiveResult, ReplyCheck, RequestId};

/// Protocol state shared by all connections of a thread.
#[derive(Debug)]
pub(crate) enum Exchange {
    Messages(Messages),
    Http(HttpShared),
}

/// Receive state of one connection.
#[derive(Debug, Default)]
pub(crate) struct ReplyDecoder {
    /// Message protocol: progress of the current reply, and whether any part of it was wrong.
    received_bytes: usize,
    is_wrong: bool,
    http: HttpReplyDecoder,
}

impl Exchange {
    /// Encodes `count` requests, starting with `id`. The message protocol sends one request at a time.
    #[inline]
    pub fn requests(&self, id: RequestId, count: usize) -> Bytes {
        match self {
            Self::Messages(messages) => messages.message(id),
            Self::Http(http) => http.requests(id, count),
        }
    }
}

impl ReplyDecoder {
    /// Consumes the bytes at the front of `bytes` that belong to the reply to request `id`. Returns the result of the
    /// check once the reply is complete.
    #[inline]
    pub fn receive(&mut self, exchange: &Exchange, id: RequestId, bytes: &mut &[u8]) -> ReceiveResult {
        match exchange {
            Exchange::Messages(messages) => Ok(self.receive_message(messages, id, bytes)),
            Exchange::Http(http) => self.http.receive(http, id, bytes),
        }
    }

    #[inline]
    fn receive_message(
        &mut self,
        messages: &Messages,
        id: RequestId,
        bytes: &mut &[u8],
    ) -> Option<ReplyCheck> {
        let left = messages.response_bytes - self.received_bytes;
        let (reply, rest) = bytes.split_at(left.min(bytes.len()));
        *bytes = rest;
        self.is_wrong |= !messages.matches_request(id, self.received_bytes, reply);
        if reply.len() < left {
            self.received_bytes += reply.len();
            return None;
        }
        self.received_bytes = 0;
        Some(match std::mem::take(&mut self.is_wrong) {
            false => ReplyCheck::Valid,
            true => ReplyCheck::invalid(ErrorKind::WrongBytes, || {
                let RequestId { connection, sequence } = id;
                format!("reply to request {sequence} of connection {connection} does not match the request")
            }),
        })
    }

    /// Handles EOF while request `id` is unanswered. Returns the result of the check if EOF completes the reply, as it
    /// does for HTTP bodies without a length.
    pub fn finish_at_eof(&mut self, exchange: &Exchange, id: RequestId) -> Option<ReplyCheck> {
        if let Exchange::Http(http) = exchange { self.http.finish_at_eof(http, id) } else { None }
    }

    /// Describes how much of the current reply has arrived. Returns `None` if nothing has arrived.
    pub fn progress(&self, exchange: &Exchange) -> Option<String> {
        match exchange {
            Exchange::Messages(messages) => (self.received_bytes > 0)
                .then(|| format!("{} of {} bytes of a reply", self.received_bytes, messages.response_bytes)),
            Exchange::Http(_) => self.http.is_within_response().then(|| "part of a response".to_owned()),
        }
    }

    /// Returns `true` if the server closes the connection after the last reply.
    #[inline]
    pub fn closes_connection(&self) -> bool {
        self.http.closes_connection
    }
}

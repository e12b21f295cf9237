//! Encoding of requests and decoding of replies, for all protocols.
//!
//! An [`Exchange`] holds the state that all connections of a thread share. A [`ReplyDecoder`] is the receive state of
//! one connection. Neither performs I/O. Both are enums over the protocols, so a connection needs no type parameter. A
//! session uses only one protocol, so the branch is always predicted.

use bytes::Bytes;

use crate::model::errors::ErrorKind;
use crate::wire::http::{HttpReplyDecoder, HttpShared};
use crate::wire::message::Messages;
use crate::wire::reply::{ReceiveResult, ReplyCheck, RequestId};

/// Protocol state shared by all connections of a thread.
#[derive(Debug)]
pub(crate) enum Exchange {
    Messages(Messages),
    Http(HttpShared),
}

/// Receive state of one connection.
#[derive(Debug)]
pub(crate) enum ReplyDecoder {
    Messages(MessageReplyDecoder),
    Http(Box<HttpReplyDecoder>),
}

/// Receive state of the message protocol: progress of the current reply, and whether any part of it was wrong.
#[derive(Debug, Default)]
pub(crate) struct MessageReplyDecoder {
    received_bytes: usize,
    is_wrong: bool,
}

impl Exchange {
    /// Returns the decoder for a new connection.
    pub fn new_decoder(&self) -> ReplyDecoder {
        match self {
            Self::Messages(_) => ReplyDecoder::default(),
            Self::Http(_) => ReplyDecoder::Http(Box::default()),
        }
    }

    /// Encodes `count` requests, starting with `id`. The message protocol sends one request at a time.
    #[inline]
    pub fn requests(&self, id: RequestId, count: usize) -> Bytes {
        match self {
            Self::Messages(messages) => messages.message(id.connection, id.sequence),
            Self::Http(http) => http.requests(id, count),
        }
    }
}

impl Default for ReplyDecoder {
    fn default() -> Self {
        Self::Messages(MessageReplyDecoder::default())
    }
}

impl ReplyDecoder {
    /// Consumes the bytes at the front of `bytes` that belong to the reply to request `id`. Returns the result of the
    /// check once the reply is complete.
    #[inline]
    pub fn receive(&mut self, exchange: &Exchange, id: RequestId, bytes: &mut &[u8]) -> ReceiveResult {
        match (self, exchange) {
            (Self::Messages(decoder), Exchange::Messages(messages)) => {
                Ok(decoder.receive(messages, id, bytes))
            }
            (Self::Http(decoder), Exchange::Http(http)) => decoder.receive(http, id, bytes),
            _ => unreachable!("decoder and exchange have different protocols"),
        }
    }

    /// Handles EOF while request `id` is unanswered. Returns the result of the check if EOF completes the reply, as it
    /// does for HTTP bodies without a length.
    pub fn finish_at_eof(&mut self, exchange: &Exchange, id: RequestId) -> Option<ReplyCheck> {
        match (self, exchange) {
            (Self::Http(decoder), Exchange::Http(http)) => decoder.finish_at_eof(http, id),
            _ => None,
        }
    }

    /// Describes how much of the current reply has arrived. Returns `None` if nothing has arrived.
    pub fn progress(&self, exchange: &Exchange) -> Option<String> {
        match (self, exchange) {
            (Self::Messages(decoder), Exchange::Messages(messages)) if decoder.received_bytes > 0 => {
                Some(format!("{} of {} bytes of a reply", decoder.received_bytes, messages.response_bytes))
            }
            (Self::Http(decoder), _) if decoder.is_within_response() => Some("part of a response".to_owned()),
            _ => None,
        }
    }

    /// Returns `true` if the server closes the connection after the last reply.
    #[inline]
    pub fn closes_connection(&self) -> bool {
        match self {
            Self::Messages(_) => false,
            Self::Http(decoder) => decoder.closes_connection,
        }
    }
}

impl MessageReplyDecoder {
    #[inline]
    fn receive(&mut self, messages: &Messages, id: RequestId, bytes: &mut &[u8]) -> Option<ReplyCheck> {
        let RequestId { connection, sequence } = id;
        let left = messages.response_bytes - self.received_bytes;
        let (reply, rest) = bytes.split_at(left.min(bytes.len()));
        *bytes = rest;
        self.is_wrong |= !messages.matches_request(connection, sequence, self.received_bytes, reply);
        if reply.len() < left {
            self.received_bytes += reply.len();
            return None;
        }
        self.received_bytes = 0;
        Some(match std::mem::take(&mut self.is_wrong) {
            false => ReplyCheck::Valid,
            true => ReplyCheck::invalid(ErrorKind::WrongBytes, || {
                format!("reply to request {sequence} of connection {connection} does not match the request")
            }),
        })
    }
}

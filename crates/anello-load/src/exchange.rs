//! What goes over a connection: the bytes of a request, and what the bytes that come back mean.
//!
//! A [`ReplyDecoder`] is the receiving side of one connection, an [`Exchange`] what all connections of a thread share. Neither
//! does I/O. An enum over the protocols, so that a connection needs no type parameter; the branch is always the same one
//! and costs nothing.

use bytes::Bytes;

use crate::errors::{ConnectionError, ErrorKind};
use crate::http::{HttpReplyDecoder, HttpShared};
use crate::message::Messages;

/// What all connections of a thread share.
#[derive(Debug)]
pub(crate) enum Exchange {
    Messages(Messages),
    Http(HttpShared),
}

/// The receiving side of one connection.
#[derive(Debug)]
pub(crate) enum ReplyDecoder {
    Messages(MessageReplyDecoder),
    Http(Box<HttpReplyDecoder>),
}

/// How much of a reply has come, and whether it is right so far.
#[derive(Debug)]
pub(crate) struct MessageReplyDecoder {
    received_bytes: usize,
    is_valid: bool,
}

/// What a whole reply was.
#[derive(Debug)]
pub(crate) enum ReplyCheck {
    Valid,
    /// Does not count as a request; the connection goes on.
    Invalid(Box<ConnectionError>),
}

impl ReplyCheck {
    #[cold]
    pub fn invalid(kind: ErrorKind, text: impl FnOnce() -> String) -> Self {
        Self::Invalid(Box::new(ConnectionError { kind, text: text() }))
    }
}

impl Exchange {
    /// The receiving side of a new connection.
    pub fn new_decoder(&self) -> ReplyDecoder {
        match self {
            Self::Messages(_) => {
                ReplyDecoder::Messages(MessageReplyDecoder { received_bytes: 0, is_valid: true })
            }
            Self::Http(_) => ReplyDecoder::Http(Box::default()),
        }
    }

    /// The bytes of `count` requests from number `sequence` on.
    #[inline]
    pub fn requests(&self, connection: u64, sequence: u64, count: usize) -> Bytes {
        match self {
            Self::Messages(messages) => messages.message(connection, sequence),
            Self::Http(http) => http.requests(connection, sequence, count),
        }
    }
}

impl ReplyDecoder {
    /// Takes what belongs to the reply to request `sequence` off the front of `bytes`; the verdict if it is whole now.
    #[inline]
    pub fn receive(
        &mut self,
        exchange: &Exchange,
        connection: u64,
        sequence: u64,
        bytes: &mut &[u8],
    ) -> Result<Option<ReplyCheck>, ConnectionError> {
        match (self, exchange) {
            (Self::Messages(decoder), Exchange::Messages(messages)) => {
                Ok(decoder.receive(messages, connection, sequence, bytes))
            }
            (Self::Http(decoder), Exchange::Http(http)) => decoder.receive(http, connection, sequence, bytes),
            _ => unreachable!("a wire is made by the protocol of its session"),
        }
    }

    /// The server has closed, and request `sequence` is not answered: the verdict if that is how its reply ends.
    pub fn end(&mut self, exchange: &Exchange, connection: u64, sequence: u64) -> Option<ReplyCheck> {
        match (self, exchange) {
            (Self::Http(decoder), Exchange::Http(http)) => decoder.end(http, connection, sequence),
            _ => None,
        }
    }

    /// How much of a reply has come, in words; none if nothing has.
    pub fn progress(&self, exchange: &Exchange) -> Option<String> {
        match (self, exchange) {
            (Self::Messages(decoder), Exchange::Messages(messages)) if decoder.received_bytes > 0 => {
                Some(format!("{} of {} bytes of a reply", decoder.received_bytes, messages.response_bytes()))
            }
            (Self::Http(decoder), _) if decoder.is_within_response() => {
                Some("a part of a response".to_owned())
            }
            _ => None,
        }
    }

    /// Whether the connection ends after the last reply, as the server said, or as it was asked to.
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
    fn receive(
        &mut self,
        messages: &Messages,
        connection: u64,
        sequence: u64,
        bytes: &mut &[u8],
    ) -> Option<ReplyCheck> {
        let left = messages.response_bytes() - self.received_bytes;
        let (reply, rest) = bytes.split_at(left.min(bytes.len()));
        *bytes = rest;
        self.is_valid &= messages.matches_request(connection, sequence, self.received_bytes, reply);
        if reply.len() < left {
            self.received_bytes += reply.len();
            return None;
        }
        self.received_bytes = 0;
        Some(match std::mem::replace(&mut self.is_valid, true) {
            true => ReplyCheck::Valid,
            false => ReplyCheck::invalid(ErrorKind::WrongBytes, || {
                format!(
                    "the reply to request {sequence} of connection {connection} is not what was asked for"
                )
            }),
        })
    }
}

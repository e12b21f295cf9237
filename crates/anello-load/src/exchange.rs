//! What goes over a connection: the bytes of a request, and what the bytes that come back mean.
//!
//! A [`Wire`] is the receiving side of one connection, an [`Exchange`] what all connections of a thread share. Neither
//! does I/O. An enum over the protocols, so that a connection needs no type parameter; the branch is always the same one
//! and costs nothing.

use bytes::Bytes;

use crate::errors::{ErrorKind, Fault};
use crate::http::{HttpShared, HttpWire};
use crate::message::Messages;

/// What all connections of a thread share.
#[derive(Debug)]
pub(crate) enum Exchange {
    Messages(Messages),
    Http(HttpShared),
}

/// The receiving side of one connection.
#[derive(Debug)]
pub(crate) enum Wire {
    Messages(MessageWire),
    Http(Box<HttpWire>),
}

/// How much of a reply has come, and whether it is right so far.
#[derive(Debug)]
pub(crate) struct MessageWire {
    received_bytes: usize,
    right: bool,
}

/// What a whole reply was.
#[derive(Debug)]
pub(crate) enum Verdict {
    Right,
    /// Does not count as a request; the connection goes on.
    Wrong(Box<Fault>),
}

impl Verdict {
    #[cold]
    pub fn wrong(kind: ErrorKind, text: impl FnOnce() -> String) -> Self {
        Self::Wrong(Box::new(Fault { kind, text: text() }))
    }
}

impl Exchange {
    /// The receiving side of a new connection.
    pub fn wire(&self) -> Wire {
        match self {
            Self::Messages(_) => Wire::Messages(MessageWire { received_bytes: 0, right: true }),
            Self::Http(_) => Wire::Http(Box::default()),
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

impl Wire {
    /// Takes what belongs to the reply to request `sequence` off the front of `bytes`; the verdict if it is whole now.
    #[inline]
    pub fn receive(
        &mut self,
        exchange: &Exchange,
        connection: u64,
        sequence: u64,
        bytes: &mut &[u8],
    ) -> Result<Option<Verdict>, Fault> {
        match (self, exchange) {
            (Self::Messages(wire), Exchange::Messages(messages)) => {
                Ok(wire.receive(messages, connection, sequence, bytes))
            }
            (Self::Http(wire), Exchange::Http(http)) => wire.receive(http, connection, sequence, bytes),
            _ => unreachable!("a wire is made by the protocol of its session"),
        }
    }

    /// The server has closed, and request `sequence` is not answered: the verdict if that is how its reply ends.
    pub fn end(&mut self, exchange: &Exchange, connection: u64, sequence: u64) -> Option<Verdict> {
        match (self, exchange) {
            (Self::Http(wire), Exchange::Http(http)) => wire.end(http, connection, sequence),
            _ => None,
        }
    }

    /// How much of a reply has come, in words; none if nothing has.
    pub fn progress(&self, exchange: &Exchange) -> Option<String> {
        match (self, exchange) {
            (Self::Messages(wire), Exchange::Messages(messages)) if wire.received_bytes > 0 => {
                Some(format!("{} of {} bytes of a reply", wire.received_bytes, messages.response_bytes()))
            }
            (Self::Http(wire), _) if wire.is_within_response() => Some("a part of a response".to_owned()),
            _ => None,
        }
    }

    /// Whether the connection ends after the last reply, as the server said, or as it was asked to.
    #[inline]
    pub fn closes(&self) -> bool {
        match self {
            Self::Messages(_) => false,
            Self::Http(wire) => wire.closes,
        }
    }
}

impl MessageWire {
    #[inline]
    fn receive(
        &mut self,
        messages: &Messages,
        connection: u64,
        sequence: u64,
        bytes: &mut &[u8],
    ) -> Option<Verdict> {
        let left = messages.response_bytes() - self.received_bytes;
        let (mine, rest) = bytes.split_at(left.min(bytes.len()));
        *bytes = rest;
        self.right &= messages.is_right(connection, sequence, self.received_bytes, mine);
        if mine.len() < left {
            self.received_bytes += mine.len();
            return None;
        }
        self.received_bytes = 0;
        Some(match std::mem::replace(&mut self.right, true) {
            true => Verdict::Right,
            false => Verdict::wrong(ErrorKind::WrongBytes, || {
                format!(
                    "the reply to request {sequence} of connection {connection} is not what was asked for"
                )
            }),
        })
    }
}

//! Protocols and connections: requests and replies as bytes, TLS, and the underlying sockets.

pub(crate) mod connect;
pub(crate) mod exchange;
pub(crate) mod http;
pub(crate) mod message;
pub(crate) mod stream;
pub(crate) mod tls_stream;
pub(crate) mod transport;

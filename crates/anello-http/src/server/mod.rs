//! HTTP server: the connections of one thread, from accept to close.
//!
//! ```text
//!   accept ──► ConnectionTask   one each, waits for the first byte of a request
//!                 │      ▲
//!     first byte  ▼      │ idle for some seconds
//!              Connection: Input ──► handler ──► Output
//!                 │ decoder, body      │           │ buffers responses, sends files
//!                 └────── Timer ───────┴───────────┘           deadlines, checked at every tick
//! ```
//!
//! Each thread has its own [`Server`]. Threads share only what their handlers share. Pipelined requests are answered
//! together and in order.
//!
//! The memory that a client can occupy is bounded. It consists of a receive buffer, a head, buffered responses, a send
//! queue and, with TLS, one chunk of encrypted data. A connection without a request for some time keeps none of them.

mod accept;
mod admission;
mod body_progress;
mod connection;
mod connection_task;
mod deadline;
#[cfg(feature = "http2")]
mod http2;
mod input;
mod input_owner;
mod observer;
mod options;
mod output;
mod permit;
mod proxies;
mod proxy_protocol;
mod registry;
mod serve;
mod timer;
mod tls;
mod worker;

pub use accept::Accept;
#[cfg(feature = "http2")]
pub use options::Http2Mode;
pub use options::{Eviction, ServerOptions};
pub use permit::MovedConnection;
pub use proxies::{ProxyHeader, TrustedProxy};
pub use serve::{Server, ServerBuilder};
pub use tls::TlsConfig;

pub use crate::message::Upgraded;

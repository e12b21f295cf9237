//! Adapters between anello and crates that require more than its `compat` module provides.
//!
//! Each module is independent of the others and can be copied into an application.

pub mod local;
pub mod mqtt;
pub mod otlp;
pub mod quic;
pub mod rpc;
pub mod tcp;

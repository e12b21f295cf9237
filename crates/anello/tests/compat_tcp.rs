//! Tests the traits of `futures`, `tokio` and `hyper`, and hyper itself, on TCP.

mod common;

#[path = "common/ecosystems.rs"]
mod ecosystems;
#[path = "common/tcp.rs"]
mod family;
#[path = "common/grpc.rs"]
mod grpc;
#[path = "common/http.rs"]
mod http;
#[path = "common/tls.rs"]
mod tls;

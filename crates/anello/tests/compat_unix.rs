//! Tests the traits of `futures`, `tokio` and `hyper`, and hyper itself, on Unix sockets.

mod common;

#[path = "common/ecosystems.rs"]
mod ecosystems;
#[path = "common/unix.rs"]
mod family;
#[path = "common/grpc.rs"]
mod grpc;
#[path = "common/http.rs"]
mod http;
#[path = "common/tls.rs"]
mod tls;

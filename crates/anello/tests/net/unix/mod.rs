//! Unix sockets: the suites of all stream families, addresses, datagrams and descriptors.

mod datagrams;
mod descriptors;
#[path = "../suites/ecosystems.rs"]
mod ecosystems;
mod family;
#[path = "../suites/grpc.rs"]
mod grpc;
#[path = "../suites/half_close.rs"]
mod half_close;
#[path = "../suites/http.rs"]
mod http;
#[path = "../suites/readiness.rs"]
mod readiness;
mod socket_path;
mod sockets;
#[path = "../suites/streams.rs"]
mod streams;
#[path = "../suites/tls.rs"]
mod tls;

//! TCP: the suites of all stream families, and socket options.

#[path = "../suites/ecosystems.rs"]
mod ecosystems;
mod family;
#[path = "../suites/grpc.rs"]
mod grpc;
#[path = "../suites/half_close.rs"]
mod half_close;
#[path = "../suites/http.rs"]
mod http;
mod options;
#[path = "../suites/readiness.rs"]
mod readiness;
#[path = "../suites/streams.rs"]
mod streams;
#[path = "../suites/tls.rs"]
mod tls;

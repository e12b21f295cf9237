//! HTTP/1.1 with a tower service on anello-http, with the service of the peer `hyper-http`.

#![forbid(unsafe_code)]

#[path = "../../anello-axum-http/src/server.rs"]
mod server;
#[path = "../../hyper-http/src/service.rs"]
mod service;

use std::io;

use anello_http::service::{Incoming, handler};
use tower::service_fn;

fn main() -> io::Result<()> {
    server::run(|| handler(service_fn(service::respond::<Incoming>)))
}

//! HTTP/1.1 with axum on anello-http, with the application of the peer `axum-http`.

#![forbid(unsafe_code)]

#[path = "../../axum-http/src/app.rs"]
mod app;
mod server;

use std::io;

use anello_http::service::handler;

fn main() -> io::Result<()> {
    server::run(|| handler(app::router()))
}

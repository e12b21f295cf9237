//! `service ADDRESS`: serves the API on all cores. The environment variable `TOKEN` contains the token.

#![forbid(unsafe_code)]

use std::env;
use std::io::{Error, ErrorKind, Result};

use tutorial::service::{self, Shared};
use tutorial::workers;

fn main() -> Result<()> {
    let invalid = |message: &str| Error::new(ErrorKind::InvalidInput, message);
    let address = env::args().nth(1).ok_or_else(|| invalid("usage: service ADDRESS"))?;
    let address = address.parse().map_err(|_| invalid("invalid address (expected 127.0.0.1:8080)"))?;
    let token =
        env::var("TOKEN").map_err(|_| invalid("TOKEN is not set (set it to the token of the API)"))?;
    let shared = Shared::new(&token);
    workers::run(address, move |worker, member| service::serve(member, shared.clone(), worker.index))
}

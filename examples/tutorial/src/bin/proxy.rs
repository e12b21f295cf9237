//! `proxy ADDRESS UPSTREAM`: forwards connections to the host and port `UPSTREAM`, on all cores.

#![forbid(unsafe_code)]

use std::io;

use tutorial::{proxy, workers};

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, upstream] = arguments.as_slice() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "usage: proxy ADDRESS UPSTREAM"));
    };
    let address = address.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let options = proxy::Options::new(upstream);
    workers::run(address, move |_, member| {
        let options = options.clone();
        async move { proxy::serve(async || member.accept().await, options).await }
    })
}

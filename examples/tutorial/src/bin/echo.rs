//! `echo [ADDRESS]`: an echo server, by default on `127.0.0.1:7000`.

#![forbid(unsafe_code)]

use std::io;

use anello::Runtime;
use anello::net::TcpListener;
use tutorial::echo;

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".to_owned());
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address)?;
        println!("listening on {} with {}", listener.local_addr()?, runtime.driver().name);
        echo::serve(listener).await
    })
}

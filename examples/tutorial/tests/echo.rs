//! Tests of the echo server.

#![forbid(unsafe_code)]

use std::io;

use anello::net::{TcpListener, TcpStream};
use anello::{DriverKind, Runtime};
use tutorial::echo;

#[test]
fn bytes_return_until_half_close() -> io::Result<()> {
    for driver in [DriverKind::Auto, DriverKind::Epoll] {
        let runtime = Runtime::builder().driver(driver).build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?;
            anello::spawn(echo::serve(listener)).detach();

            let mut client = TcpStream::connect(address).await?;
            client.send("ciao").await?;
            client.shutdown().await?;
            let mut reply = Vec::new();
            while let Some(chunk) = client.recv().await? {
                reply.extend_from_slice(&chunk);
            }
            assert_eq!(reply, b"ciao");
            Ok::<_, io::Error>(())
        })?;
    }
    Ok(())
}

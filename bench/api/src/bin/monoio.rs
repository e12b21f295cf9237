//! monoio on io_uring.

use anello_bench_api::{Arguments, serve, unsupported};
use monoio::io::{AsyncReadRent, AsyncReadRentExt, AsyncWriteRentExt};
use monoio::net::UnixStream;

fn main() {
    let arguments = Arguments::parse();
    if arguments.workload != "unix" {
        unsupported();
    }
    let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().build().expect("runtime starts");
    serve(|count| runtime.block_on(unix(count, arguments.bytes)));
}

async fn unix(count: u64, bytes: usize) {
    let (mut client, mut server) = UnixStream::pair().unwrap();
    let echo = monoio::spawn(async move {
        let mut buffer = Vec::with_capacity(bytes.max(4096));
        loop {
            let (length, received) = server.read(buffer).await;
            if length.unwrap() == 0 {
                return;
            }
            let (sent, returned) = server.write_all(received).await;
            sent.unwrap();
            buffer = returned;
            buffer.clear();
        }
    });
    let mut message = vec![7; bytes];
    for _ in 0..count {
        let (sent, returned) = client.write_all(message).await;
        sent.unwrap();
        let (received, returned) = client.read_exact(returned).await;
        received.unwrap();
        message = returned;
    }
    drop(client);
    echo.await;
}

//! Loads on simulated kernels, on which the load and its server share one virtual clock. A system call takes 100 ns, and
//! everything else no time, so the measurements of a load can be compared with the times that its server has seen.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::spawn;
use anello_load::{LoadConfig, Session, Slice};
use anello_test::{on_each_borrowing, simulated_drivers};

/// More than the system calls of one request take, and than a timer is late.
pub const TOLERANCE: Duration = Duration::from_micros(100);

/// Runs a test on each simulated kernel.
pub fn for_each_simulated_kernel<F: Future<Output = ()>>(test: impl Fn() -> F + Sync) {
    on_each_borrowing(simulated_drivers(), |setup| setup.run(test()));
}

/// Starts a server on this runtime that calls `serve` for every connection, in the order of the connections.
pub fn server<F: Future<Output = io::Result<()>> + 'static>(
    mut serve: impl FnMut(TcpStream) -> F + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = async move {
        while let Ok(stream) = listener.accept().await {
            spawn(serve(stream)).detach();
        }
    };
    spawn(accepting).detach();
    address
}

/// Runs a load for its duration. Returns the measurements, and the number of connections that are still open.
pub async fn run(load: &LoadConfig) -> (Slice, usize) {
    let mut session = Session::connect(load).await.unwrap();
    let slice = session.run_slice(load.duration).await;
    let open_connections = session.open_connections();
    session.close().await;
    (slice, open_connections)
}

/// Reads the head of a request. Returns an error at EOF.
pub async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        head.push(byte[0]);
    }
    Ok(head)
}

//! Detaches a connection from its runtime and attaches it again, with a message in between, as for a move to another
//! worker.
//!
//! ```text
//! cargo run --release -p anello --example detach COUNT
//! ```
//!
//! Prints the CPU time per detach and attach, and per message without them. Under `strace -c`, the difference between two
//! runs gives the system calls.

use std::io;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::server::{AttachedStream, DetachedStream};
use rustix::time::{ClockId, clock_gettime};

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

async fn exchange(client: &mut TcpStream, server: &mut TcpStream) -> io::Result<()> {
    client.write_all(b"ciao").await?;
    server.read_exact(&mut [0; 4]).await
}

async fn run(count: u32) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?).await?;
    let mut server = listener.accept().await?;
    let start = cpu_time();
    for _ in 0..count {
        exchange(&mut client, &mut server).await?;
    }
    let messages = cpu_time() - start;
    for _ in 0..count {
        exchange(&mut client, &mut server).await?;
        let AttachedStream::Tcp(attached) = DetachedStream::detach(server).await?.attach()? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        server = attached;
    }
    let moves = cpu_time() - start - messages * 2;
    println!("detach and attach {:?}, message {:?}", moves / count, messages / count);
    Ok(())
}

fn main() -> io::Result<()> {
    let count = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(10_000);
    anello::Runtime::new()?.block_on(run(count))
}

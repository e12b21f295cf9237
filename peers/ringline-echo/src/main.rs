//! TCP echo on ringline's io_uring backend: an acceptor thread and one worker thread per core, as in its
//! documentation.
//!
//! Each send is awaited before more data is taken from the connection, so each connection has at most one send in
//! flight, and the pool of send slots, which has one slot per connection, cannot run out. ringline continues to read
//! in the meantime: data from a peer that does not read is kept in memory, at most 1 GiB per connection.

#![forbid(unsafe_code)]

use std::future::Future;
use std::io;

use peer_flags::{BACKLOG, Flags, Ready};
use ringline::{AsyncEventHandler, ConfigBuilder, ConnCtx, ParseResult, RinglineBuilder};

/// Maximum number of connections. The memory of a send slot is touched on its first use.
const MAX_CONNECTIONS: u16 = 8192;
/// The default of ringline.
const SEND_SLOT_BYTES: usize = 16448;

struct Echo;

impl AsyncEventHandler for Echo {
    fn on_accept(&self, connection: ConnCtx) -> impl Future<Output = ()> + 'static {
        serve(connection)
    }

    fn create_for_worker(_worker: usize) -> Self {
        Self
    }
}

async fn serve(connection: ConnCtx) {
    if let Err(error) = echo(connection).await {
        eprintln!("connection: {error}");
    }
}

async fn echo(connection: ConnCtx) -> io::Result<()> {
    loop {
        let mut send = None;
        let received = connection.with_data(|data| {
            let chunk = &data[..data.len().min(SEND_SLOT_BYTES)];
            send = Some(connection.send(chunk));
            ParseResult::Consumed(chunk.len())
        });
        if received.await == 0 {
            return Ok(());
        }
        if let Some(send) = send {
            send?.await?;
        }
    }
}

fn main() -> io::Result<()> {
    let flags = Flags::from_arguments(4096);
    let ring_bytes = u32::try_from(flags.buffer_bytes).map_err(io::Error::other)?;
    let config = ConfigBuilder::new()
        .workers(flags.threads())
        // The threads inherit the affinity of this one; ringline would count cores from an offset.
        .pin_to_core(false)
        .tcp_nodelay(true)
        .backlog(BACKLOG)
        .max_connections(u32::from(MAX_CONNECTIONS))
        .recv_buffer(1024, ring_bytes)
        .send_pool(MAX_CONNECTIONS, SEND_SLOT_BYTES as u32)
        // No timers are used, so an idle worker can sleep.
        .tick_timeout_us(0)
        .resolver_threads(0)
        .spawner_threads(0)
        .blocking_threads(0)
        .build()
        .map_err(io::Error::other)?;
    let (server, workers) =
        RinglineBuilder::new(config).bind(flags.addr).launch::<Echo>().map_err(io::Error::other)?;
    let addr = server.bound_addr().ok_or_else(|| io::Error::other("ringline does not listen"))?;
    Ready::new(1, addr, "driver=io_uring").announce()?;
    for worker in workers {
        let result = worker.join().map_err(|_| io::Error::other("a worker panicked"))?;
        result.map_err(io::Error::other)?;
    }
    Ok(())
}

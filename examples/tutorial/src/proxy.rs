//! A TCP proxy: forwards each connection to another server.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use anello::net::{ReadHalf, ShutdownHandle, TcpStream, WriteHalf};
use anello::task::JoinSet;
use anello::time::{Instant, sleep_until, timeout};
use futures_util::future::{Either, select, try_join};

/// Server and time limits of a proxy.
#[derive(Clone, Debug)]
pub struct Options {
    /// Host and port of the server.
    pub upstream: String,
    /// Maximum time to connect to the server.
    pub connect_timeout: Duration,
    /// Maximum time during which no bytes are forwarded in either direction.
    pub idle_timeout: Duration,
    /// Time that open connections have to end at shutdown.
    pub drain_timeout: Duration,
}

impl Options {
    /// Returns the default time limits.
    pub fn new(upstream: &str) -> Self {
        Self {
            upstream: upstream.to_owned(),
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

async fn forward(mut client: TcpStream, options: &Options) -> io::Result<()> {
    let mut server = timeout(options.connect_timeout, TcpStream::connect(&*options.upstream)).await??;
    let last_activity = Cell::new(Instant::now());
    let mut incomplete = ResetOnDrop(Some([client.shutdown_handle(), server.shutdown_handle()]));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let copies =
        try_join(copy(from_client, to_server, &last_activity), copy(from_server, to_client, &last_activity));
    match select(pin!(copies), pin!(wait_until_idle(&last_activity, options.idle_timeout))).await {
        Either::Left((result, _)) => result?,
        Either::Right(_) => return Err(io::ErrorKind::TimedOut.into()),
    };
    incomplete.0 = None;
    Ok(())
}

/// Resets two connections, unless both directions have been forwarded up to EOF. Must be dropped before the streams.
struct ResetOnDrop(Option<[ShutdownHandle; 2]>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        self.0.iter().flatten().for_each(ShutdownHandle::reset);
    }
}

/// Forwards one direction up to its EOF, and then shuts it down.
async fn copy(
    mut from: ReadHalf<&TcpStream>,
    mut to: WriteHalf<&TcpStream>,
    last_activity: &Cell<Instant>,
) -> io::Result<()> {
    while let Some(chunk) = from.recv().await? {
        last_activity.set(Instant::now());
        // Waits while the send queue is full, and no more is received meanwhile.
        to.send(chunk).await?;
        last_activity.set(Instant::now());
    }
    to.shutdown().await
}

async fn wait_until_idle(last_activity: &Cell<Instant>, timeout: Duration) {
    loop {
        let deadline = last_activity.get() + timeout;
        if Instant::now() >= deadline {
            return;
        }
        sleep_until(deadline).await;
    }
}

/// Forwards connections until `accept` returns `None`, and then waits for the open connections. Returns the number of
/// connections that are still open after the drain timeout, and aborts them.
pub async fn serve(
    accept: impl AsyncFn() -> io::Result<Option<TcpStream>>,
    options: Options,
) -> io::Result<usize> {
    let options = Rc::new(options);
    let mut connections = JoinSet::new();
    while let Some(client) = accept().await? {
        // Release the tasks that have completed.
        while connections.try_join_next().is_some() {}
        let options = Rc::clone(&options);
        connections.spawn(async move {
            if let Err(error) = forward(client, &options).await {
                eprintln!("connection failed: {error}");
            }
        });
    }
    let drain = async { while connections.join_next().await.is_some() {} };
    timeout(options.drain_timeout, drain).await.ok();
    Ok(connections.len())
}

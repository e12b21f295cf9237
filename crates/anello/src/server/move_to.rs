//! Moving a stream to another worker.

use std::future::Future;
use std::io;

use super::detached_stream::DetachedStream;
use crate::driver::log_event;
use crate::executor::{Handle, JoinHandle};
use crate::net::{DetachError, StreamFamily, StreamSocket};

impl<F: StreamFamily> StreamSocket<F> {
    /// Moves the connection to another worker, and serves it there with the future that `serve` returns.
    ///
    /// Waits until the kernel has taken all accepted bytes, and detaches the socket from this runtime. The other worker
    /// attaches it to its own driver, calls `serve` and spawns the future. No byte is lost or repeated: received bytes
    /// that no task has taken are also moved. The socket keeps its options. A
    /// [`ShutdownHandle`](crate::net::ShutdownHandle) created earlier has no effect on the moved stream. If open
    /// connections are counted
    /// ([`Distribution::LeastLoaded`](super::Distribution::LeastLoaded)), the connection is counted for the other
    /// worker from now on, or no longer if that worker is not in the group.
    ///
    /// Moving takes about ten system calls. Use it for long-lived connections, between two exchanges. The drivers of
    /// the workers may differ. The halves of a split stream must be reunited first.
    ///
    /// Not cancel-safe: dropping the future before it completes closes the connection.
    ///
    /// ```
    /// use anello::net::{TcpListener, TcpStream};
    /// use anello::server::{ListenerGroup, PendingConnections};
    /// use anello::{Runtime, Workers};
    ///
    /// async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    ///     while let Some(chunk) = stream.recv().await? {
    ///         stream.send(chunk).await?;
    ///     }
    ///     Ok(())
    /// }
    ///
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
    /// let address = group.sockets()?[0].local_addr()?;
    /// let stopped = group.clone();
    /// let workers = Workers::builder().unpinned_workers(1).start(move |_| {
    ///     let stopped = stopped.clone();
    ///     async move { stopped.closed().await }
    /// })?;
    /// Runtime::new()?.block_on(async {
    ///     let member = group.join(0);
    ///     let mut client = TcpStream::connect(address).await?;
    ///     if let Some(stream) = member.accept().await? {
    ///         stream.move_to(&workers.handles()[0], serve).await?.detach();
    ///     }
    ///     client.send("ciao").await?;
    ///     assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
    ///     group.close(PendingConnections::Leave);
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// workers.join()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the connection is broken, or on the simulated driver. The error contains the stream, which is
    /// still attached to this runtime.
    ///
    /// The returned handle resolves to an error if the other worker cannot attach the socket, for example for lack of
    /// memory. It resolves to a [`JoinError`](crate::JoinError) if the other runtime has been dropped. The connection is
    /// closed in both cases.
    pub async fn move_to<M, S>(
        self,
        worker: &Handle,
        serve: M,
    ) -> Result<JoinHandle<io::Result<S::Output>>, DetachError<Self>>
    where
        M: FnOnce(Self) -> S + Send + 'static,
        S: Future + 'static,
        S::Output: Send + 'static,
    {
        let detached = DetachedStream::detach(self).await?;
        Ok(worker.spawn_with(move || async move {
            let connection = detached.attach_connection().inspect_err(|error| {
                log_event!(WARN, %error, "cannot attach a connection that was moved to this worker; closing it");
            })?;
            Ok(serve(Self::new(connection)).await)
        }))
    }
}

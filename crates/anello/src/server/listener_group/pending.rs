//! Handling of pending connections when a group is closed.

/// Handling of connections that are in the kernel's accept queues when a group is closed.
///
/// ```
/// # anello::example! {
/// use anello::net::{TcpListener, TcpStream};
/// use anello::server::{ListenerGroup, PendingConnections};
///
/// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 1)?;
/// let member = group.join(0);
/// // Another process has duplicates of the sockets.
/// let sockets = group.sockets()?;
/// group.close(PendingConnections::Leave);
/// assert!(member.accept().await?.is_none());
/// let client = TcpStream::connect(sockets[0].local_addr()?).await?;
/// assert_eq!(sockets[0].accept()?.1, client.local_addr()?);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PendingConnections {
    /// Accept and serve them, at most 4096 per socket, and then close the socket. The kernel resets connections that
    /// are established after the last one has been accepted and before the socket is closed.
    Serve,
    /// Leave them to another process that shares the sockets.
    Leave,
}

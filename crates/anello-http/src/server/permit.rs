//! Permits to serve a connection, and connections that move to another worker with their permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anello::net::DetachedStream;

/// A permit to serve one connection. If the connection count is shared, decrements it on drop.
#[derive(Debug)]
pub(super) struct ConnectionPermit(pub Option<Arc<AtomicUsize>>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(open) = &self.0 {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A connection on its way to the server of another worker; see
/// [`ServerBuilder::rebalancer`](super::ServerBuilder::rebalancer).
///
/// ```
/// use anello::net::Rebalancer;
/// use anello_http::Server;
/// use anello_http::server::MovedConnection;
///
/// let rebalancer = Rebalancer::<MovedConnection>::new(2);
/// let server = Server::builder().rebalancer(rebalancer.join(0)).build();
/// # assert_eq!(server.connections(), 0);
/// ```
#[derive(Debug)]
pub struct MovedConnection {
    pub(super) stream: DetachedStream,
    pub(super) permit: ConnectionPermit,
    /// Number of further requests that the connection may send.
    pub(super) requests_left: u64,
}

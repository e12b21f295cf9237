//! Permits to serve a connection, and connections that move to another worker with their permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anello::server::DetachedStream;

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
/// use anello::server::Rebalancer;
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::time::Duration;

    use anello::net::{TcpListener, TcpStream};
    use anello::server::{AttachedStream, Rebalancer};
    use anello::time::timeout;
    use anello::{DriverKind, Runtime, spawn, yield_now};

    use super::*;
    use crate::message::{Request, Response};
    use crate::server::{Server, ServerOptions};

    /// Address of a client, and the number of responses that it has received.
    type Client = (Rc<Cell<Option<SocketAddr>>>, Rc<Cell<u64>>);

    /// Sends requests on a connection, and counts the responses.
    async fn send_requests(
        address: SocketAddr,
        local: Rc<Cell<Option<SocketAddr>>>,
        responses: Rc<Cell<u64>>,
    ) {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        local.set(Some(stream.local_addr().expect("an address")));
        let mut received = Vec::new();
        loop {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("send succeeds");
            while !received.ends_with(b"\r\n\r\nciao") {
                received.extend_from_slice(&stream.recv().await.expect("receive succeeds").expect("not EOF"));
            }
            received.clear();
            responses.set(responses.get() + 1);
        }
    }

    #[test]
    fn request_limit_continues_on_other_worker() {
        let runtime = Runtime::builder().driver(DriverKind::Epoll).driver_from_environment(false).build();
        let moved_and_counted = runtime.expect("a runtime").block_on(async {
            let rebalancer = Rebalancer::new(2);
            let (busy, idle) = (rebalancer.join(0), rebalancer.join(1));
            let server = Server::builder().rebalancer(busy).build();
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            server.serve(listener, async |_: Request| Response::text("ciao")).detach();
            server.serve_moved(async |_: Request| Response::text("ciao")).detach();
            let clients: [Client; 4] = Default::default();
            for (local, responses) in &clients {
                spawn(send_requests(address, Rc::clone(local), Rc::clone(responses))).detach();
            }
            let MovedConnection { stream, requests_left, .. } =
                idle.recv().await.expect("a connection moves");
            let AttachedStream::Tcp(stream) = stream.attach().expect("the stream is attached") else {
                panic!("not a TCP stream");
            };
            let peer = stream.peer_addr().expect("an address");
            let client = clients.iter().find(|(local, _)| local.get() == Some(peer)).expect("a client");
            let served = ServerOptions::default().limits.max_requests_per_connection - requests_left;
            // The client may not have read the last response yet.
            timeout(Duration::from_secs(60), async {
                while client.1.get() < served {
                    yield_now().await;
                }
            })
            .await
            .expect("all responses arrive");
            (served, client.1.get())
        });
        assert_eq!(moved_and_counted.0, moved_and_counted.1);
        assert!(moved_and_counted.0 > 0);
    }
}

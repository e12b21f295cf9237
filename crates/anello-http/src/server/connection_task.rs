//! The task of a connection. While the connection is suspended, the task holds little more than the stream, and waits
//! for the first byte of a request. All other state is allocated when that byte arrives, and freed after a period
//! without requests.

use std::future::{Future, poll_fn};
use std::io;
use std::ops::Deref;
use std::pin::pin;
use std::rc::Rc;

use anello::log_event;
use anello::net::{ByteStream, Chunk};
use anello::server::{AttachedStream, DetachedStream};

use super::connection::{Connection, End, Resumed};
use super::deadline::Phase;
use super::permit::{ConnectionPermit, MovedConnection};
use super::proxies::{self, ProxyHeader};
use super::proxy_protocol;
use super::timer::ConnectionTimer;
use super::tls;
use super::worker::Worker;
use crate::message::{Peer, Request, Response};
use crate::observe::metrics::{CloseReason, WorkerMetrics};

/// A connection of a worker. `P` is a pointer to the handler of the requests.
struct ConnectionTask<S: ByteStream, P> {
    worker: Rc<Worker>,
    /// Key in the worker's registry.
    key: usize,
    /// `None` once the first byte of a request has arrived, until the connection is suspended again.
    suspended: Option<Suspended<S, P>>,
}

/// A connection that waits for the first byte of a request.
struct Suspended<S, P> {
    stream: S,
    handler: P,
    permit: ConnectionPermit,
    /// The client, if its address has been determined. It can no longer be determined once the client has disconnected.
    peer: Option<Rc<Peer>>,
    /// Number of further requests that the connection may send.
    requests_left: u64,
    /// `false` if the stream belongs to the caller.
    may_move: bool,
}

/// Why the requests of a connection are no longer served.
enum Served<S, P> {
    Closed,
    /// The connection should move to another worker. The number is its key in the rebalancer.
    Moving(usize, Suspended<S, P>),
    Suspended(Suspended<S, P>),
}

/// Spawns the task of an accepted connection.
pub(super) fn spawn<H>(worker: &Rc<Worker>, stream: impl ByteStream, permit: ConnectionPermit, handler: Rc<H>)
where
    H: AsyncFn(Request) -> Response + 'static,
{
    let mut task = ConnectionTask::accepted(worker, stream, permit, handler, true);
    match worker.tls {
        None => spawn_task(task),
        Some(_) => anello::spawn(async move { log_error(task.run_with_tls().await) }).detach(),
    }
}

/// Spawns the task of a connection that was moved to this worker.
pub(super) fn spawn_moved<H>(worker: &Rc<Worker>, moved: MovedConnection, handler: Rc<H>)
where
    H: AsyncFn(Request) -> Response + 'static,
{
    let MovedConnection { stream, permit, requests_left } = moved;
    match stream.attach() {
        Ok(AttachedStream::Tcp(stream)) => {
            let suspended = Suspended { stream, handler, permit, peer: None, requests_left, may_move: true };
            spawn_task(ConnectionTask::new(worker, Phase::Idle, suspended));
        }
        Ok(AttachedStream::Unix(stream)) => {
            let suspended = Suspended { stream, handler, permit, peer: None, requests_left, may_move: true };
            spawn_task(ConnectionTask::new(worker, Phase::Idle, suspended));
        }
        Err(error) => {
            log_event!(WARN, %error, "cannot attach a connection that was moved to this worker; closing it");
            drop(worker.observer.guard_connection());
        }
    }
}

/// Serves a connection whose stream belongs to the caller.
pub(super) async fn serve_external<H>(
    worker: &Rc<Worker>,
    stream: impl ByteStream,
    handler: &H,
) -> io::Result<()>
where
    H: AsyncFn(Request) -> Response,
{
    let mut task = ConnectionTask::accepted(worker, stream, ConnectionPermit(None), handler, false);
    match worker.tls {
        None => task.run().await.map(drop),
        Some(_) => task.run_with_tls().await,
    }
}

fn spawn_task<S, H>(mut task: ConnectionTask<S, Rc<H>>)
where
    S: ByteStream,
    H: AsyncFn(Request) -> Response + 'static,
{
    anello::spawn(async move {
        let moving = match task.run().await {
            Ok(None) => return,
            Ok(Some((number, connection))) => {
                Box::pin(move_connection(Rc::clone(&task.worker), number, connection))
            }
            Err(error) => return log_error(Err(error)),
        };
        moving.await;
    })
    .detach();
}

fn log_error(result: io::Result<()>) {
    if let Err(error) = result {
        log_event!(DEBUG, %error, "connection failed");
    }
}

impl<S, H, P> ConnectionTask<S, P>
where
    S: ByteStream,
    H: AsyncFn(Request) -> Response,
    P: Deref<Target = H>,
{
    fn new(worker: &Rc<Worker>, phase: Phase, mut suspended: Suspended<S, P>) -> Self {
        let shutdown_handle = suspended.stream.shutdown_handle();
        if worker.observer.has_log() {
            let peer = Peer::new(shutdown_handle.clone());
            peer.address();
            suspended.peer = Some(peer);
        }
        let key = worker.register(phase, shutdown_handle);
        Self { worker: Rc::clone(worker), key, suspended: Some(suspended) }
    }

    /// `may_move` is `false` if the stream belongs to the caller.
    fn accepted(
        worker: &Rc<Worker>,
        stream: S,
        permit: ConnectionPermit,
        handler: P,
        may_move: bool,
    ) -> Self {
        let requests_left = worker.options.limits.max_requests_per_connection;
        let suspended = Suspended { stream, handler, permit, peer: None, requests_left, may_move };
        Self::new(worker, Phase::FirstHead, suspended)
    }

    /// Serves the connection until it is closed, or should move to another worker.
    async fn run(&mut self) -> io::Result<Option<(usize, Suspended<S, P>)>> {
        if self.expects_proxy_header() {
            // Boxed, so that the tasks of other connections stay small.
            Box::pin(self.serve_proxied()).await?;
        }
        while let Some(suspended) = &mut self.suspended {
            // Only polled, because a future that is stored would make the task larger.
            let received = poll_fn(|context| pin!(suspended.stream.split().0.recv()).poll(context)).await;
            let serving = match self.begin(received) {
                Ok(serving) => serving,
                Err(closed) => return closed.map(|()| None),
            };
            match serving.await? {
                Served::Closed => {}
                Served::Moving(number, suspended) => return Ok(Some((number, suspended))),
                Served::Suspended(suspended) => self.suspended = Some(suspended),
            }
        }
        Ok(None)
    }

    /// Returns `true` if the peer is a trusted proxy that uses the PROXY protocol.
    fn expects_proxy_header(&self) -> bool {
        let options = &self.worker.options;
        options.proxy_header == ProxyHeader::ProxyProtocol
            && self.suspended.as_ref().is_some_and(|suspended| {
                let peer = suspended.stream.shutdown_handle().peer_addr().ok();
                proxies::is_trusted(peer, &options.trusted_proxies)
            })
    }

    /// Receives the header of the PROXY protocol, and serves the requests that arrived with it.
    async fn serve_proxied(&mut self) -> io::Result<()> {
        let received = self.receive_proxy_header().await;
        if received.as_ref().is_ok_and(|rest| rest.as_ref().is_some_and(|rest| rest.is_empty())) {
            return Ok(());
        }
        let served = match self.begin(received) {
            Ok(serving) => serving.await?,
            Err(closed) => return closed,
        };
        // It cannot move.
        if let Served::Suspended(suspended) = served {
            self.suspended = Some(suspended);
        }
        Ok(())
    }

    /// Receives the header of the PROXY protocol. Returns the bytes that were received after it, and `None` at EOF.
    async fn receive_proxy_header(&mut self) -> io::Result<Option<Chunk>> {
        let Some(suspended) = &mut self.suspended else { return Ok(None) };
        let Some((client, rest)) = proxy_protocol::receive(&mut suspended.stream).await? else {
            return Ok(None);
        };
        // Another worker would not know the client.
        suspended.may_move = false;
        if let Some(client) = client {
            suspended.peer = Some(Peer::with_address(suspended.stream.shutdown_handle(), client));
        }
        Ok(Some(rest))
    }

    /// Starts to serve requests, of which the first bytes have been received. At EOF or after an error, closes the
    /// connection without allocating the state of a request, because many connections may close at once.
    fn begin(
        &mut self,
        received: io::Result<Option<Chunk>>,
    ) -> Result<impl Future<Output = io::Result<Served<S, P>>> + Unpin, io::Result<()>> {
        let received = match received {
            Ok(Some(received)) => received,
            Ok(None) => return Err(self.close(Ok(CloseReason::Peer))),
            Err(error) => return Err(self.close(Err(error))),
        };
        let suspended = self.suspended.take().ok_or(Ok(()))?;
        Ok(Box::pin(suspended.serve(&self.worker, self.key, received)))
    }

    /// Records why a connection that waited for a request is closed.
    fn close(&mut self, result: io::Result<CloseReason>) -> io::Result<()> {
        self.suspended = None;
        let mut guard = self.worker.observer.guard_connection();
        if let Some((timer, _entry)) = self.worker.registry.activate(self.key, &self.worker.clock) {
            guard.set_reason(&timer, self.worker.is_draining.get(), &result);
        }
        result.map(drop)
    }

    /// Serves the connection with TLS until it is closed. It is never suspended, because its state is needed to receive.
    async fn run_with_tls(&mut self) -> io::Result<()> {
        let mut first = None;
        if self.expects_proxy_header() {
            match self.receive_proxy_header().await {
                Ok(Some(received)) => first = Some(received).filter(|received| !received.is_empty()),
                Ok(None) => return self.close(Ok(CloseReason::Peer)),
                Err(error) => return self.close(Err(error)),
            }
        }
        let (Some(suspended), Some(config)) = (self.suspended.take(), &self.worker.tls) else {
            return Ok(());
        };
        let (worker, mut guard) = (&self.worker, self.worker.observer.guard_connection());
        let Some((timer, _entry)) = worker.registry.activate(self.key, &worker.clock) else { return Ok(()) };
        let Suspended { mut stream, handler, permit: _permit, peer, .. } = suspended;
        let received = match first {
            Some(received) => Ok(Some(received)),
            None => poll_fn(|context| pin!(stream.split().0.recv()).poll(context)).await,
        };
        let served = match received {
            Ok(Some(received)) if tls::is_plaintext(&received) => {
                Box::pin(reject_plaintext(stream, received, &timer, worker, peer)).await
            }
            Ok(Some(received)) => {
                let offers_http2 = worker.options.offers_http2();
                let (reader, writer) = tls::split(stream, Some(received), config, offers_http2)?;
                timer.set_session(reader.peer_session());
                let connection =
                    Connection::new(reader, writer, Rc::clone(&timer), Rc::clone(worker), peer, None);
                connection.serve(&*handler).await.map(End::reason)
            }
            Ok(None) => Ok(Some(CloseReason::Peer)),
            Err(error) => Err(error),
        };
        // Only connections without TLS may move or be suspended.
        let result = served.map(|reason| reason.unwrap_or(CloseReason::Complete));
        guard.set_reason(&timer, worker.is_draining.get(), &result);
        result.map(drop)
    }
}

/// Responds to a client that does not use TLS on a server that does.
#[cold]
async fn reject_plaintext<S: ByteStream>(
    stream: S,
    received: Chunk,
    timer: &Rc<ConnectionTimer>,
    worker: &Rc<Worker>,
    peer: Option<Rc<Peer>>,
) -> io::Result<Option<CloseReason>> {
    let (reader, writer) = stream.into_split();
    let resumed = Some(Resumed { received, requests_left: 1, may_move: false });
    let connection = Connection::new(reader, writer, Rc::clone(timer), Rc::clone(worker), peer, resumed);
    let handler = async |_: Request| {
        Response::text("400 Bad Request: this address requires TLS (use https://)\n")
            .with_status(400)
            .with_connection_close()
    };
    connection.serve(&handler).await.map(End::reason)
}

impl<S: ByteStream, P> Drop for ConnectionTask<S, P> {
    fn drop(&mut self) {
        if self.suspended.take().is_some() {
            drop(self.worker.observer.guard_connection());
        }
        self.worker.registry.remove(self.key);
    }
}

impl<S, H, P> Suspended<S, P>
where
    S: ByteStream,
    H: AsyncFn(Request) -> Response,
    P: Deref<Target = H>,
{
    /// Serves requests until the connection is closed, should be suspended, or should move. `received` is the start of
    /// the first request.
    async fn serve(self, worker: &Rc<Worker>, key: usize, received: Chunk) -> io::Result<Served<S, P>> {
        let mut guard = worker.observer.guard_connection();
        let Some((timer, entry)) = worker.registry.activate(key, &worker.clock) else {
            return Ok(Served::Closed);
        };
        let Self { stream, handler, permit, peer, requests_left, may_move } = self;
        let (reader, writer) = stream.into_split();
        let resumed = Some(Resumed { received, requests_left, may_move });
        let connection = Connection::new(reader, writer, Rc::clone(&timer), Rc::clone(worker), peer, resumed);
        let result = match connection.serve(&*handler).await {
            Ok(End::Idle { receiver, sender, peer, requests_left, is_moving }) => {
                let stream = receiver.reunite(sender).map_err(|_| io::ErrorKind::InvalidInput)?;
                guard.keep_open();
                drop(entry);
                let peer = peer.is_known().then_some(peer);
                let suspended = Self { stream, handler, permit, peer, requests_left, may_move };
                if is_moving {
                    return Ok(Served::Moving(timer.rebalancer_key(), suspended));
                }
                worker.registry.suspend(key, &timer);
                return Ok(Served::Suspended(suspended));
            }
            Ok(End::Closed(reason)) => Ok(reason),
            Err(error) => Err(error),
        };
        guard.set_reason(&timer, worker.is_draining.get(), &result);
        result.map(|_| Served::Closed)
    }
}

/// Moves a connection to the worker that the rebalancer has selected, or continues to serve it here. `number` is its key
/// in the rebalancer.
#[cold]
async fn move_connection<S, H>(worker: Rc<Worker>, number: usize, connection: Suspended<S, Rc<H>>)
where
    S: ByteStream,
    H: AsyncFn(Request) -> Response + 'static,
{
    let Suspended { stream, handler, permit, requests_left, .. } = connection;
    match (DetachedStream::detach(stream).await, &worker.rebalancer) {
        (Ok(stream), Some(rebalancer)) => {
            match rebalancer.move_connection(number, MovedConnection { stream, permit, requests_left }) {
                Ok(()) => worker.observer.count(WorkerMetrics::connection_moved),
                Err(refused) => spawn_moved(&worker, refused, handler),
            }
        }
        (Ok(_), None) => {}
        (Err(error), _) => {
            log_event!(DEBUG, %error, "connection failed");
            drop(worker.observer.guard_connection());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anello::net::{TcpListener, TcpStream};
    use anello::sim::{SimModel, SimOptions};
    use anello::time::{sleep, timeout};
    use anello::{DriverKind, Runtime};
    use futures_util::future::join;

    use super::super::observer::Observer;
    use super::super::options::ServerOptions;
    use super::*;

    /// Maximum memory for the connection in its task. With the header of the task, it fits into 192 bytes.
    const MAX_TASK_BYTES: usize = 192 - 72;

    async fn receive_response(client: &mut TcpStream) {
        let mut received = Vec::new();
        while !received.ends_with(b"\r\n\r\nciao") {
            received.extend_from_slice(&client.recv().await.expect("receive succeeds").expect("not EOF"));
        }
    }

    async fn check_suspension() {
        let suspend_after = ServerOptions::default().suspend_after;
        let worker = Worker::new(ServerOptions::default(), Observer::default(), None, None, None);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        let stream = listener.accept().await.expect("a connection");
        let handler = async |_: Request| Response::text("ciao");
        let mut task = ConnectionTask::accepted(&worker, stream, ConnectionPermit(None), &handler, false);
        let task_bytes = size_of_val(&task) + size_of_val(&task.run());
        assert!(task_bytes <= MAX_TASK_BYTES, "{task_bytes} bytes");
        let check_counts = |suspended| {
            assert_eq!((worker.registry.suspended(), worker.connections()), (suspended, 1));
        };
        let client = async {
            check_counts(1);
            for _ in 0..3 {
                client.write_all(b"GET / HT").await.expect("sent");
                sleep(suspend_after / 2).await;
                check_counts(0);
                client.write_all(b"TP/1.1\r\nHost: h\r\n\r\n").await.expect("sent");
                receive_response(&mut client).await;
                sleep(suspend_after / 2).await;
                check_counts(0);
                sleep(suspend_after).await;
                check_counts(1);
            }
            drop(client);
        };
        let (result, ()) = join(task.run(), client).await;
        assert!(matches!(result, Ok(None)));
        drop(task);
        assert_eq!(worker.connections(), 0);
    }

    /// The request has arrived when the connection is aborted, but its task has not run yet.
    async fn check_abort() {
        let worker = Worker::new(ServerOptions::default(), Observer::default(), None, None, None);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client =
            TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        let stream = listener.accept().await.expect("a connection");
        let handler = async |_: Request| std::future::pending::<Response>().await;
        let mut task = ConnectionTask::accepted(&worker, stream, ConnectionPermit(None), &handler, false);
        client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.expect("sent");
        client.flush().await.expect("sent");
        worker.abort_all();
        let ended = timeout(Duration::from_secs(60), task.run()).await;
        assert!(ended.is_ok(), "the handler has not been dropped");
    }

    fn on_each_driver<F: Future<Output = ()>>(kinds: Vec<DriverKind>, check: impl Fn() -> F) {
        for kind in kinds {
            let builder = Runtime::builder().driver(kind).driver_from_environment(false);
            builder.build().expect("a runtime").block_on(check());
        }
    }

    fn simulated_drivers() -> Vec<DriverKind> {
        let kinds = [SimModel::Completion, SimModel::Readiness].map(|model| {
            let mut options = SimOptions::default();
            options.model = model;
            DriverKind::Sim(options)
        });
        kinds.to_vec()
    }

    #[test]
    fn connection_is_suspended_while_it_waits_for_a_request() {
        on_each_driver(simulated_drivers(), check_suspension);
    }

    #[test]
    fn abort_cancels_request_that_arrived_before() {
        let mut kinds = simulated_drivers();
        kinds.push(DriverKind::Epoll);
        on_each_driver(kinds, check_abort);
    }

    #[test]
    fn dropped_task_is_removed_from_its_worker() {
        on_each_driver(vec![DriverKind::Epoll], async || {
            let worker = Worker::new(ServerOptions::default(), Observer::default(), None, None, None);
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let _client = TcpStream::connect(listener.local_addr().expect("an address")).await;
            let stream = listener.accept().await.expect("a connection");
            let handler = async |_: Request| Response::text("ciao");
            let task = ConnectionTask::accepted(&worker, stream, ConnectionPermit(None), &handler, false);
            assert_eq!(worker.connections(), 1);
            drop(task);
            assert_eq!(worker.connections(), 0);
        });
    }
}

//! The server: connections of one thread, from accept to their end.
//!
//! ```text
//!   accept ──► Connection: Input ──► handler ──► Output        one task each
//!                 │ decoder, body      │           │ gathers answers, sends files
//!                 └────── Timer ───────┴───────────┘           deadlines, looked at every tick
//! ```
//!
//! A thread has a [`Server`] of its own: nothing is shared between cores but what handlers share. Requests that come
//! together are answered together, in order. What a client can make a connection keep is bounded: a received buffer, a head,
//! gathered answers, a send queue, and what TLS encrypts at a time.

mod admission;
mod cancellation;
mod connection;
mod input;
mod observer;
mod options;
mod output;
mod panics;
mod timer;
mod tls;
mod transport;
mod upgrade;
mod worker;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use anello::net::{GroupMember, Stream, TcpListener, TcpStream, UnixListener, UnixStream};
use anello::time::{sleep, timeout};
use anello::{JoinHandle, spawn};

use self::admission::RejectionTasks;
use self::connection::Connection;
use self::observer::Observer;
pub use self::options::{Eviction, ServerOptions};
pub(crate) use self::output::COPIED_BODY_BYTES;
pub(crate) use self::timer::ConnectionTimer;
pub use self::tls::TlsConfig;
pub use self::upgrade::Upgraded;
use self::worker::Worker;
use crate::observe::access_log::WorkerLog;
use crate::observe::metrics::WorkerMetrics;
use crate::request::Request;
use crate::response::Response;

/// How long connections that were broken may take to notice, so that what they were sending is counted and logged.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the end of the last connections is looked for.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The HTTP/1.1 server of one thread. Clones are the same one.
///
/// ```no_run
/// use anello::net::TcpListener;
/// use anello_http::{Request, Response, Server};
///
/// # fn main() -> std::io::Result<()> {
/// anello::Runtime::new()?.block_on(async {
///     let server = Server::builder().build();
///     let listener = TcpListener::bind("127.0.0.1:8080")?;
///     let accepting = server.serve(listener, async |request: Request| {
///         Response::text(format!("you asked for {}\n", request.path()))
///     });
///     anello::signal::Signals::new(&[anello::signal::TERMINATE])?.recv().await?;
///     accepting.abort();
///     server.drain().await;
///     Ok(())
/// })
/// # }
/// ```
///
/// Middleware is plain composition: an async function that calls another one.
///
/// ```
/// use anello_http::h1::FieldName;
/// use anello_http::{Request, Response};
///
/// fn only_get(next: impl AsyncFn(Request) -> Response) -> impl AsyncFn(Request) -> Response {
///     async move |request: Request| match request.method_text() {
///         "GET" | "HEAD" => next(request).await,
///         // Such an answer has to say what is allowed.
///         _ => Response::new(405).field(FieldName::ALLOW, b"GET, HEAD").expect("a value of text"),
///     }
/// }
/// # let _ = only_get(async |_| Response::text("ciao"));
/// ```
#[derive(Clone, Debug)]
pub struct Server {
    worker: Rc<Worker>,
    rejections: Rc<RejectionTasks>,
    tls: Option<TlsConfig>,
}

/// Builds a [`Server`].
#[derive(Debug, Default)]
pub struct ServerBuilder {
    options: ServerOptions,
    tls: Option<TlsConfig>,
    observer: Observer,
    shared_connections: Option<Arc<AtomicUsize>>,
}

impl ServerBuilder {
    /// With these limits and deadlines.
    #[must_use]
    pub fn options(mut self, options: ServerOptions) -> Self {
        self.options = options;
        self
    }

    /// With a change to the limits and deadlines.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut ServerOptions)) -> Self {
        change(&mut self.options);
        self
    }

    /// With TLS.
    #[must_use]
    pub fn tls(mut self, config: TlsConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// Has [`ServerOptions::max_connections`] be the most of all servers together, of whatever thread, that have this count, instead
    /// of this one's alone. The count is that of their connections.
    #[must_use]
    pub fn shared_connection_count(mut self, shared_connections: Arc<AtomicUsize>) -> Self {
        self.shared_connections = Some(shared_connections);
        self
    }

    /// Counts connections and requests there. Counts that others of this thread raise, too, such as
    /// [`Files`](crate::files::Files), are given as an `Rc`.
    #[must_use]
    pub fn metrics(mut self, metrics: impl Into<Rc<WorkerMetrics>>) -> Self {
        self.observer.metrics = Some(metrics.into());
        self
    }

    /// Logs requests there.
    #[must_use]
    pub fn access_log(self, log: WorkerLog) -> Self {
        self.observer.log.replace(Some(log));
        self
    }

    /// The server of this thread.
    #[must_use]
    pub fn build(self) -> Server {
        Server {
            worker: Worker::new(self.options, self.observer, self.shared_connections),
            rejections: Rc::default(),
            tls: self.tls,
        }
    }
}

/// What a server accepts its connections from.
pub trait Accept: 'static {
    /// What is accepted.
    type Connection: Stream;

    /// The next connection; `None` when there will be no more. Cancel-safe.
    fn accept(&self) -> impl Future<Output = io::Result<Option<Self::Connection>>>;

    /// Sets whether connections may be accepted, and hold a descriptor each, before [`accept`](Self::accept) is called for
    /// them. A server that is near its limits wants none of that. By default, nothing changes.
    fn set_accept_ahead(&self, _accepts_ahead: bool) {}
}

impl Accept for TcpListener {
    type Connection = TcpStream;

    async fn accept(&self) -> io::Result<Option<TcpStream>> {
        Self::accept(self).await.map(Some)
    }

    fn set_accept_ahead(&self, accepts_ahead: bool) {
        Self::set_accept_ahead(self, accepts_ahead);
    }
}

impl Accept for GroupMember<TcpListener> {
    type Connection = TcpStream;

    async fn accept(&self) -> io::Result<Option<TcpStream>> {
        Self::accept(self).await
    }

    fn set_accept_ahead(&self, accepts_ahead: bool) {
        Self::set_accept_ahead(self, accepts_ahead);
    }
}

impl Accept for UnixListener {
    type Connection = UnixStream;

    async fn accept(&self) -> io::Result<Option<UnixStream>> {
        Self::accept(self).await.map(Some)
    }

    fn set_accept_ahead(&self, accepts_ahead: bool) {
        Self::set_accept_ahead(self, accepts_ahead);
    }
}

impl Accept for GroupMember<UnixListener> {
    type Connection = UnixStream;

    async fn accept(&self) -> io::Result<Option<UnixStream>> {
        Self::accept(self).await
    }

    fn set_accept_ahead(&self, accepts_ahead: bool) {
        Self::set_accept_ahead(self, accepts_ahead);
    }
}

impl Server {
    /// Builds a server.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Accepts connections and serves them, each in a task of its own, until there will be no more or the handle's task is
    /// aborted. Connections go on then; [`drain`](Self::drain) ends them.
    ///
    /// The handler's future is dropped at whatever await point it waits at when [`ServerOptions::request_timeout`] has passed,
    /// when the server ends before it does ([`drain`](Self::drain), [`abort_connections`](Self::abort_connections)), or when its client has reset the
    /// connection; and so is a body that it streams. The other protocol that it changes to ([`Response::upgrade`]) is dropped
    /// when the server ends. What must not be left half done belongs in a task of its own
    /// ([`anello::spawn`]), whose handle the handler awaits. A client that has only ended its side, as one does that
    /// is gone, cannot be told from one that waits for its answer: its handler goes on.
    ///
    /// Aborted, whoever waits to be accepted is reset with the listener. A [`GroupMember`] that is told to end
    /// ([`ListenerGroup::close`](anello::net::ListenerGroup::close)) takes them first.
    ///
    /// # Panics
    /// When no runtime runs on this thread.
    pub fn serve<H>(&self, listener: impl Accept, handler: H) -> JoinHandle<()>
    where
        H: AsyncFn(Request) -> Response + 'static,
    {
        let (server, handler) = (self.clone(), Rc::new(handler));
        spawn(async move {
            loop {
                server.limit_accepts(&listener);
                match listener.accept().await {
                    Ok(Some(stream)) => server.admit(stream, &handler).await,
                    Ok(None) => return,
                    Err(error) => {
                        tracing::error!(%error, "accept failed: trying again in 100 ms");
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        })
    }

    /// Serves one connection that was accepted elsewhere, to its end.
    ///
    /// # Errors
    /// When the connection breaks. That is the client's doing; there is nothing to be done about it.
    pub async fn serve_connection<S, H>(&self, stream: S, handler: &H) -> io::Result<()>
    where
        S: Stream,
        H: AsyncFn(Request) -> Response,
    {
        let (timer, _timer_entry) = self.worker.register_timer(stream.shutdown_handle());
        let (worker, observer) = (&self.worker, &self.worker.observer);
        let mut connection_guard = observer.connection_accepted();
        let result = match &self.tls {
            None => {
                let (reader, writer) = stream.into_split();
                Connection::new(reader, writer, Rc::clone(&timer), Rc::clone(worker)).serve(handler).await
            }
            Some(config) => {
                let (reader, writer) = tls::split(stream, config)?;
                Connection::new(reader, writer, Rc::clone(&timer), Rc::clone(worker)).serve(handler).await
            }
        };
        connection_guard.set_close_reason(&timer, worker.is_draining(), &result);
        result.map(drop)
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.worker.connections()
    }

    /// Ends politely: idle connections are closed, requests that have begun are answered, each as the last of its
    /// connection, and what is left at [`ServerOptions::drain_timeout`] is broken. Returns how many that were, when they have
    /// ended, or a second later if a handler does not notice.
    ///
    /// Accepting is to be ended by the caller. Dropping the future leaves the rest to be answered without a deadline.
    pub async fn drain(&self) -> usize {
        self.worker.begin_draining();
        let all_closed = async {
            while self.worker.connections() > 0 {
                sleep(DRAIN_POLL_INTERVAL).await;
            }
        };
        if timeout(self.worker.options.drain_timeout, all_closed).await.is_ok() {
            return 0;
        }
        self.abort_and_wait().await
    }

    /// As [`abort_connections`](Self::abort_connections), and waits until they have ended, at most for a second, which only handlers take that do not
    /// notice. Returns how many they were.
    ///
    /// Dropping the future leaves those that have not noticed yet to themselves.
    pub async fn abort_and_wait(&self) -> usize {
        let aborted = self.worker.connections();
        let all_closed = async {
            while self.worker.connections() > 0 {
                // Again and again: those that were accepted and had not begun are broken when they have.
                self.abort_connections();
                sleep(DRAIN_POLL_INTERVAL).await;
            }
        };
        if timeout(ABORT_TIMEOUT, all_closed).await.is_err() {
            tracing::debug!("requests that do not notice that they were broken off are left");
        }
        aborted
    }

    /// Breaks every connection at once, and drops the handlers that are waited for.
    pub fn abort_connections(&self) {
        self.worker.abort_all();
    }
}

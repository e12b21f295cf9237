//! The per-thread server and its builder.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use anello::log_event;
use anello::net::ByteStream;
use anello::server::RebalancerMember;
use anello::time::{sleep, timeout};
use anello::{JoinHandle, spawn};

use super::accept::Accept;
use super::admission::Admission;
use super::connection_task;
use super::observer::Observer;
use super::options::ServerOptions;
use super::permit::MovedConnection;
use super::tls::TlsConfig;
use super::worker::Worker;
use crate::message::{Request, Response};
use crate::observe::access_log::WorkerLog;
use crate::observe::metrics::WorkerMetrics;

/// Maximum time to wait for aborted connections to terminate, so that their requests are counted and logged.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which a drain checks whether all connections have closed.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The per-thread HTTP/1.1 server. Clones refer to the same server.
///
/// ```no_run
/// # anello::example! {
/// use anello::net::TcpListener;
/// use anello_http::{Request, Response, Server};
///
/// let server = Server::builder().build();
/// let listener = TcpListener::bind("127.0.0.1:8080")?;
/// let accepting = server.serve(listener, async |request: Request| {
///     Response::text(format!("you asked for {}\n", request.path()))
/// });
/// anello::signal::ctrl_c().await?;
/// accepting.abort();
/// server.drain().await;
/// # }
/// ```
///
/// Middleware is plain function composition: one async function calls another.
///
/// ```
/// use anello_http::h1::FieldName;
/// use anello_http::{Request, Response};
///
/// fn only_get(next: impl AsyncFn(Request) -> Response) -> impl AsyncFn(Request) -> Response {
///     async move |request: Request| match request.method_text() {
///         "GET" | "HEAD" => next(request).await,
///         // A 405 response must list the allowed methods.
///         _ => Response::new(405).field(FieldName::ALLOW, b"GET, HEAD").expect("the value is valid"),
///     }
/// }
/// # let _ = only_get(async |_| Response::text("ciao"));
/// ```
#[derive(Clone, Debug)]
pub struct Server {
    worker: Rc<Worker>,
    admission: Rc<Admission>,
}

/// A builder for a [`Server`].
///
/// ```
/// use std::time::Duration;
///
/// use anello_http::{Server, ServerOptions};
///
/// let options = ServerOptions::default().max_connections(500).request_timeout(Some(Duration::from_secs(60)));
/// let server = Server::builder().options(options).build();
/// assert_eq!(server.connections(), 0);
/// ```
#[derive(Debug, Default)]
pub struct ServerBuilder {
    options: ServerOptions,
    tls: Option<TlsConfig>,
    observer: Observer,
    shared_connections: Option<Arc<AtomicUsize>>,
    rebalancer: Option<RebalancerMember<MovedConnection>>,
}

impl ServerBuilder {
    /// Sets the limits and timeouts.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::h1::Limits;
    /// use anello_http::{Request, Response, Server, ServerOptions};
    ///
    #[doc = listener!()]
    /// let limits = Limits { max_body_bytes: 3, ..Limits::default() };
    /// let server = Server::builder().options(ServerOptions::default().limits(limits)).build();
    /// server.serve(listener, async |_: Request| Response::text("ciao")).detach();
    /// let response = exchange("POST / HTTP/1.0\r\nContent-Length: 4\r\n\r\nciao").await?;
    /// assert!(response.starts_with("HTTP/1.1 413 Content Too Large\r\n"));
    /// # }
    /// ```
    #[must_use]
    pub fn options(mut self, options: ServerOptions) -> Self {
        self.options = options;
        self
    }

    /// Modifies the limits and timeouts.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let server = Server::builder().configure(|options| options.limits.max_fields = 1).build();
    /// server.serve(listener, async |_: Request| Response::text("ciao")).detach();
    /// let response = exchange("GET / HTTP/1.0\r\nHost: a\r\nAccept: */*\r\n\r\n").await?;
    /// assert!(response.starts_with("HTTP/1.1 431 "));
    /// # }
    /// ```
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut ServerOptions)) -> Self {
        change(&mut self.options);
        self
    }

    /// Enables TLS.
    ///
    /// ```
    /// use anello_http::server::TlsConfig;
    /// use anello_http::Server;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path();
    /// # let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(std::io::Error::other)?;
    /// # std::fs::write(path.join("cert.pem"), key.cert.pem())?;
    /// # std::fs::write(path.join("key.pem"), key.signing_key.serialize_pem())?;
    /// let config = TlsConfig::from_pem_files(&path.join("cert.pem"), &path.join("key.pem"))?;
    /// let server = Server::builder().tls(config).build();
    /// # assert_eq!(server.connections(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn tls(mut self, config: TlsConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// Shares the connection count with other servers on any thread. [`ServerOptions::max_connections`] then limits the
    /// connections of all these servers together.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::AtomicUsize;
    ///
    /// use anello_http::Server;
    ///
    /// let connections = Arc::new(AtomicUsize::new(0));
    /// let workers = anello::Workers::builder().unpinned_workers(2).start(move |_| {
    ///     let builder = Server::builder().shared_connection_count(Arc::clone(&connections));
    ///     // The limit applies to both workers together.
    ///     let server = builder.configure(|options| options.max_connections = 500).build();
    ///     async move { server.connections() }
    /// })?;
    /// assert_eq!(workers.join()?, [0, 0]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn shared_connection_count(mut self, shared_connections: Arc<AtomicUsize>) -> Self {
        self.shared_connections = Some(shared_connections);
        self
    }

    /// Sets the rebalancer that moves connections between the servers of several workers. Requests are not affected: a
    /// connection moves while it has no request in progress.
    ///
    /// Each server must also run [`serve_moved`](Server::serve_moved). Connections with TLS, HTTP/2 or another protocol
    /// stay on their worker.
    ///
    /// ```
    /// use anello::Workers;
    /// use anello::net::TcpListener;
    /// use anello::server::{ListenerGroup, PendingConnections, Rebalancer};
    /// use anello_http::{Request, Response, Server};
    ///
    /// let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 2)?;
    /// let rebalancer = Rebalancer::new(2);
    /// # group.close(PendingConnections::Serve);
    /// let workers = Workers::builder().unpinned_workers(2).start(move |worker| {
    ///     let (group, rebalancer) = (group.clone(), rebalancer.clone());
    ///     async move {
    ///         let handler = async |_: Request| Response::text("ciao");
    ///         let server = Server::builder().rebalancer(rebalancer.join(worker.index)).build();
    ///         let accepting = server.serve(group.join(worker.index), handler);
    ///         let moving = server.serve_moved(handler);
    ///         accepting.await.ok();
    ///         server.drain().await;
    ///         moving.await.ok();
    ///     }
    /// })?;
    /// workers.join()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn rebalancer(mut self, member: RebalancerMember<MovedConnection>) -> Self {
        self.rebalancer = Some(member);
        self
    }

    /// Sets the metrics that count connections and requests. To share them with other components of this thread, such as
    /// [`Files`](crate::files::Files), pass an `Rc`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let metrics = ServerMetrics::new(MetricsOptions::default());
    /// let server = Server::builder().metrics(metrics.worker(0).expect("not in use")).build();
    /// server.serve(listener, async |_: Request| Response::text("ciao")).detach();
    /// exchange("GET / HTTP/1.0\r\n\r\n").await?;
    /// let mut text = Vec::new();
    /// metrics.render(None, &mut text);
    /// assert!(String::from_utf8_lossy(&text).contains("requests_total{method=\"GET\",status=\"2xx\"} 1\n"));
    /// # }
    /// ```
    #[must_use]
    pub fn metrics(mut self, metrics: impl Into<Rc<WorkerMetrics>>) -> Self {
        self.observer.metrics = Some(metrics.into());
        self
    }

    /// Sets the access log.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::observe::access_log::{AccessLog, AccessLogOptions, LogTarget};
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("access.log");
    /// let options = AccessLogOptions::default().target(LogTarget::File(path.clone()));
    /// let log = AccessLog::start(options.flush_interval(std::time::Duration::ZERO))?;
    /// let server = Server::builder().access_log(log.worker(0)).build();
    /// server.serve(listener, async |_: Request| Response::text("ciao")).detach();
    /// exchange("GET /hello HTTP/1.0\r\n\r\n").await?;
    /// while log.handle().stats().written_lines == 0 {
    ///     anello::task::yield_now().await;
    /// }
    /// assert!(std::fs::read_to_string(path)?.contains("\"GET /hello HTTP/1.0\" 200 4"));
    /// # }
    /// ```
    #[must_use]
    pub fn access_log(self, log: WorkerLog) -> Self {
        self.observer.log.replace(Some(log));
        self
    }

    /// Builds the server of this thread.
    ///
    /// ```
    /// use anello_http::Server;
    ///
    /// let server = Server::builder().build();
    /// assert_eq!(server.connections(), 0);
    /// ```
    pub fn build(self) -> Server {
        let worker =
            Worker::new(self.options, self.observer, self.tls, self.shared_connections, self.rebalancer);
        Server { admission: Rc::new(Admission::new(Rc::clone(&worker))), worker }
    }
}

impl Server {
    /// Returns a builder for a server.
    ///
    /// ```
    /// use anello_http::Server;
    ///
    /// let server = Server::builder().configure(|options| options.max_connections = 500).build();
    /// assert_eq!(server.connections(), 0);
    /// ```
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Accepts connections and serves each of them in a separate task, until the listener returns no more connections
    /// or the returned task is aborted. Open connections are not affected; [`drain`](Self::drain) closes them.
    ///
    /// # Cancellation
    /// The handler's future, or the response body that it streams, is dropped at its current await point in these
    /// cases:
    /// - [`ServerOptions::request_timeout`] expires
    /// - the server shuts down before the response is complete ([`drain`](Self::drain),
    ///   [`abort_connections`](Self::abort_connections))
    /// - the client closes or resets the connection, or shuts down its write direction (see
    ///   [`ServerOptions::half_close`])
    ///
    /// The handler of an upgraded connection ([`Response::upgrade`]) is dropped when the server shuts down. Work that
    /// must run to completion belongs in a separate task ([`anello::spawn`]), whose handle the handler awaits.
    ///
    /// When the task is aborted, connections in the accept queue are reset. To accept these connections first, use a
    /// [`GroupMember`](anello::server::GroupMember) and close its group
    /// ([`ListenerGroup::close`](anello::server::ListenerGroup::close)).
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let server = Server::builder().build();
    /// let accepting = server.serve(listener, async |request: Request| match request.path() {
    ///     "/" => Response::text("ciao\n"),
    ///     _ => Response::new(404),
    /// });
    /// assert!(exchange("GET / HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\nciao\n"));
    /// accepting.abort();
    /// assert_eq!(server.drain().await, 0);
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub fn serve<H>(&self, listener: impl Accept, handler: H) -> JoinHandle<()>
    where
        H: AsyncFn(Request) -> Response + 'static,
    {
        let (server, handler) = (self.clone(), Rc::new(handler));
        spawn(async move {
            loop {
                listener.set_accept_ahead(server.admission.accepts_ahead());
                match listener.accept().await {
                    Ok(Some(stream)) => match server.admission.admit().await {
                        Some(permit) => {
                            server.worker.observer.count(WorkerMetrics::connection_accepted);
                            connection_task::spawn(&server.worker, stream, permit, Rc::clone(&handler));
                        }
                        None => server.admission.reject(stream).await,
                    },
                    Ok(None) => return,
                    Err(error) => {
                        log_event!(ERROR, %error, "cannot accept: retrying in 100 ms");
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        })
    }

    /// Serves the connections that other workers move to this one ([`ServerBuilder::rebalancer`]), each in a separate
    /// task, until the server [drains](Self::drain) or [refuses](Self::refuse_moved) them. Without a rebalancer, the
    /// returned task ends at once.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::server::Rebalancer;
    /// use anello_http::{Request, Response, Server};
    ///
    /// let server = Server::builder().rebalancer(Rebalancer::new(1).join(0)).build();
    /// let moving = server.serve_moved(async |_: Request| Response::text("ciao"));
    /// server.drain().await;
    /// moving.await?;
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    pub fn serve_moved<H>(&self, handler: H) -> JoinHandle<()>
    where
        H: AsyncFn(Request) -> Response + 'static,
    {
        let (server, handler) = (self.clone(), Rc::new(handler));
        spawn(async move {
            let Some(rebalancer) = &server.worker.rebalancer else { return };
            while let Some(moved) = rebalancer.recv().await {
                connection_task::spawn_moved(&server.worker, moved, Rc::clone(&handler));
            }
        })
    }

    /// Receives no more connections from other workers, and moves none to them. [`drain`](Self::drain) does the same.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::server::Rebalancer;
    /// # use anello_http::{Request, Response, Server};
    /// let server = Server::builder().rebalancer(Rebalancer::new(1).join(0)).build();
    /// let moving = server.serve_moved(async |_: Request| Response::text("ciao"));
    /// server.refuse_moved();
    /// moving.await?;
    /// # }
    /// ```
    pub fn refuse_moved(&self) {
        self.worker.refuse_moved();
    }

    /// Serves one connection that was accepted elsewhere, until it is closed.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::UnixStream;
    /// use anello_http::{Request, Response, Server};
    ///
    /// let (stream, mut client) = UnixStream::pair()?;
    /// let serving = anello::spawn(async move {
    ///     let handler = async |_: Request| Response::text("ciao");
    ///     Server::builder().build().serve_connection(stream, &handler).await
    /// });
    /// client.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    /// let response = client.recv().await?.expect("the server responds");
    /// assert!(response.ends_with(b"\r\n\r\nciao"));
    /// drop(client);
    /// serving.await??;
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the connection fails. The error is usually caused by the client and needs no handling.
    pub async fn serve_connection<S, H>(&self, stream: S, handler: &H) -> io::Result<()>
    where
        S: ByteStream,
        H: AsyncFn(Request) -> Response,
    {
        self.worker.observer.count(WorkerMetrics::connection_accepted);
        connection_task::serve_external(&self.worker, stream, handler).await
    }

    /// Returns the number of open connections.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let server = Server::builder().build();
    /// server.serve(listener, async |_: Request| Response::text("ciao")).detach();
    /// let client = anello::net::TcpStream::connect(address).await?;
    /// while server.connections() == 0 {
    ///     anello::task::yield_now().await;
    /// }
    /// assert_eq!(server.connections(), 1);
    /// # drop(client);
    /// # }
    /// ```
    pub fn connections(&self) -> usize {
        self.worker.connections()
    }

    /// Shuts down gracefully: closes idle connections, answers requests in flight, and closes their connections after
    /// the response. Aborts the remaining connections after [`ServerOptions::drain_timeout`], like
    /// [`abort_and_wait`](Self::abort_and_wait), and returns their number.
    ///
    /// The caller must stop accepting connections first. If the future is dropped, the remaining requests are answered
    /// without a deadline.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let server = Server::builder().build();
    /// let accepting = server.serve(listener, async |_: Request| Response::text("ciao"));
    /// exchange("GET / HTTP/1.0\r\n\r\n").await?;
    /// accepting.abort();
    /// assert_eq!(server.drain().await, 0, "no connection had to be aborted");
    /// assert_eq!(server.connections(), 0);
    /// # }
    /// ```
    pub async fn drain(&self) -> usize {
        self.worker.begin_draining();
        if self.wait_until_closed(self.worker.options.drain_timeout, || {}).await {
            return 0;
        }
        self.abort_and_wait().await
    }

    /// Aborts all connections and waits for them to close, for up to a second if a handler does not react to the
    /// cancellation. Returns their number. If the future is dropped, the remaining connections close on their own.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let server = Server::builder().build();
    /// server.serve(listener, async |_: Request| std::future::pending().await).detach();
    /// let mut client = anello::net::TcpStream::connect(address).await?;
    /// client.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    /// while server.connections() == 0 {
    ///     anello::task::yield_now().await;
    /// }
    /// assert_eq!(server.abort_and_wait().await, 1);
    /// assert_eq!(server.connections(), 0);
    /// # }
    /// ```
    pub async fn abort_and_wait(&self) -> usize {
        let aborted = self.worker.connections();
        // Repeated, because a suspended connection may have received a request, which its task starts only now.
        if !self.wait_until_closed(ABORT_TIMEOUT, || self.abort_connections()).await {
            log_event!(DEBUG, "some aborted requests did not terminate in time");
        }
        aborted
    }

    /// Waits until all connections are closed. Calls `before_wait` before each check. Returns `false` after a timeout.
    async fn wait_until_closed(&self, limit: Duration, before_wait: impl Fn()) -> bool {
        let all_closed = async {
            while self.worker.connections() > 0 {
                before_wait();
                sleep(DRAIN_POLL_INTERVAL).await;
            }
        };
        timeout(limit, all_closed).await.is_ok()
    }

    /// Aborts all connections immediately and drops their pending handlers.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::{Request, Response, Server};
    ///
    #[doc = listener!()]
    /// let server = Server::builder().build();
    /// server.serve(listener, async |_: Request| std::future::pending().await).detach();
    /// let mut client = anello::net::TcpStream::connect(address).await?;
    /// client.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    /// while server.connections() == 0 {
    ///     anello::task::yield_now().await;
    /// }
    /// while server.connections() > 0 {
    ///     server.abort_connections();
    ///     anello::task::yield_now().await;
    /// }
    /// assert!(!matches!(client.recv().await, Ok(Some(_))), "there is no response");
    /// # }
    /// ```
    pub fn abort_connections(&self) {
        self.worker.abort_all();
    }
}

//! Listening sockets of all address families.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use super::connection::Connection;
use super::family::{StreamFamily, Tcp, Unix};
use super::options::{SocketAccess, common_options, raw_descriptor};
use super::stream_socket::StreamSocket;
use crate::driver::{
    AcceptSink, Accepted, DetachedSocket, Driver, End, Key, PollIo, Target, check_socket, log_event,
};
use crate::executor::{ExhaustionLog, Shared, WaitQueue, current};
use crate::time::{Pause, pause};

/// Number of connections that the kernel queues until they are accepted.
pub(crate) const BACKLOG: u32 = 4096;

/// Delay before a listener retries when the process has no descriptors left.
pub(crate) const EXHAUSTED_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Listening socket of the family `F`: a [`TcpListener`](super::TcpListener) or a
/// [`UnixListener`](super::UnixListener), bound to this thread's runtime.
///
/// ```
/// use anello::net::{StreamFamily, StreamListener, UnixListener, UnixStream};
///
/// /// Greets `count` clients, of any family.
/// async fn accept<F: StreamFamily>(listener: StreamListener<F>, count: usize) -> std::io::Result<()> {
///     for _ in 0..count {
///         listener.accept().await?.write_all(b"ciao").await?;
///     }
///     Ok(())
/// }
/// # anello::example! {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("socket");
/// let listener = UnixListener::bind(&path)?;
/// let mut client = UnixStream::connect(&path).await?;
/// accept(listener, 1).await?;
/// assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
/// ```
pub struct StreamListener<F> {
    listener: Listener,
    /// Set while `poll_accept` pauses because no descriptors are available.
    pause: Option<Pause>,
    family: PhantomData<fn() -> F>,
}

impl<F: StreamFamily> StreamListener<F> {
    pub(super) fn new(listener: Listener) -> Self {
        Self { listener, pause: None, family: PhantomData }
    }

    /// Accepts the next connection (multishot accept on io_uring, Linux 5.19; `accept4(2)` otherwise).
    ///
    /// If the process has no descriptors left, the listener uses a reserved descriptor to reject pending clients, and
    /// then pauses for 100 ms. It never returns `EMFILE` or `ENFILE`. Several tasks can wait concurrently; they accept
    /// in turn. Cancel-safe: if the future is dropped, a connection already accepted for it is returned by the next
    /// call.
    ///
    /// # Errors
    /// Returns the error from `accept4(2)`, unless it concerns only a single client or is caused by descriptor
    /// exhaustion.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let client = TcpStream::connect(listener.local_addr()?).await?;
    /// let server = listener.accept().await?;
    /// assert_eq!(server.peer_addr()?, client.local_addr()?);
    /// # }
    /// ```
    pub async fn accept(&self) -> io::Result<StreamSocket<F>> {
        self.listener.accept().await.map(StreamSocket::new)
    }

    /// Polls for the next connection, like [`accept`](Self::accept). Only the task that polled last is woken.
    ///
    /// ```
    /// # anello::example! {
    /// use std::future::{Future as _, poll_fn};
    ///
    /// use anello::net::{TcpListener, TcpStream};
    ///
    /// let mut listener = TcpListener::bind("127.0.0.1:0")?;
    /// let client = TcpStream::connect(listener.local_addr()?).await?;
    /// let server = poll_fn(|context| listener.poll_accept(context)).await?;
    /// assert_eq!(server.peer_addr()?, client.local_addr()?);
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`accept`](Self::accept).
    pub fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<StreamSocket<F>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(Pin::new(pause).poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Err(error) if is_exhausted(&error) => {
                    warn_exhausted(&self.listener.shared, &error, self.listener.refuse());
                    self.pause = Some(pause(EXHAUSTED_RETRY_DELAY));
                }
                accepted => return Poll::Ready(accepted.map(StreamSocket::new)),
            }
        }
    }

    /// Sets whether the driver may accept connections before [`accept`](Self::accept) is called. The default is `true`:
    /// io_uring then accepts all connections in the accept queue with one operation, and each connection holds a
    /// descriptor. With `false`, at most one open connection is waiting to be returned by `accept`. Use this for
    /// servers that run close to a descriptor limit.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// listener.set_accept_ahead(false);
    /// let clients = [(); 2].map(|()| TcpStream::connect(listener.local_addr().unwrap()));
    /// for client in clients {
    ///     let client = client.await?;
    ///     assert_eq!(listener.accept().await?.peer_addr()?, client.local_addr()?);
    /// }
    /// # }
    /// ```
    pub fn set_accept_ahead(&self, accepts_ahead: bool) {
        self.listener.set_accept_ahead(accepts_ahead);
    }

    /// Returns the local address (`getsockname(2)`), with the assigned port if the listener was bound to port 0.
    ///
    /// # Errors
    /// Returns the error from `getsockname(2)`.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::TcpListener;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// assert_ne!(listener.local_addr()?.port(), 0);
    /// # }
    /// ```
    pub fn local_addr(&self) -> io::Result<F::Address> {
        self.listener.address::<F>()
    }

    /// Converts a standard library listener, for example one passed by a service manager.
    ///
    /// The socket keeps its options, and accepted streams inherit them. A TCP listener that was not created by anello
    /// usually lacks `TCP_NODELAY`. Without it, the last bytes of a message that is sent in several writes can wait for
    /// a delayed acknowledgement, about 40 ms.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be switched to non-blocking mode, or on the simulated driver.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::from_std(std::net::TcpListener::bind("127.0.0.1:0")?)?;
    /// let _client = TcpStream::connect(listener.local_addr()?).await?;
    /// assert!(listener.accept().await?.peer_addr()?.ip().is_loopback());
    /// # }
    /// ```
    #[track_caller]
    pub fn from_std(listener: F::StdListener) -> io::Result<Self> {
        Ok(Self::new(Listener::import(current(), listener)?))
    }
}

/// Fails if the descriptor is not a listening socket of the family, and on the simulated driver. Panics if no runtime is
/// running on this thread.
impl<F: StreamFamily> TryFrom<OwnedFd> for StreamListener<F> {
    type Error = io::Error;

    #[track_caller]
    fn try_from(descriptor: OwnedFd) -> io::Result<Self> {
        check_socket(&descriptor, F::FAMILY, true)?;
        Ok(Self::new(Listener::import(current(), descriptor)?))
    }
}

impl TryFrom<std::net::TcpListener> for StreamListener<Tcp> {
    type Error = io::Error;

    /// See [`from_std`](Self::from_std).
    #[track_caller]
    fn try_from(listener: std::net::TcpListener) -> io::Result<Self> {
        Self::from_std(listener)
    }
}

impl TryFrom<std::os::unix::net::UnixListener> for StreamListener<Unix> {
    type Error = io::Error;

    /// See [`from_std`](Self::from_std).
    #[track_caller]
    fn try_from(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        Self::from_std(listener)
    }
}

impl<F: StreamFamily> SocketAccess for StreamListener<F> {
    fn access<T>(&self, call: impl FnOnce(&Driver, Target<'_>) -> io::Result<T>) -> io::Result<T> {
        call(&self.listener.shared.driver.borrow(), Target::Listener(self.listener.key))
    }

    fn access_mut<T>(&self, call: impl FnOnce(&mut Driver, Target<'_>) -> io::Result<T>) -> io::Result<T> {
        call(&mut self.listener.shared.driver.borrow_mut(), Target::Listener(self.listener.key))
    }
}

common_options!([<F: StreamFamily>] StreamListener<F>);
raw_descriptor!([<F: StreamFamily>] StreamListener<F>);

impl<F: StreamFamily> fmt::Debug for StreamListener<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple(F::LISTENER).field(&self.listener).finish()
    }
}

pub(crate) struct Listener {
    shared: Rc<Shared>,
    key: Key,
    wait_queue: WaitQueue,
}

impl Listener {
    pub fn new(shared: Rc<Shared>, key: Key) -> Self {
        Self { shared, key, wait_queue: WaitQueue::default() }
    }

    pub fn import(shared: Rc<Shared>, socket: impl Into<DetachedSocket>) -> io::Result<Self> {
        let key = shared.driver.borrow_mut().import_listener(socket.into())?;
        Ok(Self::new(shared, key))
    }

    /// Declares that other workers also accept from this socket.
    pub fn share(&self) {
        self.shared.driver.borrow_mut().share_listener(self.key);
    }

    pub fn address<F: StreamFamily>(&self) -> io::Result<F::Address> {
        F::address(&self.shared.driver.borrow().address(Target::Listener(self.key), End::Local)?)
    }

    /// Accepts the next connection. Pauses while no descriptors are available.
    pub async fn accept(&self) -> io::Result<Connection> {
        loop {
            let mut ticket = self.wait_queue.ticket();
            match poll_fn(|context| ticket.poll(context, |context| self.poll_accept(context))).await {
                Err(error) if is_exhausted(&error) => {
                    warn_exhausted(&self.shared, &error, self.refuse());
                    pause(EXHAUSTED_RETRY_DELAY).await;
                }
                accepted => return accepted,
            }
        }
    }

    fn poll_accept(&self, context: &Context<'_>) -> PollIo<Connection> {
        let poll = |driver: &mut Driver, waker: &Waker| driver.poll_accept(self.key, waker);
        let accepted = self.shared.poll_driver(context, poll, |_| 0);
        accepted.map_ok(|key| {
            let connection = Connection::new(Rc::clone(&self.shared), key);
            connection.trace_accepted();
            connection
        })
    }

    /// Accepts the next connection, and returns it as a descriptor if `keeps` returns `false`. Does not pause if no
    /// descriptors are left.
    pub fn poll_accept_if(&self, context: &Context<'_>, keeps: impl FnOnce() -> bool) -> PollIo<Accepted> {
        self.shared.poll_driver(context, |driver, waker| driver.poll_accept_if(self.key, waker, keeps), |_| 0)
    }

    pub fn set_accept_ahead(&self, accepts_ahead: bool) {
        self.shared.driver.borrow_mut().set_accept_ahead(self.key, accepts_ahead);
    }

    /// Rejects pending clients because no descriptors are available. Returns their number.
    pub fn refuse(&self) -> usize {
        self.shared.driver.borrow_mut().reject_pending(self.key)
    }

    /// Closes the listener. Connections that the kernel has already accepted for it go to the sink. The caller must
    /// call the sink's wakers.
    pub fn close_with_sink(self, sink: Arc<dyn AcceptSink>) {
        let Ok(mut driver) = self.shared.driver.try_borrow_mut() else {
            // The driver is already borrowed: it is dropping an object that owns this listener.
            let shared = Rc::clone(&self.shared);
            return shared.spawn(async move { self.close_with_sink(sink) }).detach();
        };
        driver.release_listener_to(self.key, sink);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Listener").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Ok(mut driver) = self.shared.driver.try_borrow_mut() else {
            return self.shared.release_deferred(self.key, Self::new);
        };
        driver.release_listener(self.key);
        drop(driver);
        // The socket keeps listening until the kernel has released it. Without the flush, binding to the address again
        // would fail.
        self.shared.flush_driver();
    }
}

/// Returns whether the process or the system has run out of descriptors or memory for a connection.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Logs the cause and a remedy, at most once per [`WARNING_INTERVAL`] and worker: exhaustion usually persists, and every
/// listener encounters it again after each [`EXHAUSTED_RETRY_DELAY`].
#[cold]
pub(crate) fn warn_exhausted(shared: &Shared, error: &io::Error, rejected: usize) {
    let ExhaustionLog { logged_at_ns, rejected: unreported, suppressed } =
        shared.sockets.exhaustion_log.get();
    let (now_ns, rejected) = (shared.now_ns(), unreported + rejected);
    let is_recent = |at_ns| Duration::from_nanos(now_ns.saturating_sub(at_ns)) < WARNING_INTERVAL;
    if logged_at_ns.is_some_and(is_recent) {
        let suppressed = suppressed + 1;
        return shared.sockets.exhaustion_log.set(ExhaustionLog { logged_at_ns, rejected, suppressed });
    }
    shared.sockets.exhaustion_log.set(ExhaustionLog {
        logged_at_ns: Some(now_ns),
        rejected: 0,
        suppressed: 0,
    });
    log_event!(WARN, %error, rejected, suppressed, "cannot accept connections: file descriptors exhausted (raise ulimit -n)");
}

//! Handles to a runtime.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::blocking;
use super::context::{Inbox, MailboxMessage, flush_wakes_before_blocking, is_running};
use super::join::JoinHandle;
use super::origin::{Origin, OriginGuard};
use super::task_info::Info;

/// A handle to a runtime, which can be sent to other threads.
///
/// ```
/// let runtime = anello::Runtime::new()?;
/// let handle = runtime.handle();
/// let thread = std::thread::spawn(move || {
///     // The future is created on the runtime's thread, and can therefore use its sockets.
///     handle.spawn_with(|| async { anello::net::TcpListener::bind("127.0.0.1:0")?.local_addr() })
/// });
/// let task = thread.join().expect("the thread does not panic");
/// assert!(runtime.block_on(task)??.ip().is_loopback());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) inbox: Arc<Inbox>,
}

impl Handle {
    /// Returns a handle to the current runtime of this thread, or in a closure of
    /// [`spawn_blocking`](crate::spawn_blocking), to the runtime for which the closure was spawned.
    ///
    /// # Panics
    /// Panics if there is no such runtime.
    ///
    /// ```
    /// # anello::example! {
    /// let handle = anello::Handle::current();
    /// std::thread::spawn(move || handle.spawn(async { /* Runs on the runtime's thread. */ }).detach());
    /// # }
    /// ```
    #[track_caller]
    pub fn current() -> Self {
        match Self::try_current() {
            Ok(handle) => handle,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the handle that [`current`](Self::current) returns.
    ///
    /// # Errors
    /// Returns an error if this thread neither has a current runtime nor runs such a closure.
    ///
    /// ```
    /// assert!(anello::Handle::try_current().is_err());
    /// let runtime = anello::Runtime::new()?;
    /// assert!(runtime.block_on(async { anello::Handle::try_current().is_ok() }));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_current() -> Result<Self, TryCurrentError> {
        Origin::current().map(|origin| Self { inbox: origin.inbox }).ok_or(TryCurrentError(()))
    }

    /// Spawns a future on the runtime's thread.
    ///
    /// If the target is asleep, it is woken: through `MSG_RING` if the target and the caller's runtime both use io_uring,
    /// otherwise through an eventfd. On io_uring, the notification can be delayed until the caller's task yields if the
    /// kernel has no room for completions. A task must therefore not block its thread until the spawned task has run.
    ///
    /// If the runtime has been dropped, the future is dropped and the returned handle resolves to a cancellation error.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// let handle = runtime.handle();
    /// let thread = std::thread::spawn(move || handle.spawn(async { 42 }));
    /// let task = thread.join().expect("the thread does not panic");
    /// assert_eq!(runtime.block_on(task)?, 42);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_with_info(future, Info::new(None))
    }

    pub(super) fn spawn_with_info<F>(&self, future: F, info: Info) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (task, handle) = JoinHandle::new_task(future, Arc::clone(&self.inbox), info);
        self.inbox.send(MailboxMessage::Spawn(task));
        handle
    }

    /// Calls `make` on the runtime's thread and spawns the future that it returns. The closure is `Send`; the future
    /// does not need to be, so it can contain sockets, `Rc` and other values of the runtime's thread.
    ///
    /// Notifies the runtime like [`spawn`](Self::spawn). If the runtime has been dropped, the closure is dropped, and
    /// the returned handle resolves to a cancellation error. A panic of the closure is a panic of the task.
    ///
    /// ```
    /// use std::rc::Rc;
    ///
    /// let runtime = anello::Runtime::new()?;
    /// let task = runtime.handle().spawn_with(|| async {
    ///     let shared = Rc::new(40);
    ///     anello::yield_now().await;
    ///     *shared + 2
    /// });
    /// assert_eq!(runtime.block_on(task).ok(), Some(42));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn_with<M, F>(&self, make: M) -> JoinHandle<F::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        // Before its first poll, this future contains only the closure, which is `Send`.
        let future = async move { make().await };
        let (task, handle) = JoinHandle::new_task(future, Arc::clone(&self.inbox), Info::new(None));
        self.inbox.send(MailboxMessage::Spawn(task));
        handle
    }

    /// Runs a blocking closure for this runtime on the blocking thread pool; see
    /// [`spawn_blocking`](crate::spawn_blocking).
    ///
    /// ```
    /// let handle = anello::Runtime::new()?.handle();
    /// let work = handle.spawn_blocking(|| std::fs::read_to_string("/proc/version"));
    /// // Any runtime can await the result.
    /// let version = anello::Runtime::new()?.block_on(work)??;
    /// assert!(version.starts_with("Linux"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        // The closure can be awaited only by the current runtime, because it blocks only the caller.
        let is_waiting = Origin::current()
            .is_some_and(|origin| origin.is_waiting && Arc::ptr_eq(&origin.inbox, &self.inbox));
        blocking::spawn_for(work, Some(Origin { inbox: Arc::clone(&self.inbox), is_waiting }))
    }

    /// Polls a future on the calling thread, and blocks the thread until it has completed.
    ///
    /// Use it on a thread that may block, such as one of [`spawn_blocking`](crate::spawn_blocking), to wait for tasks,
    /// channels and locks. As in tokio, the future need not be `Send`, and can borrow from the caller.
    ///
    /// # Differences from tokio
    ///
    /// Sockets and timers belong to the thread of their runtime. The future cannot create them on this thread; it has to
    /// spawn a task that does, with [`spawn_with`](Self::spawn_with). The result of that task is an error if the runtime
    /// is dropped first, so that the call does not deadlock.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let work = anello::spawn_blocking(move || {
    ///     let handle = anello::Handle::current();
    ///     let connect = move || async move { TcpStream::connect(address).await?.write_all(b"hello").await };
    ///     handle.block_on(handle.spawn_with(connect))
    /// });
    /// let mut stream = listener.accept().await?;
    /// assert_eq!(stream.recv().await?.as_deref(), Some(&b"hello"[..]));
    /// work.await???;
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics if the future panics, if a runtime is running on this thread (it must not block), or in a closure of
    /// [`spawn_blocking`](crate::spawn_blocking) for which this runtime waits because its driver is simulated.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            !is_running(),
            "cannot block in Handle::block_on: a runtime is running on this thread (await the future, or call it in \
             spawn_blocking)"
        );
        let is_awaited = Origin::of_thread()
            .is_some_and(|origin| origin.is_waiting && Arc::ptr_eq(&origin.inbox, &self.inbox));
        assert!(
            !is_awaited,
            "cannot block in Handle::block_on: the simulated runtime waits for this closure (await the future instead)"
        );
        let _origin = OriginGuard::new(Some(Origin { inbox: Arc::clone(&self.inbox), is_waiting: false }));
        // This thread may have entered a runtime that must send its notifications before the thread blocks.
        flush_wakes_before_blocking();
        park_until_ready(future)
    }
}

/// Polls a future on this thread, which parks in between.
fn park_until_ready<F: Future>(future: F) -> F::Output {
    struct Unpark {
        thread: Thread,
        is_woken: AtomicBool,
    }

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.is_woken.store(true, Ordering::Release);
            self.thread.unpark();
        }
    }

    let unpark = Arc::new(Unpark { thread: thread::current(), is_woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        while !unpark.is_woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

/// Error returned by [`Handle::try_current`] if this thread has no runtime.
///
/// ```
/// use anello::Handle;
///
/// // This thread has no runtime.
/// let error = Handle::try_current().unwrap_err();
/// assert!(error.to_string().starts_with("no anello runtime on this thread"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TryCurrentError(());

impl fmt::Display for TryCurrentError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(
            "no anello runtime on this thread (call from Runtime::block_on or a spawned task, or use Runtime::enter)",
        )
    }
}

impl std::error::Error for TryCurrentError {}

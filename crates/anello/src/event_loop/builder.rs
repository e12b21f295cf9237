//! The builder of an event loop.

use std::io;

use super::turn::EventLoop;
use super::waker::LoopWaker;
use crate::driver::{Driver, DriverKind, DriverOptions};

impl EventLoop {
    /// Returns a builder with the default options.
    ///
    /// ```
    /// use anello::DriverKind;
    /// use anello::event_loop::EventLoop;
    ///
    /// let event_loop = EventLoop::builder().driver(DriverKind::Epoll).build()?;
    /// assert_eq!(event_loop.driver().name, "epoll");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn builder() -> EventLoopBuilder {
        EventLoopBuilder::default()
    }

    /// Opens a loop with the default options. It uses io_uring if available, otherwise epoll.
    ///
    /// ```
    /// let event_loop = anello::event_loop::EventLoop::new()?;
    /// assert!(["uring", "epoll"].contains(&event_loop.driver().name));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`EventLoopBuilder::build`].
    pub fn new() -> io::Result<Self> {
        Self::builder().build()
    }
}

/// Builds an [`EventLoop`].
///
/// ```
/// use anello::DriverKind;
/// use anello::event_loop::EventLoop;
///
/// let event_loop = EventLoop::builder().driver(DriverKind::Epoll).build()?;
/// assert_eq!(event_loop.driver().name, "epoll");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct EventLoopBuilder {
    kind: DriverKind,
    options: DriverOptions,
    polling_thread_of: Option<LoopWaker>,
}

impl EventLoopBuilder {
    /// Sets the driver. The default is [`DriverKind::Auto`]. The environment variable `ANELLO_DRIVER` has no effect.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::{EventLoop, Events};
    /// use anello::sim::SimOptions;
    /// use anello::DriverKind;
    ///
    /// let driver = DriverKind::Sim(SimOptions::new(42));
    /// let (mut event_loop, mut events) = (EventLoop::builder().driver(driver).build()?, Events::new());
    /// // An hour of virtual time passes immediately.
    /// event_loop.add_timer(Duration::from_secs(3600), 1);
    /// while events.is_empty() {
    ///     event_loop.turn(&mut events, None)?;
    /// }
    /// assert!(event_loop.monotonic_now() >= Duration::from_secs(3600));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn driver(mut self, kind: DriverKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the options of the driver.
    ///
    /// ```
    /// use anello::DriverOptions;
    /// use anello::event_loop::EventLoop;
    ///
    /// let options = DriverOptions::default().max_send_queue_bytes(2000);
    /// let mut event_loop = EventLoop::builder().options(options).build()?;
    /// # let address = "127.0.0.1:0".parse().expect("valid address");
    /// # let listener = event_loop.listen(address, 0)?;
    /// # let peer = event_loop.local_addr(listener)?;
    /// let stream = event_loop.connect(peer, 1)?;
    /// // A stream that is not connected yet can only queue bytes.
    /// assert!(event_loop.send(stream, &mut Some(vec![0; 2000].into()))?.is_ready());
    /// assert!(event_loop.send(stream, &mut Some("more".into()))?.is_pending());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn options(mut self, options: DriverOptions) -> Self {
        self.options = options;
        self
    }

    /// Shares the SQPOLL thread of another loop of this process, instead of starting one
    /// (`IORING_SETUP_ATTACH_WQ`, Linux 5.18).
    ///
    /// Both loops must have [`submission_polling`](DriverOptions::submission_polling), and can be on different threads.
    /// The thread runs while one of them exists, on the core of the first, and sleeps after the longer of their idle
    /// times. Has no effect without submission polling, on epoll and on the simulated driver, or once the other loop
    /// has been dropped.
    ///
    /// The threads of the kernel that perform blocking operations (io-wq) are shared by the loops of one thread. The
    /// kernel cannot share them between threads (since Linux 5.12).
    ///
    /// ```
    /// use anello::event_loop::EventLoop;
    /// use anello::{DriverOptions, SubmissionPolling};
    ///
    /// let polling = SubmissionPolling::default().idle_ms(10);
    /// let builder = EventLoop::builder().options(DriverOptions::default().submission_polling(Some(polling)));
    /// let first = builder.build()?;
    /// let builder = builder.share_polling_thread(&first.waker());
    /// let second = std::thread::spawn(move || builder.build().map(|event_loop| event_loop.driver().name));
    /// assert_eq!(second.join().expect("the thread does not panic")?, first.driver().name);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn share_polling_thread(mut self, other: &LoopWaker) -> Self {
        self.polling_thread_of = Some(other.clone());
        self
    }

    /// Opens the loop on the calling thread.
    ///
    /// ```
    /// use anello::event_loop::EventLoop;
    ///
    /// let builder = EventLoop::builder();
    /// // Each thread builds its own loop.
    /// let threads = [(); 2].map(|()| {
    ///     let builder = builder.clone();
    ///     std::thread::spawn(move || builder.build().map(|event_loop| event_loop.metrics().sockets))
    /// });
    /// for thread in threads {
    ///     assert_eq!(thread.join().expect("the thread does not panic")?, 0);
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the requested driver is unavailable (the message contains the cause and a remedy), or if the
    /// open file limit is reached. Sharing a polling thread that does not exist makes io_uring unavailable, so
    /// [`DriverKind::Auto`] then selects epoll.
    pub fn build(&self) -> io::Result<EventLoop> {
        let mut options = self.options.clone();
        options.polling_thread_of = self.polling_thread_of.as_ref().map(LoopWaker::notifier);
        EventLoop::with_driver(Driver::new(&self.kind, &options)?)
    }
}

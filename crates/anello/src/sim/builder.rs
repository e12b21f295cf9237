//! Options of a simulation.

use std::time::{Duration, SystemTime};

use super::simulation::{Settings, Simulation};
use crate::driver::{LinkOptions, SimFaults, SimModel};

/// Builds a [`Simulation`].
///
/// ```
/// use std::time::Duration;
///
/// use anello::sim::{LinkOptions, SimFaults, SimModel, Simulation};
///
/// let sim = Simulation::builder()
///     .seed(17)
///     .model(SimModel::Readiness)
///     .faults(SimFaults::lossless(20))
///     .link(LinkOptions::default().latency(Duration::from_millis(1)..=Duration::from_millis(5)))
///     .time_limit(Duration::from_secs(60))
///     .build();
/// assert_eq!(sim.seed(), 17);
/// ```
#[derive(Clone, Debug, Default)]
pub struct SimulationBuilder {
    settings: Settings,
}

impl Simulation {
    /// Returns a builder with the default options.
    ///
    /// ```
    /// let sim = anello::sim::Simulation::builder().seed(17).build();
    /// assert_eq!(sim.seed(), 17);
    /// ```
    #[must_use]
    pub fn builder() -> SimulationBuilder {
        SimulationBuilder::default()
    }
}

impl SimulationBuilder {
    /// Sets the seed of all random decisions. The default is 0.
    ///
    /// ```
    /// assert_eq!(anello::sim::Simulation::builder().seed(17).build().seed(), 17);
    /// ```
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Sets the kind of kernel that each host simulates. The default is [`SimModel::Completion`].
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().model(anello::sim::SimModel::Readiness).build();
    /// # sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    pub fn model(mut self, model: SimModel) -> Self {
        self.settings.options.model = model;
        self
    }

    /// Sets the rates of the faults that the kernel of each host injects. They concern calls and the connections within
    /// a host; [`link`](Self::link) sets the faults between hosts. The default is [`SimFaults::none`].
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().faults(anello::sim::SimFaults::lossless(50)).build();
    /// # sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    pub fn faults(mut self, faults: SimFaults) -> Self {
        self.settings.options.faults = faults;
        self
    }

    /// Sets the capacity of a connection in each direction, in bytes. The default is 16 KiB.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().socket_buffer_bytes(1 << 20).build();
    /// # sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    pub fn socket_buffer_bytes(mut self, bytes: usize) -> Self {
        self.settings.options.socket_buffer_bytes = bytes.max(1);
        self
    }

    /// Sets the options of all links that have no options of their own.
    ///
    /// ```
    /// # use anello::sim::{LinkOptions, Simulation};
    /// let mut sim = Simulation::builder().link(LinkOptions::default().loss(10)).build();
    /// # sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    pub fn link(mut self, options: LinkOptions) -> Self {
        self.settings.link = options;
        self
    }

    /// Sets the time after which a connection with unacknowledged packets fails with `TimedOut`, if
    /// [`set_tcp_user_timeout`](crate::net::TcpStream::set_tcp_user_timeout) sets none. The default is 924 s, as on
    /// Linux. A connection attempt always fails after 127 s.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().tcp_timeout(std::time::Duration::from_secs(10)).build();
    /// # sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    pub fn tcp_timeout(mut self, timeout: Duration) -> Self {
        self.settings.tcp_timeout = Some(timeout);
        self
    }

    /// Sets the wall-clock time of all hosts at the start, which [`system_now`](crate::time::system_now) returns. The
    /// default is 2000-01-01 00:00 UTC.
    ///
    /// The timestamps of files are real, so they are in the future of the default. Set a later time to test code that
    /// compares them with the clock, such as that which sends `Last-Modified`.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// let year_2100 = UNIX_EPOCH + Duration::from_secs(4_102_444_800);
    /// let mut sim = Simulation::builder().start_time(year_2100).build();
    /// sim.client("client", async move {
    ///     assert!(anello::time::system_now() >= year_2100);
    ///     Ok(())
    /// });
    /// sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    pub fn start_time(mut self, time: SystemTime) -> Self {
        self.settings.start_time = Some(time);
        self
    }

    /// Sets the virtual time after which [`Simulation::run`] fails. The default is one hour.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # use std::time::Duration;
    /// let mut sim = Simulation::builder().time_limit(Duration::from_secs(1)).build();
    /// sim.client("client", async {
    ///     loop {
    ///         anello::time::sleep(Duration::from_millis(1)).await;
    ///     }
    /// });
    /// assert_eq!(sim.run().unwrap_err().source.kind(), std::io::ErrorKind::TimedOut);
    /// ```
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.settings.time_limit = limit;
        self
    }

    /// Sets the number of operations that the trace keeps. The default is 200.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// let mut sim = Simulation::builder().trace_events(10_000).build();
    /// # sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    pub fn trace_events(mut self, events: usize) -> Self {
        self.settings.trace_events = events;
        self
    }

    /// Builds a simulation without hosts.
    ///
    /// ```
    /// let mut sim = anello::sim::Simulation::builder().build();
    /// assert!(sim.run().is_ok(), "there is no client to wait for");
    /// ```
    #[must_use]
    pub fn build(self) -> Simulation {
        Simulation::new(self.settings)
    }
}

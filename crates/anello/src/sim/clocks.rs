//! Clocks of the hosts.

use std::time::SystemTime;

use super::control::Control;

impl Control {
    /// Returns the wall-clock time of a host.
    ///
    /// ```
    /// # use anello::sim::Simulation;
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// let mut sim = Simulation::builder().start_time(UNIX_EPOCH).build();
    /// sim.host("a", async || Ok(()));
    /// sim.run_for(Duration::from_secs(3))?;
    /// assert_eq!(sim.system_time("a"), UNIX_EPOCH + Duration::from_secs(3));
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn system_time(&self, host: &str) -> SystemTime {
        let host = self.find(host);
        self.state.world.borrow().host_clock(host).system_time()
    }

    /// Sets the wall clock of a host, which [`system_now`](crate::time::system_now) reads. Timers and
    /// [`Instant`](crate::time::Instant) are not affected.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::sim::Simulation;
    ///
    /// let mut sim = Simulation::builder().build();
    /// sim.host("a", async || Ok(()));
    /// sim.host("b", async || Ok(()));
    /// // The clock of b is 30 s behind that of a.
    /// sim.set_system_time("b", sim.system_time("a") - Duration::from_secs(30));
    /// # sim.run_for(Duration::from_secs(60))?;
    /// # let skew = sim.system_time("a").duration_since(sim.system_time("b")).unwrap();
    /// # assert_eq!(skew, Duration::from_secs(30));
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    #[track_caller]
    pub fn set_system_time(&self, host: &str, time: SystemTime) {
        let host = self.find(host);
        self.state.world.borrow().host_clock(host).set_system_time(time);
    }

    /// Sets the rate of a host's clocks: they run faster than [`elapsed`](Self::elapsed) by this many parts per
    /// million, or slower if the number is negative. This concerns the wall clock, the monotonic clock and therefore
    /// all timers. The default is 0. Quartz clocks drift by up to 100 parts per million.
    ///
    /// Instants of hosts with different rates cannot be compared.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::sim::Simulation;
    /// use anello::time::sleep;
    ///
    /// let mut sim = Simulation::builder().build();
    /// let control = sim.control();
    /// sim.client("a", async move {
    ///     control.set_clock_drift("a", 10_000);
    ///     sleep(Duration::from_secs(101)).await;
    ///     assert_eq!(control.elapsed().as_secs(), 100);
    ///     Ok(())
    /// });
    /// sim.run()?;
    /// # Ok::<(), anello::sim::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if there is no such host, or if `ppm` is -1,000,000 or less: time cannot stop.
    #[track_caller]
    pub fn set_clock_drift(&self, host: &str, ppm: i32) {
        assert!(ppm > -1_000_000, "drift of {ppm} parts per million: time would stop");
        let host = self.find(host);
        let mut world = self.state.world.borrow_mut();
        world.host_clock(host).set_drift(ppm);
        // The host computes again when its next timer is due.
        let now_ns = world.now_ns();
        world.wake_at(host, now_ns);
    }
}

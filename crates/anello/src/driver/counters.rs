//! Driver counters. They are cheap and always enabled; each worker has its own set.

/// Counters of one worker, counted since its runtime started.
///
/// ```
/// # anello::example! {
/// use anello::RuntimeMetrics;
/// use anello::net::UnixStream;
///
/// let (mut near, mut far) = UnixStream::pair()?;
/// near.write_all(b"ping").await?;
/// assert_eq!(far.recv().await?.as_deref(), Some(&b"ping"[..]));
/// let metrics = RuntimeMetrics::current().expect("a runtime is running").driver;
/// assert_eq!((metrics.sends, metrics.receives), (1, 1));
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverMetrics {
    /// Number of accepted connections.
    pub accepted: u64,
    /// Number of connections rejected because the process had no descriptors left.
    pub rejected: u64,
    /// Number of receives that returned bytes.
    pub receives: u64,
    /// Number of sends that sent all their bytes.
    pub sends: u64,
    /// Number of sends that initially sent only part of their bytes, or none, and were completed later.
    pub short_sends: u64,
    /// Number of zero-copy sends.
    pub zero_copy_sends: u64,
    /// Number of reads and writes of files that were performed by io_uring, not by the file pool.
    pub file_operations: u64,
    /// Number of these operations that used a registered buffer; see
    /// [`AlignedBuf::registered`](crate::fs::AlignedBuf::registered).
    pub registered_file_operations: u64,
    /// Number of bytes sent from files.
    pub file_bytes: u64,
    /// Number of times that the kernel found no receive buffer (`ENOBUFS`). In that case, the bytes were received into
    /// other memory.
    pub buffer_exhaustions: u64,
    /// Number of completions for sockets that had already been closed. They are ignored, and their resources are freed.
    pub late_completions: u64,
    /// Number of completion queue overflows. No completion is lost; the kernel keeps completions that do not fit.
    pub completion_overflows: u64,
    /// Number of system calls that submitted operations or waited for events (`io_uring_enter`, `epoll_wait`).
    pub turns: u64,
    /// Number of operations that the kernel has taken from the submission queue. 0 on epoll, which has no operations.
    pub submissions: u64,
    /// Number of completions (io_uring) or readiness events (epoll) that the kernel has reported. A send that succeeds
    /// reports none on io_uring if the kernel can suppress it.
    pub completions: u64,
    /// Number of receive buffers that currently contain received data: those of all chunks, including the chunks that
    /// no task has taken yet, and of copied data that waits in send queues.
    pub buffers_leased: u64,
    /// Number of buffers in the receive ring, including leased ones. The ring grows when the kernel runs out of buffers,
    /// and shrinks when few of them have been in use for three seconds. 0 without a ring.
    pub ring_buffers: u64,
    /// Number of sockets that the driver currently owns.
    pub sockets: u64,
}

impl DriverMetrics {
    /// Returns the mean number of completions or events per [turn](Self::turns), or 0 before the first turn. A low
    /// value at a high load means that the worker often enters the kernel for little work.
    ///
    /// ```
    /// let runtime = anello::Runtime::new()?;
    /// runtime.block_on(anello::yield_now());
    /// assert!(runtime.metrics().driver.completions_per_turn() >= 0.0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn completions_per_turn(&self) -> f64 {
        if self.turns == 0 { 0.0 } else { self.completions as f64 / self.turns as f64 }
    }

    /// Returns the counters with their names and descriptions, in the order of the fields, for exporters.
    ///
    /// ```
    /// let metrics = anello::Runtime::new()?.metrics().driver;
    /// let turns = metrics.entries().find(|entry| entry.name == "turns").expect("a counter of turns");
    /// assert_eq!((turns.value, turns.is_gauge), (metrics.turns, false));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn entries(&self) -> impl Iterator<Item = MetricEntry> + use<> {
        let counters = [
            ("accepted", "Connections accepted.", self.accepted),
            ("rejected", "Connections rejected because no descriptors were left.", self.rejected),
            ("receives", "Receives that returned bytes.", self.receives),
            ("sends", "Sends that sent all their bytes in one attempt.", self.sends),
            ("short_sends", "Sends that needed several attempts.", self.short_sends),
            ("zero_copy_sends", "Zero-copy sends.", self.zero_copy_sends),
            ("file_operations", "Reads and writes of files by io_uring.", self.file_operations),
            (
                "registered_file_operations",
                "Reads and writes of files by io_uring with a registered buffer.",
                self.registered_file_operations,
            ),
            ("file_bytes", "Bytes sent from files.", self.file_bytes),
            ("buffer_exhaustions", "Receives that found no receive buffer.", self.buffer_exhaustions),
            ("late_completions", "Completions for sockets that were already closed.", self.late_completions),
            ("completion_overflows", "Completion queue overflows.", self.completion_overflows),
            ("turns", "System calls that submit or wait.", self.turns),
            ("submissions", "Operations submitted to io_uring.", self.submissions),
            ("completions", "Completions or readiness events.", self.completions),
        ];
        let gauges = [
            ("buffers_leased", "Receive buffers that contain data.", self.buffers_leased),
            ("ring_buffers", "Buffers in the receive ring.", self.ring_buffers),
            ("sockets", "Open sockets.", self.sockets),
        ];
        let counters = counters.into_iter().map(|counter| (counter, false));
        counters
            .chain(gauges.into_iter().map(|gauge| (gauge, true)))
            .map(|((name, description, value), is_gauge)| MetricEntry { name, description, value, is_gauge })
    }

    #[inline]
    pub(crate) fn count_send(&mut self, is_complete: bool) {
        if is_complete { self.sends += 1 } else { self.short_sends += 1 }
    }
}

/// Name, description and value of a field of [`DriverMetrics`]; see [`DriverMetrics::entries`].
///
/// ```
/// let metrics = anello::Runtime::new()?.metrics().driver;
/// let gauges = metrics.entries().filter(|entry| entry.is_gauge).map(|entry| entry.name);
/// assert_eq!(gauges.collect::<Vec<_>>(), ["buffers_leased", "ring_buffers", "sockets"]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricEntry {
    /// Name of the field.
    pub name: &'static str,
    /// Description, as one sentence.
    pub description: &'static str,
    /// Current value.
    pub value: u64,
    /// True if the value can decrease.
    pub is_gauge: bool,
}

impl MetricEntry {
    /// Creates an entry for a count since startup, which never decreases.
    ///
    /// ```
    /// let entry = anello::MetricEntry::counter("errors", "Errors of the back end.", 3);
    /// assert!(!entry.is_gauge && entry.value == 3);
    /// ```
    pub fn counter(name: &'static str, description: &'static str, value: u64) -> Self {
        Self { name, description, value, is_gauge: false }
    }

    /// Creates an entry for a value that can decrease.
    ///
    /// ```
    /// assert!(anello::MetricEntry::gauge("waiting", "Waiting requests.", 3).is_gauge);
    /// ```
    pub fn gauge(name: &'static str, description: &'static str, value: u64) -> Self {
        Self { name, description, value, is_gauge: true }
    }
}

//! What goes wrong in the simulated kernel, and how often.

/// Rates of the faults that a simulated kernel makes, in per mille of the occasions for each.
///
/// A rate above 900 counts as 900, so that nothing fails forever. Start from [`none`](Self::none),
/// [`lossless`](Self::lossless) or [`all`](Self::all) and change fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimFaults {
    /// A receive brings less than has arrived, down to one byte.
    pub short_receives: u16,
    /// A send takes less than there is room for, down to one byte.
    pub short_sends: u16,
    /// A send that does not wait is refused with `EAGAIN` though there is room; a zero-copy send is not supported, or
    /// finds no memory that may be locked.
    pub refused_sends: u16,
    /// A completion or an edge comes later than it could.
    pub delays: u16,
    /// The longest delay in nanoseconds.
    pub max_delay_ns: u64,
    /// Completions and edges of different operations come in another order, or before the submissions of the turn.
    pub reordering: u16,
    /// `ENOBUFS` though the receive ring holds buffers.
    pub buffer_exhaustion: u16,
    /// `EMFILE` on accept; the connection goes on waiting.
    pub descriptor_exhaustion: u16,
    /// A cancellation comes too late: the operation ends with success, or a good while after it.
    pub cancel_races: u16,
    /// A multishot operation ends with a good result.
    pub multishot_terminations: u16,
    /// A multishot receive that takes the last bytes before a reset misses the reset, and waits on.
    pub missed_resets: u16,
    /// A wait ends with nothing; an operation ends with `EINTR`.
    pub interruptions: u16,
    /// The completion queue is full: the kernel keeps what comes until the next system call.
    pub completion_overflows: u16,
    /// The kernel has no memory to keep a completion and drops it, unless it names a new connection; it tells that it did.
    pub dropped_completions: u16,
    /// Readiness with nothing behind it; `EAGAIN` though bytes have arrived, which are announced again.
    pub spurious_readiness: u16,
    /// The kernel takes only the first of the submissions.
    pub partial_submissions: u16,
    /// A completion or an edge comes after the socket was closed and its slot given away, which no kernel should do.
    pub late_completions: u16,
    /// A connection is reset (`ECONNRESET`, then `EPIPE`).
    pub resets: u16,
    /// A connect is refused though somebody listens.
    pub refused_connects: u16,
}

/// One in so many of the others: faults that end a connection would leave nothing for the rest to happen to.
const FATAL_FAULT_DIVISOR: u16 = 50;

impl SimFaults {
    /// A kernel without faults.
    pub fn none() -> Self {
        Self { max_delay_ns: 100_000, ..Self::lossless(0) }
    }

    /// Every fault that a connection has to survive, each at this rate: all bytes must still arrive.
    pub fn lossless(per_mille: u16) -> Self {
        Self {
            short_receives: per_mille,
            short_sends: per_mille,
            refused_sends: per_mille,
            delays: per_mille,
            max_delay_ns: 100_000,
            reordering: per_mille,
            buffer_exhaustion: per_mille,
            descriptor_exhaustion: per_mille,
            cancel_races: per_mille,
            multishot_terminations: per_mille,
            missed_resets: per_mille,
            interruptions: per_mille,
            completion_overflows: per_mille,
            spurious_readiness: per_mille,
            partial_submissions: per_mille,
            late_completions: per_mille,
            dropped_completions: 0,
            resets: 0,
            refused_connects: 0,
        }
    }

    /// Every fault at this rate, and at a fiftieth of it those that end a connection.
    pub fn all(per_mille: u16) -> Self {
        let deadly = per_mille.div_ceil(FATAL_FAULT_DIVISOR);
        Self { resets: deadly, refused_connects: deadly, ..Self::lossless(per_mille) }
    }
}

impl Default for SimFaults {
    fn default() -> Self {
        Self::none()
    }
}

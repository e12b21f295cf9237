//! The schedule of an open loop: due times of requests, and their connections.
//!
//! Both depend on rate, arrival distribution and seed, but not on the server. Requests go to the connections in turn.
//! Each thread computes the schedule of its own connections on demand, without communicating with other threads.
//!
//! ```text
//!  N = 5 connections, 2 threads      request     0  1  2  3  4 | 5  6  7  8  9 | …    due at k / rate
//!  (connection c belongs to          connection  0  1  2  3  4 | 0  1  2  3  4 |
//!  thread c mod 2)                   thread      0  1  0  1  0 | 0  1  0  1  0 |
//! ```
//!
//! With Poisson arrivals, each thread independently generates requests at its share of the rate. Together, the arrivals
//! of all threads form a Poisson process at the full rate.
//!
//! The threads of all shards of a load are numbered together: thread t of shard i of n has the number i + n * t. The
//! requests of the shards are therefore those of a single process with all the threads.

use fastrand::Rng;

use crate::model::config::{Arrivals, LoadConfig};

const SECOND_NS: u128 = 1_000_000_000;

/// Maximum number of Poisson arrivals that are counted one by one, which takes 2 ms. Above this limit, the expected
/// number is used instead; its standard deviation is the square root.
pub(crate) const COUNTED_EXACTLY: u64 = 100_000;

/// The connections of one thread: those whose global index is `thread` modulo `threads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the thread, over all shards.
    pub thread: usize,
    /// Number of threads, over all shards.
    pub threads: usize,
    /// Number of connections over all threads.
    pub connections: usize,
}

impl Share {
    /// Returns the share of a thread of this process. `local_thread` is its index within the process.
    pub fn new(load: &LoadConfig, local_thread: usize) -> Self {
        let (index, count) = load.shard.as_ref().map_or((0, 1), |shard| (shard.index, shard.count));
        Self {
            thread: index + count * local_thread,
            threads: count * load.threads,
            connections: load.connections,
        }
    }

    /// Returns the number of connections in the share.
    pub fn count(&self) -> usize {
        (self.connections + self.threads - 1 - self.thread) / self.threads
    }

    /// Returns the number of this thread's requests among the first `requests` of the whole load, which go to the
    /// connections in turn.
    pub(crate) fn part_of(&self, requests: u128) -> u128 {
        let [connections, threads, thread] =
            [self.connections, self.threads, self.thread].map(|number| number as u128);
        let (rounds, rest) = (requests / connections, requests % connections);
        rounds * self.count() as u128 + (rest + threads - 1 - thread) / threads
    }

    /// Converts a connection's index within the thread to its index among all connections.
    pub fn global_index(&self, local_index: usize) -> usize {
        local_index * self.threads + self.thread
    }
}

/// Iterator over the due times of one thread's requests, in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    share: Share,
    /// Number of connections in the share.
    own_connections: usize,
    arrivals: Arrivals,
    per_second: u64,
    /// Number of requests generated so far.
    index: u64,
    /// Number of the next request in the whole load, and index of its connection within the thread.
    request: u64,
    local_index: usize,
    random: Rng,
    /// Due time of the last Poisson arrival.
    poisson_ns: f64,
}

impl Schedule {
    /// Creates the schedule of one thread. `per_second` is the rate over all threads.
    pub fn new(share: Share, per_second: u64, arrivals: Arrivals, seed: u64) -> Self {
        let random = Rng::with_seed(seed ^ (share.thread as u64 + 1).wrapping_mul(0xA076_1D64_78BD_642F));
        let (per_second, request, own_connections) = (per_second.max(1), share.thread as u64, share.count());
        let (index, local_index, poisson_ns) = (0, 0, 0.0);
        Self { share, own_connections, arrivals, per_second, index, request, local_index, random, poisson_ns }
    }

    /// Returns the number of remaining requests that are due in `from_ns..to_ns`, without iterating over long
    /// schedules.
    pub fn remaining_requests(&self, from_ns: u64, to_ns: u64) -> u64 {
        match self.arrivals {
            Arrivals::Constant => {
                let [from, to] =
                    [from_ns, to_ns].map(|ns| self.constant_arrivals_before(ns).max(u128::from(self.index)));
                u64::try_from(to.saturating_sub(from)).unwrap_or(u64::MAX)
            }
            Arrivals::Poisson => {
                let expected = |from_ns: f64| (to_ns as f64 - from_ns) / self.poisson_mean_ns();
                if expected(self.poisson_ns) > COUNTED_EXACTLY as f64 {
                    return expected(self.poisson_ns.max(from_ns as f64)) as u64;
                }
                let due_times = self.clone().map(|(ns, _)| ns).take_while(|&ns| ns < to_ns);
                due_times.filter(|&ns| ns >= from_ns).count() as u64
            }
        }
    }

    /// Returns the number of this thread's requests that are due before `ns`.
    fn constant_arrivals_before(&self, ns: u64) -> u128 {
        // Request k is due at k / rate, in whole nanoseconds. This is before `ns` if k is less than the value computed
        // here.
        self.share.part_of((u128::from(ns) * u128::from(self.per_second)).div_ceil(SECOND_NS))
    }

    /// Returns the mean time between consecutive requests of this thread.
    fn poisson_mean_ns(&self) -> f64 {
        let share = self.share.count() as f64 / self.share.connections as f64;
        SECOND_NS as f64 / (self.per_second as f64 * share)
    }
}

impl Iterator for Schedule {
    /// Due time in nanoseconds since the start, and index of the connection within its thread.
    type Item = (u64, usize);

    #[inline]
    fn next(&mut self) -> Option<(u64, usize)> {
        let (local_index, request) = (self.local_index, self.request);
        let last_index = self.own_connections.checked_sub(1)?;
        self.index += 1;
        // Divisions would take longer than the rest of the function.
        (self.local_index, self.request) = if local_index < last_index {
            (local_index + 1, request + self.share.threads as u64)
        } else {
            (0, request - (last_index * self.share.threads) as u64 + self.share.connections as u64)
        };
        let at_ns = match self.arrivals {
            Arrivals::Constant => match request.checked_mul(SECOND_NS as u64) {
                Some(nanoseconds) => nanoseconds / self.per_second,
                None => u64::try_from(u128::from(request) * SECOND_NS / u128::from(self.per_second)).ok()?,
            },
            Arrivals::Poisson => {
                // In (0, 1], so that the logarithm is finite.
                let uniform = 1.0 - self.random.f64();
                self.poisson_ns -= uniform.ln() * self.poisson_mean_ns();
                self.poisson_ns as u64
            }
        };
        Some((at_ns, local_index))
    }
}

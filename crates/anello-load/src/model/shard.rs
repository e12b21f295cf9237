//! Shards: the parts of one load that several processes generate, usually on different machines.
//!
//! ```text
//!  7 connections, 3 shards      connection   0  1  2  3  4  5  6
//!                               shard        0  1  2  0  1  2  0
//! ```
//!
//! Every process has the configuration of the whole load and computes its own part, without communicating. Connections,
//! and with them the requests of an open loop, have the same numbers, contents and due times as in a load of one
//! process.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Part of a load that one process generates.
///
/// ```
/// use anello_load::Shard;
///
/// let shards = (0..3).map(|index| Shard { index, count: 3, source: String::new() });
/// assert_eq!(shards.map(|shard| shard.connections(50)).collect::<Vec<_>>(), [17, 17, 16]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Index of the shard, less than `count`.
    pub index: usize,
    /// Number of shards.
    pub count: usize,
    /// Name of the option or of the environment variables that the shard was taken from, for reports.
    pub source: String,
}

impl Shard {
    /// Returns the number of connections in the shard if there are `total` over all shards: those whose index is
    /// `index` modulo `count`.
    ///
    /// # Panics
    /// Panics if `count` is 0.
    pub fn connections(&self, total: usize) -> usize {
        total / self.count + usize::from(self.index < total % self.count)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.index, self.count)
    }
}

/// Identity of a run of the load generator. It is part of the report and of the HDR log of the run, so that
/// [`merge`](crate::merge) can match them, and can detect missing shards and shards of different loads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// Random number of the run in hexadecimal.
    pub id: String,
    /// Checksum of the settings that all shards of a load have in common. Excludes addresses, the start time, threads
    /// and cores.
    pub settings: String,
    /// Shard, or `None` if the process generated the whole load.
    pub shard: Option<Shard>,
}

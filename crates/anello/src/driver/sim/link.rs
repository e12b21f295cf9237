//! Options and state of the link from one simulated host to another.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::segment::Segment;

/// Properties of the link from one simulated host to another.
///
/// Each link has one direction. [`Control::set_link`](crate::sim::Control::set_link) sets both links between two hosts.
///
/// ```
/// use std::time::Duration;
///
/// use anello::sim::LinkOptions;
///
/// let slow = LinkOptions::default().latency(Duration::from_millis(80)..=Duration::from_millis(120));
/// let lossy = slow.loss(10).bandwidth(Some(1_000_000));
/// assert_eq!((lossy.loss, lossy.bandwidth), (10, Some(1_000_000)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkOptions {
    /// Time that a packet travels. Each packet gets a random time in this range. The packets of a TCP connection keep
    /// their order; datagrams overtake each other. The default is 0.5 ms to 2 ms.
    pub latency: RangeInclusive<Duration>,
    /// Rate of lost packets in per mille. A datagram is then lost. A packet of a TCP connection is sent again, and
    /// arrives 200 ms later. The default is 0.
    pub loss: u16,
    /// Rate of duplicated datagrams in per mille. The duplicate arrives later. The default is 0.
    pub duplicates: u16,
    /// Rate, in per mille of the packets with data, at which a TCP connection is reset on both sides. The default is 0.
    pub resets: u16,
    /// Bytes per second that the link transfers, or `None` (the default) for no limit. Each packet counts with 40 bytes
    /// in addition to its data. Packets that exceed the rate wait in a queue without limit.
    pub bandwidth: Option<u64>,
}

impl Default for LinkOptions {
    fn default() -> Self {
        let latency = Duration::from_micros(500)..=Duration::from_millis(2);
        Self { latency, loss: 0, duplicates: 0, resets: 0, bandwidth: None }
    }
}

setters!(LinkOptions {
    latency: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(3),
    loss: u16 = 10,
    duplicates: u16 = 10,
    resets: u16 = 1,
    bandwidth: Option<u64> = Some(125_000_000),
});

/// Numbers of packets from one simulated host to another since the start of the simulation.
///
/// ```
/// use anello::sim::LinkStatistics;
///
/// let statistics = LinkStatistics::default();
/// assert_eq!((statistics.packets, statistics.bytes, statistics.lost), (0, 0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStatistics {
    /// Packets sent, including those that are lost. A packet that TCP sends again counts once, as does a duplicate.
    pub packets: u64,
    /// Bytes of data in these packets.
    pub bytes: u64,
    /// Datagrams that never arrive, and packets of connections that are not sent again because their sender has
    /// crashed.
    pub lost: u64,
}

/// State of a link that differs from the defaults.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Options of this link, if they differ from those of all links.
    pub options: Option<LinkOptions>,
    /// Options of this link while it is degraded, instead of all others.
    pub degraded: Option<LinkOptions>,
    /// Set during a partition: packets of connections wait, datagrams are lost.
    pub is_cut: bool,
    /// Set while the application holds the packets of this link: all of them wait.
    pub is_paused: bool,
    /// Packets that wait, with a number that identifies each of them.
    pub waiting: VecDeque<(u64, Segment)>,
    /// Time until which the link is busy with earlier packets, if its bandwidth is limited.
    pub busy_until_ns: u64,
}

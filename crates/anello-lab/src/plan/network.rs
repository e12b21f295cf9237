//! Network path of a run whose servers and load generator are on different hosts.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Network path between the load generator and the servers, measured before the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetworkPath {
    /// Host of the servers.
    pub server: Endpoint,
    /// Host of the load generator.
    pub load: Endpoint,
    /// `true` if both hosts are the same machine, for example in different network namespaces. They then use different
    /// cores if there are enough.
    pub same_machine: bool,
    /// Shortest round-trip time, in nanoseconds: the duration of a TCP handshake as seen by the load generator.
    pub min_round_trip_ns: u64,
    /// Median round-trip time, in nanoseconds.
    pub median_round_trip_ns: u64,
}

/// One end of a [`NetworkPath`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Destination that was passed to ssh. `None` for the machine on which the lab was started.
    pub host: Option<String>,
    /// Kernel name and release.
    pub kernel: String,
    /// Name of the CPU.
    pub cpu_model: String,
    /// Interface to the other host.
    pub interface: Interface,
}

/// Network interface through which a host reaches the other one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// Local address of the connections.
    pub address: IpAddr,
    /// Name of the device. `None` if it is unknown: it is printed by `ip`, which may not be installed.
    pub device: Option<String>,
    /// Maximum size of a packet in bytes. `None` if it is unknown.
    pub mtu_bytes: Option<u32>,
    /// Queueing discipline of the device, such as "fq_codel", or "netem" for an emulated network.
    pub queueing: Option<String>,
    /// Speed of the link in Mbit/s. `None` if the driver does not report it, as in most virtual machines.
    pub link_mbit_per_second: Option<u32>,
}

/// Returns whether the servers and the load generator run on the same cores.
pub(crate) fn shares_cores(path: Option<&NetworkPath>, server_cores: &[usize], load_cores: &[usize]) -> bool {
    path.is_none_or(|path| path.same_machine) && server_cores == load_cores
}

impl NetworkPath {
    /// Returns the hosts and their addresses.
    pub(crate) fn hosts(&self) -> String {
        let host = |end: &Endpoint| format!("{} ({})", end.name(), end.interface.address);
        format!("servers on {}, load generator on {}", host(&self.server), host(&self.load))
    }

    /// Returns whether the packets do not leave the machine: both ends have the same address, or a loopback address or
    /// device.
    pub fn is_loopback(&self) -> bool {
        let (server, load) = (&self.server.interface, &self.load.interface);
        let is_local = |interface: &Interface| {
            interface.address.is_loopback() || interface.device.as_deref() == Some("lo")
        };
        server.address == load.address || is_local(server) || is_local(load)
    }
}

impl fmt::Display for NetworkPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.is_loopback(), self.same_machine) {
            (true, _) => "loopback, not a network",
            (false, true) => "not loopback, but both hosts are the same machine",
            (false, false) => "not loopback",
        };
        let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        write!(
            formatter,
            "load generator on {}, servers on {}; round-trip time {:.3} ms (median {:.3} ms); {kind}",
            self.load,
            self.server,
            milliseconds(self.min_round_trip_ns),
            milliseconds(self.median_round_trip_ns)
        )
    }
}

impl Endpoint {
    fn name(&self) -> &str {
        self.host.as_deref().unwrap_or("this machine")
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interface { address, device, mtu_bytes, queueing, link_mbit_per_second } = &self.interface;
        write!(formatter, "{} ({address}", self.name())?;
        let facts = [
            device.as_ref().map(|device| format!("device {device}")),
            mtu_bytes.map(|mtu| format!("MTU {mtu}")),
            queueing.as_ref().map(|queueing| format!("queueing {queueing}")),
            link_mbit_per_second.map(|speed| format!("link {speed} Mbit/s")),
        ];
        facts.iter().flatten().try_for_each(|fact| write!(formatter, ", {fact}"))?;
        formatter.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(address: &str, device: Option<&str>) -> Interface {
        Interface {
            address: address.parse().unwrap(),
            device: device.map(str::to_owned),
            mtu_bytes: Some(1500),
            queueing: None,
            link_mbit_per_second: Some(10_000),
        }
    }

    fn path(server: Interface, load: Interface) -> NetworkPath {
        let end = |host: Option<&str>, interface| Endpoint {
            host: host.map(str::to_owned),
            kernel: "Linux".to_owned(),
            cpu_model: "CPU".to_owned(),
            interface,
        };
        NetworkPath {
            server: end(Some("s"), server),
            load: end(None, load),
            same_machine: false,
            min_round_trip_ns: 81_000,
            median_round_trip_ns: 94_000,
        }
    }

    #[test]
    fn path_names_hosts_devices_and_round_trip_time() {
        let mut path = path(interface("10.0.0.5", Some("eth0")), interface("10.0.0.6", None));
        let text = "load generator on this machine (10.0.0.6, MTU 1500, link 10000 Mbit/s), servers on s (10.0.0.5, \
                    device eth0, MTU 1500, link 10000 Mbit/s); round-trip time 0.081 ms (median 0.094 ms); not loopback";
        assert_eq!(path.to_string(), text);
        path.same_machine = true;
        assert_eq!(path.to_string(), format!("{text}, but both hosts are the same machine"));
    }

    #[test]
    fn loopback_is_recognized_by_address_or_device() {
        let other = || interface("10.0.0.6", Some("eth0"));
        assert!(!path(interface("10.0.0.5", None), other()).is_loopback());
        assert!(path(interface("10.0.0.5", Some("lo")), other()).is_loopback());
        assert!(path(interface("10.0.0.6", None), other()).is_loopback(), "one address");
        assert!(path(interface("::1", None), interface("::1", None)).is_loopback());
    }

    #[test]
    fn equal_core_numbers_are_shared_only_on_one_machine() {
        let mut path = path(interface("10.0.0.5", None), interface("10.0.0.6", None));
        assert!(!shares_cores(Some(&path), &[0], &[0]));
        path.same_machine = true;
        assert!(shares_cores(Some(&path), &[0], &[0]) && !shares_cores(Some(&path), &[0], &[1]));
        assert!(shares_cores(None, &[0], &[0]));
    }
}

//! Network path from this host: addresses, round-trip times, and the interface to a peer.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::plan::network::Interface;

/// Number of measured round trips.
const ROUND_TRIPS: usize = 11;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub fn resolve(name: &str) -> Result<IpAddr, String> {
    let remedy = "(pass the address of the server host as --server-address)";
    let mut addresses =
        (name, 0).to_socket_addrs().map_err(|error| format!("cannot resolve {name}: {error} {remedy}"))?;
    let address = addresses.next().ok_or_else(|| format!("{name} has no address {remedy}"))?;
    Ok(address.ip())
}

/// Returns the durations of several TCP handshakes in nanoseconds.
pub fn round_trips(listener: SocketAddr) -> Result<Vec<u64>, String> {
    let handshake = || {
        let start = Instant::now();
        TcpStream::connect_timeout(&listener, CONNECT_TIMEOUT)?;
        Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    };
    let durations = (0..ROUND_TRIPS).map(|_| handshake()).collect::<io::Result<Vec<u64>>>();
    durations.map_err(|error| {
        format!(
            "cannot connect from the load host to {listener} on the server host: {error} (pass an address that the load \
             host can reach as --server-address, and allow TCP connections to all ports)"
        )
    })
}

/// Returns the interface from which packets to `peer` are sent.
pub fn interface_to(peer: IpAddr) -> Result<Interface, String> {
    let unspecified: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Connecting a UDP socket selects a route without sending packets.
    let address = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        socket.connect((peer, 9))?;
        Ok(socket.local_addr()?.ip())
    });
    let address = address.map_err(|error| format!("no route to {peer}: {error}"))?;
    let route = ip(&["route", "get", &peer.to_string()]);
    let device = route.as_deref().and_then(|route| word_after(route, "dev"));
    let link = device.and_then(|device| ip(&["link", "show", "dev", device]));
    let link = link.as_deref().unwrap_or_default();
    Ok(Interface {
        address,
        mtu_bytes: word_after(link, "mtu").and_then(|mtu| mtu.parse().ok()),
        queueing: word_after(link, "qdisc").filter(|name| *name != "noqueue").map(str::to_owned),
        link_mbit_per_second: device.and_then(|device| link_speed(device, link)),
        device: device.map(str::to_owned),
    })
}

/// Returns the speed of a device in Mbit/s. `link` is its description by `ip`.
fn link_speed(device: &str, link: &str) -> Option<u32> {
    let directory = std::path::Path::new("/sys/class/net").join(device);
    let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
    // /sys can belong to another network namespace, in which the same name is another device.
    let hardware_address = read("address")?;
    link.contains(hardware_address.trim()).then(|| read("speed"))??.trim().parse().ok()
}

/// Returns the output of `ip`, or `None` if it is not installed or fails.
fn ip(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("ip");
    let output = command.arg("-o").args(arguments).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn word_after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn loopback_interface_is_found_and_measured() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(resolve("127.0.0.1"), Ok(address.ip()));
        assert_eq!(round_trips(address).unwrap().len(), ROUND_TRIPS);
        assert_eq!(interface_to(address.ip()).unwrap().address, address.ip());
    }

    #[test]
    fn unreachable_server_gives_remedy() {
        // Port 1 (tcpmux) is not in use.
        let error = round_trips(SocketAddr::from(([127, 0, 0, 1], 1))).unwrap_err();
        assert!(error.contains("refused") && error.contains("--server-address"), "{error}");
        assert!(resolve("no-such-host.invalid").unwrap_err().contains("--server-address"));
    }

    #[test]
    fn facts_are_the_words_after_their_names() {
        let link = "2: eth0: <BROADCAST,UP> mtu 1500 qdisc netem state UP mode DEFAULT qlen 1000";
        assert_eq!((word_after(link, "mtu"), word_after(link, "qdisc")), (Some("1500"), Some("netem")));
        assert_eq!(word_after(link, "dev"), None);
    }
}

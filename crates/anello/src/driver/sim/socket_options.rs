//! Socket options of simulated endpoints.
//!
//! Options that affect only timing, segmentation or routing are stored and returned, but have no effect.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::driver::sockets::options::SocketOption;

/// Name of the only simulated network interface.
const LOOPBACK: &[u8] = b"lo";

/// Options that differ from their defaults.
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    values: BTreeMap<SocketOption, i32>,
    is_bound_to_device: bool,
}

impl Options {
    pub fn set(&mut self, local: SocketAddr, option: SocketOption, value: i32) -> Result<(), i32> {
        check_family(local, option)?;
        let is_valid = match option {
            SocketOption::TimeToLive | SocketOption::HopLimit => (1..=255).contains(&value),
            SocketOption::KeepAliveTime | SocketOption::KeepAliveInterval => (1..=32_767).contains(&value),
            SocketOption::KeepAliveRetries => (1..=127).contains(&value),
            SocketOption::TrafficClass => (0..=255).contains(&value),
            SocketOption::UserTimeout => value >= 0,
            _ => true,
        };
        if !is_valid {
            return Err(libc::EINVAL);
        }
        self.values.insert(option, value);
        Ok(())
    }

    pub fn get(&self, local: SocketAddr, option: SocketOption) -> Result<i32, i32> {
        check_family(local, option)?;
        Ok(self.values.get(&option).copied().unwrap_or_else(|| default(option)))
    }

    pub fn is_set(&self, option: SocketOption) -> bool {
        self.values.get(&option).is_some_and(|value| *value != 0)
    }

    pub fn bind_device(&mut self, device: Option<&[u8]>) -> Result<(), i32> {
        if device.is_some_and(|device| device != LOOPBACK) {
            return Err(libc::ENODEV);
        }
        self.is_bound_to_device = device.is_some();
        Ok(())
    }

    pub fn device(&self) -> Option<Vec<u8>> {
        self.is_bound_to_device.then(|| LOOPBACK.to_vec())
    }
}

fn check_family(local: SocketAddr, option: SocketOption) -> Result<(), i32> {
    if option.is_ipv6_only() && local.is_ipv4() { Err(libc::ENOPROTOOPT) } else { Ok(()) }
}

/// Returns the value of an option that has not been set: the default of Linux, with the options that the driver sets
/// on every TCP socket.
fn default(option: SocketOption) -> i32 {
    match option {
        SocketOption::NoDelay | SocketOption::QuickAck | SocketOption::UrgentInline => 1,
        SocketOption::Linger => -1,
        SocketOption::KeepAliveTime => 7200,
        SocketOption::KeepAliveInterval => 75,
        SocketOption::KeepAliveRetries => 9,
        SocketOption::MaxSegment => 536,
        SocketOption::TimeToLive | SocketOption::HopLimit => 64,
        SocketOption::MulticastLoopV4 | SocketOption::MulticastLoopV6 => 1,
        SocketOption::MulticastTtlV4 | SocketOption::MulticastHopsV6 => 1,
        SocketOption::MtuDiscoveryV4 | SocketOption::MtuDiscoveryV6 => libc::IP_PMTUDISC_WANT,
        SocketOption::MtuV4 | SocketOption::MtuV6 => 65_536,
        _ => 0,
    }
}

//! Server addresses as written on the command line: `127.0.0.1:7000`, `[::1]:7000`, `localhost:7000`, `:7000`, `7000`,
//! `unix:/run/echo.sock`, `unix:@name`.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::str::FromStr;

use socket2::{Domain, Socket, Type};

use super::error::Context;

#[derive(Clone, Debug)]
pub enum Address {
    Internet(SocketAddr),
    /// A host name and a port.
    Host(String),
    Unix(UnixAddress),
}

const UNIX: &str = "unix:";

/// Parses an IPv6 address whose zone can be the name of an interface, as in `[fe80::1%eth0]:80`.
fn parse_with_zone(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[')?.strip_suffix(']')?;
    let (address, _) = host.split_once('%')?;
    // Not a name, whose lookup could block.
    address.parse::<Ipv6Addr>().ok()?;
    resolve(host, port.parse().ok()?).ok()?.first().copied()
}

/// Looks up the addresses of a name or of an IP address, which has no brackets and can have a zone.
pub fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(name) = text.strip_prefix(UNIX) else {
            return parse_internet(text).ok_or_else(|| {
                format!(
                    "invalid address {text:?} (expected IP:PORT, NAME:PORT, :PORT for all addresses, PORT, unix:/path or \
                     unix:@name)"
                )
            });
        };
        let address = match name.strip_prefix('@') {
            _ if name.is_empty() => {
                return Err("missing path after unix: (expected unix:/path or unix:@name)".to_owned());
            }
            Some(name) => UnixAddress::from_abstract_name(name),
            None => UnixAddress::from_pathname(name),
        };
        address.map(Self::Unix).map_err(|error| format!("{text:?}: {error}"))
    }
}

fn parse_internet(text: &str) -> Option<Address> {
    if let Some(address) = text.parse().ok().or_else(|| parse_with_zone(text)) {
        return Some(Address::Internet(address));
    }
    // A sign or a blank would be accepted by `parse`.
    let port = |digits: &str| digits.parse::<u16>().ok().filter(|_| !digits.starts_with('+'));
    match text.rsplit_once(':') {
        None => Some(Address::Internet((Ipv4Addr::LOCALHOST, port(text)?).into())),
        Some(("", digits)) => Some(Address::Internet(all_addresses(port(digits)?))),
        Some((name, digits)) => {
            let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            // An invalid IP address is not a host name.
            let is_name = name.bytes().all(is_host) && name.bytes().any(|byte| byte.is_ascii_alphabetic());
            port(digits).filter(|_| is_name).map(|_| Address::Host(text.to_owned()))
        }
    }
}

/// Returns the address for all addresses of this machine. A socket for IPv6 also accepts connections over IPv4.
fn all_addresses(port: u16) -> SocketAddr {
    match Socket::new(Domain::IPV6, Type::STREAM, None) {
        Ok(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
        Err(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
    }
}

impl Address {
    /// Returns the addresses of a host name, and any other address as it is.
    pub fn resolve(&self) -> io::Result<Vec<Self>> {
        let Self::Host(name) = self else { return Ok(vec![self.clone()]) };
        let remedy = "use an IP address, or add the name to /etc/hosts";
        let mut addresses: Vec<_> = name.to_socket_addrs().context_and_remedy(name, remedy)?.collect();
        addresses.sort();
        addresses.dedup();
        Ok(addresses.into_iter().map(Self::Internet).collect())
    }
}

/// Formats the address in command-line syntax.
impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internet(address) => address.fmt(formatter),
            Self::Host(name) => formatter.write_str(name),
            Self::Unix(address) => match (address.as_pathname(), address.as_abstract_name()) {
                (Some(path), _) => write!(formatter, "{UNIX}{}", path.display()),
                (None, Some(name)) => write!(formatter, "{UNIX}@{}", String::from_utf8_lossy(name)),
                (None, None) => formatter.write_str(UNIX),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_host_names_are_addresses() {
        let parse = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(parse("8080").as_deref(), Ok("127.0.0.1:8080"));
        assert!(matches!(parse(":8080").as_deref(), Ok("[::]:8080" | "0.0.0.0:8080")));
        for text in
            ["127.0.0.1:80", "[::1]:80", "localhost:80", "a-b.example.org:0", "unix:/run/a", "unix:@a"]
        {
            assert_eq!(parse(text).as_deref(), Ok(text));
        }
        for text in [
            "",
            ":",
            "localhost",
            "localhost:",
            ":65536",
            "-1",
            "+1",
            "::1:80",
            "1.2.3:80",
            "256.1.1.1:80",
            "a b:80",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn localhost_has_loopback_addresses() {
        let addresses = "localhost:80".parse::<Address>().unwrap().resolve().unwrap();
        assert!(!addresses.is_empty());
        for address in addresses {
            assert!(
                matches!(&address, Address::Internet(address) if address.ip().is_loopback()),
                "{address}"
            );
        }
    }

    #[test]
    fn zones_are_numbers_or_names_of_interfaces() {
        // The loopback interface always has index 1.
        for text in ["[fe80::1%1]:80", "[fe80::1%lo]:80"] {
            let Ok(Address::Internet(SocketAddr::V6(address))) = text.parse() else { panic!("{text}") };
            assert_eq!((address.scope_id(), address.port()), (1, 80), "{text}");
        }
        for text in ["[fe80::1%nothing]:80", "fe80::1%lo:80", "[localhost%lo]:80", "[fe80::1%lo]"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}

//! Trusted proxies, and the addresses of clients that they report.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::h1::{Head, elements};

/// The address of a proxy whose information about its clients is trusted: an IP address, a network such as `10.0.0.0/8`,
/// or `unix` for the clients of Unix sockets.
///
/// ```
/// use anello_http::server::TrustedProxy;
///
/// let network: TrustedProxy = "10.1.0.0/16".parse()?;
/// assert!(network.contains("10.1.2.3".parse().ok()) && !network.contains("10.2.0.1".parse().ok()));
/// assert!("unix".parse::<TrustedProxy>()?.contains(None));
/// assert!("10.1.0.0/33".parse::<TrustedProxy>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TrustedProxy(Option<(IpAddr, u8)>);

impl FromStr for TrustedProxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unix" {
            return Ok(Self(None));
        }
        let (address, prefix) = text.split_once('/').map_or((text, None), |(ip, prefix)| (ip, Some(prefix)));
        let network = address.parse::<IpAddr>().ok().and_then(|address| {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let prefix = prefix.map_or(Some(bits), |prefix| prefix.parse().ok())?;
            (prefix <= bits).then_some((address, prefix))
        });
        network.map(|network| Self(Some(network))).ok_or_else(|| {
            format!("invalid proxy {text:?} (expected an IP address, a network such as 10.0.0.0/8, or unix)")
        })
    }
}

impl TrustedProxy {
    /// Returns `true` if this is the address of a peer, or if it is in the network. `None` is a peer that is connected
    /// through a Unix socket.
    ///
    /// ```
    /// use anello_http::server::TrustedProxy;
    ///
    /// let proxy: TrustedProxy = "::1".parse()?;
    /// assert!(proxy.contains("::1".parse().ok()) && !proxy.contains(None));
    /// # Ok::<(), String>(())
    /// ```
    pub fn contains(&self, peer: Option<IpAddr>) -> bool {
        match (self.0, peer.map(|peer| peer.to_canonical())) {
            (None, None) => true,
            (Some((IpAddr::V4(network), prefix)), Some(IpAddr::V4(peer))) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                (network.to_bits() ^ peer.to_bits()) & mask == 0
            }
            (Some((IpAddr::V6(network), prefix)), Some(IpAddr::V6(peer))) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                (network.to_bits() ^ peer.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

/// Formats the address as it is parsed.
impl fmt::Display for TrustedProxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => formatter.write_str("unix"),
            Some((address, prefix)) => write!(formatter, "{address}/{prefix}"),
        }
    }
}

impl fmt::Debug for TrustedProxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// How trusted proxies report the addresses of their clients. A proxy passes on the other headers as it receives them from
/// its client, so only one can be trusted.
///
/// ```
/// use anello_http::ServerOptions;
/// use anello_http::server::ProxyHeader;
///
/// assert_eq!(ServerOptions::default().proxy_header, ProxyHeader::XForwardedFor);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyHeader {
    /// The field `X-Forwarded-For` of each request, to which each proxy appends the address of its client.
    #[default]
    XForwardedFor,
    /// The field `Forwarded` of each request (RFC 7239), to which each proxy appends the address of its client.
    Forwarded,
    /// The header of the PROXY protocol, version 1 or 2, before the first byte of each connection, also before the TLS
    /// handshake. Connections of trusted proxies without it are closed.
    ProxyProtocol,
}

/// Returns `true` if a peer is one of the proxies. `None` is a peer that is connected through a Unix socket.
pub(super) fn is_trusted(peer: Option<SocketAddr>, proxies: &[TrustedProxy]) -> bool {
    let ip = peer.map(|peer| peer.ip());
    proxies.iter().any(|proxy| proxy.contains(ip))
}

/// Returns the address of the client of a request from a trusted proxy: the last one in the field that is not the address
/// of another trusted proxy. Those before it are under the control of the client. Returns `None` if there is none, or if
/// a proxy does not name it.
pub(super) fn client(head: &Head, proxies: &[TrustedProxy], header: ProxyHeader) -> Option<SocketAddr> {
    let name = match header {
        ProxyHeader::XForwardedFor => "x-forwarded-for",
        ProxyHeader::Forwarded => "forwarded",
        ProxyHeader::ProxyProtocol => return None,
    };
    let values: Vec<_> =
        head.fields_named(name).flat_map(elements).filter(|value| !value.is_empty()).collect();
    let mut client = None;
    for value in values.into_iter().rev() {
        client = Some(match header {
            ProxyHeader::Forwarded => parse_forwarded(value)?,
            _ => parse_node(value)?,
        });
        if !is_trusted(client, proxies) {
            break;
        }
    }
    client
}

/// Parses an address with or without a port. A missing port is 0.
fn parse_node(value: &[u8]) -> Option<SocketAddr> {
    let text = str::from_utf8(value).ok()?;
    let address = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let ip = text.parse::<IpAddr>().ok().or_else(address);
    ip.map(|ip| SocketAddr::from((ip, 0))).or_else(|| text.parse().ok())
}

/// Parses the parameter `for` of an element of `Forwarded`.
fn parse_forwarded(value: &[u8]) -> Option<SocketAddr> {
    let node = value.split(|&byte| byte == b';').find_map(|pair| {
        let (name, node) = pair.trim_ascii().split_at_checked(b"for=".len())?;
        name.eq_ignore_ascii_case(b"for=").then_some(node)
    })?;
    parse_node(node.strip_prefix(b"\"").and_then(|node| node.strip_suffix(b"\"")).unwrap_or(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("::/0", "::1", "127.0.0.1"),
        ] {
            let proxy: TrustedProxy = network.parse().expect("network");
            let contains = |peer: &str| proxy.contains(Some(peer.parse().expect("address")));
            assert!(contains(inside) && !contains(outside) && !proxy.contains(None), "{network}");
        }
        for invalid in ["", "a", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0.0/8", "/8", "10.0.0.0/-1"] {
            assert!(invalid.parse::<TrustedProxy>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn addresses_of_clients_are_parsed() {
        let address = |text: &str| Some(text.parse::<SocketAddr>().expect("address"));
        for (text, expected) in [
            ("203.0.113.9", address("203.0.113.9:0")),
            ("203.0.113.9:47", address("203.0.113.9:47")),
            ("2001:db8::9", address("[2001:db8::9]:0")),
            ("[2001:db8::9]", address("[2001:db8::9]:0")),
            ("[2001:db8::9]:47", address("[2001:db8::9]:47")),
            ("unknown", None),
            ("203.0.113", None),
            ("", None),
        ] {
            assert_eq!(parse_node(text.as_bytes()), expected, "{text}");
            for element in [format!("for={text}"), format!("proto=https; For=\"{text}\";by=_a")] {
                assert_eq!(parse_forwarded(element.as_bytes()), expected, "{element}");
            }
        }
        assert_eq!(parse_forwarded(b"by=203.0.113.9"), None);
        assert_eq!(parse_forwarded(b"for=_hidden"), None);
    }
}

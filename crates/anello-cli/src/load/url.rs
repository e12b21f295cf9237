//! URLs, and the lookup of server names.

use std::borrow::Cow;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use http::uri::{Authority, InvalidUri, PathAndQuery, Uri};

use crate::common::address;
use crate::common::error::{Context, usage_error};

/// Connect timeout per address when a name has several addresses.
const CONNECT_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// A URL with the scheme http or https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether the scheme is `https`.
    pub is_secure: bool,
    /// Value of the `Host` field.
    pub authority: String,
    /// `HOST:PORT` to connect to.
    pub host_and_port: String,
    /// Name or address that the server's certificate must contain.
    pub server_name: String,
    /// Path and query.
    pub path: String,
}

pub fn parse_url(text: &str) -> Result<Url, String> {
    let parse = || -> Result<Url, String> {
        let (text, zone) = split_zone(text);
        let uri: Uri = text.parse().map_err(|error: InvalidUri| error.to_string())?;
        let is_secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) => return Err("the scheme is not http or https".to_owned()),
            None => return Err("no scheme".to_owned()),
        };
        let authority = uri.authority().map_or("", Authority::as_str);
        let host = uri.host().unwrap_or_default();
        if host.is_empty() || authority.contains('@') {
            return Err("missing or unsupported host".to_owned());
        }
        let port = match uri.port_u16() {
            None if authority == host => {
                if is_secure {
                    443
                } else {
                    80
                }
            }
            Some(port @ 1..) => port,
            _ => return Err("invalid port".to_owned()),
        };
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        Ok(Url {
            is_secure,
            authority: authority.to_owned(),
            host_and_port: match (zone, host.strip_suffix(']')) {
                (Some(zone), Some(address)) => format!("{address}%{zone}]:{port}"),
                _ => format!("{host}:{port}"),
            },
            server_name: host.trim_matches(['[', ']']).to_owned(),
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
        })
    };
    parse().map_err(|reason| {
        format!("invalid URL {text:?}: {reason} (expected http://HOST:PORT/PATH or https://HOST:PORT/PATH)")
    })
}

/// Removes the zone of an IPv6 address from a URL, because the server does not know the interfaces of this machine
/// (RFC 6874, section 3). The percent sign can be encoded, as in `http://[fe80::1%25eth0]/`.
fn split_zone(url: &str) -> (Cow<'_, str>, Option<&str>) {
    let zone = || {
        let (before, rest) = url.split_once("://[")?;
        let (address, rest) = rest.split_once('%')?;
        let (zone, after) = rest.split_once(']')?;
        address.parse::<Ipv6Addr>().ok()?;
        let zone = zone.strip_prefix("25").filter(|zone| !zone.is_empty()).unwrap_or(zone);
        Some((Cow::Owned(format!("{before}://[{address}]{after}")), Some(zone)))
    };
    zone().unwrap_or((Cow::Borrowed(url), None))
}

/// Resolves `HOST:PORT`. If the name has several addresses, as `localhost` usually does, returns the first address that
/// accepts a connection, or the first address if none does.
pub fn resolve(host_and_port: &str) -> io::Result<SocketAddr> {
    let what = format!("cannot resolve {host_and_port}");
    let (host, port) = host_and_port.rsplit_once(':').unwrap_or((host_and_port, ""));
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().map_err(|_| usage_error(format!("{what}: invalid port")))?;
    let remedy =
        if host.contains('%') { "check the address and the name of the interface" } else { "check the name" };
    let mut addresses = address::resolve(host, port).context_and_remedy(&what, remedy)?;
    addresses.dedup();
    let accepts = |address: &&SocketAddr| TcpStream::connect_timeout(address, CONNECT_PROBE_TIMEOUT).is_ok();
    let has_several = addresses.len() > 1;
    let accepting = addresses.iter().filter(|_| has_several).find(accepts);
    let no_address = || io::Error::new(io::ErrorKind::NotFound, format!("{what}: no address"));
    accepting.or(addresses.first()).copied().ok_or_else(no_address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_of_address_is_the_name_of_an_interface() {
        let SocketAddr::V6(address) = resolve("[fe80::1%lo]:80").unwrap() else { panic!("not IPv6") };
        assert_eq!((address.scope_id(), address.port()), (1, 80), "the loopback interface has index 1");
        let error = resolve("[fe80::1%nothing]:80").unwrap_err().to_string();
        assert!(error.contains("fe80::1%nothing") && error.contains("interface"), "{error}");
    }

    #[test]
    fn parses_host_with_optional_port_and_path() {
        for (text, host_and_port, authority, server_name, path) in [
            ("http://localhost", "localhost:80", "localhost", "localhost", "/"),
            ("http://127.0.0.1:8080/a/b?c=d#e", "127.0.0.1:8080", "127.0.0.1:8080", "127.0.0.1", "/a/b?c=d"),
            ("http://[::1]:81?x", "[::1]:81", "[::1]:81", "::1", "/?x"),
            ("http://[::1]/", "[::1]:80", "[::1]", "::1", "/"),
            ("https://localhost/a", "localhost:443", "localhost", "localhost", "/a"),
            ("https://example.org:8443/", "example.org:8443", "example.org:8443", "example.org", "/"),
            ("https://127.0.0.1/", "127.0.0.1:443", "127.0.0.1", "127.0.0.1", "/"),
            ("https://[::1]:8443", "[::1]:8443", "[::1]:8443", "::1", "/"),
            ("HTTPS://localhost/A", "localhost:443", "localhost", "localhost", "/A"),
            ("http://[fe80::1%eth0]:80/a", "[fe80::1%eth0]:80", "[fe80::1]:80", "fe80::1", "/a"),
            ("https://[fe80::1%25eth0]/", "[fe80::1%eth0]:443", "[fe80::1]", "fe80::1", "/"),
            ("http://[fe80::1%25]/", "[fe80::1%25]:80", "[fe80::1]", "fe80::1", "/"),
            ("http://[::1]/%20[%25]", "[::1]:80", "[::1]", "::1", "/%20[%25]"),
        ] {
            let is_secure = text.to_lowercase().starts_with("https");
            let [host_and_port, authority, server_name, path] =
                [host_and_port, authority, server_name, path].map(str::to_owned);
            let url = Url { is_secure, authority, host_and_port, server_name, path };
            assert_eq!(parse_url(text), Ok(url));
        }
        let invalid =
            ["", "localhost:80", "http://", "http://:80/", "http://a:0/", "http://a:x/", "http://a:/"];
        for invalid in invalid.into_iter().chain(["http://u@h/", "http://::1:80/", "http://[::1"]) {
            assert!(parse_url(invalid).is_err(), "{invalid}");
            assert!(parse_url(&invalid.replace("http", "https")).is_err(), "{invalid}");
        }
        assert!(parse_url("ftp://localhost/").unwrap_err().contains("https://HOST:PORT/PATH"));
    }
}

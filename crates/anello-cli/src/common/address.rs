//! Server addresses as written on the command line: `127.0.0.1:7000`, `[::1]:7000`, `unix:/run/echo.sock`,
//! `unix:@name`.

use std::fmt;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::str::FromStr;

#[derive(Clone, Debug)]
pub enum Address {
    Internet(SocketAddr),
    Unix(UnixAddress),
}

const UNIX: &str = "unix:";

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(name) = text.strip_prefix(UNIX) else {
            return text.parse().map(Self::Internet).map_err(|_| {
                format!("invalid address {text:?} (expected 127.0.0.1:7000, unix:/path or unix:@name)")
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

/// Formats the address in command-line syntax.
impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internet(address) => address.fmt(formatter),
            Self::Unix(address) => match (address.as_pathname(), address.as_abstract_name()) {
                (Some(path), _) => write!(formatter, "{UNIX}{}", path.display()),
                (None, Some(name)) => write!(formatter, "{UNIX}@{}", String::from_utf8_lossy(name)),
                (None, None) => formatter.write_str(UNIX),
            },
        }
    }
}

//! The PROXY protocol, versions 1 and 2: a header before the first byte of a connection, with which a proxy reports the
//! address of its client.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;

use anello::net::{ByteStream, Chunk};

/// Maximum length of a header of version 1, with its line ending.
const MAX_LINE_BYTES: usize = 107;

/// First bytes of a header of version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Length of the fixed part of a header of version 2.
const FIXED_BYTES: usize = 16;

/// A header, and the address of the client if the proxy knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProxyHeader {
    length: usize,
    client: Option<SocketAddr>,
}

/// Receives the header of a connection. Returns the address of the client, if the proxy knows it, and the bytes that were
/// received after the header, which may be none. Returns `None` at EOF.
///
/// # Errors
/// Returns `InvalidData` if there is no valid header.
pub(super) async fn receive(stream: &mut impl ByteStream) -> io::Result<Option<(Option<SocketAddr>, Chunk)>> {
    let mut received = Vec::new();
    loop {
        let chunk = poll_fn(|context| pin!(stream.split().0.recv()).poll(context)).await?;
        let Some(mut chunk) = chunk else { return Ok(None) };
        let start = received.len();
        received.extend_from_slice(&chunk);
        let parsed = parse(&received).ok_or_else(|| {
            let message = "no PROXY header (configure the proxy to send it, or do not trust its address)";
            io::Error::new(io::ErrorKind::InvalidData, message)
        })?;
        if let Some(ProxyHeader { length, client }) = parsed {
            // The header was incomplete without this chunk.
            chunk.advance(length.saturating_sub(start));
            return Ok(Some((client, chunk)));
        }
    }
}

/// Parses the start of a connection. Returns `None` if it is not a header, and `Some(None)` if it is incomplete.
fn parse(bytes: &[u8]) -> Option<Option<ProxyHeader>> {
    let compared = bytes.len().min(SIGNATURE.len());
    if bytes[..compared] == SIGNATURE[..compared] { parse_binary(bytes) } else { parse_line(bytes) }
}

fn parse_line(bytes: &[u8]) -> Option<Option<ProxyHeader>> {
    const PREFIX: &[u8] = b"PROXY ";
    let compared = bytes.len().min(PREFIX.len());
    if bytes[..compared] != PREFIX[..compared] {
        return None;
    }
    let line = &bytes[..bytes.len().min(MAX_LINE_BYTES)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        return (bytes.len() < MAX_LINE_BYTES).then_some(None);
    };
    let text = str::from_utf8(&line[PREFIX.len()..end]).ok()?;
    let mut words = text.split(' ');
    let client = match words.next()? {
        "UNKNOWN" => None,
        family @ ("TCP4" | "TCP6") => {
            let mut address = || words.next()?.parse::<IpAddr>().ok();
            let (source, destination) = (address()?, address()?);
            let mut port = || words.next()?.parse::<u16>().ok();
            let (source_port, _) = (port()?, port()?);
            let is_of_family = |address: IpAddr| address.is_ipv4() == (family == "TCP4");
            if !is_of_family(source) || !is_of_family(destination) || words.next().is_some() {
                return None;
            }
            Some((source, source_port).into())
        }
        _ => return None,
    };
    Some(Some(ProxyHeader { length: end + 2, client }))
}

fn parse_binary(bytes: &[u8]) -> Option<Option<ProxyHeader>> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_BYTES>() else { return Some(None) };
    let [.., version_and_command, family, high, low] = *fixed;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if version_and_command >> 4 != 2 {
        return None;
    }
    let Some(addresses) = rest.get(..length) else { return Some(None) };
    let port = |offset: usize| Some(u16::from_be_bytes(*addresses.get(offset..)?.first_chunk()?));
    let client = match (version_and_command & 0xf, family >> 4) {
        // LOCAL: a connection of the proxy itself, such as a health check.
        (0, _) => None,
        (1, 1) => Some((Ipv4Addr::from(*addresses.first_chunk::<4>()?), port(8)?).into()),
        (1, 2) => Some((Ipv6Addr::from(*addresses.first_chunk::<16>()?), port(32)?).into()),
        // Unix sockets, and families that are not specified.
        (1, 0 | 3) => None,
        _ => return None,
    };
    Some(Some(ProxyHeader { length: FIXED_BYTES + length, client }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(version_and_command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = (addresses.len() as u16).to_be_bytes();
        [SIGNATURE, &[version_and_command, family], &length, addresses].concat()
    }

    #[test]
    fn headers_are_parsed_at_every_split() {
        let ipv6 = [&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9][..], &[0; 16], &[0, 80, 0, 81]]
            .concat();
        // With a TLV, which is ignored.
        let ipv4 = [203, 0, 113, 9, 10, 0, 0, 1, 0x12, 0x34, 0, 80, 4, 0, 1, 0];
        for (header, client) in [
            (b"PROXY TCP4 203.0.113.9 10.0.0.1 4660 80\r\n".to_vec(), Some("203.0.113.9:4660")),
            (b"PROXY TCP6 2001:db8::9 ::1 80 81\r\n".to_vec(), Some("[2001:db8::9]:80")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ::1 ::1 1 2\r\n".to_vec(), None),
            (binary(0x21, 0x11, &ipv4), Some("203.0.113.9:4660")),
            (binary(0x21, 0x21, &ipv6), Some("[2001:db8::9]:80")),
            (binary(0x20, 0, &[]), None),
            (binary(0x21, 0x31, &[0; 216]), None),
        ] {
            let bytes = [&header[..], b"GET / HTTP/1.1\r\n"].concat();
            let client = client.map(|client| client.parse().expect("address"));
            let complete = Some(Some(ProxyHeader { length: header.len(), client }));
            for end in 0..=bytes.len() {
                let expected = if end < header.len() { Some(None) } else { complete };
                assert_eq!(parse(&bytes[..end]), expected, "{}", bytes[..end].escape_ascii());
            }
        }
    }

    #[test]
    fn other_bytes_are_rejected() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXY TCP4 203.0.113.9 10.0.0.1 4660\r\n",
            b"PROXY TCP4 203.0.113.9 10.0.0.1 4660 80 1\r\n",
            b"PROXY TCP4 ::1 10.0.0.1 4660 80\r\n",
            b"PROXY TCP4 203.0.113.9 ::1 4660 80\r\n",
            b"PROXY TCP4 203.0.113.9 10.0.0.1 66000 80\r\n",
            b"PROXY UDP4 203.0.113.9 10.0.0.1 4660 80\r\n",
            b"proxy UNKNOWN\r\n",
            &[b"PROXY UNKNOWN ", &[b' '; 100][..]].concat(),
            &binary(0x11, 0x11, &[0; 12]),
            &binary(0x22, 0x11, &[0; 12]),
            &binary(0x21, 0x11, &[0; 9]),
            &binary(0x21, 0x41, &[0; 40]),
            b"\x16\x03\x01",
        ] {
            assert_eq!(parse(bytes), None, "{}", bytes.escape_ascii());
        }
    }
}

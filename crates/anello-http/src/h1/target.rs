//! Forms of request targets (RFC 9112, section 3.2), and hosts (RFC 3986, section 3.2.2).

use std::net::Ipv6Addr;
use std::ops::Range;

use super::rejection::Rejection;
use super::types::{Method, TargetForm};
use super::words::{first_hit, not_host};

/// Checks the structure of a target that contains only valid bytes, and returns its form and the range of its host. The
/// path starts at the end of this range, which is empty if there is no host.
#[inline]
pub(super) fn form(method: Method, target: &[u8]) -> Result<(TargetForm, Range<u32>), Rejection> {
    // The target of CONNECT is always an authority; no other method accepts one.
    if method != Method::Connect && target.first() == Some(&b'/') {
        return Ok((TargetForm::Origin, 0..0));
    }
    uncommon_form(method, target)
}

#[cold]
fn uncommon_form(method: Method, target: &[u8]) -> Result<(TargetForm, Range<u32>), Rejection> {
    if method == Method::Connect {
        return match split_port(target) {
            Some((host, Some(port))) if !port.is_empty() && is_host_name(host) => {
                Ok((TargetForm::Authority, 0..target.len() as u32))
            }
            _ => Err(Rejection::bad("invalid CONNECT target (expected a host and a port)")),
        };
    }
    if target == b"*" {
        return match method {
            Method::Options => Ok((TargetForm::Asterisk, 0..0)),
            _ => Err(Rejection::bad("the target * is only valid for OPTIONS")),
        };
    }
    let starts_target =
        |scheme: &&[u8]| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    let Some(scheme) = [&b"http://"[..], b"https://"].into_iter().find(starts_target) else {
        let reason = "invalid target (expected a path that starts with /, or an http or https URL)";
        return Err(Rejection::bad(reason));
    };
    let rest = &target[scheme.len()..];
    let host_bytes = rest.iter().position(|&byte| byte == b'/' || byte == b'?').unwrap_or(rest.len());
    if host_bytes == 0 || !is_host(&rest[..host_bytes]) {
        return Err(Rejection::bad("invalid host in the request target"));
    }
    let host_start = scheme.len() as u32;
    Ok((TargetForm::Absolute, host_start..host_start + host_bytes as u32))
}

/// Returns `true` if this is a valid `Host` value: empty, or a host with an optional port.
#[inline]
pub(super) fn is_host(value: &[u8]) -> bool {
    let Some(host_bytes) = first_hit(value, not_host) else { return true };
    match value.split_at(host_bytes) {
        ([_, ..], [b':', port @ ..]) if port.len() <= 4 && port.iter().all(u8::is_ascii_digit) => true,
        _ => is_uncommon_host(value),
    }
}

#[cold]
fn is_uncommon_host(value: &[u8]) -> bool {
    split_port(value).is_some_and(|(host, _)| is_host_name(host))
}

/// Splits off the port after a host, if there is one. Returns `None` if the port is invalid.
fn split_port(value: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    // Skip the colons of an IPv6 address in brackets.
    let bracket = value.iter().position(|&byte| byte == b']').unwrap_or(0);
    let Some(colon) = value[bracket..].iter().position(|&byte| byte == b':') else {
        return Some((value, None));
    };
    let (host, port) = (&value[..bracket + colon], &value[bracket + colon + 1..]);
    let digit = |number: u16, digit: &u8| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u16::try_from(digit).ok()?)
    };
    port.iter().try_fold(0, digit).map(|_| (host, Some(port)))
}

/// Returns `true` if this is a nonempty name, an IPv4 address, or an IPv6 or `IPvFuture` address in brackets.
fn is_host_name(host: &[u8]) -> bool {
    if let Some(address) = host.strip_prefix(b"[") {
        let Some(address) = address.strip_suffix(b"]") else { return false };
        let is_ipv6 = |address: &str| address.parse::<Ipv6Addr>().is_ok();
        return is_ip_future(address) || str::from_utf8(address).is_ok_and(is_ipv6);
    }
    let mut rest = host;
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'%', [high, low, tail @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => tail,
            (byte, tail) if is_name_byte(*byte) => tail,
            _ => return false,
        };
    }
    !host.is_empty()
}

/// Returns `true` if this is an `IPvFuture` address (RFC 3986): `v`, a version number, a dot, and the address.
fn is_ip_future(address: &[u8]) -> bool {
    let [b'v' | b'V', rest @ ..] = address else { return false };
    let Some(dot) = rest.iter().position(|&byte| byte == b'.') else { return false };
    let (version, address) = (&rest[..dot], &rest[dot + 1..]);
    let is_version = !version.is_empty() && version.iter().all(u8::is_ascii_hexdigit);
    is_version && !address.is_empty() && address.iter().all(|&byte| byte == b':' || is_name_byte(byte))
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

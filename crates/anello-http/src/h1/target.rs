//! Forms of request targets (RFC 9112, section 3.2), and hosts (RFC 3986, section 3.2.2).

use std::net::Ipv6Addr;

use super::rejection::Rejection;
use super::types::{Method, TargetForm};
use super::words::{first_hit, not_host};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub form: TargetForm,
    pub host_start: u32,
    /// End of the host, which is the start of the path.
    pub host_end: u32,
}

/// Checks a target and returns its form. Every byte must be valid in a target.
#[inline]
pub(super) fn form(method: Method, target: &[u8]) -> Result<Form, Rejection> {
    // The target of CONNECT is always an authority; no other method accepts one.
    if method != Method::Connect && target.first() == Some(&b'/') {
        return Ok(Form { form: TargetForm::Origin, host_start: 0, host_end: 0 });
    }
    uncommon_form(method, target)
}

#[cold]
fn uncommon_form(method: Method, target: &[u8]) -> Result<Form, Rejection> {
    if method == Method::Connect {
        return match split_port(target) {
            Some((host, Some(port))) if !port.is_empty() && is_host_name(host) => {
                Ok(Form { form: TargetForm::Authority, host_start: 0, host_end: target.len() as u32 })
            }
            _ => Err(Rejection::bad("invalid CONNECT target (expected a host and a port)")),
        };
    }
    if target == b"*" {
        return if method == Method::Options {
            Ok(Form { form: TargetForm::Asterisk, host_start: 0, host_end: 0 })
        } else {
            Err(Rejection::bad("the target * is only valid for OPTIONS"))
        };
    }
    let scheme_bytes = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
        .map(<[u8]>::len);
    let Some(host_start) = scheme_bytes else {
        return Err(Rejection::bad(
            "invalid target (expected a path that starts with /, or an http or https URL)",
        ));
    };
    let rest = &target[host_start..];
    let host_bytes = rest.iter().position(|&byte| byte == b'/' || byte == b'?').unwrap_or(rest.len());
    if host_bytes == 0 || !is_host(&rest[..host_bytes]) {
        return Err(Rejection::bad("invalid host in the request target"));
    }
    let [host_start, host_end] = [host_start, host_start + host_bytes].map(|offset| offset as u32);
    Ok(Form { form: TargetForm::Absolute, host_start, host_end })
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
    let end_of_address = value.iter().position(|&byte| byte == b']').map_or(0, |index| index + 1);
    let Some(colon) = value[end_of_address..].iter().position(|&byte| byte == b':') else {
        return Some((value, None));
    };
    let (host, port) = (&value[..end_of_address + colon], &value[end_of_address + colon + 1..]);
    let digit = |number: u16, digit: &u8| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u16::try_from(digit).ok()?)
    };
    port.iter().try_fold(0, digit).map(|_| (host, Some(port)))
}

/// Returns `true` if this is a name, an address, or an IPv6 address in brackets. It must not be empty.
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

/// Returns `true` if a host name can contain this byte without percent-encoding.
fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

//! The forms of a request target (RFC 9112, section 3.2), and hosts (RFC 3986, section 3.2.2).

use std::net::Ipv6Addr;

use super::head::{Method, TargetForm};
use super::rejection::Rejection;
use super::words::{first_hit, not_host};

/// Which form a target has; with the length of what stands before its path, and of its scheme among that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub form: TargetForm,
    /// Where the host begins.
    pub host_start: u32,
    /// Where it ends, and the path begins.
    pub host_end: u32,
}

/// Checks a target, of which every byte may be in one.
#[inline]
pub(super) fn form(method: Method, target: &[u8]) -> Result<Form, Rejection> {
    // CONNECT is the one method that goes to an authority, and nothing else.
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
            _ => Err(Rejection::bad("the target of CONNECT is a host and a port")),
        };
    }
    if target == b"*" {
        return if method == Method::Options {
            Ok(Form { form: TargetForm::Asterisk, host_start: 0, host_end: 0 })
        } else {
            Err(Rejection::bad("the target * is for OPTIONS alone"))
        };
    }
    let scheme_bytes = [&b"http://"[..], b"https://"]
        .into_iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
        .map(<[u8]>::len);
    let Some(host_start) = scheme_bytes else {
        return Err(Rejection::bad(
            "the target is neither a path that begins with / nor a URL of http or https",
        ));
    };
    let rest = &target[host_start..];
    let host_bytes = rest.iter().position(|&byte| byte == b'/' || byte == b'?').unwrap_or(rest.len());
    if host_bytes == 0 || !is_host(&rest[..host_bytes]) {
        return Err(Rejection::bad("the URL in the request line has no valid host"));
    }
    let [host_start, host_end] = [host_start, host_start + host_bytes].map(|range| range as u32);
    Ok(Form { form: TargetForm::Absolute, host_start, host_end })
}

/// Whether this may be the value of `Host`: nothing, or a host that may have a port.
#[inline]
pub(super) fn is_host(value: &[u8]) -> bool {
    let Some(range) = first_hit(value, not_host) else { return true };
    match value.split_at(range) {
        ([_, ..], [b':', port @ ..]) if port.len() <= 4 && port.iter().all(u8::is_ascii_digit) => true,
        _ => is_uncommon_host(value),
    }
}

#[cold]
fn is_uncommon_host(value: &[u8]) -> bool {
    split_port(value).is_some_and(|(host, _)| is_host_name(host))
}

/// A host, and the port behind it, if there is a colon. None if the port is none.
fn split_port(value: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    // The colons of an address in brackets are not meant.
    let end_of_address = value.iter().position(|&byte| byte == b']').map_or(0, |range| range + 1);
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

/// Whether this is a name, an address, or an IPv6 address in brackets; not nothing.
fn is_host_name(host: &[u8]) -> bool {
    if let Some(address) = host.strip_prefix(b"[") {
        let Some(address) = address.strip_suffix(b"]") else { return false };
        let is_ipv6 = |address: &str| address.parse::<Ipv6Addr>().is_ok();
        return is_ip_future(address) || str::from_utf8(address).is_ok_and(is_ipv6);
    }
    let mut rest = host;
    while let [first, behind @ ..] = rest {
        rest = match (first, behind) {
            (b'%', [high, low, behind @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => behind,
            (byte, behind) if is_name_byte(*byte) => behind,
            _ => return false,
        };
    }
    !host.is_empty()
}

/// Whether this is an address of a version to come: `v`, its number, a dot, and the address (RFC 3986, `IPvFuture`).
fn is_ip_future(address: &[u8]) -> bool {
    let [b'v' | b'V', rest @ ..] = address else { return false };
    let Some(dot) = rest.iter().position(|&byte| byte == b'.') else { return false };
    let (version, address) = (&rest[..dot], &rest[dot + 1..]);
    let is_version = !version.is_empty() && version.iter().all(u8::is_ascii_hexdigit);
    is_version && !address.is_empty() && address.iter().all(|&byte| byte == b':' || is_name_byte(byte))
}

/// Whether a name may have this byte, which needs no other beside it.
fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_for_its_methods() {
        use Method::{Connect, Get, Options, Other};
        for (method, target, expected) in [
            (Get, "/", Some((TargetForm::Origin, 0, 0))),
            (Get, "//x?y", Some((TargetForm::Origin, 0, 0))),
            (Options, "*", Some((TargetForm::Asterisk, 0, 0))),
            (Options, "/", Some((TargetForm::Origin, 0, 0))),
            (Get, "*", None),
            (Options, "**", None),
            (Get, "http://h", Some((TargetForm::Absolute, 7, 8))),
            (Get, "HTTPS://h:8/p?q", Some((TargetForm::Absolute, 8, 11))),
            (Other, "http://h?q", Some((TargetForm::Absolute, 7, 8))),
            (Get, "http:///p", None),
            (Get, "http://user@h/", None),
            (Get, "http://", None),
            (Get, "http:/h", None),
            (Get, "ftp://h/", None),
            (Get, "index.html", None),
            (Get, "?q", None),
            (Get, "h:80", None),
            (Connect, "h:80", Some((TargetForm::Authority, 0, 4))),
            (Connect, "[::1]:443", Some((TargetForm::Authority, 0, 9))),
            (Connect, "h", None),
            (Connect, "h:", None),
            (Connect, ":80", None),
            (Connect, "/", None),
            (Connect, "*", None),
            (Connect, "http://h:80", None),
        ] {
            let found = form(method, target.as_bytes()).ok();
            assert_eq!(
                found.map(|form| (form.form, form.host_start, form.host_end)),
                expected,
                "{method:?} {target}"
            );
        }
    }

    #[test]
    fn hosts() {
        for host in [
            "",
            "h",
            "a.example",
            "A-1.example:",
            "h:0",
            "h:65535",
            "127.0.0.1:80",
            "[::1]",
            "[::ffff:1.2.3.4]:8",
            "[v1.x]:1",
            "[VaF.a:b~!]",
            "a%20b",
            "under_score",
            "h:000080",
        ] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            ":",
            ":80",
            "h:65536",
            "h:8a",
            "h:-1",
            "h:80:80",
            "u@h",
            "h/",
            "h?",
            "h#",
            "a b",
            "a\tb",
            "ä",
            "[::1",
            "::1",
            "[::1]x",
            "[]",
            "[v1.]",
            "[v.x]",
            "[vg.x]",
            "[v1.x%20]",
            "[v1x]",
            "[::1%25eth0]",
            "a%2",
            "a%zz",
            "a,b:c",
            "[::1]]",
            "\\h",
            "a\"b",
            "a<b",
            "h:80, i",
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }
}

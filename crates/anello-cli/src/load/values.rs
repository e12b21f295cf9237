//! Flag values of `anello load`: addresses, rates, start times, status codes and error kinds.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use anello_load::{Address, ErrorKind, Errors};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::common::values::{duration, with_suffix};

#[derive(Clone, Copy, Debug)]
pub enum Rate {
    One(u64),
    Sweep { first: u64, last: u64, step: u64 },
}

/// Expected status codes; an empty list accepts all.
pub type Statuses = Vec<u16>;

#[derive(Clone, Debug)]
pub enum Target {
    /// `HOST:PORT`, to be resolved.
    Host(String),
    Unix(Address),
}

/// Parses `HOST:PORT`, `unix:/PATH` or `unix:@NAME`.
pub fn parse_target(text: &str) -> Result<Target, String> {
    if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(Target::Unix(match path.strip_prefix('@') {
            Some(name) => Address::Abstract(name.to_owned()),
            None => Address::Unix(path.into()),
        }));
    }
    if text.starts_with("http://") || text.starts_with("https://") {
        return Err(format!("{text:?} is a URL (use anello load http {text}, or HOST:PORT without a path)"));
    }
    match has_host_and_port(text) {
        true => Ok(Target::Host(text.to_owned())),
        false => Err(format!(
            "invalid address {text:?} (expected HOST:PORT, such as 127.0.0.1:7000, or unix:/PATH)"
        )),
    }
}

/// Parses `HOST:PORT`, to be resolved.
pub fn parse_host_and_port(text: &str) -> Result<String, String> {
    match has_host_and_port(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("invalid address {text:?} (expected HOST:PORT, such as 127.0.0.1:8080)")),
    }
}

fn has_host_and_port(text: &str) -> bool {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

pub fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub fn parse_statuses(text: &str) -> Result<Statuses, String> {
    if text == "any" {
        return Ok(Vec::new());
    }
    let statuses: Option<Vec<_>> = text.split(',').map(|word| status_range(word.trim())).collect();
    let statuses = statuses.map(|ranges| ranges.into_iter().flatten().collect());
    statuses.ok_or_else(|| {
        format!("invalid status list {text:?} (expected any, or a list such as 200,404 or 2xx)")
    })
}

/// Parses a status code, or a class of codes such as `2xx`.
fn status_range(word: &str) -> Option<RangeInclusive<u16>> {
    let class = word.strip_suffix("xx").or_else(|| word.strip_suffix("XX"));
    let (first, last) = match class {
        Some(class) => (class.parse::<u16>().ok()?.checked_mul(100)?, 99),
        None => (word.parse().ok()?, 0),
    };
    (100..=999).contains(&first).then_some(first..=first + last)
}

/// Parses the name of an error kind. Returns `None` for `all`.
fn parse_kinds(text: &str) -> Result<Option<ErrorKind>, String> {
    let kind = ErrorKind::ALL.iter().copied().find(|kind| kind.name() == text);
    if kind.is_some() || text == "all" {
        return Ok(kind);
    }
    let names = ErrorKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    Err(format!("unknown error kind {text:?} (expected one of {names})"))
}

/// Parses a rate such as `50k`, or a sweep such as `10k..200k/10k`.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    let Some((first, rest)) = text.split_once("..") else { return parse_number(text).map(Rate::One) };
    let (last, step) = rest
        .split_once('/')
        .ok_or_else(|| format!("no step in {text:?} (expected FIRST..LAST/STEP, such as 10k..200k/10k)"))?;
    let (first, last, step) = (parse_number(first)?, parse_number(last)?, parse_number(step)?);
    if last < first {
        return Err(format!("invalid range {text:?}: the first rate must not exceed the last"));
    }
    Ok(Rate::Sweep { first, last, step })
}

/// Parses a number of requests per second, such as `500`, `50k` or `1.5M`.
fn parse_number(text: &str) -> Result<u64, String> {
    let number = with_suffix(text).map(f64::round);
    number.filter(|number| (1.0..=1e9).contains(number)).map(|number| number as u64).ok_or_else(|| {
        format!("invalid rate {text:?} (expected requests per second, such as 500, 50k or 1.5M)")
    })
}

/// Parses a time in RFC 3339 format, in seconds since the Unix epoch, or as `+` and a duration from now.
pub fn parse_time(text: &str) -> Result<SystemTime, String> {
    let invalid = || {
        format!(
            "invalid time {text:?} (expected a time in RFC 3339 format, such as 2026-01-31T12:00:00Z, seconds since \
             1970, or a duration from now, such as +10s)"
        )
    };
    if let Some(rest) = text.strip_prefix('+') {
        return SystemTime::now().checked_add(duration(rest)?).ok_or_else(invalid);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        let since_epoch = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        return since_epoch.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since)).ok_or_else(invalid);
    }
    OffsetDateTime::parse(text, &Rfc3339).map(SystemTime::from).map_err(|_| invalid())
}

#[derive(clap::Args)]
pub struct AllowedErrors {
    /// Exit with 0 despite errors of these kinds (=KIND,KIND), or of all kinds if none is named. The kinds are refused,
    /// connect_timeout, unreachable, reset, timeout, closed_early, truncated_reply, wrong_bytes, excess_data,
    /// wrong_status, wrong_length, malformed, tls, other.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', num_args = 0.., require_equals = true)]
    #[arg(default_missing_value = "all", value_parser = parse_kinds)]
    allow_errors: Vec<Option<ErrorKind>>,
}

impl AllowedErrors {
    pub fn allows(&self, errors: &Errors) -> bool {
        let is_allowed =
            |kind| self.allow_errors.iter().any(|allowed| allowed.is_none_or(|allowed| allowed == kind));
        errors.iter().all(|error| is_allowed(error.kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_codes_or_classes() {
        assert_eq!(parse_statuses("200, 404"), Ok(vec![200, 404]));
        assert_eq!(parse_statuses("any"), Ok(Vec::new()));
        assert_eq!(parse_statuses("2xx"), Ok((200..=299).collect()));
        assert_eq!(parse_statuses("304,4XX"), Ok([304].into_iter().chain(400..=499).collect()));
        assert_eq!(parse_statuses("9xx").map(|statuses| statuses.last().copied()), Ok(Some(999)));
        for invalid in ["", "xx", "0xx", "10xx", "2x", "2xX", "-2xx", "99", "1000", "2xx,", "700xx"] {
            assert!(parse_statuses(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn times_are_rfc_3339_unix_seconds_or_relative() {
        let unix = |text: &str| {
            parse_time(text).map(|at| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis())
        };
        assert_eq!(unix("2026-11-27T01:02:03Z"), Ok(1_795_741_323_000));
        assert_eq!(unix("2026-11-27T02:32:03.25+01:30"), Ok(1_795_741_323_250));
        assert_eq!(unix("1795741323"), Ok(1_795_741_323_000));
        assert_eq!(unix("1795741323.5"), Ok(1_795_741_323_500));
        let (before, at, after) = (SystemTime::now(), parse_time("+10s").unwrap(), SystemTime::now());
        let wait = Duration::from_secs(10);
        assert!((before + wait..=after + wait).contains(&at), "{at:?}");
        for invalid in
            ["", "now", "-5", "+", "+10", "+-1s", "2026-11-27", "2026-11-27T01:02:03", "1e9", "1.2.3"]
        {
            assert!(parse_time(invalid).is_err(), "{invalid}");
        }
    }
}

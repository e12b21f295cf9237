//! Flag values of `anello load`: addresses, rates, status codes and error kinds.

use std::path::PathBuf;

use anello_load::{ErrorKind, Errors};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    One(u64),
    Sweep { first: u64, last: u64, step: u64 },
}

/// An allowed error kind; `None` allows all kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(pub Option<ErrorKind>);

/// Expected status codes; an empty list accepts all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(pub Vec<u16>);

/// Address of a message server, before name resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Tcp(String),
    Unix(PathBuf),
    Abstract(String),
}

/// Parses `HOST:PORT`, `unix:/PATH` or `unix:@NAME`. Names are resolved later.
pub fn parse_target(text: &str) -> Result<Target, String> {
    if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(match path.strip_prefix('@') {
            Some(name) => Target::Abstract(name.to_owned()),
            None => Target::Unix(path.into()),
        });
    }
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    match port.and_then(|port| port.parse::<u16>().ok()) {
        None | Some(0) => Err(format!(
            "invalid address {text:?} (expected HOST:PORT, such as 127.0.0.1:7000, or unix:/PATH)"
        )),
        Some(_) => Ok(Target::Tcp(text.to_owned())),
    }
}

pub fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub fn parse_statuses(text: &str) -> Result<Statuses, String> {
    if text == "any" {
        return Ok(Statuses(Vec::new()));
    }
    let status = |word: &str| word.trim().parse().ok().filter(|status| (100..=999).contains(status));
    let statuses: Option<Vec<u16>> = text.split(',').map(status).collect();
    statuses
        .map(Statuses)
        .ok_or_else(|| format!("invalid status list {text:?} (expected 200 or 200,404 or any)"))
}

pub fn parse_kinds(text: &str) -> Result<Kinds, String> {
    if text == "all" {
        return Ok(Kinds(None));
    }
    let kind = ErrorKind::ALL.iter().find(|kind| kind.name() == text);
    kind.map(|&kind| Kinds(Some(kind))).ok_or_else(|| {
        let names: Vec<&str> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        format!("unknown error kind {text:?} (expected one of {})", names.join(", "))
    })
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
pub fn parse_number(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let number = digits.parse::<f64>().ok().map(|number| (number * unit).round());
    number.filter(|number| (1.0..=1e9).contains(number)).map(|number| number as u64).ok_or_else(|| {
        format!("invalid rate {text:?} (expected requests per second, such as 500, 50k or 1.5M)")
    })
}

/// Errors that do not change the exit code.
#[derive(clap::Args)]
pub struct AllowedErrors {
    /// Exit with 0 despite errors of these kinds (=KIND,KIND), or of all kinds if none is named: refused,
    /// connect_timeout, unreachable, reset, timeout, closed_early, truncated_reply, wrong_bytes, excess_data,
    /// wrong_status, wrong_length, malformed, tls, other.
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        num_args = 0..,
        require_equals = true,
        default_missing_value = "all",
        value_parser = parse_kinds
    )]
    allow_errors: Option<Vec<Kinds>>,
}

impl AllowedErrors {
    /// Returns whether all of these errors are allowed.
    pub fn allows(&self, errors: &Errors) -> bool {
        let allowed = |kind: ErrorKind| {
            self.allow_errors.iter().flatten().any(|kinds| kinds.0.is_none_or(|allowed| allowed == kind))
        };
        errors.iter().all(|error| allowed(error.kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_requires_host_and_port() {
        for valid in ["127.0.0.1:80", "[::1]:7000", "localhost:1"] {
            assert_eq!(parse_target(valid), Ok(Target::Tcp(valid.to_owned())));
        }
        assert_eq!(parse_target("unix:/run/echo"), Ok(Target::Unix("/run/echo".into())));
        assert_eq!(parse_target("unix:@echo"), Ok(Target::Abstract("echo".to_owned())));
        assert_eq!(parse_target("unix:./@echo"), Ok(Target::Unix("./@echo".into())));
        for invalid in ["", "unix:", "localhost", ":80", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999"] {
            assert!(parse_target(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn parses_rates_and_sweeps() {
        assert_eq!(parse_rate("500"), Ok(Rate::One(500)));
        assert_eq!(parse_rate("1.5M"), Ok(Rate::One(1_500_000)));
        assert_eq!(
            parse_rate("10k..200k/10k"),
            Ok(Rate::Sweep { first: 10_000, last: 200_000, step: 10_000 })
        );
        for invalid in ["", "0", "-5", "k", "5x", "10k..", "1..2", "2..1/1", "1..2/0", "1e12"] {
            assert!(parse_rate(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn parses_statuses_and_error_kinds() {
        assert_eq!(parse_statuses("200, 404"), Ok(Statuses(vec![200, 404])));
        assert_eq!(parse_statuses("any"), Ok(Statuses(Vec::new())));
        assert!(parse_statuses("2xx").is_err() && parse_statuses("").is_err());
        assert_eq!(parse_kinds("wrong_bytes"), Ok(Kinds(Some(ErrorKind::WrongBytes))));
        assert_eq!(parse_kinds("all"), Ok(Kinds(None)));
        assert!(parse_kinds("bytes").unwrap_err().contains("wrong_bytes"));
    }
}

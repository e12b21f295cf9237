//! Values on the command line and in files: parsers, and error messages with remedies.

use std::error::Error;
use std::io;
use std::net::{AddrParseError, IpAddr};
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::time::Duration;

use anello::server::Topology;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::error::usage_error;

/// Returns a parser for whole numbers from 1 to `max`.
pub fn up_to(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| {
        let count = text.parse().ok().filter(|count| (1..=max).contains(count));
        count.ok_or_else(|| format!("expected a whole number from 1 to {max}"))
    }
}

/// Returns a parser for whole numbers from 1 to `max`, with an optional suffix k or M, such as `10k` or `1.5M`.
pub fn count_up_to(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| {
        let count = with_suffix(text).filter(|count| count.fract() == 0.0 && *count >= 1.0);
        let count = count.map(|count| count as usize).filter(|&count| count <= max);
        count.ok_or_else(|| format!("expected a whole number from 1 to {max}, such as 500, 10k or 1.5M"))
    }
}

/// Parses a decimal number with an optional suffix k (1,000) or M (1,000,000).
pub fn with_suffix(text: &str) -> Option<f64> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    // Rounded, because the decimal fraction is not exact.
    let number = digits.parse::<f64>().ok().filter(|_| is_number)?;
    Some((number * unit * 1e6).round() / 1e6)
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

/// Parses a size: a whole number of bytes, or one with the unit `KiB`, `MiB` or `GiB`.
pub fn size(text: &str) -> Result<Size, String> {
    let unit = text.trim_start_matches(|character: char| character.is_ascii_digit());
    let shift = match unit {
        "" => Some(0),
        "KiB" => Some(10),
        "MiB" => Some(20),
        "GiB" => Some(30),
        _ => None,
    };
    let number = text[..text.len() - unit.len()].parse::<usize>().ok();
    let bytes = number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift));
    bytes.map(Size).ok_or_else(|| {
        format!("invalid size {text:?} (expected a number of bytes, or a number and KiB, MiB or GiB, such as 64MiB)")
    })
}

/// Parses an IP address without a port.
pub fn ip_address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "expected an IP address without a port, such as 127.0.0.2 or ::1".into())
}

/// Parses a duration: a number followed by the unit `us`, `ms`, `s`, `m` or `h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let invalid = |problem: &str| format!("invalid duration {text:?}: {problem}");
    let unit = text.trim_start_matches(|character: char| character.is_ascii_digit() || character == '.');
    let number: f64 = text[..text.len() - unit.len()].parse().map_err(|_| {
        format!("invalid duration {text:?} (expected a number and a unit, such as 250ms, 10s or 5m)")
    })?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "" => return Err(invalid(&format!("missing unit (for example {text}s or {text}ms)"))),
        other => return Err(invalid(&format!("unknown unit {other:?} (expected us, ms, s, m or h)"))),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| invalid("out of range"))
}

pub fn nonzero_duration(text: &str) -> Result<Duration, String> {
    let nonzero = Some(duration(text)?).filter(|duration| !duration.is_zero());
    nonzero.ok_or_else(|| format!("invalid duration {text:?}: must be greater than zero"))
}

/// Parses a spin duration of at most one second. With a longer duration, a worker without clients would hardly ever
/// sleep.
pub fn spin(text: &str) -> Result<Duration, String> {
    up_to_one_second(text, "spin duration")
}

/// Parses a delay of at most one second for batches of events.
pub fn batch_delay(text: &str) -> Result<Duration, String> {
    up_to_one_second(text, "batch delay")
}

fn up_to_one_second(text: &str, name: &str) -> Result<Duration, String> {
    let short = Some(duration(text)?).filter(|duration| *duration <= Duration::from_secs(1));
    short.ok_or_else(|| format!("invalid {name} {text:?} (must be at most 1s, for example 50us)"))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(pub Vec<usize>);

/// Parses a list of cores: numbers and ranges separated by commas, or `all` for all cores that this process may run on,
/// in the order in which workers should use them.
pub fn cores(text: &str) -> Result<Cores, String> {
    if text == "all" {
        let allowed = anello::doctor::allowed_cores();
        let allowed = allowed.map_err(|error| format!("cannot read the CPU affinity mask: {error}"))?;
        return Ok(Cores(Topology::read().preferred_order(&allowed)));
    }
    let number = |digits: &str| {
        digits.parse::<usize>().map_err(|_| {
            format!("invalid core list {text:?} (expected numbers and ranges, such as 0,2-3, or all)")
        })
    };
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last - first >= 4096 {
            return Err(format!(
                "invalid core range {part:?} (expected FIRST-LAST, such as 0-3, with at most 4096 cores)"
            ));
        }
        cores.extend(first..=last);
    }
    Ok(Cores(cores))
}

impl Cores {
    pub fn check(&self) -> io::Result<()> {
        self.local_problem().map_or(Ok(()), |problem| Err(usage_error(format!("--cores: {problem}"))))
    }

    /// Returns an error message if the CPU affinity mask of this process can be read and does not contain all of these
    /// cores.
    pub fn local_problem(&self) -> Option<String> {
        self.problem(&anello::doctor::allowed_cores().ok()?)
    }

    fn problem(&self, allowed: &[usize]) -> Option<String> {
        let mut outside: Vec<usize> = self.0.iter().copied().filter(|core| !allowed.contains(core)).collect();
        outside.sort_unstable();
        let cores = match &outside[..] {
            [] => return None,
            [core] => format!("core {core} is"),
            _ => format!("cores {} are", ranges(&outside)),
        };
        let allowed = ranges(allowed);
        Some(format!("{cores} outside the CPU affinity mask of this process (allowed: {allowed})"))
    }
}

/// Formats core numbers as a list that [`cores`] accepts, in the same order.
pub fn ranges(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|core, next| core + 1 == *next);
    let parts = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(usize::to_string).collect(),
    });
    parts.collect::<Vec<_>>().join(",")
}

/// Returns an error message with a remedy for a standard-library parse error; `None` for other errors.
pub fn remedy(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<ParseIntError>() {
        return Some(match error.kind() {
            IntErrorKind::PosOverflow => "number too large (use a smaller one)",
            IntErrorKind::Zero => "must not be zero (expected a whole number of at least 1)",
            _ => "not a whole number (expected digits only, such as 1000)",
        });
    }
    if error.is::<ParseFloatError>() {
        return Some("not a number (expected a decimal number, such as 0.5)");
    }
    let is_address = error.is::<AddrParseError>();
    is_address.then_some("not an address (expected IP:PORT, with an IPv6 address in brackets: [::1]:PORT)")
}

/// Replaces a standard-library parse error in a command-line error with a message that names a remedy. Removes the tip
/// that an unknown flag could be a value after `--`: no command has values that start with a dash.
pub fn with_remedy(mut error: clap::Error) -> clap::Error {
    if let (ErrorKind::UnknownArgument, Some(ContextValue::StyledStrs(tips))) =
        (error.kind(), error.get(ContextKind::Suggested))
    {
        let is_useful = |tip: &&StyledStr| !tip.to_string().contains("as a value, use");
        let tips: Vec<_> = tips.iter().filter(is_useful).cloned().collect();
        error.remove(ContextKind::Suggested);
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
        return error;
    }
    let remedy = error.source().and_then(remedy).filter(|_| error.kind() == ErrorKind::ValueValidation);
    let Some(remedy) = remedy else { return error };
    let value = context_text(&error, ContextKind::InvalidValue);
    let flag = context_text(&error, ContextKind::InvalidArg);
    let message =
        format!("invalid value '{value}' for '{flag}': {remedy}\n\nFor more information, try '--help'.\n");
    clap::Error::raw(ErrorKind::ValueValidation, message)
}

/// Returns a part of a command-line error, or an empty string if the error lacks this part or the part is not a single
/// string.
pub fn context_text(error: &clap::Error, kind: ContextKind) -> &str {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (text, bytes) in
            [("0", 0), ("1000", 1000), ("3KiB", 3072), ("64MiB", 64 << 20), ("2GiB", 2 << 30)]
        {
            assert_eq!(size(text), Ok(Size(bytes)), "{text}");
        }
        for invalid in ["", "MiB", "-1", "1.5MiB", "1MB", "1 KiB", "99999999999GiB"] {
            assert!(size(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn cores_are_lists_and_ranges() {
        assert_eq!(cores("0"), Ok(Cores(vec![0])));
        assert_eq!(cores("3,0-2"), Ok(Cores(vec![3, 0, 1, 2])));
        let mut all = cores("all").unwrap().0;
        all.sort_unstable();
        assert_eq!(all, anello::doctor::allowed_cores().unwrap());
        assert_eq!(ranges(&[0, 1, 2, 8, 4, 5]), "0-2,8,4-5");
        for invalid in ["", "a", "all,0", "1-", "2-1", "0,,1", "0-99999999"] {
            assert!(cores(invalid).is_err(), "{invalid}");
        }
        let problem = |text: &str| cores(text).unwrap().problem(&[0, 1, 4]);
        assert_eq!(problem("4,0-1"), None);
        assert!(problem("0-2").unwrap().starts_with("core 2 is outside"));
        let expected = "cores 2-3,5-10,99 are outside the CPU affinity mask of this process (allowed: 0-1,4)";
        assert_eq!(problem("99,0-10").as_deref(), Some(expected));
    }
}

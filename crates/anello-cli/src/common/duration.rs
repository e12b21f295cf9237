//! Durations as written on the command line: `250ms`, `10s`, `5m`.

use std::time::Duration;

/// Maximum spin duration. With a longer duration, a worker without clients would hardly ever sleep.
const MAX_SPIN: Duration = Duration::from_secs(1);

/// Parses a number with the unit `us`, `ms`, `s`, `m` or `h`.
pub fn parse(text: &str) -> Result<Duration, String> {
    let digits =
        text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| {
        format!("invalid duration {text:?} (expected a number and a unit, such as 250ms, 10s or 5m)")
    })?;
    let seconds = match unit {
        "us" => Ok(1e-6),
        "ms" => Ok(1e-3),
        "s" => Ok(1.0),
        "m" => Ok(60.0),
        "h" => Ok(3600.0),
        "" => Err(format!("missing unit (for example {text}s or {text}ms)")),
        other => Err(format!("unknown unit {other:?} (expected us, ms, s, m or h)")),
    };
    let duration = seconds.and_then(|seconds| {
        Duration::try_from_secs_f64(number * seconds).map_err(|_| "out of range".to_owned())
    });
    duration.map_err(|problem| format!("invalid duration {text:?}: {problem}"))
}

/// Parses the duration that a worker spins before it sleeps: at most [`MAX_SPIN`].
pub fn parse_spin(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        duration if duration > MAX_SPIN => {
            Err(format!("invalid spin duration {text:?} (must be at most 1s, for example 50us)"))
        }
        duration => Ok(duration),
    }
}

/// Parses a duration that must not be zero.
pub fn parse_nonzero(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err(format!("invalid duration {text:?}: must be greater than zero")),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_nonzero_rejects_zero() {
        assert_eq!(parse_nonzero("1us"), Ok(Duration::from_micros(1)));
        assert!(
            parse_nonzero("0s").is_err_and(|error| error.contains("greater than zero"))
                && parse_nonzero("1").is_err()
        );
    }

    #[test]
    fn parse_spin_rejects_more_than_one_second() {
        assert_eq!(parse_spin("1s"), Ok(Duration::from_secs(1)));
        assert!(
            parse_spin("10h").is_err_and(|error| error.contains("\"10h\"") && error.contains("at most 1s"))
        );
    }

    #[test]
    fn parse_requires_number_and_unit() {
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        for invalid in ["", "10", "s", "-1s", "1e400s", "10 s", "3days"] {
            assert!(parse(invalid).is_err(), "{invalid}");
        }
    }
}

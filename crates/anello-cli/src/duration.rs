//! Durations as people write them: `250ms`, `10s`, `5m`.

use std::time::Duration;

/// Maximum duration to spin: beyond it a worker without clients would hardly ever sleep.
const MAX_SPIN: Duration = Duration::from_secs(1);

/// Reads a number with a unit: `us`, `ms`, `s`, `m` or `h`.
pub fn parse(text: &str) -> Result<Duration, String> {
    let digits =
        text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 =
        number.parse().map_err(|_| format!("{text:?} is not a duration: write 250ms, 10s or 5m"))?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "" => return Err(format!("{text:?} lacks a unit: write {text}s or {text}ms")),
        other => return Err(format!("the unit {other:?} is not known: use us, ms, s, m or h")),
    };
    Duration::try_from_secs_f64(number * seconds)
        .map_err(|_| format!("{text:?} is too long: write 250ms, 10s or 5m"))
}

/// The same for how long a worker spins before it sleeps.
pub fn parse_spin(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        duration if duration > MAX_SPIN => {
            Err(format!("{text:?} is too long to spin: give at most 1s, as in 50us"))
        }
        duration => Ok(duration),
    }
}

/// The same where none at all would leave no time for anything.
pub fn parse_nonzero(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err(format!("{text:?} leaves no time at all: give more than that")),
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_time_is_needed_none_is_refused() {
        assert_eq!(parse_nonzero("1us"), Ok(Duration::from_micros(1)));
        assert!(parse_nonzero("0s").is_err_and(|why| why.contains("no time")) && parse_nonzero("1").is_err());
    }

    #[test]
    fn spinning_is_limited() {
        assert_eq!(parse_spin("1s"), Ok(Duration::from_secs(1)));
        assert!(parse_spin("10h").is_err_and(|why| why.contains("\"10h\"") && why.contains("at most 1s")));
    }

    #[test]
    fn durations_need_a_number_and_a_unit() {
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "10", "s", "-1s", "1e400s", "10 s", "3days"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

//! Durations as people write them: `250ms`, `10s`, `5m`.

use std::time::Duration;

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
    Duration::try_from_secs_f64(number * seconds).map_err(|error| format!("{text:?}: {error}"))
}

/// The same where none at all would leave no time for anything.
pub fn some(text: &str) -> Result<Duration, String> {
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
        assert_eq!(some("1us"), Ok(Duration::from_micros(1)));
        assert!(some("0s").is_err_and(|why| why.contains("no time")) && some("1").is_err());
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

//! Test data that reveals lost or misplaced bytes, and numbers from the environment.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::num::ParseIntError;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Mutex;

/// All random values in a test derive from a seed that is constant or printed.
pub use fastrand::Rng;

/// Returns pseudo-random bytes, so that a lost, duplicated or misplaced byte is detected.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let generate = || {
        let mut bytes = vec![0; length];
        Rng::with_seed(seed).fill(&mut bytes);
        bytes
    };
    if length < 1 << 20 {
        return generate();
    }
    // Without optimization, a megabyte takes long, and many tests use the same bytes on each driver.
    static LONG_PATTERNS: Mutex<BTreeMap<(u64, usize), Vec<u8>>> = Mutex::new(BTreeMap::new());
    LONG_PATTERNS.lock().expect("no panic").entry((seed, length)).or_insert_with(generate).clone()
}

/// Fails with the first differing offset instead of printing megabytes of data.
///
/// # Panics
///
/// Panics if the bytes differ.
#[track_caller]
pub fn assert_same_bytes(actual: &[u8], expected: &[u8]) {
    // Without optimization, comparing whole slices is much faster than comparing byte by byte.
    if actual == expected {
        return;
    }
    if let Some(offset) = actual.iter().zip(expected).position(|(one, other)| one != other) {
        panic!("byte {offset} of {} differs", expected.len());
    }
    panic!("the number of bytes differs: {} instead of {}", actual.len(), expected.len());
}

/// Returns the value of an environment variable, or `None` if it is not set.
///
/// # Panics
///
/// Panics if the variable is set to another value.
pub fn variable<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    let text = std::env::var_os(name)?.into_string().unwrap_or_else(|text| panic!("{name} is {text:?}"));
    Some(text.parse().unwrap_or_else(|error| panic!("{name} is {text:?}: {error:?}")))
}

/// Returns the seeds of a test that runs on random input: as many as `ANELLO_SEEDS` or else `default`, or only the one
/// in `ANELLO_SEED`, or those of a range `FROM..TO`, which divides many seeds among processes.
pub fn seeds(default: u64) -> Range<u64> {
    match variable::<String>("ANELLO_SEED") {
        Some(seeds) => {
            parse_seeds(&seeds).unwrap_or_else(|error| panic!("ANELLO_SEED is {seeds:?}: {error}"))
        }
        None => 0..variable("ANELLO_SEEDS").unwrap_or(default),
    }
}

fn parse_seeds(seeds: &str) -> Result<Range<u64>, ParseIntError> {
    match seeds.split_once("..") {
        Some((from, to)) => Ok(from.parse()?..to.parse()?),
        None => seeds.parse().map(|seed| seed..seed + 1),
    }
}

/// Returns the size of a test that takes long in full: `long` if `ANELLO_LONG` is set, as in parts of `.ci/nightly`, and
/// otherwise `short`.
pub fn short_or_long<T>(short: T, long: T) -> T {
    if std::env::var_os("ANELLO_LONG").is_some() { long } else { short }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn seeds_are_one_or_a_range() {
        assert_eq!(parse_seeds("7"), Ok(7..8));
        assert_eq!(parse_seeds("7..10"), Ok(7..10));
        assert!(parse_seeds("..10").is_err());
    }

    #[test]
    fn patterns_depend_on_seed_and_not_on_length() {
        assert_ne!(pattern(1, 64), pattern(2, 64));
        assert_eq!(pattern(1, 1 << 20)[..64], pattern(1, 64));
    }

    #[test]
    fn reports_the_first_different_byte_or_the_length() {
        let message = |actual: &'static [u8]| {
            let panic = catch_unwind(|| assert_same_bytes(actual, b"abcd")).unwrap_err();
            panic.downcast_ref::<String>().expect("a message").clone()
        };
        assert_eq!(message(b"abxd"), "byte 2 of 4 differs");
        assert_eq!(message(b"abc"), "the number of bytes differs: 3 instead of 4");
    }
}

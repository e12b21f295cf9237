//! Lists of CPU cores on the command line: `0`, `0,2`, `1-3`, `all`.

use std::io;

use super::error::invalid_input;

/// Core numbers in the order given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(pub Vec<usize>);

/// Parses numbers and ranges separated by commas, or `all` for all cores that this process may run on.
pub fn parse(text: &str) -> Result<Cores, String> {
    if text == "all" {
        return anello::allowed_cores()
            .map(Cores)
            .map_err(|error| format!("cannot read the CPU affinity mask: {error}"));
    }
    let number = |digits: &str| {
        digits.parse::<usize>().map_err(|_| format!("invalid core list {text:?} (expected 0, 0,2-3 or all)"))
    };
    let mut cores = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => cores.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last || last - first >= 4096 {
                    return Err(format!(
                        "invalid core range {part:?} (expected FIRST-LAST, such as 0-3, with at most 4096 cores)"
                    ));
                }
                cores.extend(first..=last);
            }
        }
    }
    Ok(Cores(cores))
}

impl Cores {
    /// Checks that this process may run on all listed cores.
    pub fn check(&self) -> io::Result<()> {
        let problem = self.local_problem();
        problem.map_or(Ok(()), |problem| Err(invalid_input(format!("--cores: {problem}"))))
    }

    /// Returns an error message if a core is not in `allowed`.
    pub fn problem(&self, allowed: &[usize]) -> Option<String> {
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

    /// Returns an error message if a core is outside the CPU affinity mask of this process. Returns `None` if the mask
    /// cannot be read.
    pub fn local_problem(&self) -> Option<String> {
        self.problem(&anello::allowed_cores().ok()?)
    }
}

/// Formats sorted core numbers as a list that [`parse`] accepts.
fn ranges(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|core, next| core + 1 == *next);
    let parts = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(usize::to_string).collect(),
    });
    parts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disallowed_cores_are_reported_as_ranges() {
        let problem = |cores: &str| parse(cores).unwrap().problem(&[0, 1, 4]);
        assert_eq!(problem("4,0-1"), None);
        assert!(problem("0-2").unwrap().starts_with("core 2 is outside"));
        let all = problem("99,0-10").unwrap();
        assert_eq!(
            all,
            "cores 2-3,5-10,99 are outside the CPU affinity mask of this process (allowed: 0-1,4)"
        );
    }

    #[test]
    fn parses_lists_and_ranges() {
        assert_eq!(parse("0"), Ok(Cores(vec![0])));
        assert_eq!(parse("3,0-2"), Ok(Cores(vec![3, 0, 1, 2])));
        assert_eq!(parse("all"), Ok(Cores(anello::allowed_cores().unwrap())));
        for invalid in ["", "a", "all,0", "1-", "2-1", "0,,1", "0-99999999"] {
            assert!(parse(invalid).is_err(), "{invalid}");
        }
    }
}

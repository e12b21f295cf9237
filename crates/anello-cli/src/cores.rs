//! Lists of cores as people write them: `0`, `0,2`, `1-3`, `all`.

use std::io;

/// Cores in the order they were named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(pub Vec<usize>);

/// Reads numbers and ranges with commas, or the word for all cores that this process may run on.
pub fn parse(text: &str) -> Result<Cores, String> {
    if text == "all" {
        return anello::allowed_cores()
            .map(Cores)
            .map_err(|error| format!("the cores are not told: {error}"));
    }
    let number = |digits: &str| {
        digits.parse::<usize>().map_err(|_| format!("{text:?} is not a list of cores: write 0, 0,2-3 or all"))
    };
    let mut cores = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => cores.push(number(part)?),
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last || last - first >= 4096 {
                    return Err(format!(
                        "{part:?} is not a range of cores: write FIRST-LAST, as in 0-3, of 4096 cores at most"
                    ));
                }
                cores.extend(first..=last);
            }
        }
    }
    Ok(Cores(cores))
}

impl Cores {
    /// Returns the error of a command line that names cores that this process may not use.
    pub fn check(&self) -> io::Result<()> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, format!("--cores: {why}"));
        self.local_problem().map_or(Ok(()), |why| Err(invalid(why)))
    }

    /// Returns what is wrong if some of them are not among those that this process may use.
    pub fn problem(&self, allowed: &[usize]) -> Option<String> {
        let mut others: Vec<usize> = self.0.iter().copied().filter(|core| !allowed.contains(core)).collect();
        others.sort_unstable();
        let (plural, others, allowed) = match &others[..] {
            [] => return None,
            [_] => ("", ranges(&others), ranges(allowed)),
            _ => ("s", ranges(&others), ranges(allowed)),
        };
        Some(format!("core{plural} {others} may not be used by this process: choose from {allowed}"))
    }

    /// Returns the same for the cores that this process may use; `None` if the kernel does not report them.
    pub fn local_problem(&self) -> Option<String> {
        self.problem(&anello::allowed_cores().ok()?)
    }
}

/// Writes sorted numbers as a list that [`parse`] reads.
fn ranges(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|core, next| core + 1 == *next);
    let written = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(usize::to_string).collect(),
    });
    written.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_may_not_be_used_are_summarised() {
        let problem = |cores: &str| parse(cores).unwrap().problem(&[0, 1, 4]);
        assert_eq!(problem("4,0-1"), None);
        assert!(problem("0-2").unwrap().starts_with("core 2 may not"));
        let all = problem("99,0-10").unwrap();
        assert_eq!(all, "cores 2-3,5-10,99 may not be used by this process: choose from 0-1,4");
    }

    #[test]
    fn lists_and_ranges() {
        assert_eq!(parse("0"), Ok(Cores(vec![0])));
        assert_eq!(parse("3,0-2"), Ok(Cores(vec![3, 0, 1, 2])));
        assert_eq!(parse("all"), Ok(Cores(anello::allowed_cores().unwrap())));
        for wrong in ["", "a", "all,0", "1-", "2-1", "0,,1", "0-99999999"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

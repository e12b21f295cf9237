//! Lists of cores as people write them: `0`, `0,2`, `1-3`, `all`.

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
                if first > last || last - first > 4096 {
                    return Err(format!("{part:?} is not a range of cores"));
                }
                cores.extend(first..=last);
            }
        }
    }
    Ok(Cores(cores))
}

#[cfg(test)]
mod tests {
    use super::*;

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

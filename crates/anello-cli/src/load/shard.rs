//! The shard of this process, from flags or from the variables that schedulers set.

use std::env;

use anello_load::Shard;

/// Number of shards for schedulers that do not set one.
const SHARDS: &str = "ANELLO_SHARDS";

/// For each scheduler, the variables with the index and with the number of processes.
const VARIABLES: [(&str, &str); 3] = [
    ("JOB_COMPLETION_INDEX", SHARDS),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
];

#[derive(clap::Args)]
pub struct ShardFlags {
    /// Generate only shard I of N of the load, where I is 0 to N - 1; the other shards run elsewhere, with the same
    /// flags.
    ///
    /// Connections, rate and ramp are those of the whole load. Each shard has its part of the connections and of the
    /// schedule; anello load merge adds up the reports. By default, the shard is taken from the variables of the
    /// scheduler that starts the processes: JOB_COMPLETION_INDEX (Kubernetes, with --shards or ANELLO_SHARDS),
    /// SLURM_PROCID and SLURM_NTASKS, or OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE. Without them, the process
    /// generates the whole load, as with 0/1.
    #[arg(long, value_name = "I/N", value_parser = parse, conflicts_with = "shards")]
    shard: Option<(usize, usize)>,
    /// Number of shards, if the index is in JOB_COMPLETION_INDEX; by default the value of ANELLO_SHARDS.
    #[arg(long, value_name = "N", value_parser = crate::common::values::up_to(MAX_SHARDS))]
    shards: Option<usize>,
}

const MAX_SHARDS: usize = 1_000_000;

fn parse(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(index, count)| Some((number(index)?, number(count)?)));
    match numbers {
        Some((index, count)) if index < count && count <= MAX_SHARDS => Ok((index, count)),
        Some((_, 0)) => Err(format!("invalid shard {text:?}: the number of shards must be at least 1")),
        Some((_, count)) if count > MAX_SHARDS => {
            Err(format!("invalid shard {text:?}: at most {MAX_SHARDS} shards are possible"))
        }
        Some((_, count)) => Err(format!(
            "invalid shard {text:?}: shards are counted from 0 (expected 0/{count} to {}/{count})",
            count - 1
        )),
        None => {
            Err(format!("invalid shard {text:?} (expected the index and the number of shards, such as 0/3)"))
        }
    }
}

/// Parses digits only, because `parse` accepts a sign.
fn number(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl ShardFlags {
    /// Returns the shard of this process; `None` if it generates the whole load.
    pub fn shard(&self) -> Result<Option<Shard>, String> {
        // Text that is not UTF-8 is an invalid value.
        self.find(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn find(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Shard>, String> {
        if let Some((index, count)) = self.shard {
            return Ok(Some(Shard { index, count, source: "--shard".to_owned() }));
        }
        let mut found: Option<Shard> = None;
        for (index_name, count_name) in VARIABLES {
            let Some(index) = variable(index_name) else { continue };
            let (count, count_name) = match (self.shards, variable(count_name)) {
                (Some(flag), Some(count)) if number(&count).is_some_and(|count| count != flag) => {
                    return Err(format!(
                        "--shards {flag} conflicts with {count_name}={count} (remove --shards, or use --shard I/N)"
                    ));
                }
                (Some(flag), _) => (flag.to_string(), "--shards"),
                (None, Some(count)) => (count, count_name),
                (None, None) => {
                    let flag =
                        if count_name == SHARDS { "--shards N or ANELLO_SHARDS=N" } else { "--shards N" };
                    return Err(format!(
                        "{index_name} is {index}, but the number of shards is unknown (set {flag}, or use --shard 0/1 \
                         for the whole load)"
                    ));
                }
            };
            let (index, count) = parse(&format!("{index}/{count}")).map_err(|problem| {
                format!(
                    "{problem}, according to {index_name} and {count_name} (correct them, or use --shard I/N)"
                )
            })?;
            let shard = Shard { index, count, source: format!("{index_name} and {count_name}") };
            match &found {
                Some(other) if (other.index, other.count) != (index, count) => {
                    return Err(format!(
                        "conflicting shards: {other} from {}, {shard} from {} (unset one pair, such as with env -u \
                         {index_name}, or use --shard I/N)",
                        other.source, shard.source
                    ));
                }
                _ => found = found.or(Some(shard)),
            }
        }
        let count_only = self.shards.map(|count| format!("--shards {count}"));
        let count_only = count_only.or_else(|| variable(SHARDS).map(|count| format!("{SHARDS}={count}")));
        match (found, count_only) {
            (None, Some(setting)) => {
                Err(format!("{setting} without an index: JOB_COMPLETION_INDEX is not set (use --shard I/N)"))
            }
            (found, _) => Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(
        shard: Option<(usize, usize)>,
        shards: Option<usize>,
        variables: &[(&str, &str)],
    ) -> Result<Option<(usize, usize, String)>, String> {
        let variable = |name: &str| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        };
        let found = ShardFlags { shard, shards }.find(variable)?;
        Ok(found.map(|shard| (shard.index, shard.count, shard.source)))
    }

    #[test]
    fn shard_is_taken_from_flags_or_scheduler() {
        let from = |index, count, source: &str| Ok(Some((index, count, source.to_owned())));
        let (kubernetes, slurm) =
            (("JOB_COMPLETION_INDEX", "2"), [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]);
        let mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8")];
        assert_eq!(find(None, None, &[]), Ok(None));
        assert_eq!(find(Some((1, 3)), None, &slurm), from(1, 3, "--shard"), "the command line wins");
        assert_eq!(find(None, None, &slurm), from(0, 4, "SLURM_PROCID and SLURM_NTASKS"));
        assert_eq!(find(None, None, &mpi), from(3, 8, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"));
        assert_eq!(find(None, Some(3), &[kubernetes]), from(2, 3, "JOB_COMPLETION_INDEX and --shards"));
        let both = [kubernetes, ("ANELLO_SHARDS", "5")];
        assert_eq!(find(None, None, &both), from(2, 5, "JOB_COMPLETION_INDEX and ANELLO_SHARDS"));
        let equal = [slurm[0], slurm[1], ("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(find(None, None, &equal), from(0, 4, "SLURM_PROCID and SLURM_NTASKS"));
        // A shell in an allocation has no index.
        assert_eq!(find(None, None, &slurm[1..]), Ok(None));
    }

    #[test]
    fn invalid_and_conflicting_shards_are_errors_with_remedy() {
        let kubernetes = ("JOB_COMPLETION_INDEX", "2");
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
        type Variables<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Option<usize>, Variables<'_>, &str); 9] = [
            (None, &[kubernetes], "the number of shards is unknown (set --shards N or ANELLO_SHARDS=N"),
            (
                Some(2),
                &[kubernetes],
                "counted from 0 (expected 0/2 to 1/2), according to JOB_COMPLETION_INDEX and --shards",
            ),
            (None, &slurm[..1], "SLURM_PROCID is 0, but the number of shards is unknown (set --shards N,"),
            (None, &[("SLURM_PROCID", "x"), slurm[1]], "invalid shard \"x/4\""),
            (None, &[slurm[0], ("SLURM_NTASKS", "+4")], "invalid shard \"0/+4\""),
            (Some(3), &slurm, "--shards 3 conflicts with SLURM_NTASKS=4 (remove --shards"),
            (
                None,
                &[slurm[0], slurm[1], ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")],
                "conflicting shards: 0/4 from SLURM_PROCID and SLURM_NTASKS, 1/4 from OMPI_COMM_WORLD_RANK and",
            ),
            (Some(3), &[], "--shards 3 without an index"),
            (None, &[("ANELLO_SHARDS", "3")], "ANELLO_SHARDS=3 without an index"),
        ];
        for (shards, variables, expected) in cases {
            let error = find(None, shards, variables).unwrap_err();
            assert!(error.contains(expected) && error.contains('('), "{error}");
        }
    }

    #[test]
    fn shards_are_counted_from_0() {
        assert_eq!((parse("0/1"), parse("2/3")), (Ok((0, 1)), Ok((2, 3))));
        for (invalid, expected) in [
            ("3/3", "expected 0/3 to 2/3"),
            ("0/0", "at least 1"),
            ("1", "such as 0/3"),
            ("-1/3", "such as 0/3"),
            ("0/9999999", "at most 1000000"),
            ("", "such as 0/3"),
        ] {
            assert!(parse(invalid).unwrap_err().contains(expected), "{invalid}");
        }
    }
}

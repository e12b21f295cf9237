//! Command-line arguments of `anello load merge`.

use std::path::PathBuf;

use crate::load::values::AllowedErrors;

/// Merge the reports and latency histograms of several runs, for example of the shards of a load.
///
/// The inputs are reports (`anello load … --json`, one or more in a file), and logs that are written by `anello load …
/// --hdr FILE` or by any program that writes HdrHistogram interval logs (version 2) in nanoseconds. Of a directory, the
/// files *.json and *.hlog are read. The report and the log of the same run count once. The command adds histograms,
/// not percentiles, so the resulting percentiles apply to all requests. Tags are merged separately: lines without a tag
/// contain latencies measured from the scheduled time (in a closed loop, from the time of sending); lines with the tag
/// `uncorrected` contain latencies measured from the time of sending. Error counts are added as well; they are unknown
/// for logs from other programs and from runs that were killed.
///
/// Shards (`anello load … --shard I/N`) are checked: missing and unfinished shards, shards that ran twice, and shards
/// of different loads are errors. Differences of the start times, corrected clocks and saturated load generators are
/// warnings.
///
/// Exits with 0 if there were responses, no known errors, and all shards of one load; with 2 if the command line is
/// invalid; with 1 otherwise, including if an input cannot be read, contains neither intervals nor errors, or is
/// malformed (the message names the line).
#[derive(clap::Args)]
pub struct MergeArguments {
    /// Reports, interval logs and directories to merge; - is standard input.
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// Also write the sum as an interval log, with one line per wall-clock second and tag.
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
    /// Print the sums as JSON. `schema` and `schema_version` identify the format; times are in nanoseconds (_ns).
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print the values per second and the sums as comma-separated values (RFC 4180); print errors to standard error.
    #[arg(long)]
    pub csv: bool,
    #[command(flatten)]
    pub allowed: AllowedErrors,
}

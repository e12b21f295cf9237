//! Exact merging of reports and interval logs from several machines. Histograms are added bucket by bucket; quantiles
//! are never combined. [`Runs`] checks that the inputs are the shards of one load.
//!
//! ```text
//!  Unix time     … :07            :08            :09 …
//!  A.hlog          ├──── a1 ──────┼──── a2 ──────┤      each line belongs to the second that contains its midpoint
//!  B.hlog             ├──── b1 ──────┼──── b2 ──────┤
//!                         ↓ midpoint     ↓ midpoint
//!  merged          ├──── a1+b1 ──────┤                  from the earliest start to the latest end
//!                                 ├──── a2+b2 ──────┤
//! ```
//!
//! A line is never split, so no value is estimated. Seconds are aligned to Unix time, not to the start of a log. The
//! midpoint of a merged line lies in the same second as the midpoints of its inputs, so the order and grouping of the
//! logs do not affect the result. Logs with different precision or range are added in the coarser layout.
//!
//! The clocks of the machines should agree to within a fraction of a second. Clock skew changes which lines are merged
//! into an interval, but not the totals of the whole run.
//!
//! A report has one histogram for the whole run, and therefore counts as a log with one line.

mod logs;
mod runs;

pub use logs::{NamedLog, Sum, TagSum, errors, seconds, totals, write_log};
pub use runs::{LoadTotals, Problem, ProblemKind, RunFigures, RunSummary, Runs};

//! `anello load merge`: merges the latency histograms of several runs, for example from several machines.

mod flags;
mod output;
mod run;

pub use self::flags::MergeArguments;
pub use self::run::run;

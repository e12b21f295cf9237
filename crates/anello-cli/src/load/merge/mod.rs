//! `anello load merge`: merges the latency histograms of several runs, for example from several machines.

mod all_tags;
mod csv;
mod flags;
mod json;
mod run;
mod table;

pub use self::flags::MergeArguments;
pub use self::run::run;

//! `anello doctor`: reports which I/O features this host allows, and how to enable the others.
//!
//! ```text
//!   collect ──> Facts ──> examine ──> Diagnosis ──> report (text, or JSON with the facts)
//! ```
//!
//! [`collect`] queries the host and evaluates nothing. [`examine`] evaluates the facts and queries nothing, so tests
//! can evaluate facts about other hosts.

mod collect;
mod examine;
mod facts;
mod flags;
mod interfaces;
mod report;
mod run;
mod tree;

pub use self::flags::Arguments;
pub use self::run::run;

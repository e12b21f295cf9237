//! Tests for the library: planning, the machine, the method on a simulated machine, and reports.

#![forbid(unsafe_code)]

mod git;
mod judge;
mod local;
mod machine;
mod peers;
mod plan;
mod published;
mod simulated;

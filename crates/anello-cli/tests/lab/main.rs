//! Tests for `anello lab` and `anello bare`, run as child processes.

#![forbid(unsafe_code)]

mod bare;
mod checks;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod hosts;
mod http;
mod open;
mod peers;
mod reports;
mod run;
mod view;

//! Tests for `anello lab` and `anello bare`, run as child processes.

#![forbid(unsafe_code)]

mod bare;
mod faults;
mod hosts;
mod http;
mod open;
mod peers;
#[path = "../common/pty.rs"]
mod pty;
mod reports;
mod run;
mod view;

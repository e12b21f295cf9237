//! Tests for `anello load`, run as a child process.

#![forbid(unsafe_code)]

mod merge;
#[path = "../common/pty.rs"]
mod pty;
mod run;
mod shards;
mod tls;
mod view;

//! Tests for `anello load`, run as a child process.

#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod merge;
mod run;
mod shards;
mod tls;
mod view;

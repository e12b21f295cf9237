//! Tests for `anello echo` and `anello http`, run as child processes.

#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod config;
mod drain;
mod echo;
mod floods;
mod handover;
mod health;
mod http;
mod identity;
mod rebalance;
mod rights;
mod sandbox;
mod served;
mod shortage;
mod versions;

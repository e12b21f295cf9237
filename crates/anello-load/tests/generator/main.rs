//! The load generator: loads against servers with known behaviour, correct and faulty, their schedules and shards, and
//! the reports, logs and tables of their results.

#![forbid(unsafe_code)]

mod common;

mod check;
mod closed_loop;
mod config;
mod hdr_log;
mod http;
mod interval;
mod merge;
mod open_loop;
mod pause;
mod schedule;
mod servers;
mod shards;
mod simulated;
mod system;
mod tables;
mod tls;

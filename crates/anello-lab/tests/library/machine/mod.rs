//! Tests for the machine: its description, the contenders' processes, and the files of a run.

mod environment;
mod local;
mod process;
mod remote;
mod replace;
mod tls;

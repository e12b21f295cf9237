//! Tests for the machine: its description, and the contenders' processes.

mod environment;
mod process;

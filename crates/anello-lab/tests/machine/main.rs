//! Tests of the machine: its description, and the processes of contenders.

mod environment;
mod process;

//! Run planning: contenders, cells and durations, based on presets, scenario files and the machine.

pub mod cell;
pub mod commit;
pub mod config;
pub mod contender;
pub mod cores;
mod estimate;
pub mod instructions;
pub mod limits;
pub mod method;
pub mod network;
pub mod peers;
pub mod scenario;
pub mod schedule;
pub mod site;
mod toml_error;

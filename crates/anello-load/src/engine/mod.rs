//! Execution of a load run: schedule, connections, measurement, worker threads and the run that coordinates them.

pub(crate) mod connection;
pub(crate) mod identity;
pub(crate) mod measurement;
pub(crate) mod pacer;
pub(crate) mod pause;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod series;
pub(crate) mod session;
pub(crate) mod shared;
pub(crate) mod slot;
pub(crate) mod start_time;
pub(crate) mod worker;

//! Access log, metrics and health.

mod access_log;
mod health;
mod metrics;
mod prometheus;

//! Tests for access log, metrics and health.

mod access_log;
mod health;
mod log_lines;
mod metrics;
mod prometheus;

//! Tests for the access log, metrics and health checks.

mod access_log;
mod access_log_reports;
mod health;
mod log_lines;
mod metrics;
mod prometheus;

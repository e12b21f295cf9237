//! Shared helpers for the load tests: loads that run on each driver, and virtual time.

pub mod tls;
pub mod virtual_time;

use std::net::TcpStream;
use std::ops::ControlFlow;
use std::time::Duration;

use anello::RuntimeBuilder;
use anello_load::{LoadConfig, Report, run};
use anello_test::{each_available, main_drivers, setup_named};
use socket2::SockRef;

/// Returns a builder for each driver on which tests run.
pub fn drivers() -> impl Iterator<Item = RuntimeBuilder> {
    each_available(main_drivers()).map(|setup| setup.builder())
}

/// Returns a builder for tests that do not depend on the driver.
pub fn any_driver() -> RuntimeBuilder {
    setup_named("epoll").builder()
}

/// Returns an iterator that runs the load on each driver in turn and yields the reports.
pub fn reports(load: &LoadConfig) -> impl Iterator<Item = Report> + '_ {
    drivers().map(|driver| run(load, &driver, |_| ControlFlow::Continue(())).unwrap().report)
}

/// Configures the stream to send an RST when it is closed.
pub fn reset(stream: &TcpStream) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

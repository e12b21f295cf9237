//! Shared helpers for the load tests: drivers, and servers that run in threads of the test process.

#![allow(dead_code, reason = "not every test uses every helper")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anello::{DriverKind, Runtime, RuntimeBuilder};
use anello_load::{LoadConfig, Report, run};
use socket2::SockRef;

/// Returns a builder for each driver that is available on this machine. epoll is always available.
pub fn drivers() -> Vec<RuntimeBuilder> {
    let builder = |kind| Runtime::builder().driver(kind).driver_from_environment(false);
    let mut drivers = vec![builder(DriverKind::Epoll)];
    match builder(DriverKind::Uring).build() {
        Ok(_) => drivers.push(builder(DriverKind::Uring)),
        Err(error) => println!("skipped on io_uring: {error}"),
    }
    drivers
}

/// Starts a server that calls `serve` for every connection in a separate thread and runs until the process exits.
pub fn server(serve: impl Fn(TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream).ok());
        }
    });
    address
}

/// Returns an iterator that runs the load on each driver in turn and yields the reports.
pub fn reports(load: &LoadConfig) -> impl Iterator<Item = Report> + '_ {
    let run = |driver: RuntimeBuilder| run(load, &driver, |_| ControlFlow::Continue(())).unwrap().report;
    drivers().into_iter().map(run)
}

/// Configures the stream to send an RST when it is closed.
pub fn reset(stream: &TcpStream) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

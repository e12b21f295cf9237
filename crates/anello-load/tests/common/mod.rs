//! What the tests of the load have in common: drivers, and servers in threads of this process.

#![allow(dead_code, reason = "not every test uses everything")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anello::{DriverKind, Runtime, RuntimeBuilder};
use anello_load::{LoadConfig, Report, run};
use socket2::SockRef;

/// The drivers to be had here; epoll always is.
pub fn drivers() -> Vec<RuntimeBuilder> {
    let builder = |kind| Runtime::builder().driver(kind).driver_from_environment(false);
    let mut drivers = vec![builder(DriverKind::Epoll)];
    match builder(DriverKind::Uring).build() {
        Ok(_) => drivers.push(builder(DriverKind::Uring)),
        Err(error) => println!("skipped on io_uring: {error}"),
    }
    drivers
}

/// Serves every connection with `serve`, in a thread each, for as long as the process lives.
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

/// Runs the same load on every driver, one after the other as the reports are taken.
pub fn reports(load: &LoadConfig) -> impl Iterator<Item = Report> + '_ {
    let run = |driver: RuntimeBuilder| run(load, &driver, |_| ControlFlow::Continue(())).unwrap().report;
    drivers().into_iter().map(run)
}

/// Closes with an RST.
pub fn reset(stream: &TcpStream) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

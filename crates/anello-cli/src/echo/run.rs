//! Workers of the echo server.

use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use anello::Workers;
use anello::signal::{SignalKind, Signals};

use super::connections::{Limits, OpenConnections, accept};
use super::exchange::Sizes;
use super::flags::Arguments;
use crate::common::error::invalid_input;
use crate::common::listening::{Listening, conflicting_flag_error, finish_accepting, second_signal};
use crate::common::notify::ServiceManager;
use crate::common::values::Cores;
use crate::common::{activation, output, process};

/// State shared by the workers.
pub struct Service {
    pub flags: Arguments,
    pub listening: Listening,
    pub limits: Arc<Limits>,
    manager: ServiceManager,
}

impl Service {
    pub fn new(flags: Arguments, listening: Listening) -> Self {
        let sizes = flags.request_bytes.zip(flags.response_bytes);
        let sizes = sizes.map(|(request, response)| Sizes {
            request_bytes: request.get(),
            response_bytes: response.get(),
        });
        let limits = Limits {
            sizes,
            idle_timeout: flags.idle_timeout,
            max_connections: flags.max_connections,
            connections: AtomicUsize::new(0),
        };
        Self { flags, listening, limits: Arc::new(limits), manager: ServiceManager::find() }
    }
}

pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    arguments.cores.as_ref().map_or(Ok(()), Cores::check)?;
    // Must be called before the process opens any descriptor.
    let passed = activation::take()?;
    if passed.metrics.is_some() {
        let cause = "unexpected metrics socket in LISTEN_FDS (this server has no metrics endpoint)";
        return Err(invalid_input(cause));
    }
    process::raise_open_files();
    let workers = arguments.cores.as_ref().map_or(1, |cores| cores.0.len());
    let listening = match (&arguments.addr, passed.sockets.is_empty()) {
        (Some(address), true) => Listening::bind(address, workers)?,
        (None, true) => Listening::bind(&"127.0.0.1:7000".parse().map_err(io::Error::other)?, workers)?,
        (None, false) => Listening::from_passed(passed.sockets, workers)?,
        (Some(_), false) => return Err(conflicting_flag_error("--addr")),
    };
    listening.set_distribution(arguments.distribution);
    listening.resume();
    let builder = arguments.driver.builder();
    let cores = arguments.cores.clone();
    let service = Arc::new(Service::new(arguments, listening));
    let Some(Cores(cores)) = cores else {
        builder.build()?.block_on(serve(service, 0, |service| announce(service, 1)))?;
        return Ok(ExitCode::SUCCESS);
    };
    let workers = Workers::builder().cores(cores).runtime(builder).start(move |worker| {
        let is_first = worker.index == 0;
        serve(Arc::clone(&service), worker.index, move |service| {
            if is_first {
                announce(service, worker.count);
            }
        })
    })?;
    workers.join()?.into_iter().collect::<io::Result<()>>()?;
    Ok(ExitCode::SUCCESS)
}

/// Runs one worker: accepts connections until a signal arrives, then drains them. Calls `on_ready` once signals are
/// caught.
pub async fn serve(service: Arc<Service>, index: usize, on_ready: impl FnOnce(&Service)) -> io::Result<()> {
    let listeners = service.listening.join(index);
    let mut signals = Signals::new([SignalKind::interrupt(), SignalKind::terminate()])?;
    on_ready(&service);
    let open = Rc::new(OpenConnections::default());
    let shared = || (Arc::clone(&service.limits), Rc::clone(&open));
    let internet = listeners.internet.map(|member| anello::spawn(accept(member, shared())));
    let unix = listeners.unix.map(|member| anello::spawn(accept(member, shared())));
    let signal_received = service.listening.wait_for_shutdown(&mut signals).await?;
    service.listening.close();
    if index == 0 {
        service.manager.stopping();
    }
    finish_accepting(&mut internet.into_iter().chain(unix).collect::<Vec<_>>()).await;
    open.drain(service.flags.drain_timeout, second_signal(&mut signals, signal_received)).await;
    Ok(())
}

/// Prints the ready line and notifies the service manager.
fn announce(service: &Service, workers: usize) {
    let Some(driver) = anello::current_driver() else { return };
    let (addresses, summary) = (&service.listening.addresses, service.listening.summary());
    let (name, features) = (driver.name, &driver.features);
    output::announce(&format!(
        "anello echo ready addr={addresses} driver={name} features={features} workers={workers} {summary}\n"
    ));
    service.flags.driver.report_fallback(&driver);
    service.manager.ready(false);
}

//! Workers of the echo server.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anello::server::Rebalancer;
use anello::signal::{SignalKind, Signals};
use anello_servers::echo::{Limits, Moved, OpenConnections, ServerMetrics, Sizes, accept};

use super::flags::Arguments;
use crate::common::admin::{self, Health};
use crate::common::cpu_limits::{self, GroupLimits};
use crate::common::listening::{Listening, conflicting_flag_error, finish_accepting, second_signal};
use crate::common::notify::ServiceManager;
use crate::common::values::Cores;
use crate::common::{activation, output, process};

/// State shared by the workers.
pub struct Service {
    pub flags: Arguments,
    pub listening: Listening,
    pub limits: Arc<Limits>,
    metrics: Option<Arc<ServerMetrics>>,
    /// `Some` if connections move between the workers.
    rebalancer: Option<Rebalancer<Moved>>,
    health: Health,
    manager: ServiceManager,
}

impl Service {
    /// Creates the state of a server with at most `max_connections` connections.
    pub fn new(
        flags: Arguments,
        listening: Listening,
        max_connections: usize,
        metrics: Option<Arc<ServerMetrics>>,
    ) -> Self {
        let sizes = flags.request_bytes.zip(flags.response_bytes);
        let sizes = sizes.map(|(request, response)| Sizes {
            request_bytes: request.get(),
            response_bytes: response.get(),
        });
        let limits = Limits {
            sizes,
            idle_timeout: flags.idle_timeout,
            max_connections,
            connections: AtomicUsize::new(0),
        };
        Self {
            flags,
            listening,
            limits: Arc::new(limits),
            metrics,
            rebalancer: None,
            health: Health::default(),
            manager: ServiceManager::find(),
        }
    }

    fn with_rebalancer(mut self, workers: usize) -> Self {
        self.rebalancer = (workers > 1 && !self.flags.no_rebalance).then(|| Rebalancer::new(workers));
        self
    }
}

pub fn run(arguments: Arguments) -> io::Result<ExitCode> {
    arguments.workers.cores.as_ref().map_or(Ok(()), Cores::check)?;
    // Must be called before the process opens any descriptor.
    let passed = activation::take()?;
    process::raise_open_files();
    process::disable_huge_pages();
    let workers = arguments.workers.count(|| 1);
    let listening = match (&arguments.addr[..], passed.sockets.is_empty()) {
        ([], true) => Listening::bind(&["127.0.0.1:7000".parse().map_err(io::Error::other)?], workers, None)?,
        (addresses, true) => Listening::bind(addresses, workers, None)?,
        ([], false) => Listening::from_passed(passed.sockets, workers)?,
        (_, false) => return Err(conflicting_flag_error("--addr")),
    };
    let admin_listener = arguments.admin.listener(passed.metrics)?;
    let admin_addr = admin_listener.as_ref().map(StdTcpListener::local_addr).transpose()?;
    listening.set_distribution(arguments.distribution, arguments.workers.cores.as_ref())?;
    listening.resume();
    let (max_connections, max_admin_connections) = match admin_addr {
        Some(_) => divide_descriptors(process::open_file_limit(), workers, arguments.max_connections),
        None => (arguments.max_connections, 0),
    };
    let metrics = admin_addr.map(|_| Arc::new(ServerMetrics::new(workers)));
    let builder = arguments.driver.builder();
    let worker_flags = arguments.workers.clone();
    let service = Service::new(arguments, listening, max_connections, metrics).with_rebalancer(workers);
    let service = Arc::new(service);
    if let Some((listener, metrics)) = admin_listener.zip(service.metrics.clone()) {
        // Resumed before the workers start, so that clients can read that the server is starting.
        let render = move |text: &mut Vec<u8>| metrics.render(text);
        admin::start(listener, render, service.health.clone(), max_admin_connections)?.resume();
    }
    // Must not refer to the service, whose destructor removes the socket file before the process exits.
    // With a second thread, each system call on a socket takes more instructions, because the kernel counts references to
    // the descriptor. A single worker therefore does without one.
    if workers > 1 {
        cpu_limits::watch(GroupLimits::open(Path::new("/")), workers, || false);
    }
    if workers == 1 && worker_flags.cores.is_none() {
        builder.build()?.block_on(serve(service, 0, |service| announce(service, 1, admin_addr)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let starting = Arc::new(AtomicUsize::new(workers));
    let workers = worker_flags.builder(workers).runtime(builder).start(move |worker| {
        let starting = Arc::clone(&starting);
        serve(Arc::clone(&service), worker.index, move |service| {
            if starting.fetch_sub(1, Ordering::Relaxed) == 1 {
                announce(service, worker.count, admin_addr);
            }
        })
    })?;
    workers.join()?.into_iter().collect::<io::Result<()>>()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the maximum number of connections, and that of connections to `/metrics` and `/health`, for which descriptors
/// are reserved: otherwise `/health` would not respond when the connections use all descriptors. As many are reserved
/// for each worker, for connections that it accepts above the limit and closes.
fn divide_descriptors(limit: usize, workers: usize, max_connections: usize) -> (usize, usize) {
    let available = limit.saturating_sub(process::own_descriptors(workers));
    let share = (available / 16 / workers).clamp(2, admin::MAX_CONNECTIONS);
    (max_connections.min(available.saturating_sub(share * (workers + 1))).max(1), share)
}

/// Runs one worker: accepts connections until a signal arrives, then drains them. Calls `on_ready` once its
/// listeners have joined their groups and signals are caught.
pub async fn serve(service: Arc<Service>, index: usize, on_ready: impl FnOnce(&Service)) -> io::Result<()> {
    let listeners = service.listening.join(index);
    let mut signals = Signals::new([SignalKind::interrupt(), SignalKind::terminate()])?;
    on_ready(&service);
    let metrics = service.metrics.as_ref().and_then(|metrics| metrics.worker(index));
    let rebalancer = service.rebalancer.as_ref().map(|rebalancer| rebalancer.join(index));
    let open = Rc::new(OpenConnections::new(metrics, rebalancer));
    let mut accepting = accept(listeners.internet, listeners.unix, &service.limits, &open);
    let signal_received = service.listening.wait_for_shutdown(&mut signals).await?;
    open.refuse_moved();
    service.health.set_draining();
    service.listening.close();
    if index == 0 {
        service.manager.stopping();
    }
    finish_accepting(&mut accepting).await;
    open.drain(service.flags.drain_timeout, second_signal(&mut signals, signal_received)).await;
    Ok(())
}

/// Reports that all workers accept connections: in `/health`, in the ready line and to the service manager.
fn announce(service: &Service, workers: usize, admin_addr: Option<SocketAddr>) {
    // Must precede the ready line.
    service.health.set_ready();
    let Some(driver) = anello::current_driver() else { return };
    let (addresses, summary) =
        (&service.listening.addresses, service.listening.summary(service.flags.distribution));
    let (name, features) = (driver.name, &driver.features);
    let metrics = admin::ready_field(admin_addr);
    output::announce(&format!(
        "anello echo ready addr={addresses} driver={name} features={features} workers={workers} {summary}{metrics}\n"
    ));
    service.flags.driver.report_fallback(&driver);
    service.manager.ready(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_of_descriptors_does_not_exceed_limit() {
        for workers in [1, 2, 64] {
            for limit in [0, 64, 1024, 20_000, usize::MAX] {
                let (connections, admin) = divide_descriptors(limit, workers, usize::MAX);
                let sum = process::own_descriptors(workers) + connections + admin * (workers + 1);
                assert!(sum <= limit || connections == 1, "{limit} {workers}: {connections} {admin}");
                assert_eq!(divide_descriptors(limit, workers, 1).0, 1);
            }
        }
    }
}

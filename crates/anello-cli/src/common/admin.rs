//! The /metrics and /health endpoints, on a separate address and thread, so that scraping does not slow down a worker.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::mpsc;
use std::thread;

use anello::exposition::CONTENT_TYPE;
use anello::net::TcpListener;
use anello::server::ListenerGroup;
use anello::{DriverKind, Runtime};
use anello_http::h1::FieldName;
use anello_http::observe::health::{self, HealthFormat};
use anello_http::server::Eviction;
use anello_http::{Request, Response, Server};

use super::bind_retry::bind_with_retry;
use super::boxed_handler::boxed_handler;
use super::error::Context;
use super::listening::conflicting_flag_error;

/// Maximum number of connections to the endpoints.
pub const MAX_CONNECTIONS: usize = 64;

#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Observability")]
pub struct AdminFlags {
    /// Serve /metrics (Prometheus format) and /health on this address, on a separate thread
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_addr: Option<SocketAddr>,
}

impl AdminFlags {
    /// Binds the socket, or returns the one that the service manager passed.
    pub fn listener(&self, passed: Option<StdListener>) -> io::Result<Option<StdListener>> {
        match (self.metrics_addr, passed) {
            (Some(_), Some(_)) => Err(conflicting_flag_error("--metrics-addr")),
            (Some(address), None) => listen(address).map(Some),
            (None, passed) => Ok(passed),
        }
    }
}

pub fn listen(address: SocketAddr) -> io::Result<StdListener> {
    bind_with_retry(|| StdListener::bind(address)).context(format_args!("--metrics-addr {address}"))
}

/// Returns the field of the ready line with the address of the endpoints, preceded by a space.
pub fn ready_field(address: Option<SocketAddr>) -> String {
    address.map(|address| format!(" metrics={address}")).unwrap_or_default()
}

/// State of the server that `/health` reports. The server sets it, for each protocol.
#[derive(Clone, Default)]
pub struct Health(health::Health);

impl Health {
    /// Records that all workers serve clients.
    pub fn set_ready(&self) {
        self.0.set_ready();
    }

    /// Records that the server is shutting down.
    pub fn set_draining(&self) {
        self.0.set_draining();
    }
}

/// Starts the endpoint thread, which accepts connections once the returned group is resumed. `render` appends all metrics
/// to a text.
pub fn start(
    listener: StdListener,
    render: impl Fn(&mut Vec<u8>) + Send + 'static,
    health: Health,
    max_connections: usize,
) -> io::Result<ListenerGroup<TcpListener>> {
    let group = ListenerGroup::new_paused(vec![listener], 1);
    let joined = group.clone();
    let (started_sender, started) = mpsc::sync_channel(1);
    thread::Builder::new().name("metrics".into()).spawn(move || {
        // The request rate is low, and epoll is available everywhere.
        let built = Runtime::builder().driver(DriverKind::Epoll).driver_from_environment(false).build();
        let mut runtime = None;
        started_sender.send(built.map(|built| runtime = Some(built))).ok();
        let Some(runtime) = runtime else { return };
        let served = runtime.block_on(async move {
            let server = Server::builder().configure(|options| {
                // The number of open connections, including those being rejected, must not exceed the number of
                // descriptors reserved for this port.
                options.refusals = options.refusals.min(max_connections / 4).max(1);
                options.max_connections = max_connections.saturating_sub(options.refusals).max(1);
                // Stalled connections are closed even during a request, so that they cannot prevent others from reading
                // `/health`.
                options.eviction = Eviction::Stalled { threshold: options.max_connections };
            });
            let handler = boxed_handler(Box::new(move |request| respond(&render, &health, request)));
            server.build().serve(joined.join(0), handler).await
        });
        if let Err(error) = served {
            tracing::error!(%error, "/metrics and /health endpoint stopped");
        }
    })?;
    let started = started.recv().unwrap_or_else(|_| Err(io::Error::other("thread exited during startup")));
    started.context("/metrics and /health")?;
    Ok(group)
}

fn respond(render: &impl Fn(&mut Vec<u8>), health: &Health, request: &Request) -> Response {
    let (response, media_type) = match (request.method_text(), request.path()) {
        ("GET" | "HEAD", "/metrics") => {
            let mut text = Vec::new();
            render(&mut text);
            (Response::new(200).with_body(text), CONTENT_TYPE)
        }
        ("GET" | "HEAD", "/health") => {
            let health = health.0.response(HealthFormat::from_accept(request.field("accept")));
            (Response::new(health.status).with_body(health.body), health.content_type)
        }
        ("GET" | "HEAD", _) => {
            return Response::text("not found (available: /metrics and /health)\n").with_status(404);
        }
        _ => {
            let rejection = Response::new(405).field(FieldName::ALLOW, b"GET, HEAD");
            return rejection.unwrap_or_else(|_| Response::new(500));
        }
    };
    let with_type = response.field(FieldName::CONTENT_TYPE, media_type.as_bytes());
    let uncached = with_type.and_then(|response| response.field(FieldName::CACHE_CONTROL, b"no-store"));
    uncached.unwrap_or_else(|_| Response::new(500))
}

//! /metrics and /health, on an address and a thread of their own: whoever asks takes no time of a worker.

use std::io;
use std::net::TcpListener as StdListener;
use std::sync::mpsc;
use std::thread;

use anello::net::{ListenerGroup, TcpListener};
use anello::{DriverKind, Runtime};
use anello_http::h1::FieldName;
use anello_http::observe::access_log::AccessLogHandle;
use anello_http::observe::health::{Health, HealthFormat};
use anello_http::observe::metrics::{CONTENT_TYPE, ServerMetrics};
use anello_http::server::Eviction;
use anello_http::{Request, Response, Server};

/// What is told.
pub struct AdminState {
    pub metrics: ServerMetrics,
    pub health: Health,
    pub log: Option<AccessLogHandle>,
}

/// Answers there, when what is returned is resumed, until it is closed or the process ends.
pub fn start(
    listener: StdListener,
    state: AdminState,
    max_connections: usize,
) -> io::Result<ListenerGroup<TcpListener>> {
    let group = ListenerGroup::new_paused(vec![listener], 1);
    let joined = group.clone();
    let (started_sender, started) = mpsc::sync_channel(1);
    thread::Builder::new().name("metrics".into()).spawn(move || {
        // It has little to do, and epoll is to be had everywhere.
        let built = Runtime::builder().driver(DriverKind::Epoll).driver_from_environment(false).build();
        let (runtime, result) = match built {
            Ok(runtime) => (Some(runtime), Ok(())),
            Err(error) => (None, Err(error)),
        };
        started_sender.send(result).ok();
        let Some(runtime) = runtime else { return };
        if let Err(error) = runtime.block_on(serve(joined, state, max_connections)) {
            tracing::error!(%error, "/metrics and /health are not served any more");
        }
    })?;
    let started = started.recv().unwrap_or_else(|_| Err(io::Error::other("their thread has ended")));
    started.map_err(|error| io::Error::new(error.kind(), format!("/metrics and /health: {error}")))?;
    Ok(group)
}

/// Clients that stall at `/metrics` make room for further ones, whatever they are in the middle of: one that asks for
/// `/health` is to hear what the state of the server is, and nothing of theirs.
async fn serve(
    group: ListenerGroup<TcpListener>,
    state: AdminState,
    max_connections: usize,
) -> io::Result<()> {
    let server = Server::builder().configure(|options| {
        // Together they are the share of this port.
        options.refusals = options.refusals.min(max_connections / 4).max(1);
        options.max_connections = max_connections.saturating_sub(options.refusals).max(1);
        options.eviction = Eviction::Stalled { threshold: options.max_connections };
    });
    let server = server.build();
    let serving = server.serve(group.join(0), async move |request| respond(&state, &request));
    serving.await.map_err(io::Error::from)
}

fn respond(state: &AdminState, request: &Request) -> Response {
    let (response, media_type) = match (request.method_text(), request.path()) {
        ("GET" | "HEAD", "/metrics") => {
            let mut text = Vec::new();
            state.metrics.render(state.log.as_ref().map(AccessLogHandle::stats).as_ref(), &mut text);
            (Response::new(200).with_body(text), CONTENT_TYPE)
        }
        ("GET" | "HEAD", "/health") => {
            let health = state.health.response(HealthFormat::from_accept(request.field("accept")));
            (Response::new(health.status).with_body(health.body), health.content_type)
        }
        ("GET" | "HEAD", _) => return Response::text("here are /metrics and /health\n").with_status(404),
        _ => {
            let refused = Response::new(405).field(FieldName::ALLOW, b"GET, HEAD");
            return refused.unwrap_or_else(|_| Response::new(500));
        }
    };
    let typed = response.field(FieldName::CONTENT_TYPE, media_type.as_bytes());
    let fresh = typed.and_then(|response| response.field(FieldName::CACHE_CONTROL, b"no-store"));
    fresh.unwrap_or_else(|_| Response::new(500))
}

//! A JSON API that counts the visitors of cities.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anello_http::observe::metrics::{CONTENT_TYPE, MetricsOptions, ServerMetrics};
use anello_http::server::Accept;
use anello_http::{Server, service};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use serde::Serialize;

/// The state that all workers share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The identifiers of the visitors of each city.
    visitors: Arc<Mutex<BTreeMap<String, BTreeSet<u64>>>>,
    /// Counters of all workers.
    metrics: ServerMetrics,
    /// Token that requests must contain.
    token: Arc<str>,
}

#[derive(Serialize)]
struct City {
    name: String,
    visitors: usize,
}

impl Shared {
    /// Returns a state without visitors.
    pub fn new(token: &str) -> Self {
        let metrics = ServerMetrics::new(MetricsOptions::default());
        Self { visitors: Arc::default(), metrics, token: token.into() }
    }

    fn visitors(&self) -> MutexGuard<'_, BTreeMap<String, BTreeSet<u64>>> {
        self.visitors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the axum application.
pub fn app(shared: Shared) -> Router {
    Router::new()
        .route("/cities/{name}", get(count))
        .route("/cities/{name}/visitors/{id}", put(add))
        .route("/metrics", get(metrics))
        .layer(middleware::from_fn_with_state(shared.clone(), require_token))
        .with_state(shared)
}

async fn count(State(shared): State<Shared>, Path(name): Path<String>) -> Result<Json<City>, StatusCode> {
    let visitors = shared.visitors().get(&name).ok_or(StatusCode::NOT_FOUND)?.len();
    Ok(Json(City { name, visitors }))
}

async fn add(State(shared): State<Shared>, Path((name, id)): Path<(String, u64)>) -> Json<City> {
    let mut cities = shared.visitors();
    let visitors = cities.entry(name.clone()).or_default();
    visitors.insert(id);
    Json(City { name, visitors: visitors.len() })
}

async fn metrics(State(shared): State<Shared>) -> impl IntoResponse {
    let mut text = Vec::new();
    shared.metrics.render(None, &mut text);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text)
}

/// Rejects requests without the token.
async fn require_token(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if token != Some(shared.token.as_bytes()) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    next.run(request).await
}

/// Serves the application on one worker, until the listener returns no more connections, and then drains. Returns the
/// number of connections that were aborted.
pub async fn serve(listener: impl Accept, shared: Shared, worker: usize) -> io::Result<usize> {
    let mut builder = Server::builder().configure(|options| {
        options.request_timeout = Some(Duration::from_secs(30));
        options.drain_timeout = Duration::from_secs(10);
    });
    if let Some(metrics) = shared.metrics.worker(worker) {
        builder = builder.metrics(metrics);
    }
    let server = builder.build();
    server.serve(listener, service::handler(app(shared))).await?;
    Ok(server.drain().await)
}

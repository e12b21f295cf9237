//! An axum router on anello: one worker per core, HTTP/1 and HTTP/2, graceful shutdown.
//!
//! Usage: `axum [ADDRESS]`
//!
//! Prints its address and driver, and serves until SIGTERM or Ctrl-C. It then completes in-flight requests.
//! `ANELLO_DRIVER` selects the driver. Example requests, where `$A` is the address:
//!
//! ```text
//! curl $A/hello/Ada
//! curl --json '[1, 20, 300]' $A/statistics
//! curl $A/visits
//! curl --no-buffer $A/count/5
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{env, io};

use anello::Workers;
use anello::compat::{HyperExecutor, HyperTimer};
use anello::net::TcpListener;
use anello::signal::{SignalKind, Signals};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::{Either, select};
use futures_util::stream;
use hyper::rt::Timer;
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;

fn main() -> io::Result<()> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let address = address.parse().map_err(|error| {
        let message = format!(
            "invalid address {address}: {error} (expected an address and a port, such as 127.0.0.1:8080)"
        );
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })?;
    let (router, listening) = (router(), Listening::at(address));
    let workers = Workers::builder().start(move |worker| {
        let (router, listening) = (router.clone(), listening.clone());
        async move { serve(listening.listen(worker.count)?, router).await }
    })?;
    workers.join()?.into_iter().collect()
}

// ---- The axum application, which is independent of anello except for the sleep --------------------------------------

#[derive(Clone, Default)]
struct Visits(Arc<AtomicU64>);

#[derive(Serialize)]
struct Statistics {
    count: usize,
    sum: f64,
    mean: Option<f64>,
}

fn router() -> Router {
    Router::new()
        .route("/hello/{name}", get(hello))
        .route("/statistics", post(statistics))
        .route("/visits", get(visits))
        .route("/count/{seconds}", get(count))
        .with_state(Visits::default())
}

async fn hello(Path(name): Path<String>) -> String {
    format!("Ciao, {name}!\n")
}

async fn statistics(Json(numbers): Json<Vec<f64>>) -> Json<Statistics> {
    let (count, sum) = (numbers.len(), numbers.iter().sum());
    Json(Statistics { count, sum, mean: (count > 0).then(|| sum / count as f64) })
}

/// Counts visits across all workers. Handler state is `Send`, so workers can share it.
async fn visits(State(Visits(visits)): State<Visits>) -> String {
    format!("{}\n", visits.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Streams one line per second. The stream is dropped when the client disconnects.
async fn count(Path(seconds): Path<u32>) -> Result<Body, StatusCode> {
    if seconds > 3600 {
        return Err(StatusCode::BAD_REQUEST);
    }
    Ok(Body::from_stream(stream::unfold(1, move |second| async move {
        if second > seconds {
            return None;
        }
        HyperTimer.sleep(Duration::from_secs(1)).await;
        Some((Ok::<_, Infallible>(format!("{second}\n")), second + 1))
    })))
}

// ---- The server -----------------------------------------------------------------------------------------------------

/// Time limit for open connections during shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT, then completes in-flight requests.
async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    let mut server = auto::Builder::new(HyperExecutor);
    server.http1().timer(HyperTimer);
    server.http2().timer(HyperTimer);
    let service = TowerToHyperService::new(router);
    let drain = GracefulShutdown::new();
    // Each worker sees every signal.
    let mut signals = Signals::new([SignalKind::terminate(), SignalKind::interrupt()])?;
    let mut shutdown_signal = pin!(signals.recv());
    loop {
        let accepted = match select(pin!(listener.accept()), shutdown_signal.as_mut()).await {
            Either::Left((accepted, _)) => accepted?,
            Either::Right((signal, _)) => {
                signal?;
                break;
            }
        };
        let connection = server.serve_connection(accepted, service.clone()).into_owned();
        let connection = drain.watch(connection);
        anello::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("connection failed: {error}");
            }
        })
        .detach();
    }
    drop(listener);
    let timeout = pin!(HyperTimer.sleep(DRAIN_TIMEOUT));
    if let Either::Right(_) = select(pin!(drain.shutdown()), timeout).await {
        eprintln!("closing connections that were still open after {DRAIN_TIMEOUT:?}");
    }
    Ok(())
}

/// Address shared by all workers, and the number of listening workers. With port 0, the first listener determines the
/// port.
#[derive(Clone)]
struct Listening(Arc<Mutex<(SocketAddr, usize)>>);

impl Listening {
    fn at(address: SocketAddr) -> Self {
        Self(Arc::new(Mutex::new((address, 0))))
    }

    /// Binds the listener for one of `count` workers. The last worker prints the ready line.
    fn listen(&self, count: usize) -> io::Result<TcpListener> {
        let mut listening = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = TcpListener::builder().reuse_port(true).bind(listening.0)?;
        *listening = (listener.local_addr()?, listening.1 + 1);
        if listening.1 == count {
            let driver = anello::current_driver().map_or("none", |driver| driver.name);
            println!("axum ready addr={} driver={driver} workers={count}", listening.0);
        }
        Ok(listener)
    }
}

//! Code shared by the checks for all protocols.

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::time::Duration;

use anello::time;

use crate::engine::session::Session;
use crate::model::config::LoadConfig;
use crate::model::errors::Errors;
use crate::model::shard::Shard;

/// Size of the stalled client's socket buffers, which then hold only a small part of the data. Smaller buffers would
/// slow down the transfer, because the TCP window would be smaller than a loopback packet.
pub(super) const STALLED_BUFFER_BYTES: usize = 256 << 10;

/// Number of connections opened before the stall and also during it, and number of requests sent on each during it.
pub(super) const OTHER_CONNECTIONS: usize = 3;
const REQUESTS_PER_CONNECTION: usize = 10;

/// Maximum number of connections that are opened before requests are sent on them. Servers close a connection on which no
/// request arrives for some time, and a slow machine needs seconds for a thousand TLS handshakes.
const MAX_BATCH: usize = 100;

/// Opens concurrent connections in batches and sends one request, as configured in `load`, on each.
pub(super) async fn exchange_once_on_each(
    load: LoadConfig,
    connections: usize,
    timeout: Duration,
) -> Result<(), String> {
    let load =
        LoadConfig { connections, verify: true, connect_timeout: timeout, stall_timeout: timeout, ..load };
    let count = connections.div_ceil(MAX_BATCH);
    let (mut sessions, mut passed, mut result) = (Vec::new(), 0, Ok(()));
    for index in 0..count {
        // The messages of all batches differ.
        let shard = Shard { index, count, source: String::new() };
        let size = shard.connections(connections);
        let load = LoadConfig { shard: Some(shard), ..load.clone() };
        let mut session = Session::connect(&load).await.map_err(|error| error.to_string())?;
        result = exchange_in_batch(&mut session, passed, size).await;
        passed += size;
        sessions.push(session);
        if result.is_err() {
            break;
        }
    }
    for session in sessions {
        session.close().await;
    }
    result
}

/// Sends one request on each of the `size` connections of the session. `passed` connections of earlier batches have
/// received a correct reply.
async fn exchange_in_batch(session: &mut Session, passed: usize, size: usize) -> Result<(), String> {
    let summarize_errors = |errors: &Errors| {
        let summaries =
            errors.iter().map(|error| format!("{} × {}: {}", error.count, error.kind, error.example));
        summaries.collect::<Vec<_>>().join("; ")
    };
    let connections = passed + size;
    let connect_errors = summarize_errors(session.connect_errors());
    if !connect_errors.is_empty() {
        return Err(format!("cannot open all of {connections} connections: {connect_errors}"));
    }
    let slice = session.run_slice(Duration::ZERO).await;
    let (requests, errors) = (slice.interval.requests, summarize_errors(&slice.interval.counts.errors));
    if !errors.is_empty() || requests < size as u64 {
        let replies = passed as u64 + requests;
        return Err(format!("{replies} of {connections} connections received a correct reply: {errors}"));
    }
    Ok(())
}

/// Opens connections before the stall and sends one request on each.
pub(super) async fn connect_others<C>(
    connect: impl AsyncFn() -> Result<C, String>,
    request: impl AsyncFn(&mut C) -> Result<(), String>,
) -> Result<Vec<C>, String> {
    let mut others = Vec::new();
    for _ in 0..OTHER_CONNECTIONS {
        let mut client = connect().await?;
        request(&mut client).await?;
        others.push(client);
    }
    Ok(others)
}

/// Opens further connections during the stall, and sends requests on these and on `others`.
pub(super) async fn serve_others<C>(
    mut others: Vec<C>,
    what: &str,
    connect: impl AsyncFn() -> Result<C, String>,
    request: impl AsyncFn(&mut C) -> Result<(), String>,
) -> Result<(), String> {
    for _ in 0..OTHER_CONNECTIONS {
        others.push(connect().await.map_err(|cause| format!("{what}: {cause}"))?);
    }
    for client in &mut others {
        for _ in 0..REQUESTS_PER_CONNECTION {
            request(client).await?;
        }
    }
    Ok(())
}

pub(super) async fn connect_within<T>(
    timeout: Duration,
    connecting: impl Future<Output = io::Result<T>>,
) -> Result<T, String> {
    match time::timeout(timeout, connecting).await {
        Ok(connected) => connected.map_err(|error| format!("cannot connect: {error}")),
        Err(_) => Err(format!("cannot connect: timed out after {timeout:?}")),
    }
}

pub(super) async fn with_timeout<T>(
    timeout: Duration,
    what: impl Display,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    match time::timeout(timeout, work).await {
        Ok(done) => done.map_err(|cause| format!("{what}: {cause}")),
        Err(_) => Err(format!("{what}: no complete reply within {timeout:?}")),
    }
}

/// Compares received bytes with the expected bytes starting at `offset`.
pub(super) fn check_chunk(expected: &[u8], offset: usize, chunk: &[u8]) -> Result<(), String> {
    let Some(part) = expected.get(offset..offset + chunk.len()) else {
        return Err(format!("body has more than {} bytes", expected.len()));
    };
    // Without optimization, comparing whole slices is much faster than comparing byte by byte.
    if part == chunk {
        return Ok(());
    }
    match part.iter().zip(chunk).position(|(expected, actual)| expected != actual) {
        None => Ok(()),
        Some(index) => Err(format!("byte {} of {} is wrong", offset + index, expected.len())),
    }
}

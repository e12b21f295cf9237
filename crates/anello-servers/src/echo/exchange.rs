//! Data exchange on one connection: an echo of all data, or responses of a fixed size to requests of a fixed size.
//!
//! The memory used per connection is bounded regardless of the peer's behavior. It consists of one received chunk, the
//! part of a request that the response needs, one chunk of a response, and the runtime's send queue. While these are
//! full, nothing is read (backpressure).

use std::future::Future;
use std::io;
use std::ops::Deref;
use std::time::Duration;

use anello::net::{ByteStream, Chunk, ReadHalf, SendBuf, ShutdownHandle, WriteHalf};
use anello::time::timeout;

use super::metrics::WorkerMetrics;

/// Sizes of requests and responses, both nonzero.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Size of a request.
    pub request_bytes: usize,
    /// Size of a response.
    pub response_bytes: usize,
}

/// Maximum size of a response chunk. A response is built and sent in chunks.
const CHUNK_BYTES: usize = 64 * 1024;

/// Why serving a connection ended without an error.
pub enum Served {
    /// The client has shut down its write direction. All received data has been answered, and sent.
    UntilEof,
    /// The connection should move to another worker. It is between two requests, and all responses have been sent.
    UntilMove,
}

/// Serves one connection until EOF, until `should_move`, which is called after each message, returns `true`, or until an
/// operation exceeds the `idle` timeout. If this is a send, a TCP connection is reset, because the client would take an EOF
/// for the end of the response. Otherwise, bytes already in the send queue are still sent.
pub async fn serve(
    stream: &mut impl ByteStream,
    sizes: Option<Sizes>,
    idle: Option<Duration>,
    metrics: Option<&WorkerMetrics>,
    should_move: impl Fn() -> bool,
) -> io::Result<Served> {
    let handle = stream.shutdown_handle();
    let operations = Operations { idle, metrics, handle: &handle };
    match sizes {
        None => echo(stream, operations, should_move).await,
        Some(sizes) => serve_sized(stream, sizes, operations, should_move).await,
    }
}

/// The operations on a connection, with the idle timeout, if any, and the counters of the worker, if the server has an
/// endpoint for them. The timeout also covers sends, so a peer that does not read counts as idle.
#[derive(Clone, Copy)]
struct Operations<'a> {
    idle: Option<Duration>,
    metrics: Option<&'a WorkerMetrics>,
    handle: &'a ShutdownHandle,
}

impl Operations<'_> {
    async fn with_timeout<T>(self, operation: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        match self.idle {
            None => operation.await,
            Some(idle) => {
                timeout(idle, operation).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }

    async fn recv<P: Deref<Target: ByteStream>>(self, reader: &mut ReadHalf<P>) -> io::Result<Option<Chunk>> {
        let received = self.with_timeout(reader.recv()).await?;
        if let (Some(metrics), Some(chunk)) = (self.metrics, &received) {
            metrics.received_bytes.add(chunk.len() as u64);
        }
        Ok(received)
    }

    async fn send<P: Deref<Target: ByteStream>>(
        self,
        writer: &mut WriteHalf<P>,
        data: impl Into<SendBuf> + Deref<Target = [u8]>,
    ) -> io::Result<()> {
        let sent_bytes = data.len() as u64;
        self.with_timeout(writer.send(data)).await.inspect_err(|_| self.handle.reset())?;
        if let Some(metrics) = self.metrics {
            metrics.sent_bytes.add(sent_bytes);
        }
        Ok(())
    }
}

async fn echo(
    stream: &mut impl ByteStream,
    operations: Operations<'_>,
    should_move: impl Fn() -> bool,
) -> io::Result<Served> {
    let (mut reader, mut writer) = stream.split();
    let mut served = Served::UntilEof;
    while let Some(chunk) = operations.recv(&mut reader).await? {
        operations.send(&mut writer, chunk).await?;
        if should_move() {
            served = Served::UntilMove;
            break;
        }
    }
    operations.with_timeout(writer.flush()).await?;
    Ok(served)
}

/// Responds to each complete request, in order of arrival. A request that is incomplete at EOF gets no response.
async fn serve_sized(
    stream: &mut impl ByteStream,
    sizes: Sizes,
    operations: Operations<'_>,
    should_move: impl Fn() -> bool,
) -> io::Result<Served> {
    let (mut reader, mut writer) = stream.split();
    let mut request = Request::default();
    let mut is_moving = false;
    let served = loop {
        if is_moving && request.received_bytes == 0 {
            break Served::UntilMove;
        }
        let Some(mut chunk) = operations.recv(&mut reader).await? else { break Served::UntilEof };
        is_moving = should_move();
        let is_single_request = request.received_bytes == 0 && chunk.len() == sizes.request_bytes;
        if is_single_request && sizes.response_bytes <= sizes.request_bytes {
            // Reuse the received buffer for the response.
            chunk.truncate(sizes.response_bytes);
            operations.send(&mut writer, chunk).await?;
            continue;
        }
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            if request.received_bytes == 0 && rest.len() >= sizes.request_bytes {
                let (complete, remaining) = rest.split_at(sizes.request_bytes);
                respond(&mut writer, complete, sizes.response_bytes, operations).await?;
                rest = remaining;
                continue;
            }
            rest = request.take(rest, sizes);
            if request.received_bytes == sizes.request_bytes {
                respond(&mut writer, &request.start, sizes.response_bytes, operations).await?;
                request = Request::default();
            }
        }
    };
    operations.with_timeout(writer.flush()).await?;
    Ok(served)
}

/// The received part of a request.
#[derive(Default)]
struct Request {
    received_bytes: usize,
    /// The leading bytes of the request that the response repeats.
    start: Vec<u8>,
}

impl Request {
    /// Consumes the bytes that belong to this request and returns the rest.
    fn take<'a>(&mut self, arrived: &'a [u8], sizes: Sizes) -> &'a [u8] {
        let (taken, rest) = arrived.split_at(arrived.len().min(sizes.request_bytes - self.received_bytes));
        let needed = sizes.request_bytes.min(sizes.response_bytes) - self.start.len();
        self.start.extend_from_slice(&taken[..taken.len().min(needed)]);
        self.received_bytes += taken.len();
        rest
    }
}

/// Sends the response: the request, repeated or truncated to `response_bytes`.
async fn respond<P: Deref<Target: ByteStream>>(
    writer: &mut WriteHalf<P>,
    request: &[u8],
    response_bytes: usize,
    operations: Operations<'_>,
) -> io::Result<()> {
    let mut sent_bytes = 0;
    while sent_bytes < response_bytes {
        let chunk = repeated(request, sent_bytes, (response_bytes - sent_bytes).min(CHUNK_BYTES));
        sent_bytes += chunk.len();
        operations.send(writer, chunk).await?;
    }
    Ok(())
}

/// Returns `length` bytes of the infinitely repeated `bytes`, starting at offset `from`.
fn repeated(bytes: &[u8], from: usize, length: usize) -> Vec<u8> {
    let mut chunk = Vec::with_capacity(length);
    let mut next = from % bytes.len();
    while chunk.len() < length {
        let end = bytes.len().min(next + length - chunk.len());
        chunk.extend_from_slice(&bytes[next..end]);
        next = 0;
    }
    chunk
}

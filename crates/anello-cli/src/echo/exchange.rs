//! What is done with a connection: everything is sent back, or each request of a fixed size is answered by a response
//! of a fixed size.
//!
//! Memory for a connection is bounded, whatever its peer does: one chunk in hand, what of a request its response needs,
//! one piece of a response, and the runtime's send queue. What is not read meanwhile holds the peer back.

use std::future::Future;
use std::io;
use std::ops::Deref;
use std::time::Duration;

use anello::net::{Stream, WriteHalf};
use anello::time::timeout;

/// Sizes of requests and their responses; neither is zero.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub request_bytes: usize,
    pub response_bytes: usize,
}

/// A response is made and handed over in pieces of at most so many bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// Serves one connection until the peer has ended its side, or nothing has moved for `idle`; what was accepted by then
/// is still sent when the stream is dropped.
pub async fn serve(stream: &mut impl Stream, sizes: Option<Sizes>, idle: Option<Duration>) -> io::Result<()> {
    match sizes {
        None => echo(stream, idle).await,
        Some(sizes) => serve_sized(stream, sizes, idle).await,
    }
}

/// Waits for so long, or for ever. A peer that does not take what it is owed is idle, too.
async fn with_timeout<T>(
    idle: Option<Duration>,
    operation: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    match idle {
        None => operation.await,
        Some(idle) => timeout(idle, operation).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
    }
}

async fn echo(stream: &mut impl Stream, idle: Option<Duration>) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    while let Some(chunk) = with_timeout(idle, reader.recv()).await? {
        with_timeout(idle, writer.send(chunk)).await?;
    }
    with_timeout(idle, writer.flush()).await
}

/// Answers each whole request. Requests that lie one behind the other are answered in order, and one that is not whole
/// when the peer ends is not answered.
async fn serve_sized(stream: &mut impl Stream, sizes: Sizes, idle: Option<Duration>) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let mut request = Request::default();
    while let Some(mut chunk) = with_timeout(idle, reader.recv()).await? {
        let whole = request.received_bytes == 0 && chunk.len() == sizes.request_bytes;
        if whole && sizes.response_bytes <= sizes.request_bytes {
            // Sent from where it lies.
            chunk.truncate(sizes.response_bytes);
            with_timeout(idle, writer.send(chunk)).await?;
            continue;
        }
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            if request.received_bytes == 0 && rest.len() >= sizes.request_bytes {
                let (whole, behind) = rest.split_at(sizes.request_bytes);
                respond(&mut writer, whole, sizes.response_bytes, idle).await?;
                rest = behind;
                continue;
            }
            rest = request.take(rest, sizes);
            if request.received_bytes == sizes.request_bytes {
                respond(&mut writer, &request.start, sizes.response_bytes, idle).await?;
                request = Request::default();
            }
        }
    }
    with_timeout(idle, writer.flush()).await
}

/// As much of a request as has arrived.
#[derive(Default)]
struct Request {
    received_bytes: usize,
    /// What the response needs of it.
    start: Vec<u8>,
}

impl Request {
    /// Takes what belongs to this request, and returns the rest.
    fn take<'a>(&mut self, arrived: &'a [u8], sizes: Sizes) -> &'a [u8] {
        let (taken, rest) = arrived.split_at(arrived.len().min(sizes.request_bytes - self.received_bytes));
        let needed = sizes.request_bytes.min(sizes.response_bytes) - self.start.len();
        self.start.extend_from_slice(&taken[..taken.len().min(needed)]);
        self.received_bytes += taken.len();
        rest
    }
}

/// Sends the request over and over, cut to the size of the response: its byte `i` is byte `i` modulo the request's size
/// of the request.
async fn respond<P: Deref<Target: Stream>>(
    writer: &mut WriteHalf<P>,
    request: &[u8],
    response_bytes: usize,
    idle: Option<Duration>,
) -> io::Result<()> {
    let mut sent_bytes = 0;
    while sent_bytes < response_bytes {
        let piece = repeated(request, sent_bytes, (response_bytes - sent_bytes).min(CHUNK_BYTES));
        sent_bytes += piece.len();
        with_timeout(idle, writer.send(piece)).await?;
    }
    Ok(())
}

/// So many bytes of a text without end that repeats these, from that place on.
fn repeated(bytes: &[u8], from: usize, length: usize) -> Vec<u8> {
    let mut piece = Vec::with_capacity(length);
    let mut next = from % bytes.len();
    while piece.len() < length {
        let end = bytes.len().min(next + length - piece.len());
        piece.extend_from_slice(&bytes[next..end]);
        next = 0;
    }
    piece
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_response_fit_together() {
        let request = b"abcdefg";
        for length in [1, 6, 7, 8, 20] {
            for from in 0..30 {
                let expected: Vec<u8> = (from..from + length).map(|byte| request[byte % 7]).collect();
                assert_eq!(repeated(request, from, length), expected, "{length} from {from}");
            }
        }
    }

    #[test]
    fn requests_are_cut_where_they_end() {
        let sizes = Sizes { request_bytes: 10, response_bytes: 4 };
        let mut request = Request::default();
        assert_eq!(request.take(b"012", sizes), b"");
        assert_eq!(request.take(b"3456789ab", sizes), b"ab");
        assert_eq!((request.received_bytes, &request.start[..]), (10, &b"0123"[..]));
    }
}

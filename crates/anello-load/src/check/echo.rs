//! Correctness checks for echo servers.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use anello::net::{ReadHalf, TcpStream, WriteHalf};
use anello::time::{self, sleep};

use crate::check::common::{
    OTHER_CONNECTIONS, REQUESTS_PER_CONNECTION, STALL_SAMPLE_INTERVAL, STALL_SAMPLES, STALLED_BUFFER_BYTES,
    exchange_once_on_each, with_timeout,
};
use crate::model::config::LoadConfig;

/// Message sizes: small values, values close to common buffer sizes of servers, and 1 MiB.
const MESSAGE_BYTES: [usize; 14] =
    [1, 2, 3, 127, 1021, 4095, 4097, 8191, 16_383, 16_385, 65_537, 262_147, 1_048_575, 1_048_576];

/// Bytes that are sent while the client does not read the replies. They exceed the buffers of both sockets: by default,
/// the kernel lets those of the server grow to 6 MiB (receive) and 4 MiB (send).
const STALLED_BYTES: usize = 16 << 20;

/// Maximum number of bytes per send or receive call.
const CHUNK_BYTES: usize = 60_001;

/// Checks that messages of unusual sizes up to 1 MiB are echoed completely and correctly over one connection. `timeout`
/// applies to each message.
///
/// # Errors
/// Returns a description of what the server did instead.
pub async fn complete_bytes(target: SocketAddr, timeout: Duration) -> Result<Vec<String>, String> {
    let mut stream = connect(target, timeout).await?;
    for (index, bytes) in MESSAGE_BYTES.into_iter().enumerate() {
        let echoed = exchange(&mut stream, index as u64, bytes);
        with_timeout(timeout, &format!("message of {bytes} bytes"), echoed).await?;
    }
    let total: usize = MESSAGE_BYTES.iter().sum();
    Ok(vec![format!(
        "{} messages of 1 byte to 1 MiB echoed correctly, {total} bytes in total",
        MESSAGE_BYTES.len()
    )])
}

/// Checks that the server handles a client that does not read.
///
/// The client sends 16 MiB and reads nothing until the server accepts no more bytes. Other connections, some opened
/// before and some after that, must then be served. Only after that does the client read, and all its bytes must be
/// correct. This detects servers that wait for one client while others have requests, whatever the size of their
/// buffers. `timeout` applies to each of these steps.
///
/// # Errors
/// Returns a description of what the server did instead.
pub async fn stalled_reader(target: SocketAddr, timeout: Duration) -> Result<Vec<String>, String> {
    const CONCURRENT_REQUEST: &str = "message of another client during the stall";
    let mut established = Vec::new();
    for seed in 0..OTHER_CONNECTIONS {
        let mut stream = connect(target, timeout).await?;
        with_timeout(timeout, "first message", exchange(&mut stream, seed as u64, 512)).await?;
        established.push(stream);
    }
    let mut stalled = connect(target, timeout).await?;
    let result = stalled.set_recv_buffer_size(STALLED_BUFFER_BYTES);
    result.and_then(|()| stalled.set_send_buffer_size(STALLED_BUFFER_BYTES)).map_err(|e| e.to_string())?;
    let (mut reader, mut writer) = stalled.split();
    let accepted_bytes = Cell::new(0);
    let serve_others = async {
        // If the server keeps accepting small amounts, continue with the other connections after the timeout.
        time::timeout(timeout, wait_until_stalled(&accepted_bytes)).await.ok();
        let accepted_bytes = accepted_bytes.get();
        for _ in 0..OTHER_CONNECTIONS {
            established.push(
                connect(target, timeout).await.map_err(|cause| format!("{CONCURRENT_REQUEST}: {cause}"))?,
            );
        }
        for (other, stream) in established.iter_mut().enumerate() {
            for request in 0..REQUESTS_PER_CONNECTION {
                let seed = (other * REQUESTS_PER_CONNECTION + request) as u64;
                with_timeout(timeout, CONCURRENT_REQUEST, exchange(stream, seed, 512)).await?;
            }
        }
        let received = receive(&mut reader, 99, STALLED_BYTES);
        with_timeout(timeout, "data of the stalled reader", received).await?;
        Ok(accepted_bytes)
    };
    let accepted_bytes =
        try_join(serve_others, send(&mut writer, 99, STALLED_BYTES, &accepted_bytes)).await?;
    Ok(vec![format!(
        "{accepted_bytes} of {STALLED_BYTES} bytes accepted while the client did not read; {} other connections served \
         meanwhile; all bytes correct",
        2 * OTHER_CONNECTIONS
    )])
}

/// Waits until the number of accepted bytes no longer changes, or all bytes have been accepted.
async fn wait_until_stalled(accepted_bytes: &Cell<usize>) {
    let mut unchanged_samples = 0;
    while unchanged_samples < STALL_SAMPLES && accepted_bytes.get() < STALLED_BYTES {
        let previous_bytes = accepted_bytes.get();
        sleep(STALL_SAMPLE_INTERVAL).await;
        unchanged_samples = if accepted_bytes.get() == previous_bytes { unchanged_samples + 1 } else { 0 };
    }
}

/// Checks that a number of concurrent connections each receive the correct reply to one message. `timeout` applies to
/// opening the connections, and to each reply.
///
/// # Errors
/// Returns the number of failures and their causes.
pub async fn many_connections(
    target: SocketAddr,
    connections: usize,
    timeout: Duration,
) -> Result<Vec<String>, String> {
    let load = LoadConfig {
        connections,
        verify: true,
        connect_timeout: timeout,
        stall_timeout: timeout,
        ..LoadConfig::echo(target, 64)
    };
    exchange_once_on_each(&load).await?;
    Ok(vec![format!("{connections} concurrent connections, each with one message echoed correctly")])
}

async fn connect(target: SocketAddr, timeout: Duration) -> Result<TcpStream, String> {
    match time::timeout(timeout, TcpStream::connect(target)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!("cannot connect: {error}")),
        Err(_) => Err(format!("cannot connect: timed out after {timeout:?}")),
    }
}

/// Sends `bytes` bytes and receives them at the same time.
async fn exchange(stream: &mut TcpStream, seed: u64, bytes: usize) -> Result<(), String> {
    let (mut reader, mut writer) = stream.split();
    try_join(receive(&mut reader, seed, bytes), send(&mut writer, seed, bytes, &Cell::new(0))).await
}

/// Sends `bytes` bytes. `accepted_bytes` counts the bytes that the socket has accepted so far.
async fn send(
    writer: &mut WriteHalf<&TcpStream>,
    seed: u64,
    bytes: usize,
    accepted_bytes: &Cell<usize>,
) -> Result<(), String> {
    let mut pattern = PatternGenerator::new(seed);
    let mut chunk = vec![0; CHUNK_BYTES.min(bytes)];
    while accepted_bytes.get() < bytes {
        let length = chunk.len().min(bytes - accepted_bytes.get());
        pattern.fill(&mut chunk[..length]);
        let written = writer.write_all(&chunk[..length]).await;
        written.map_err(|error| format!("{} of {bytes} bytes sent, then: {error}", accepted_bytes.get()))?;
        accepted_bytes.set(accepted_bytes.get() + length);
    }
    writer.flush().await.map_err(|error| error.to_string())
}

async fn receive(reader: &mut ReadHalf<&TcpStream>, seed: u64, bytes: usize) -> Result<(), String> {
    let mut pattern = PatternGenerator::new(seed);
    let (mut actual, mut expected) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut received = 0;
    while received < bytes {
        let max_len = actual.len().min(bytes - received);
        let length = match reader.read(&mut actual[..max_len]).await {
            Ok(0) => return Err(format!("{received} of {bytes} bytes received, then EOF")),
            Ok(length) => length,
            Err(error) => return Err(format!("{received} of {bytes} bytes received, then: {error}")),
        };
        pattern.fill(&mut expected[..length]);
        if let Some(offset) = (0..length).find(|&index| actual[index] != expected[index]) {
            return Err(format!("byte {} of {bytes} is wrong", received + offset));
        }
        received += length;
    }
    Ok(())
}

/// Polls two futures in the current task and returns the output of the first. Returns early if either fails, because
/// the other may be waiting for it.
async fn try_join<T>(
    first: impl Future<Output = Result<T, String>>,
    second: impl Future<Output = Result<(), String>>,
) -> Result<T, String> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut first_done, mut second_done) = (None, false);
    poll_fn(move |context| {
        if first_done.is_none()
            && let Poll::Ready(done) = first.as_mut().poll(context)
        {
            match done {
                Ok(value) => first_done = Some(value),
                Err(cause) => return Poll::Ready(Err(cause)),
            }
        }
        if !second_done && let Poll::Ready(done) = second.as_mut().poll(context) {
            match done {
                Ok(()) => second_done = true,
                Err(cause) => return Poll::Ready(Err(cause)),
            }
        }
        match first_done.take() {
            Some(value) if second_done => Poll::Ready(Ok(value)),
            output => {
                first_done = output;
                Poll::Pending
            }
        }
    })
    .await
}

/// Generator of pseudo-random bytes without repetition, so that lost, duplicated and shifted bytes are detected.
struct PatternGenerator {
    state: u64,
    /// Number of bytes of the current word that have been used.
    used: usize,
}

impl PatternGenerator {
    fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, used: 8 }
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            if self.used == 8 {
                // xorshift64: the state is never 0.
                self.state ^= self.state << 13;
                self.state ^= self.state >> 7;
                self.state ^= self.state << 17;
                self.used = 0;
            }
            *byte = self.state.to_le_bytes()[self.used];
            self.used += 1;
        }
    }
}

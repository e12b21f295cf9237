//! What an echo server must do whatever its speed, tried once; what an HTTP server must is in [`http`].
//!
//! Three trials, each the lesson of servers that are fast until somebody looks: bytes that are lost, doubled or shifted
//! when a message is larger than a buffer ([`complete_bytes`]); bytes lost, a server stuck or spinning when a reader
//! stalls, or others left waiting for it ([`stalled_reader`]); connections refused or mixed up when there are thousands
//! ([`many_connections`]).
//!
//! Each returns what was tried, or what the server did instead, and ends in bounded time whatever that is. All run on
//! the runtime of the calling thread; dropping one closes its connections.

pub mod http;

use std::cell::Cell;
use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use anello::net::{ReadHalf, TcpStream, WriteHalf};
use anello::time::{self, sleep};

use crate::config::LoadConfig;
use crate::session::Session;

/// Sizes of messages: around what servers use as buffers, and up to 1 MiB, none of them a round number but the last.
const MESSAGE_BYTES: [usize; 14] =
    [1, 2, 3, 127, 1021, 4095, 4097, 8191, 16_383, 16_385, 65_537, 262_147, 1_048_575, 1_048_576];

/// Sent to a server while nobody reads what it returns: more than the buffers of both sockets hold, of which the kernel
/// lets the server's grow to 6 and 4 MiB.
const STALLED_BYTES: usize = 16 << 20;

/// Buffers of the stalled connection on this side, so that little hides in them. Not less, since a window below the
/// size of a loopback packet would slow everything down.
const STALLED_BUFFER_BYTES: usize = 256 << 10;

/// The stalled client counts as stuck when the server has taken nothing more in so many looks, each after such a time.
const STALL_SAMPLES: usize = 4;
const STALL_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Connections beside the stalled one, so many from before and so many new ones, and what each asks for.
const OTHER_CONNECTIONS: usize = 3;
const REQUESTS_PER_CONNECTION: usize = 10;

/// Most bytes that are sent or asked for at a time.
const CHUNK_BYTES: usize = 60_001;

/// Messages of odd sizes up to 1 MiB come back whole and right, one after the other over one connection. `timeout` is
/// for each message.
///
/// # Errors
/// What came back instead.
pub async fn complete_bytes(target: SocketAddr, timeout: Duration) -> Result<Vec<String>, String> {
    let mut stream = connect(target, timeout).await?;
    for (index, bytes) in MESSAGE_BYTES.into_iter().enumerate() {
        let exchanged = exchange(&mut stream, index as u64, bytes);
        with_timeout(timeout, &format!("a message of {bytes} bytes"), exchanged).await?;
    }
    let total: usize = MESSAGE_BYTES.iter().sum();
    Ok(vec![format!(
        "{} messages of 1 byte to 1 MiB came back right, {total} bytes in all",
        MESSAGE_BYTES.len()
    )])
}

/// A client sends 16 MiB and reads nothing until the server takes no more; then others are served, on connections from
/// before and on new ones; only when they are done the client reads, and all comes back right. So a server that waits
/// for one client alone is found, whatever its buffers. `timeout` is for each of these.
///
/// # Errors
/// What the server did instead.
pub async fn stalled_reader(target: SocketAddr, timeout: Duration) -> Result<Vec<String>, String> {
    const CONCURRENT_REQUEST: &str = "a message beside a stalled reader";
    let mut established = Vec::new();
    for seed in 0..OTHER_CONNECTIONS {
        let mut stream = connect(target, timeout).await?;
        with_timeout(timeout, "a first message", exchange(&mut stream, seed as u64, 512)).await?;
        established.push(stream);
    }
    let mut stalled = connect(target, timeout).await?;
    let small = stalled.set_recv_buffer_size(STALLED_BUFFER_BYTES);
    small.and_then(|()| stalled.set_send_buffer_size(STALLED_BUFFER_BYTES)).map_err(|e| e.to_string())?;
    let (mut reader, mut writer) = stalled.split();
    let accepted_bytes = Cell::new(0);
    let rest = async {
        // A server that goes on and on taking a little has its others asked all the same.
        time::timeout(timeout, wait_until_stalled(&accepted_bytes)).await.ok();
        let accepted_bytes = accepted_bytes.get();
        for _ in 0..OTHER_CONNECTIONS {
            established
                .push(connect(target, timeout).await.map_err(|why| format!("{CONCURRENT_REQUEST}: {why}"))?);
        }
        for (other, stream) in established.iter_mut().enumerate() {
            for request in 0..REQUESTS_PER_CONNECTION {
                let seed = (other * REQUESTS_PER_CONNECTION + request) as u64;
                with_timeout(timeout, CONCURRENT_REQUEST, exchange(stream, seed, 512)).await?;
            }
        }
        let received = receive(&mut reader, 99, STALLED_BYTES);
        with_timeout(timeout, "what a stalled reader is owed", received).await?;
        Ok(accepted_bytes)
    };
    let accepted_bytes = try_join(rest, send(&mut writer, 99, STALLED_BYTES, &accepted_bytes)).await?;
    let stall = match accepted_bytes {
        STALLED_BYTES => "were all taken while nobody read them".to_owned(),
        accepted_bytes => format!("were taken up to {accepted_bytes} while nobody read them"),
    };
    Ok(vec![format!(
        "{STALLED_BYTES} bytes {stall}, {} other connections were served meanwhile, and then all came back right",
        2 * OTHER_CONNECTIONS
    )])
}

/// Returns when the count of bytes stands still, or all are gone.
async fn wait_until_stalled(accepted_bytes: &Cell<usize>) {
    let mut unchanged_samples = 0;
    while unchanged_samples < STALL_SAMPLES && accepted_bytes.get() < STALLED_BYTES {
        let before = accepted_bytes.get();
        sleep(STALL_SAMPLE_INTERVAL).await;
        unchanged_samples = if accepted_bytes.get() == before { unchanged_samples + 1 } else { 0 };
    }
}

/// So many connections at once, each with one message that comes back right. `timeout` is for opening them, and for
/// each reply.
///
/// # Errors
/// How many failed, and how.
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
    Ok(vec![format!("{connections} connections at once, each with a message that came back right")])
}

/// Opens the connections of a load, and has each make one request.
async fn exchange_once_on_each(load: &LoadConfig) -> Result<(), String> {
    let connections = load.connections;
    let mut session = Session::connect(load).await.map_err(|error| error.to_string())?;
    let summarize_errors = |errors: &crate::Errors| {
        let summaries =
            errors.iter().map(|error| format!("{} × {}: {}", error.count, error.kind, error.example));
        summaries.collect::<Vec<_>>().join("; ")
    };
    let refused = summarize_errors(session.connect_errors());
    if !refused.is_empty() {
        session.close().await;
        return Err(format!("of {connections} connections not all could be opened: {refused}"));
    }
    let slice = session.run_slice(Duration::ZERO).await;
    session.close().await;
    let failed = summarize_errors(&slice.errors);
    if !failed.is_empty() || slice.requests < connections as u64 {
        return Err(format!("{} of {connections} connections had their reply: {failed}", slice.requests));
    }
    Ok(())
}

async fn connect(target: SocketAddr, timeout: Duration) -> Result<TcpStream, String> {
    match time::timeout(timeout, TcpStream::connect(target)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!("could not be connected to: {error}")),
        Err(_) => Err(format!("could not be connected to within {timeout:?}")),
    }
}

async fn with_timeout<T>(
    timeout: Duration,
    what: impl Display,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    match time::timeout(timeout, work).await {
        Ok(done) => done.map_err(|why| format!("{what}: {why}")),
        Err(_) => Err(format!("{what} did not come back whole within {timeout:?}")),
    }
}

/// Sends `bytes` bytes and reads them back meanwhile.
async fn exchange(stream: &mut TcpStream, seed: u64, bytes: usize) -> Result<(), String> {
    let (mut reader, mut writer) = stream.split();
    try_join(receive(&mut reader, seed, bytes), send(&mut writer, seed, bytes, &Cell::new(0))).await
}

/// Sends `bytes` bytes; `accepted_bytes` tells how many the socket has taken so far.
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
        written.map_err(|error| {
            format!("{} of {bytes} bytes were accepted, then: {error}", accepted_bytes.get())
        })?;
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
            Ok(0) => return Err(format!("{received} of {bytes} bytes came back, then the end")),
            Ok(length) => length,
            Err(error) => return Err(format!("{received} of {bytes} bytes came back, then: {error}")),
        };
        pattern.fill(&mut expected[..length]);
        if let Some(wrong) = (0..length).find(|&index| actual[index] != expected[index]) {
            return Err(format!("byte {} of {bytes} came back wrong", received + wrong));
        }
        received += length;
    }
    Ok(())
}

/// Waits for two futures, in turn on this task, and returns what the first did; no longer when one has failed, since
/// that may be why the other waits.
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
                Err(why) => return Poll::Ready(Err(why)),
            }
        }
        if !second_done && let Poll::Ready(done) = second.as_mut().poll(context) {
            match done {
                Ok(()) => second_done = true,
                Err(why) => return Poll::Ready(Err(why)),
            }
        }
        match first_done.take() {
            Some(value) if second_done => Poll::Ready(Ok(value)),
            not_yet => {
                first_done = not_yet;
                Poll::Pending
            }
        }
    })
    .await
}

/// Bytes that follow from a seed and never repeat within reach: what is lost, doubled or shifted shows.
struct PatternGenerator {
    state: u64,
    /// Bytes of the current word that have been used.
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::thread;

    use super::*;

    /// A test that waits so long hangs.
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A server of blocking threads that does this with every piece of bytes it reads: none ends the connection.
    fn server(respond: fn(&mut usize, &[u8]) -> Option<Vec<u8>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                thread::spawn(move || {
                    let (mut total, mut buffer) = (0, [0; 16_384]);
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        total += count;
                        let Some(reply) = respond(&mut total, &buffer[..count]) else { return };
                        if stream.write_all(&reply).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        anello::Runtime::new().unwrap().block_on(future)
    }

    #[test]
    fn a_server_in_order_passes_all() {
        let target = server(|_, bytes| Some(bytes.to_vec()));
        run(async {
            assert!(complete_bytes(target, TIMEOUT).await.unwrap()[0].contains("1 MiB came back right"));
            assert!(stalled_reader(target, TIMEOUT).await.unwrap()[0].contains("6 other connections"));
            assert!(many_connections(target, 40, TIMEOUT).await.unwrap()[0].starts_with("40 connections"));
        });
    }

    #[test]
    fn bytes_that_are_changed_lost_or_doubled_are_found() {
        let changes = server(|total, bytes| {
            let mut reply = bytes.to_vec();
            if *total > 100_000 {
                reply[0] ^= 1;
            }
            Some(reply)
        });
        let doubles = server(|total, bytes| {
            Some(if *total > 100_000 { [bytes, bytes].concat() } else { bytes.to_vec() })
        });
        let ends = server(|total, bytes| (*total < 100_000).then(|| bytes.to_vec()));
        run(async {
            for (target, expected) in [(changes, "came back wrong"), (doubles, "came back wrong")] {
                let error = complete_bytes(target, TIMEOUT).await.unwrap_err();
                assert!(error.contains(expected), "{error}");
                let error = stalled_reader(target, TIMEOUT).await.unwrap_err();
                assert!(error.starts_with("what a stalled reader is owed: byte "), "{error}");
            }
            let error = complete_bytes(ends, TIMEOUT).await.unwrap_err();
            assert!(error.contains("of 262147 bytes") || error.contains("of 65537 bytes"), "{error}");
        });
    }

    /// One thread for all connections, which waits until each reply is sent whole.
    fn blocking_server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        thread::spawn(move || {
            let (mut streams, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
            loop {
                streams.extend(listener.accept().map(|(stream, _)| stream));
                streams.retain_mut(|stream| {
                    stream.set_nonblocking(true).unwrap();
                    let read = stream.read(&mut buffer);
                    stream.set_nonblocking(false).unwrap();
                    match read {
                        Ok(count) => count > 0 && stream.write_all(&buffer[..count]).is_ok(),
                        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                    }
                });
                thread::sleep(Duration::from_micros(100));
            }
        });
        address
    }

    #[test]
    fn a_server_that_waits_for_one_client_alone_is_found() {
        let target = blocking_server();
        run(async {
            complete_bytes(target, TIMEOUT).await.unwrap();
            let error = stalled_reader(target, Duration::from_secs(2)).await.unwrap_err();
            let expected = "a message beside a stalled reader did not come back whole within 2s";
            assert_eq!(error, expected);
        });
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up() {
        let silent = server(|total, bytes| Some(if *total > 5 { Vec::new() } else { bytes.to_vec() }));
        let timeout = Duration::from_millis(50);
        run(async {
            let error = complete_bytes(silent, timeout).await.unwrap_err();
            assert_eq!(error, "a message of 3 bytes did not come back whole within 50ms");
            let error = many_connections(silent, 3, timeout).await.unwrap_err();
            assert!(error.starts_with("0 of 3 connections had their reply"), "{error}");
            let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            assert!(complete_bytes(nobody, timeout).await.unwrap_err().contains("could not be connected to"));
            assert!(
                many_connections(nobody, 3, timeout).await.unwrap_err().contains("not all could be opened")
            );
        });
    }
}

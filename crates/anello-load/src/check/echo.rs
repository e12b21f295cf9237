//! Correctness checks for echo servers.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use anello::net::{ReadHalf, TcpStream, WriteHalf};
use anello::time::{self, sleep};
use futures_util::future::try_join;

use crate::check::common::{
    OTHER_CONNECTIONS, STALLED_BUFFER_BYTES, check_chunk, connect_others, connect_within,
    exchange_once_on_each, serve_others, with_timeout,
};
use crate::model::config::LoadConfig;
use crate::wire::message::random_bytes;

/// Message sizes: small values, values close to common server buffer sizes, and 1 MiB.
const MESSAGE_BYTES: [usize; 14] =
    [1, 2, 3, 127, 1021, 4095, 4097, 8191, 16_383, 16_385, 65_537, 262_147, 1_048_575, 1_048_576];

/// Number of bytes sent while the client does not read the replies. This is more than the buffers of both sockets can
/// hold: by default, the kernel lets the buffers of the server socket grow to 6 MiB (receive) and 4 MiB (send).
const STALLED_BYTES: usize = 16 << 20;

/// Number of consecutive samples without progress after which the stalled client counts as blocked, and the time
/// between two samples.
const STALL_SAMPLES: usize = 4;
const STALL_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of bytes per send or receive call.
const CHUNK_BYTES: usize = 60_001;

/// Checks that messages of unusual sizes up to 1 MiB are echoed completely and correctly over one connection. `timeout`
/// applies to each message.
pub async fn complete_bytes(target: SocketAddr, timeout: Duration) -> Result<Vec<String>, String> {
    let mut stream = connect_within(timeout, TcpStream::connect(target)).await?;
    for (index, bytes) in MESSAGE_BYTES.into_iter().enumerate() {
        let echoed = exchange(&mut stream, index as u64, bytes);
        with_timeout(timeout, format!("message of {bytes} bytes"), echoed).await?;
    }
    let total: usize = MESSAGE_BYTES.iter().sum();
    Ok(vec![format!(
        "{} messages of 1 byte to 1 MiB echoed correctly, {total} bytes in total",
        MESSAGE_BYTES.len()
    )])
}

/// Checks that the server handles a client that does not read.
///
/// The client sends 16 MiB and does not read until the server accepts no more bytes, whatever the size of its buffers.
/// Other connections, some opened before this point and some after it, must then be served. The client starts to read
/// only after that, and all bytes that it receives must be correct. `timeout` applies to each of these steps.
pub async fn stalled_reader(target: SocketAddr, timeout: Duration) -> Result<Vec<String>, String> {
    const CONCURRENT_REQUEST: &str = "message from another client during the stall";
    let connect = async || connect_within(timeout, TcpStream::connect(target)).await;
    let next_seed = Cell::new(0);
    let request = async |what: &str, stream: &mut TcpStream| {
        let seed = next_seed.replace(next_seed.get() + 1);
        with_timeout(timeout, what, exchange(stream, seed, 512)).await
    };
    let established = connect_others(connect, async |stream| request("first message", stream).await).await?;
    let mut stalled = connect().await?;
    let result = stalled.set_recv_buffer_size(STALLED_BUFFER_BYTES);
    result.and_then(|()| stalled.set_send_buffer_size(STALLED_BUFFER_BYTES)).map_err(|e| e.to_string())?;
    let data = random_bytes(99, STALLED_BYTES);
    let (mut reader, mut writer) = stalled.split();
    let accepted_bytes = Cell::new(0);
    let serve_others = async {
        // If the server keeps accepting small amounts of data, continue with the other connections after the timeout.
        time::timeout(timeout, wait_until_stalled(&accepted_bytes)).await.ok();
        let accepted_bytes = accepted_bytes.get();
        let request = async |stream: &mut TcpStream| request(CONCURRENT_REQUEST, stream).await;
        serve_others(established, CONCURRENT_REQUEST, connect, request).await?;
        with_timeout(timeout, "data for the stalled reader", receive(&mut reader, &data)).await?;
        Ok(accepted_bytes)
    };
    let (accepted_bytes, ()) = try_join(serve_others, send(&mut writer, &data, &accepted_bytes)).await?;
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

/// Opens concurrent connections and checks that each receives the correct reply to one message. `timeout` applies to
/// opening each batch of at most 100 connections and to each reply.
pub async fn many_connections(
    target: SocketAddr,
    connections: usize,
    timeout: Duration,
) -> Result<Vec<String>, String> {
    exchange_once_on_each(LoadConfig::echo(target, 64), connections, timeout).await?;
    Ok(vec![format!("{connections} concurrent connections, each with one message echoed correctly")])
}

async fn exchange(stream: &mut TcpStream, seed: u64, bytes: usize) -> Result<(), String> {
    let data = random_bytes(seed, bytes);
    let (mut reader, mut writer) = stream.split();
    try_join(receive(&mut reader, &data), send(&mut writer, &data, &Cell::new(0))).await?;
    Ok(())
}

/// Sends `data`. `accepted_bytes` counts the bytes that the socket has accepted so far.
async fn send(
    writer: &mut WriteHalf<&TcpStream>,
    data: &[u8],
    accepted_bytes: &Cell<usize>,
) -> Result<(), String> {
    for chunk in data.chunks(CHUNK_BYTES) {
        let accepted = accepted_bytes.get();
        let written = writer.write_all(chunk).await;
        written.map_err(|error| format!("{accepted} of {} bytes sent, then: {error}", data.len()))?;
        accepted_bytes.set(accepted + chunk.len());
    }
    writer.flush().await.map_err(|error| error.to_string())
}

async fn receive(reader: &mut ReadHalf<&TcpStream>, expected: &[u8]) -> Result<(), String> {
    let (mut buffer, mut received) = (vec![0; CHUNK_BYTES], 0);
    while received < expected.len() {
        let max_len = CHUNK_BYTES.min(expected.len() - received);
        let failed = |cause: &str| format!("{received} of {} bytes received, then{cause}", expected.len());
        match reader.read(&mut buffer[..max_len]).await {
            Ok(0) => return Err(failed(" EOF")),
            Ok(length) => {
                check_chunk(expected, received, &buffer[..length])?;
                received += length;
            }
            Err(error) => return Err(failed(&format!(": {error}"))),
        }
    }
    Ok(())
}

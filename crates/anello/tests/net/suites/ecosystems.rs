//! Streams used through the futures, tokio and hyper traits: in-order delivery, backpressure and EOF.
//!
//! Shared by all stream families and all ecosystems. Each test program defines its family as `super::family`. The peer
//! uses anello's own methods.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;

use crate::common::echo;
use anello::current_driver_metrics;
use anello::{spawn, yield_now};
use futures_util::io as futures_io;
use hyper::rt::{Read as _, Write as _};
use tokio::io as tokio_io;

use super::family::{Stream, on_every_setup, pair};
use crate::common::{
    LARGE, Rng, TURNS, assert_same_bytes, exchange, join, on_both_drivers, pattern, poll_at_most,
};

/// Stream used through one ecosystem's traits.
trait Ecosystem: Sized + 'static {
    fn of(stream: Stream) -> Self;
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    async fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
    async fn flush(&mut self) -> io::Result<()>;
    async fn close(&mut self) -> io::Result<()>;
}

struct Futures(Stream);

impl Ecosystem for Futures {
    fn of(stream: Stream) -> Self {
        Self(stream)
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        futures_io::AsyncReadExt::read(&mut self.0, buffer).await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        futures_io::AsyncWriteExt::write(&mut self.0, bytes).await
    }

    async fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        futures_io::AsyncWriteExt::write_vectored(&mut self.0, slices).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        futures_io::AsyncWriteExt::flush(&mut self.0).await
    }

    async fn close(&mut self) -> io::Result<()> {
        futures_io::AsyncWriteExt::close(&mut self.0).await
    }
}

/// Every second read uses uninitialised memory.
struct Tokio(Stream, bool);

impl Ecosystem for Tokio {
    fn of(stream: Stream) -> Self {
        Self(stream, false)
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return tokio_io::AsyncReadExt::read(&mut self.0, buffer).await;
        }
        let mut fresh = Vec::with_capacity(buffer.len());
        // The vector may have allocated more capacity, which must not be read into.
        let mut limited = bytes::BufMut::limit(&mut fresh, buffer.len());
        let count = tokio_io::AsyncReadExt::read_buf(&mut self.0, &mut limited).await?;
        buffer[..count].copy_from_slice(&fresh);
        Ok(count)
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        tokio_io::AsyncWriteExt::write(&mut self.0, bytes).await
    }

    async fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        assert!(tokio_io::AsyncWrite::is_write_vectored(&self.0));
        tokio_io::AsyncWriteExt::write_vectored(&mut self.0, slices).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        tokio_io::AsyncWriteExt::flush(&mut self.0).await
    }

    async fn close(&mut self) -> io::Result<()> {
        tokio_io::AsyncWriteExt::shutdown(&mut self.0).await
    }
}

struct Hyper(Stream);

impl Ecosystem for Hyper {
    fn of(stream: Stream) -> Self {
        Self(stream)
    }

    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| {
            let mut buffer = hyper::rt::ReadBuf::new(buffer);
            Pin::new(&mut self.0).poll_read(context, buffer.unfilled()).map_ok(|()| buffer.filled().len())
        })
        .await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| Pin::new(&mut self.0).poll_write(context, bytes)).await
    }

    async fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        assert!(self.0.is_write_vectored());
        poll_fn(|context| Pin::new(&mut self.0).poll_write_vectored(context, slices)).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| Pin::new(&mut self.0).poll_flush(context)).await
    }

    async fn close(&mut self) -> io::Result<()> {
        poll_fn(|context| Pin::new(&mut self.0).poll_shutdown(context)).await
    }
}

/// Runs a test for each ecosystem. The test is a function that is generic over the ecosystem, so it cannot be a
/// closure.
macro_rules! in_every_ecosystem {
    ($setup:expr, $test:ident $(, $argument:expr)*) => {{
        $setup.run($test::<Futures>($($argument),*));
        $setup.run($test::<Tokio>($($argument),*));
        $setup.run($test::<Hyper>($($argument),*));
    }};
}

/// Writes all bytes with randomly chosen calls and sizes.
async fn write_all(adapter: &mut impl Ecosystem, mut bytes: &[u8], random: &mut Rng) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = match random.usize(..3) {
            0 => adapter.write(&bytes[..1 + random.usize(..bytes.len())]).await?,
            1 => {
                let (one, other) = bytes.split_at(random.usize(..bytes.len()));
                adapter.write_vectored(&[IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(other)]).await?
            }
            _ => adapter.write(bytes).await?,
        };
        assert_ne!(count, 0, "a write that cannot accept bytes must be pending");
        bytes = &bytes[count..];
        if random.usize(..4) == 0 {
            adapter.flush().await?;
        }
    }
    Ok(())
}

/// Echoes until EOF and then closes the stream. Returns the number of bytes echoed.
async fn echo_of<W: Ecosystem>(stream: Stream, seed: u64) -> io::Result<usize> {
    let (mut adapter, mut random, mut echoed) = (W::of(stream), Rng::with_seed(seed), 0);
    let mut buffer = vec![0; 40_000];
    loop {
        let room = 1 + random.usize(..buffer.len());
        match adapter.read(&mut buffer[..room]).await? {
            0 => break,
            count => {
                write_all(&mut adapter, &buffer[..count], &mut random).await?;
                echoed += count;
            }
        }
    }
    adapter.close().await?;
    Ok(echoed)
}

#[test]
fn echo_closes_after_peer_shutdown_in_every_ecosystem() {
    on_every_setup(|setup| in_every_ecosystem!(setup, echo_sizes));
}

async fn echo_sizes<W: Ecosystem>() {
    for size in [0, 1, 64, 4096, 4097, 16_385, 65_537, 300_000] {
        let (mut client, server) = pair().await.unwrap();
        let echoing = spawn(echo_of::<W>(server, size as u64));
        exchange(&mut client, &pattern(size as u64, size)).await;
        client.shutdown().await.unwrap();
        assert!(client.recv().await.unwrap().is_none(), "the server must also shut down");
        assert_eq!(echoing.await.unwrap().unwrap(), size);
    }
}

/// The server reads a request that ends with EOF, and then responds.
#[test]
fn fault_23_half_closed_stream_receives_response_in_every_ecosystem() {
    on_every_setup(|setup| in_every_ecosystem!(setup, half_close));
}

async fn half_close<W: Ecosystem>() {
    let (client, mut server) = pair().await.unwrap();
    let (request, response) = (pattern(1, 30_000), pattern(2, 70_000));
    let serving = {
        let (request, response) = (request.clone(), response.clone());
        spawn(async move {
            let mut received_bytes = Vec::new();
            while let Some(chunk) = server.recv().await.unwrap() {
                received_bytes.extend_from_slice(&chunk);
            }
            assert_same_bytes(&received_bytes, &request);
            server.write_all(&response).await.unwrap();
        })
    };
    let mut client = W::of(client);
    write_all(&mut client, &request, &mut Rng::with_seed(3)).await.unwrap();
    client.close().await.unwrap();
    assert_same_bytes(&read_to_end(&mut client).await, &response);
    serving.await.unwrap();
}

async fn read_to_end(adapter: &mut impl Ecosystem) -> Vec<u8> {
    let (mut received_bytes, mut buffer) = (Vec::new(), vec![0; 20_000]);
    loop {
        match adapter.read(&mut buffer).await.unwrap() {
            0 => return received_bytes,
            count => received_bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

#[test]
fn fault_10_dropped_futures_keep_byte_order_in_every_ecosystem() {
    on_every_setup(|setup| {
        for seed in 0..3 {
            in_every_ecosystem!(setup, dropped_futures, seed);
        }
    });
}

async fn dropped_futures<W: Ecosystem>(seed: u64) {
    let expected = pattern(seed, 100_000);
    let (client, server) = pair().await.unwrap();
    let message = expected.clone();
    let writing = spawn(async move {
        let (mut adapter, mut random, mut left) = (W::of(client), Rng::with_seed(seed), &message[..]);
        while !left.is_empty() {
            let part = &left[..(1 + random.usize(..9000)).min(left.len())];
            let polls = 1 + random.usize(..2);
            let written = match random.usize(..3) {
                0 => poll_at_most(polls, adapter.write(part)).await,
                1 => {
                    let (one, other) = part.split_at(random.usize(..part.len()));
                    let slices = [IoSlice::new(one), IoSlice::new(other)];
                    poll_at_most(polls, adapter.write_vectored(&slices)).await
                }
                _ => {
                    poll_at_most(polls, adapter.flush()).await;
                    None
                }
            };
            match written {
                Some(count) => left = &left[count.unwrap()..],
                None => yield_now().await,
            }
        }
        adapter.close().await
    });
    let (mut adapter, mut random, mut received_bytes) = (W::of(server), Rng::with_seed(!seed), Vec::new());
    loop {
        let mut buffer = vec![0; 1 + random.usize(..9000)];
        match poll_at_most(1 + random.usize(..2), adapter.read(&mut buffer)).await {
            Some(count) => match count.unwrap() {
                0 => break,
                count => received_bytes.extend_from_slice(&buffer[..count]),
            },
            None => yield_now().await,
        }
    }
    writing.await.unwrap().unwrap();
    assert_same_bytes(&received_bytes, &expected);
}

#[test]
fn fault_20_stalled_reader_blocks_writer_in_every_ecosystem() {
    on_both_drivers(|setup| in_every_ecosystem!(setup, stalled_reader));
}

async fn stalled_reader<W: Ecosystem>() {
    let (mut client, server) = pair().await.unwrap();
    let (message, accepted) = (pattern(20, LARGE), Rc::new(Cell::new(0)));
    let writing = {
        let (message, accepted) = (message.clone(), Rc::clone(&accepted));
        spawn(async move {
            let mut adapter = W::of(server);
            while accepted.get() < LARGE {
                let from = accepted.get();
                let part = &message[from..LARGE.min(from + 100_000)];
                let (one, other) = part.split_at(part.len() / 3);
                let slices = [IoSlice::new(one), IoSlice::new(other)];
                accepted.set(from + adapter.write_vectored(&slices).await.unwrap());
            }
            adapter.close().await.unwrap();
        })
    };
    for _ in 0..TURNS {
        yield_now().await;
    }
    assert!(accepted.get() < LARGE, "more bytes were accepted than the buffers hold");
    let mut received_bytes = Vec::with_capacity(LARGE);
    while let Some(chunk) = client.recv().await.unwrap() {
        received_bytes.extend_from_slice(&chunk);
    }
    writing.await.unwrap();
    assert_same_bytes(&received_bytes, &message);
}

#[test]
fn flush_waits_while_kernel_buffers_are_full_in_every_ecosystem() {
    on_both_drivers(|setup| in_every_ecosystem!(setup, flush));
}

async fn flush<W: Ecosystem>() {
    let (mut client, server) = pair().await.unwrap();
    let mut adapter = W::of(server);
    let (part, mut accepted, mut pending_polls) = (pattern(4, 50_000), 0, 0);
    // Fill the buffers until nothing is accepted, however often the kernel is polled.
    while pending_polls < TURNS {
        match poll_at_most(1, adapter.write(&part)).await {
            Some(count) => (accepted, pending_polls) = (accepted + count.unwrap(), 0),
            None => pending_polls += 1,
        }
        yield_now().await;
    }
    assert!(poll_at_most(1, adapter.flush()).await.is_none(), "flushed although the kernel has no room");
    let reading = async {
        let mut received = 0;
        while received < accepted {
            received += client.recv().await.unwrap().unwrap().len();
        }
        received
    };
    let (flushed, received) = join(adapter.flush(), reading).await;
    flushed.unwrap();
    assert_eq!(received, accepted);
}

#[test]
fn head_and_short_body_are_sent_as_one_message() {
    on_both_drivers(|setup| in_every_ecosystem!(setup, one_message));
}

async fn one_message<W: Ecosystem>() {
    let (mut client, server) = pair().await.unwrap();
    let mut adapter = W::of(server);
    for round in 0..20 {
        let (head, body) = (pattern(round, 150), pattern(!round, 13));
        let before = current_driver_metrics().unwrap().sends;
        let slices = [IoSlice::new(&head), IoSlice::new(&body)];
        assert_eq!(adapter.write_vectored(&slices).await.unwrap(), 163);
        adapter.flush().await.unwrap();
        let mut received_bytes = [0; 163];
        client.read_exact(&mut received_bytes).await.unwrap();
        assert_same_bytes(&received_bytes, &[head, body].concat());
        // Hyper's flush does not wait for the send, which is counted only when the kernel has confirmed it.
        while current_driver_metrics().unwrap().sends == before {
            yield_now().await;
        }
        assert_eq!(current_driver_metrics().unwrap().sends, before + 1);
    }
}

/// Writes more slices, some of them empty, than the kernel accepts in one call.
#[test]
fn many_slices_arrive_in_order_in_every_ecosystem() {
    on_every_setup(|setup| in_every_ecosystem!(setup, many_slices));
}

async fn many_slices<W: Ecosystem>() {
    let (client, server) = pair().await.unwrap();
    let mut random = Rng::with_seed(5);
    let parts: Vec<_> = (0..5000).map(|number| pattern(number, random.usize(..60))).collect();
    let expected = parts.concat();
    let writing = spawn(async move {
        let mut adapter = W::of(server);
        let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = &mut slices[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let count = adapter.write_vectored(left).await.unwrap();
            assert_ne!(count, 0);
            IoSlice::advance_slices(&mut left, count);
        }
        adapter.close().await.unwrap();
    });
    assert_same_bytes(&read_to_end(&mut W::of(client)).await, &expected);
    writing.await.unwrap();
}

#[test]
fn close_of_unread_stream_returns_and_fin_follows_bytes_in_every_ecosystem() {
    on_every_setup(|setup| in_every_ecosystem!(setup, close_unread));
}

async fn close_unread<W: Ecosystem>() {
    let (mut client, server) = pair().await.unwrap();
    let (message, mut accepted) = (pattern(13, LARGE), 0);
    let mut adapter = W::of(server);
    // Fill the buffers until neither the kernel nor the send queue has room.
    while let Some(count) = poll_at_most(1, adapter.write(&message[accepted..])).await {
        accepted += count.unwrap();
    }
    adapter.close().await.unwrap();
    assert_eq!(adapter.write(b"late").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    let mut received_bytes = Vec::with_capacity(accepted);
    while let Some(chunk) = client.recv().await.unwrap() {
        received_bytes.extend_from_slice(&chunk);
    }
    assert_same_bytes(&received_bytes, &message[..accepted]);
    // The other direction is still open.
    client.write_all(b"x").await.unwrap();
    assert_eq!(adapter.read(&mut [0; 2]).await.unwrap(), 1);
}

#[test]
fn fault_22_write_and_close_after_reset_fail_in_every_ecosystem() {
    on_both_drivers(|setup| in_every_ecosystem!(setup, reset));
}

async fn reset<W: Ecosystem>() {
    let (client, mut server) = pair().await.unwrap();
    server.write_all(b"never read").await.unwrap();
    server.flush().await.unwrap();
    // The socket is closed while it has unread bytes, so the connection is reset.
    drop(client);
    let mut adapter = W::of(server);
    let error = loop {
        match adapter.write(b"into the void").await {
            Ok(_) => yield_now().await,
            Err(error) => break error,
        }
    };
    let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    assert!(kinds.contains(&error.kind()), "{error}");
    let closed = adapter.close().await.err();
    assert!(closed.is_none_or(|error| kinds.contains(&error.kind())));
}

#[test]
fn tokio_proxy_forwards_both_directions() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut client, mut front) = pair().await.unwrap();
            let (mut back, mut server) = pair().await.unwrap();
            let echoing = spawn(async move {
                let echoed = echo(&mut server).await;
                server.shutdown().await.unwrap();
                echoed
            });
            let passing = spawn(async move { tokio_io::copy_bidirectional(&mut front, &mut back).await });
            exchange(&mut client, &pattern(6, 3 << 20)).await;
            client.shutdown().await.unwrap();
            assert!(client.recv().await.unwrap().is_none());
            assert_eq!(passing.await.unwrap().unwrap(), (3 << 20, 3 << 20));
            assert_eq!(echoing.await.unwrap().unwrap(), 3 << 20);
        });
    });
}

#[test]
fn stream_halves_implement_foreign_traits() {
    on_every_setup(|setup| {
        setup.run(async {
            for tokio in [true, false] {
                let (mut client, server) = pair().await.unwrap();
                let (mut reader, mut writer) = server.into_split();
                let echoing = spawn(async move {
                    if tokio {
                        let echoed = tokio_io::copy(&mut reader, &mut writer).await?;
                        tokio_io::AsyncWriteExt::shutdown(&mut writer).await.map(|()| echoed)
                    } else {
                        let echoed = futures_io::copy(&mut reader, &mut writer).await?;
                        futures_io::AsyncWriteExt::close(&mut writer).await.map(|()| echoed)
                    }
                });
                exchange(&mut client, &pattern(7, 100_000)).await;
                client.shutdown().await.unwrap();
                assert!(client.recv().await.unwrap().is_none());
                assert_eq!(echoing.await.unwrap().unwrap(), 100_000);
            }
        });
    });
}

#[test]
fn streams_fail_after_runtime_drop_in_every_ecosystem() {
    on_both_drivers(|setup| {
        let runtime = setup.runtime();
        let (one, other) = runtime.block_on(async { pair().await.unwrap() });
        drop(runtime);
        let mut adapter = Tokio::of(one);
        setup.run(async {
            assert!(adapter.read(&mut [0; 10]).await.is_err());
            assert!(adapter.write(b"x").await.is_err());
            assert!(adapter.flush().await.is_err());
            assert!(adapter.close().await.is_err());
        });
        drop(other);
    });
}

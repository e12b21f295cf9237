//! Tasks of a random program: each performs random operations on one side of a connection and records their effects.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use anello::net::{ReadHalf, ShutdownHandle, TcpListener, TcpStream, WriteHalf};
use anello::time::{sleep, timeout};
use anello::{spawn, spawn_blocking, yield_now};

use super::Survivor;
use super::hostile::leave_victim;
use super::model::{Connection, Direction, World};
use crate::common::{Rng, join, poll_at_most};
use crate::deliberate::panic_deliberately;

/// Length of the connection number, which the client sends first to identify the connection.
pub const HEADER_BYTES: usize = 8;

/// One side of a connection. It sends in `directions[side]` and receives in the other direction.
#[derive(Clone)]
pub struct Side {
    connection: Rc<Connection>,
    side: usize,
}

impl Side {
    fn outgoing(&self) -> &Direction {
        &self.connection.directions[self.side]
    }

    fn incoming(&self) -> &Direction {
        &self.connection.directions[1 - self.side]
    }

    /// Checks the error of an operation: errors are allowed only if something may have broken the connection.
    #[track_caller]
    fn check_error(&self, error: &io::Error) {
        assert!(self.connection.may_break.get(), "unexplained error: {error}");
    }
}

/// Read half that records in the model if it is dropped before EOF, for whatever reason.
struct Reader<H> {
    half: ReadHalf<H>,
    side: Side,
    has_ended: bool,
}

struct Writer<H> {
    half: WriteHalf<H>,
    side: Side,
}

impl<H> Drop for Reader<H> {
    fn drop(&mut self) {
        if !self.has_ended {
            // Unread data is left, so TCP resets the connection.
            self.side.connection.may_break.set(true);
        }
    }
}

impl<H> Drop for Writer<H> {
    fn drop(&mut self) {
        self.side.outgoing().end();
    }
}

/// Accepts connections until it is dropped, and spawns a task for each.
pub async fn accept_all(listener: TcpListener, world: Rc<World>, mut random: Rng) {
    loop {
        let accepted = match random.usize(..4) {
            0 if world.forgets => world.forget_pending(random.usize(..3), listener.accept()).await,
            0 | 1 => poll_at_most(1 + random.usize(..3), listener.accept()).await,
            2 => timeout(Duration::from_micros(50), listener.accept()).await.ok(),
            _ => Some(listener.accept().await),
        };
        let stream = match accepted {
            Some(Ok(stream)) => stream,
            // The connection was reset before it was accepted, or no descriptors are left. The next accept may
            // succeed.
            Some(Err(_)) => continue,
            None => {
                yield_now().await;
                continue;
            }
        };
        let (serving, random) = (Rc::clone(&world), Rng::with_seed(random.u64(..)));
        let task = spawn(serve(stream, serving, random));
        world.survivors.borrow_mut().push(Survivor::Task(task));
    }
}

/// Reads the number of the connection, then sends and receives on the server side.
async fn serve(mut stream: TcpStream, world: Rc<World>, random: Rng) {
    let mut header = [0; HEADER_BYTES];
    if stream.read_exact(&mut header).await.is_err() {
        // The client has closed the connection.
        return;
    }
    let number = u64::from_ne_bytes(header) as usize;
    let connection = Rc::clone(&world.connections.borrow()[number]);
    world.note("served", number as u64);
    converse(stream, Side { connection, side: 1 }, world, random).await;
}

/// Drops a few connection attempts, then connects and acts as the client.
pub async fn client(address: SocketAddr, number: usize, world: Rc<World>, mut random: Rng) {
    while random.usize(..4) == 0 {
        let (polls, connecting) = (random.usize(..3), TcpStream::connect(address));
        // A leaked connection attempt remains open until the runtime ends.
        if world.forgets && world.ends_early {
            world.forget_pending(polls, connecting).await;
        } else {
            poll_at_most(polls, connecting).await;
        }
    }
    let connection = Rc::clone(&world.connections.borrow()[number]);
    let side = Side { connection, side: 0 };
    let mut stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        Err(error) => return side.check_error(&error),
    };
    if let Err(error) = stream.send((number as u64).to_ne_bytes().to_vec()).await {
        return side.check_error(&error);
    }
    converse(stream, side, world, random).await;
}

/// Sends and receives concurrently: in one task with borrowed halves, or in two tasks with owned halves.
async fn converse(mut stream: TcpStream, side: Side, world: Rc<World>, mut random: Rng) {
    if random.usize(..30) == 0 {
        side.connection.may_break.set(true);
        side.outgoing().end();
        return match random.usize(..3) {
            0 => stream.abort(),
            1 => stream.shutdown_handle().reset(),
            _ => leave_victim(stream),
        };
    }
    let (sender, receiver) = (Rng::with_seed(random.u64(..)), Rng::with_seed(random.u64(..)));
    let shutdown_handle = stream.shutdown_handle();
    if random.usize(..2) == 0 {
        let (read, write) = stream.split();
        let reader = Reader { half: read, side: side.clone(), has_ended: false };
        let writer = Writer { half: write, side: side.clone() };
        // Dropping the borrowed half does not shut down its direction. Dropping the stream does.
        let receiving = async {
            if receive_all(reader, &world, receiver).await.is_some() {
                leave(&shutdown_handle, &world, random);
            }
        };
        join(send_all(writer, &world, sender, true), receiving).await;
    } else {
        let (mut read, mut write) = stream.into_split();
        if random.usize(..4) == 0 {
            (read, write) = read.reunite(write).expect("halves of one stream").into_split();
        }
        let reader = Reader { half: read, side: side.clone(), has_ended: false };
        let writer = Writer { half: write, side };
        let (sending, receiving) = (Rc::clone(&world), Rc::clone(&world));
        let sending = spawn(async move { send_all(writer, &sending, sender, false).await });
        let receiving = spawn(async move {
            let breaking = BreakOnPanic(shutdown_handle);
            if let Some(reader) = receive_all(reader, &receiving, receiver).await {
                if receiving.ends_early {
                    leave_receiving(reader, &receiving, random).await;
                } else {
                    leave(&breaking.0, &receiving, random);
                }
            }
        });
        let mut survivors = world.survivors.borrow_mut();
        survivors.extend([Survivor::Task(sending), Survivor::Task(receiving)]);
    }
}

/// Sends to a peer in another program, which receives until EOF.
pub async fn send_to_peer(
    address: SocketAddr,
    connection: Rc<Connection>,
    world: Rc<World>,
    mut random: Rng,
) {
    let side = Side { connection, side: 0 };
    let stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        Err(error) => return side.check_error(&error),
    };
    if random.usize(..4) != 0 {
        stream.set_send_buffer_size(1 << random.usize(12..16)).unwrap();
    }
    let (_read, write) = stream.into_split();
    send_all(Writer { half: write, side }, &world, random, false).await;
}

/// Breaks a connection on which this program receives nothing more. Otherwise, both sides could wait forever to send.
fn leave(shutdown_handle: &ShutdownHandle, world: &World, mut random: Rng) {
    if world.ends_early && random.usize(..2) == 0 {
        return;
    }
    match random.usize(..2) {
        0 => shutdown_handle.reset(),
        _ => shutdown_handle.shutdown(),
    }
}

/// Breaks a connection when its receiving task panics, for the same reason.
struct BreakOnPanic(ShutdownHandle);

impl Drop for BreakOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.reset();
        }
    }
}

/// Outcome of a future that may have been dropped or leaked before it completed.
pub enum Attempt<T> {
    Done(T),
    Dropped,
}

impl<T> Attempt<io::Result<T>> {
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Attempt<io::Result<U>> {
        match self {
            Self::Done(result) => Attempt::Done(result.map(change)),
            Self::Dropped => Attempt::Dropped,
        }
    }
}

impl Attempt<io::Result<()>> {
    /// Converts the result of a send, which accepts either all of its bytes or none.
    fn of(self, length: usize) -> Attempt<io::Result<usize>> {
        match self {
            Self::Done(result) => Attempt::Done(result.map(|()| length)),
            Self::Dropped => Attempt::Dropped,
        }
    }
}

/// Awaits a future in one of several ways that applications use, or drops or leaks it while it is pending.
pub async fn attempt<F: Future>(future: F, world: &World, random: &mut Rng) -> Attempt<F::Output> {
    match random.usize(..6) {
        0 => {
            let polls = random.usize(..4);
            let output = match world.forgets && random.bool() {
                true => world.forget_pending(polls, future).await,
                false => poll_at_most(polls, future).await,
            };
            match output {
                Some(output) => Attempt::Done(output),
                None => {
                    yield_now().await;
                    Attempt::Dropped
                }
            }
        }
        1 => match timeout(Duration::from_micros(random.usize(..200) as u64), future).await {
            Ok(output) => Attempt::Done(output),
            Err(_) => Attempt::Dropped,
        },
        2 => {
            let mut future = pin!(future);
            let waker = world.hostility.waker(random);
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            drop_hostile(waker);
            match polled {
                Poll::Ready(output) => Attempt::Done(output),
                Poll::Pending if random.usize(..2) == 0 => {
                    yield_now().await;
                    Attempt::Dropped
                }
                Poll::Pending => Attempt::Done(future.await),
            }
        }
        _ => Attempt::Done(future.await),
    }
}

/// Drops a value whose destructor may panic, and contains the panic.
pub fn drop_hostile<T>(hostile: T) {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(hostile))).ok();
}

/// Performs a random activity between two operations on the connection.
pub async fn do_side_activity(world: &Rc<World>, random: &mut Rng) {
    match random.usize(..12) {
        0 => yield_now().await,
        1 => {
            let pause = sleep(Duration::from_micros(random.usize(..300) as u64));
            match world.forgets && random.bool() {
                true => drop(world.forget_pending(random.usize(..3), pause).await),
                false => pause.await,
            }
        }
        2 => {
            let guard = world.hostility.guard(random);
            let task = spawn(async move {
                yield_now().await;
                drop(guard);
            });
            match random.usize(..4) {
                0 => task.detach(),
                1 => task.abort(),
                2 => leave_victim(task),
                _ => drop(task.await),
            }
        }
        3 => {
            // A result whose destructor misbehaves.
            let guard = world.hostility.guard(random);
            spawn(async move { guard }).detach();
        }
        4 if world.hostility.panics && random.usize(..20) == 0 => panic_deliberately(),
        5 if world.ends_early && random.usize(..4) == 0 => {
            let pause = sleep(Duration::from_micros(100));
            world.survivors.borrow_mut().push(Survivor::Future(Box::pin(pause)));
        }
        // The timing of blocking jobs does not depend on the seed.
        6 if world.has_threads() => {
            let guard = world.hostility.guard(random);
            drop(spawn_blocking(move || guard));
        }
        7 if world.forks.get() && random.usize(..4) == 0 => super::fork_while_running(world, random),
        7 => world.call_elsewhere(poll_fn(|context| Poll::Ready(context.waker().clone())).await),
        _ => {}
    }
}

async fn send_all<H>(writer: Writer<H>, world: &Rc<World>, mut random: Rng, is_borrowed: bool)
where
    H: Deref<Target = TcpStream>,
{
    let mut writer = writer;
    let side = writer.side.clone();
    for _ in 0..random.usize(..12) {
        do_side_activity(world, &mut random).await;
        let length = 1 + match random.usize(..4) {
            0 => random.usize(..10),
            1 => random.usize(..5000),
            _ => random.usize(..40_000),
        };
        let bytes = side.outgoing().next_bytes(length);
        let half = &mut writer.half;
        let tried = match random.usize(..8) {
            0 => attempt(half.send(bytes), world, &mut random).await.of(length),
            1 => {
                let bytes = world.hostility.bytes(&mut random, bytes);
                attempt(half.send(bytes), world, &mut random).await.of(length)
            }
            2 => attempt(half.write(&bytes), world, &mut random).await,
            3 => {
                let (one, other) = bytes.split_at(random.usize(..bytes.len()));
                let slices = [IoSlice::new(one), IoSlice::new(other)];
                attempt(half.write_vectored(&slices), world, &mut random).await
            }
            4 => attempt(half.write_more(&bytes), world, &mut random).await,
            5 => match half.try_write(&bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Attempt::Dropped,
                result => Attempt::Done(result),
            },
            6 => match attempt(half.writable(), world, &mut random).await {
                Attempt::Done(Ok(())) | Attempt::Dropped => continue,
                Attempt::Done(Err(error)) => return side.check_error(&error),
            },
            _ => match attempt(half.flush(), world, &mut random).await {
                Attempt::Done(Ok(())) | Attempt::Dropped => continue,
                Attempt::Done(Err(error)) => return side.check_error(&error),
            },
        };
        match tried {
            Attempt::Done(Ok(count)) => {
                side.outgoing().accept(count);
                world.note("accepted", count as u64);
            }
            Attempt::Done(Err(error)) => return side.check_error(&error),
            Attempt::Dropped => {}
        }
    }
    if world.ends_early && random.usize(..20) == 0 {
        side.connection.may_break.set(true);
        return world.forget(writer);
    }
    // Dropping an owned half shuts down its direction.
    if is_borrowed || random.usize(..2) == 0 {
        side.outgoing().end();
        if let Err(error) = writer.half.shutdown().await {
            side.check_error(&error);
        }
    }
}

/// Receives until EOF, or returns the half early.
async fn receive_all<H>(reader: Reader<H>, world: &Rc<World>, mut random: Rng) -> Option<Reader<H>>
where
    H: Deref<Target = TcpStream>,
{
    let mut reader = reader;
    let side = reader.side.clone();
    let scaled_timeout = if random.usize(..5) == 0 { random.usize(..10) } else { usize::MAX };
    let mut kept = Vec::new();
    for _ in 0..scaled_timeout {
        do_side_activity(world, &mut random).await;
        if let Err(error) = wait_or_peek(&reader, world, &mut random).await {
            side.check_error(&error);
            return None;
        }
        if random.usize(..2) == 0 {
            let attempted = match random.usize(..4) {
                0 => match reader.half.try_recv() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        yield_now().await;
                        Attempt::Dropped
                    }
                    result => Attempt::Done(result),
                },
                _ => attempt(reader.half.recv(), world, &mut random).await,
            };
            let received = match attempted {
                Attempt::Done(Ok(received)) => received,
                Attempt::Done(Err(error)) => {
                    side.check_error(&error);
                    return None;
                }
                Attempt::Dropped => continue,
            };
            let Some(chunk) = received else {
                side.incoming().check_end(side.connection.may_break.get());
                reader.has_ended = true;
                return None;
            };
            side.incoming().receive(&chunk);
            world.note("received", chunk.len() as u64);
            match random.usize(..20) {
                0 => kept.push(chunk),
                1 => leave_victim(chunk),
                2 if world.ends_early => world.survivors.borrow_mut().push(Survivor::Chunk(chunk)),
                3 if world.ends_early => world.forget(chunk),
                _ => drop(chunk),
            }
        } else {
            let mut buffer = vec![0; 1 + random.usize(..20_000)];
            let attempted = match random.usize(..4) {
                0 => match reader.half.try_read(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        yield_now().await;
                        Attempt::Dropped
                    }
                    result => Attempt::Done(result),
                },
                _ => attempt(reader.half.read(&mut buffer), world, &mut random).await,
            };
            match attempted {
                Attempt::Done(Ok(0)) => {
                    side.incoming().check_end(side.connection.may_break.get());
                    reader.has_ended = true;
                    return None;
                }
                Attempt::Done(Ok(count)) => {
                    side.incoming().receive(&buffer[..count]);
                    world.note("read", count as u64);
                }
                Attempt::Done(Err(error)) => {
                    side.check_error(&error);
                    return None;
                }
                Attempt::Dropped => {}
            }
        }
    }
    Some(reader)
}

/// Waits until the stream is readable, peeks, or does nothing.
async fn wait_or_peek<H>(reader: &Reader<H>, world: &Rc<World>, random: &mut Rng) -> io::Result<()>
where
    H: Deref<Target = TcpStream>,
{
    match random.usize(..6) {
        0 => match attempt(reader.half.readable(), world, random).await {
            Attempt::Done(result) => result,
            Attempt::Dropped => Ok(()),
        },
        1 => {
            let mut buffer = vec![0; 1 + random.usize(..20_000)];
            match attempt(reader.half.peek(&mut buffer), world, random).await {
                Attempt::Done(Ok(count)) => {
                    reader.side.incoming().check_peeked(&buffer[..count]);
                    Ok(())
                }
                Attempt::Done(Err(error)) => Err(error),
                Attempt::Dropped => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Leaves a receive pending when its runtime is dropped.
async fn leave_receiving(reader: Reader<Rc<TcpStream>>, world: &World, mut random: Rng) {
    if random.usize(..4) != 0 {
        return;
    }
    let mut receiving: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
        let mut reader = reader;
        drop(reader.half.recv().await);
    });
    if poll_fn(|context| Poll::Ready(receiving.as_mut().poll(context).is_ready())).await {
        return;
    }
    if random.usize(..5) == 0 {
        world.forget(receiving);
    } else {
        world.survivors.borrow_mut().push(Survivor::Future(receiving));
    }
}

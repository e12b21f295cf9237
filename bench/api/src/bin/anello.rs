//! anello. `ANELLO_DRIVER` selects the driver.

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use std::{future, io, thread};

use anello::fs::{AlignedBuf, OpenOptions};
use anello::io::{AsyncFd, copy_bidirectional};
use anello::net::pipe::pipe;
use anello::net::{OutgoingDatagram, RecvBatch, TcpListener, TcpStream, UdpSocket, UnixStream};
use anello::sync::{CancellationToken, Mutex, Notify, Semaphore, broadcast, local, mpsc, oneshot, watch};
use anello::time::{Instant, sleep_until};
use anello::{Runtime, spawn, spawn_blocking, yield_now};
use anello_bench_api::{
    Arguments, MAX_DATAGRAM_BYTES, SEGMENT_BYTES, TIMERS, announce, pin_to, serve, share, unsupported,
};
use rustix::event::{EventfdFlags, eventfd};

fn runtime() -> Runtime {
    Runtime::builder().driver_from_environment(true).build().expect("runtime starts")
}

fn main() {
    let arguments = Arguments::parse();
    let (bytes, depth) = (arguments.bytes, arguments.depth);
    let mut runtime = runtime();
    match &*arguments.workload {
        "unix" => serve(|count| runtime.block_on(unix(count, bytes))),
        "pipe" => serve(|count| runtime.block_on(pipes(count, bytes))),
        "async-fd" => serve(|count| runtime.block_on(async_fd(count))),
        "wake-latency" => serve(|count| wake_latency(&mut runtime, count)),
        "wake-throughput" => serve(|count| wake_throughput(&mut runtime, count, depth)),
        "mpsc" => serve(|count| runtime.block_on(mpsc(count, depth))),
        "mpsc-local" => serve(|count| runtime.block_on(mpsc_local(count, depth))),
        "oneshot" => serve(|count| runtime.block_on(oneshot(count))),
        "watch" => serve(|count| runtime.block_on(watch(count))),
        "broadcast" => serve(|count| runtime.block_on(broadcast(count, depth))),
        "cancellation" => serve(|count| runtime.block_on(cancellation(count, depth))),
        "notify" => serve(|count| runtime.block_on(notify(count))),
        "semaphore" => serve(|count| runtime.block_on(semaphore(count))),
        "mutex" => serve(|count| runtime.block_on(mutex(count))),
        "timers-cancel" => serve(|count| runtime.block_on(timers_cancel(count))),
        "timers-fire" => serve(|count| runtime.block_on(timers_fire(count))),
        "spawn" => serve(|count| runtime.block_on(spawn_tasks(count))),
        "spawn-blocking" => serve(|count| runtime.block_on(run_blocking(count))),
        "read-cached" | "read-direct" | "read-direct-registered" | "write-cached" | "write-direct"
        | "write-direct-registered" => {
            let mut buffers = Vec::new();
            serve(|count| runtime.block_on(file(count, &arguments, &mut buffers)));
        }
        "udp-echo" => runtime.block_on(udp_echo(arguments.listen_address())).unwrap(),
        "udp-echo-batch" => runtime.block_on(udp_echo_batch(arguments.listen_address())).unwrap(),
        "udp-gso" => serve(|count| runtime.block_on(udp_gso(count, bytes)).unwrap()),
        "proxy" => runtime.block_on(proxy(arguments.backend())).unwrap(),
        _ => unsupported(),
    }
}

async fn unix(count: u64, bytes: usize) {
    let (client, mut server) = UnixStream::pair().unwrap();
    let echo = spawn(async move {
        while let Some(chunk) = server.recv().await.unwrap() {
            server.send(chunk).await.unwrap();
        }
    });
    let mut client = client;
    let mut message = vec![7; bytes];
    for _ in 0..count {
        client.write_all(&message).await.unwrap();
        client.read_exact(&mut message).await.unwrap();
    }
    drop(client);
    echo.await.unwrap();
}

async fn pipes(count: u64, bytes: usize) {
    let (request_sender, request_receiver) = pipe().unwrap();
    let (response_sender, response_receiver) = pipe().unwrap();
    let echo = spawn(async move {
        let mut buffer = vec![0; bytes.max(4096)];
        loop {
            let length = request_receiver.read(&mut buffer).await.unwrap();
            if length == 0 {
                return;
            }
            response_sender.write_all(&buffer[..length]).await.unwrap();
        }
    });
    let mut message = vec![7; bytes];
    for _ in 0..count {
        request_sender.write_all(&message).await.unwrap();
        response_receiver.read_exact(&mut message).await.unwrap();
    }
    drop(request_sender);
    echo.await.unwrap();
}

async fn async_fd(count: u64) {
    let events = || Rc::new(AsyncFd::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()).unwrap());
    let (request, response) = (events(), events());
    async fn take(event: &AsyncFd<OwnedFd>) {
        loop {
            let mut guard = event.readable().await.unwrap();
            let read = guard.try_io(|event| Ok(rustix::io::read(event.get_ref(), &mut [0u8; 8])?));
            if read.is_ok() {
                return;
            }
        }
    }
    let signal = |event: &AsyncFd<OwnedFd>| {
        rustix::io::write(event.get_ref(), &1u64.to_ne_bytes()).unwrap();
    };
    let (request_2, response_2) = (Rc::clone(&request), Rc::clone(&response));
    let echo = spawn(async move {
        for _ in 0..count {
            take(&request_2).await;
            signal(&response_2);
        }
    });
    for _ in 0..count {
        signal(&request);
        take(&response).await;
    }
    echo.await.unwrap();
}

fn wake_latency(runtime: &mut Runtime, count: u64) {
    let (request_sender, mut request_receiver) = mpsc::channel::<u64>(1);
    let (response_sender, mut response_receiver) = mpsc::channel::<u64>(1);
    let other = thread::spawn(move || {
        pin_to(1);
        self::runtime().block_on(async move {
            while let Some(value) = request_receiver.recv().await {
                response_sender.send(value).await.unwrap();
            }
        });
    });
    pin_to(0);
    runtime.block_on(async move {
        for value in 0..count {
            request_sender.send(value).await.unwrap();
            assert_eq!(response_receiver.recv().await, Some(value));
        }
    });
    other.join().unwrap();
}

fn wake_throughput(runtime: &mut Runtime, count: u64, depth: usize) {
    let (sender, mut receiver) = mpsc::channel::<u64>(depth);
    let other = thread::spawn(move || {
        pin_to(1);
        self::runtime().block_on(async move {
            for value in 0..count {
                sender.send(value).await.unwrap();
            }
        });
    });
    pin_to(0);
    runtime.block_on(async move {
        for value in 0..count {
            assert_eq!(receiver.recv().await, Some(value));
        }
    });
    other.join().unwrap();
}

async fn mpsc(count: u64, depth: usize) {
    let (sender, mut receiver) = mpsc::channel(depth);
    let producer = spawn(async move {
        for value in 0..count {
            sender.send(value).await.unwrap();
        }
    });
    for value in 0..count {
        assert_eq!(receiver.recv().await, Some(value));
    }
    producer.await.unwrap();
}

async fn mpsc_local(count: u64, depth: usize) {
    let (sender, mut receiver) = local::mpsc::channel(depth);
    let producer = spawn(async move {
        for value in 0..count {
            sender.send(value).await.unwrap();
        }
    });
    for value in 0..count {
        assert_eq!(receiver.recv().await, Some(value));
    }
    producer.await.unwrap();
}

async fn oneshot(count: u64) {
    for value in 0..count {
        let (sender, receiver) = oneshot::channel();
        spawn(async move { sender.send(value).unwrap() }).detach();
        assert_eq!(receiver.await, Ok(value));
    }
}

async fn watch(count: u64) {
    let (sender, mut receiver) = watch::channel(0);
    let reader = spawn(async move { while receiver.changed().await.is_ok() {} });
    for value in 0..count {
        sender.send(value).unwrap();
        yield_now().await;
    }
    drop(sender);
    reader.await.unwrap();
}

async fn broadcast(count: u64, depth: usize) {
    let (sender, mut receiver) = broadcast::channel(depth.max(2));
    let reader = spawn(async move { while receiver.recv().await.is_ok() {} });
    for value in 0..count {
        sender.send(value).unwrap();
        yield_now().await;
    }
    drop(sender);
    reader.await.unwrap();
}

/// Creates child tokens of a token that has `depth` others, waits with each while a future completes, and drops them.
async fn cancellation(count: u64, depth: usize) {
    let stop = CancellationToken::new();
    let children: Vec<_> = (0..depth).map(|_| stop.child_token()).collect();
    for value in 0..count {
        let child = stop.child_token();
        assert_eq!(child.run_until_cancelled(future::ready(value)).await, Some(value));
    }
    stop.cancel();
    assert!(children.iter().all(CancellationToken::is_cancelled));
}

async fn notify(count: u64) {
    let (request, response) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
    let (request_2, response_2) = (Rc::clone(&request), Rc::clone(&response));
    let echo = spawn(async move {
        for _ in 0..count {
            request_2.notified().await;
            response_2.notify_one();
        }
    });
    for _ in 0..count {
        request.notify_one();
        response.notified().await;
    }
    echo.await.unwrap();
}

async fn semaphore(count: u64) {
    let semaphore = Semaphore::new(1);
    for _ in 0..count {
        drop(semaphore.acquire().await.unwrap());
    }
}

async fn mutex(count: u64) {
    let mutex = Mutex::new(0);
    for _ in 0..count {
        *mutex.lock().await += 1;
    }
    assert_eq!(*mutex.lock().await, count);
}

/// Creates timers between 1 and 60 seconds ahead, polls each once, and drops them. At most [`TIMERS`] are active.
async fn timers_cancel(count: u64) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut timers: Vec<_> = (0..TIMERS.min(count)).map(|_| None).collect();
    for number in 0..count {
        let at = Instant::now() + Duration::from_millis(random.u64(1_000..60_000));
        let mut timer = sleep_until(at);
        future::poll_fn(|context| {
            assert!(Pin::new(&mut timer).poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        timers[(number % TIMERS) as usize] = Some(timer);
    }
}

/// Creates tasks that sleep for up to 100 milliseconds, and waits for all of them.
async fn timers_fire(count: u64) {
    let mut random = fastrand::Rng::with_seed(1);
    let start = Instant::now();
    let tasks: Vec<_> = (0..count)
        .map(|_| spawn(sleep_until(start + Duration::from_micros(random.u64(0..100_000)))))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn spawn_tasks(count: u64) {
    for value in 0..count {
        assert_eq!(spawn(async move { value }).await.unwrap(), value);
    }
}

async fn run_blocking(count: u64) {
    for value in 0..count {
        assert_eq!(spawn_blocking(move || value).await.unwrap(), value);
    }
}

/// Random reads or writes of blocks by `depth` tasks. The buffers are kept for the next slice.
async fn file(count: u64, arguments: &Arguments, buffers: &mut Vec<AlignedBuf>) {
    let writes = arguments.workload.starts_with("write");
    let is_registered = arguments.workload.ends_with("registered");
    let mut options = OpenOptions::new();
    let options = options.read(true).write(writes).direct(arguments.is_direct());
    let file = Rc::new(options.open(&arguments.file).await.unwrap());
    let (bytes, blocks, share) = (arguments.bytes, arguments.blocks(), share(count, arguments.depth));
    let tasks: Vec<_> = (0..arguments.depth)
        .map(|task| {
            let file = Rc::clone(&file);
            let new = || if is_registered { AlignedBuf::registered(bytes) } else { AlignedBuf::new(bytes) };
            let mut block = buffers.pop().unwrap_or_else(new);
            assert_eq!(block.is_registered(), is_registered);
            spawn(async move {
                let mut random = fastrand::Rng::with_seed(task as u64);
                if writes {
                    block.fill(7);
                }
                for _ in 0..share {
                    let offset = random.u64(..blocks) * bytes as u64;
                    let (result, mut returned) = if writes {
                        file.write_owned_at(block, offset).await
                    } else {
                        file.read_owned_at(block, offset).await
                    };
                    // Short if the kernel has evicted a part of the block from the page cache.
                    let done = result.unwrap();
                    if done < bytes {
                        let (rest, offset) = (&mut returned[done..], offset + done as u64);
                        let completed = if writes {
                            file.write_all_at(rest, offset).await
                        } else {
                            file.read_exact_at(rest, offset).await
                        };
                        completed.unwrap();
                    }
                    block = returned;
                }
                block
            })
        })
        .collect();
    for task in tasks {
        buffers.push(task.await.unwrap());
    }
}

async fn udp_echo(address: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(address)?;
    announce(socket.local_addr()?);
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer).await?;
        socket.send_to(&buffer[..length], peer).await?;
    }
}

async fn udp_echo_batch(address: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(address)?;
    announce(socket.local_addr()?);
    let mut batch = RecvBatch::new(RecvBatch::MAX_DATAGRAMS, MAX_DATAGRAM_BYTES);
    let mut memory = Vec::with_capacity(RecvBatch::MAX_DATAGRAMS);
    loop {
        socket.recv_batch(&mut batch).await?;
        let mut replies = reuse(memory);
        replies.extend(batch.iter().map(|datagram| datagram.reply(datagram.payload())));
        let mut sent = 0;
        while sent < replies.len() {
            sent += socket.send_batch(&replies[sent..]).await?;
        }
        memory = reuse(replies);
    }
}

/// Returns an empty vector with the memory of another one, which `collect` reuses.
fn reuse<'a>(mut replies: Vec<OutgoingDatagram<'_>>) -> Vec<OutgoingDatagram<'a>> {
    replies.clear();
    replies.into_iter().map(|_| unreachable!("the vector is empty")).collect()
}

async fn udp_gso(count: u64, bytes: usize) -> io::Result<()> {
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    let receiver = UdpSocket::bind("127.0.0.1:0")?;
    receiver.set_gro(true)?;
    sender.connect(receiver.local_addr()?).await?;
    let (contents, mut memory) = (vec![7; bytes], vec![0; 1 << 16]);
    for _ in 0..count {
        let train = OutgoingDatagram::to_peer(&contents).with_segment_size(SEGMENT_BYTES as u16);
        sender.send_message(&train).await?;
        let mut received = 0;
        while received < bytes {
            received += receiver.recv_message(&mut memory).await?.bytes;
        }
    }
    Ok(())
}

/// Forwards each connection to the backend.
async fn proxy(backend: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    announce(listener.local_addr()?);
    loop {
        let mut client = listener.accept().await?;
        spawn(async move {
            let mut server = TcpStream::connect(backend).await?;
            copy_bidirectional(&mut client, &mut server).await
        })
        .detach();
    }
}

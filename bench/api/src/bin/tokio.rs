//! tokio's current-thread runtime, with tokio-util, flume, async-channel, async-broadcast and quinn-udp on it.

use std::fs::OpenOptions;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Duration;

use anello_bench_api::{
    ALIGNMENT, Arguments, MAX_DATAGRAM_BYTES, SEGMENT_BYTES, TIMERS, announce, pin_to, serve, share,
    unsupported,
};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream, unix::pipe};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, Notify, Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("runtime starts")
}

fn main() {
    let arguments = Arguments::parse();
    let (bytes, depth) = (arguments.bytes, arguments.depth);
    let runtime = runtime();
    match &*arguments.workload {
        "unix" => serve(|count| runtime.block_on(unix(count, bytes))),
        "pipe" => serve(|count| runtime.block_on(pipe(count, bytes))),
        "async-fd" => serve(|count| runtime.block_on(async_fd(count))),
        "wake-latency" => serve(|count| wake_latency(&runtime, count)),
        "wake-throughput" => serve(|count| wake_throughput(&runtime, count, depth)),
        "wake-throughput-flume" => serve(|count| wake_throughput_flume(&runtime, count, depth)),
        "wake-throughput-async-channel" => {
            serve(|count| wake_throughput_async_channel(&runtime, count, depth));
        }
        "mpsc" => serve(|count| runtime.block_on(mpsc(count, depth))),
        "mpsc-flume" => serve(|count| runtime.block_on(mpsc_flume(count, depth))),
        "mpsc-async-channel" => serve(|count| runtime.block_on(mpsc_async_channel(count, depth))),
        "oneshot" => serve(|count| runtime.block_on(oneshot(count))),
        "watch" => serve(|count| runtime.block_on(watch(count))),
        "broadcast" => serve(|count| runtime.block_on(broadcast(count, depth))),
        "broadcast-async-broadcast" => serve(|count| runtime.block_on(async_broadcast(count, depth))),
        "cancellation" => serve(|count| runtime.block_on(cancellation(count, depth))),
        "notify" => serve(|count| runtime.block_on(notify(count))),
        "semaphore" => serve(|count| runtime.block_on(semaphore(count))),
        "mutex" => serve(|count| runtime.block_on(mutex(count))),
        "timers-cancel" => serve(|count| runtime.block_on(timers_cancel(count))),
        "timers-fire" => serve(|count| runtime.block_on(timers_fire(count))),
        "spawn" => serve(|count| runtime.block_on(spawn(count))),
        "spawn-blocking" => serve(|count| runtime.block_on(spawn_blocking(count))),
        "read-cached" | "read-direct" | "write-cached" | "write-direct" => {
            let mut buffers = Vec::new();
            serve(|count| runtime.block_on(file(count, &arguments, &mut buffers)));
        }
        "udp-echo" => runtime.block_on(udp_echo(arguments.listen_address())).unwrap(),
        "udp-echo-quinn" => runtime.block_on(udp_echo_quinn(arguments.listen_address())).unwrap(),
        "udp-gso-quinn" => serve(|count| runtime.block_on(udp_gso_quinn(count, bytes)).unwrap()),
        "proxy" => runtime.block_on(proxy(arguments.backend())).unwrap(),
        _ => unsupported(),
    }
}

async fn udp_echo(address: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(address).await?;
    announce(socket.local_addr()?);
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer).await?;
        socket.send_to(&buffer[..length], peer).await?;
    }
}

/// Echoes in batches: `recvmmsg(2)` receives up to 32 datagrams; quinn-udp sends one transmit per call.
async fn udp_echo_quinn(address: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(address).await?;
    announce(socket.local_addr()?);
    let state = UdpSocketState::new((&socket).into())?;
    let mut memory = vec![0; BATCH_SIZE * MAX_DATAGRAM_BYTES];
    let mut meta = [RecvMeta::default(); BATCH_SIZE];
    loop {
        let received = socket
            .async_io(Interest::READABLE, || {
                let mut slices: Vec<_> = memory.chunks_mut(MAX_DATAGRAM_BYTES).map(IoSliceMut::new).collect();
                state.recv((&socket).into(), &mut slices, &mut meta)
            })
            .await?;
        for (index, meta) in meta[..received].iter().enumerate() {
            let start = index * MAX_DATAGRAM_BYTES;
            let transmit = Transmit {
                destination: meta.addr,
                ecn: None,
                contents: &memory[start..start + meta.len],
                segment_size: (meta.stride < meta.len).then_some(meta.stride),
                src_ip: None,
            };
            socket.async_io(Interest::WRITABLE, || state.try_send((&socket).into(), &transmit)).await?;
        }
    }
}

async fn udp_gso_quinn(count: u64, bytes: usize) -> io::Result<()> {
    let (sender, receiver) = (UdpSocket::bind("127.0.0.1:0").await?, UdpSocket::bind("127.0.0.1:0").await?);
    let (send_state, receive_state) =
        (UdpSocketState::new((&sender).into())?, UdpSocketState::new((&receiver).into())?);
    let destination = receiver.local_addr()?;
    sender.connect(destination).await?;
    let (contents, mut memory) = (vec![7; bytes], vec![0; 1 << 16]);
    for _ in 0..count {
        let transmit = Transmit {
            destination,
            ecn: None,
            contents: &contents,
            segment_size: Some(SEGMENT_BYTES),
            src_ip: None,
        };
        sender.async_io(Interest::WRITABLE, || send_state.try_send((&sender).into(), &transmit)).await?;
        let mut received = 0;
        while received < bytes {
            received += receiver
                .async_io(Interest::READABLE, || {
                    let mut meta = [RecvMeta::default()];
                    receive_state.recv((&receiver).into(), &mut [IoSliceMut::new(&mut memory)], &mut meta)?;
                    Ok(meta[0].len)
                })
                .await?;
        }
    }
    Ok(())
}

/// Forwards each connection to the backend.
async fn proxy(backend: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce(listener.local_addr()?);
    loop {
        let (mut client, _) = listener.accept().await?;
        client.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut server = TcpStream::connect(backend).await?;
            server.set_nodelay(true)?;
            copy_bidirectional(&mut client, &mut server).await
        });
    }
}

async fn unix(count: u64, bytes: usize) {
    let (mut client, mut server) = UnixStream::pair().unwrap();
    let echo = tokio::spawn(async move {
        let mut buffer = vec![0; bytes.max(4096)];
        loop {
            let length = server.read(&mut buffer).await.unwrap();
            if length == 0 {
                return;
            }
            server.write_all(&buffer[..length]).await.unwrap();
        }
    });
    let mut message = vec![7; bytes];
    for _ in 0..count {
        client.write_all(&message).await.unwrap();
        client.read_exact(&mut message).await.unwrap();
    }
    drop(client);
    echo.await.unwrap();
}

async fn pipe(count: u64, bytes: usize) {
    let (mut request_sender, mut request_receiver) = pipe::pipe().unwrap();
    let (mut response_sender, mut response_receiver) = pipe::pipe().unwrap();
    let echo = tokio::spawn(async move {
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
    #[allow(deprecated, reason = "the descriptor is owned and cannot be closed by safe code")]
    let events = || Arc::new(AsyncFd::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()).unwrap());
    let (request, response) = (events(), events());
    async fn take(event: &AsyncFd<std::os::fd::OwnedFd>) {
        loop {
            let mut guard = event.readable().await.unwrap();
            let read = guard.try_io(|event| Ok(rustix::io::read(event.get_ref(), &mut [0u8; 8])?));
            if read.is_ok() {
                return;
            }
        }
    }
    let signal = |event: &AsyncFd<std::os::fd::OwnedFd>| {
        rustix::io::write(event.get_ref(), &1u64.to_ne_bytes()).unwrap();
    };
    let (request_2, response_2) = (Arc::clone(&request), Arc::clone(&response));
    let echo = tokio::spawn(async move {
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

fn wake_latency(runtime: &Runtime, count: u64) {
    let (request_sender, mut request_receiver) = mpsc::channel::<u64>(1);
    let (response_sender, mut response_receiver) = mpsc::channel::<u64>(1);
    let other = std::thread::spawn(move || {
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

fn wake_throughput(runtime: &Runtime, count: u64, depth: usize) {
    let (sender, mut receiver) = mpsc::channel::<u64>(depth);
    let other = std::thread::spawn(move || {
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

fn wake_throughput_flume(runtime: &Runtime, count: u64, depth: usize) {
    let (sender, receiver) = flume::bounded::<u64>(depth);
    let other = std::thread::spawn(move || {
        pin_to(1);
        self::runtime().block_on(async move {
            for value in 0..count {
                sender.send_async(value).await.unwrap();
            }
        });
    });
    pin_to(0);
    runtime.block_on(async move {
        for value in 0..count {
            assert_eq!(receiver.recv_async().await, Ok(value));
        }
    });
    other.join().unwrap();
}

fn wake_throughput_async_channel(runtime: &Runtime, count: u64, depth: usize) {
    let (sender, receiver) = async_channel::bounded::<u64>(depth);
    let other = std::thread::spawn(move || {
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
            assert_eq!(receiver.recv().await, Ok(value));
        }
    });
    other.join().unwrap();
}

async fn mpsc(count: u64, depth: usize) {
    let (sender, mut receiver) = mpsc::channel(depth);
    let producer = tokio::spawn(async move {
        for value in 0..count {
            sender.send(value).await.unwrap();
        }
    });
    for value in 0..count {
        assert_eq!(receiver.recv().await, Some(value));
    }
    producer.await.unwrap();
}

async fn mpsc_flume(count: u64, depth: usize) {
    let (sender, receiver) = flume::bounded(depth);
    let producer = tokio::spawn(async move {
        for value in 0..count {
            sender.send_async(value).await.unwrap();
        }
    });
    for value in 0..count {
        assert_eq!(receiver.recv_async().await, Ok(value));
    }
    producer.await.unwrap();
}

async fn mpsc_async_channel(count: u64, depth: usize) {
    let (sender, receiver) = async_channel::bounded(depth);
    let producer = tokio::spawn(async move {
        for value in 0..count {
            sender.send(value).await.unwrap();
        }
    });
    for value in 0..count {
        assert_eq!(receiver.recv().await, Ok(value));
    }
    producer.await.unwrap();
}

async fn oneshot(count: u64) {
    for value in 0..count {
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move { sender.send(value).unwrap() });
        assert_eq!(receiver.await, Ok(value));
    }
}

async fn watch(count: u64) {
    let (sender, mut receiver) = watch::channel(0);
    let reader = tokio::spawn(async move { while receiver.changed().await.is_ok() {} });
    for value in 0..count {
        sender.send(value).unwrap();
        tokio::task::yield_now().await;
    }
    drop(sender);
    reader.await.unwrap();
}

async fn broadcast(count: u64, depth: usize) {
    let (sender, mut receiver) = broadcast::channel(depth.max(2));
    let reader = tokio::spawn(async move { while receiver.recv().await.is_ok() {} });
    for value in 0..count {
        sender.send(value).unwrap();
        tokio::task::yield_now().await;
    }
    drop(sender);
    reader.await.unwrap();
}

async fn async_broadcast(count: u64, depth: usize) {
    let (sender, mut receiver) = async_broadcast::broadcast(depth.max(2));
    let reader = tokio::spawn(async move { while receiver.recv().await.is_ok() {} });
    for value in 0..count {
        sender.try_broadcast(value).unwrap();
        tokio::task::yield_now().await;
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
        assert_eq!(child.run_until_cancelled(std::future::ready(value)).await, Some(value));
    }
    stop.cancel();
    assert!(children.iter().all(CancellationToken::is_cancelled));
}

async fn notify(count: u64) {
    let (request, response) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (request_2, response_2) = (Arc::clone(&request), Arc::clone(&response));
    let echo = tokio::spawn(async move {
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
        let mut timer = Box::pin(sleep_until(at));
        std::future::poll_fn(|context| {
            assert!(timer.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
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
        .map(|_| tokio::spawn(sleep_until(start + Duration::from_micros(random.u64(0..100_000)))))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn spawn(count: u64) {
    for value in 0..count {
        assert_eq!(tokio::spawn(async move { value }).await.unwrap(), value);
    }
}

async fn spawn_blocking(count: u64) {
    for value in 0..count {
        assert_eq!(tokio::task::spawn_blocking(move || value).await.unwrap(), value);
    }
}

/// Random reads or writes of blocks by `depth` tasks. Each operation is one call of `spawn_blocking`: the files of
/// `tokio::fs` cannot read at an offset nor into aligned memory. The buffers are kept for the next slice.
async fn file(count: u64, arguments: &Arguments, buffers: &mut Vec<Vec<u8>>) {
    let writes = arguments.workload.starts_with("write");
    let mut options = OpenOptions::new();
    let options = options.read(true).write(writes).custom_flags(arguments.open_flags());
    let file = Arc::new(options.open(&arguments.file).unwrap());
    let (bytes, blocks, share) = (arguments.bytes, arguments.blocks(), share(count, arguments.depth));
    let tasks: Vec<_> = (0..arguments.depth)
        .map(|task| {
            let file = Arc::clone(&file);
            let mut memory = buffers.pop().unwrap_or_else(|| vec![7; bytes + ALIGNMENT]);
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(task as u64);
                for _ in 0..share {
                    let (file, offset) = (Arc::clone(&file), random.u64(..blocks) * bytes as u64);
                    let operation = move || {
                        let start = memory.as_ptr().align_offset(ALIGNMENT);
                        let block = &mut memory[start..start + bytes];
                        if writes {
                            file.write_all_at(block, offset)
                        } else {
                            file.read_exact_at(block, offset)
                        }
                        .unwrap();
                        memory
                    };
                    memory = tokio::task::spawn_blocking(operation).await.unwrap();
                }
                memory
            })
        })
        .collect();
    for task in tasks {
        buffers.push(task.await.unwrap());
    }
}

//! glommio: files, and wake-ups between executors.

use std::os::fd::AsRawFd;
use std::rc::Rc;

use anello_bench_api::{ALIGNMENT, Arguments, pin_to, serve, share, unsupported};
use futures_util::future::join_all;
use glommio::channels::shared_channel;
use glommio::io::{BufferedFile, DmaFile, OpenOptions};
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};

fn executor() -> LocalExecutor {
    LocalExecutorBuilder::new(Placement::Unbound).make().expect("executor starts")
}

fn main() {
    let arguments = Arguments::parse();
    let executor = executor();
    match &*arguments.workload {
        "wake-latency" => serve(|count| wake_latency(&executor, count)),
        "wake-throughput" => serve(|count| wake_throughput(&executor, count, arguments.depth)),
        "read-cached" => serve(|count| executor.run(read_cached(count, &arguments))),
        "write-cached" => serve(|count| executor.run(write_cached(count, &arguments))),
        "read-direct" => serve(|count| executor.run(direct(count, &arguments, false))),
        "write-direct" => serve(|count| executor.run(direct(count, &arguments, true))),
        _ => unsupported(),
    }
}

fn wake_latency(executor: &LocalExecutor, count: u64) {
    let (request_sender, request_receiver) = shared_channel::new_bounded::<u64>(1);
    let (response_sender, response_receiver) = shared_channel::new_bounded::<u64>(1);
    let other = std::thread::spawn(move || {
        pin_to(1);
        self::executor().run(async move {
            let (receiver, sender) = (request_receiver.connect().await, response_sender.connect().await);
            while let Some(value) = receiver.recv().await {
                sender.send(value).await.unwrap();
            }
        });
    });
    pin_to(0);
    executor.run(async move {
        let (sender, receiver) = (request_sender.connect().await, response_receiver.connect().await);
        for value in 0..count {
            sender.send(value).await.unwrap();
            assert_eq!(receiver.recv().await, Some(value));
        }
    });
    other.join().unwrap();
}

fn wake_throughput(executor: &LocalExecutor, count: u64, depth: usize) {
    let (sender, receiver) = shared_channel::new_bounded::<u64>(depth);
    let other = std::thread::spawn(move || {
        pin_to(1);
        self::executor().run(async move {
            let sender = sender.connect().await;
            for value in 0..count {
                sender.send(value).await.unwrap();
            }
        });
    });
    pin_to(0);
    executor.run(async move {
        let receiver = receiver.connect().await;
        for value in 0..count {
            assert_eq!(receiver.recv().await, Some(value));
        }
    });
    other.join().unwrap();
}

async fn read_cached(count: u64, arguments: &Arguments) {
    let file = Rc::new(BufferedFile::open(&arguments.file).await.unwrap());
    let (bytes, blocks, share) = (arguments.bytes, arguments.blocks(), share(count, arguments.depth));
    let tasks = (0..arguments.depth).map(|task| {
        let file = Rc::clone(&file);
        glommio::spawn_local(async move {
            let mut random = fastrand::Rng::with_seed(task as u64);
            for _ in 0..share {
                let read = file.read_at(random.u64(..blocks) * bytes as u64, bytes).await.unwrap();
                assert_eq!(read.len(), bytes);
            }
        })
    });
    join_all(tasks.collect::<Vec<_>>()).await;
    Rc::try_unwrap(file).unwrap().close().await.unwrap();
}

async fn write_cached(count: u64, arguments: &Arguments) {
    let file = OpenOptions::new().read(true).write(true).buffered_open(&arguments.file).await.unwrap();
    assert!(file.as_raw_fd() >= 0);
    let file = Rc::new(file);
    let (bytes, blocks, share) = (arguments.bytes, arguments.blocks(), share(count, arguments.depth));
    let tasks = (0..arguments.depth).map(|task| {
        let file = Rc::clone(&file);
        glommio::spawn_local(async move {
            let mut random = fastrand::Rng::with_seed(task as u64);
            for _ in 0..share {
                let block = vec![7; bytes];
                let written = file.write_at(block, random.u64(..blocks) * bytes as u64).await.unwrap();
                assert_eq!(written, bytes);
            }
        })
    });
    join_all(tasks.collect::<Vec<_>>()).await;
    Rc::try_unwrap(file).unwrap().close().await.unwrap();
}

async fn direct(count: u64, arguments: &Arguments, writes: bool) {
    assert!(arguments.bytes.is_multiple_of(ALIGNMENT));
    let file = Rc::new(DmaFile::open(&arguments.file).await.unwrap());
    let file = if writes {
        Rc::try_unwrap(file).unwrap().close().await.unwrap();
        Rc::new(OpenOptions::new().read(true).write(true).dma_open(&arguments.file).await.unwrap())
    } else {
        file
    };
    let (bytes, blocks, share) = (arguments.bytes, arguments.blocks(), share(count, arguments.depth));
    let tasks = (0..arguments.depth).map(|task| {
        let file = Rc::clone(&file);
        glommio::spawn_local(async move {
            let mut random = fastrand::Rng::with_seed(task as u64);
            for _ in 0..share {
                let offset = random.u64(..blocks) * bytes as u64;
                if writes {
                    let mut block = file.alloc_dma_buffer(bytes);
                    block.as_bytes_mut().fill(7);
                    assert_eq!(file.write_at(block, offset).await.unwrap(), bytes);
                } else {
                    assert_eq!(file.read_at_aligned(offset, bytes).await.unwrap().len(), bytes);
                }
            }
        })
    });
    join_all(tasks.collect::<Vec<_>>()).await;
    Rc::try_unwrap(file).unwrap().close().await.unwrap();
}

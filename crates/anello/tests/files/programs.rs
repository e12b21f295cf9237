//! Random programs of file operations, compared with the same operations of the standard library.

use std::cell::RefCell;
use std::fs;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use anello::fs::{AlignedBuf, File, OpenOptions};
use anello::{current_driver_metrics, yield_now};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use crate::common::*;

/// Removes the file's clean pages from the page cache, so that the next reads must wait for the disk.
fn evict(file: &File) {
    file.as_std().sync_data().unwrap();
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn random_bytes(random: &mut Rng) -> Vec<u8> {
    let length = match random.usize(..10) {
        0 => 0,
        1 => random.usize(..100_000),
        _ => random.usize(..3000),
    };
    pattern(random.u64(..), length)
}

fn random_position(random: &mut Rng) -> SeekFrom {
    match random.usize(..3) {
        0 => SeekFrom::Start(random.u64(..60_000)),
        1 => SeekFrom::Current(random.i64(-20_000..20_000)),
        _ => SeekFrom::End(random.i64(-40_000..5000)),
    }
}

/// Compares the results of two calls: both values, or both error numbers.
#[track_caller]
fn assert_same_result<T: PartialEq + std::fmt::Debug>(actual: io::Result<T>, expected: io::Result<T>) {
    let numbers = |result: io::Result<T>| result.map_err(|error| error.raw_os_error());
    assert_eq!(numbers(actual), numbers(expected));
}

/// Discards the bytes that a dropped read has read, because the next operation may overwrite them.
async fn discard_unreturned_bytes(file: &File) {
    file.seek(SeekFrom::Current(0)).await.unwrap();
}

/// Performs one random operation on both files.
async fn step(random: &mut Rng, file: &File, model: &mut fs::File) {
    match random.usize(..14) {
        0..=2 => {
            // The number of bytes read at a time may differ.
            let mut bytes = vec![0; random.usize(1..5000)];
            let count = match random.usize(..3) {
                0 => file.read(&mut bytes).await.unwrap(),
                1 => {
                    let middle = random.usize(..bytes.len());
                    let (head, tail) = bytes.split_at_mut(middle);
                    let buffers =
                        &mut [IoSliceMut::new(head), IoSliceMut::new(&mut []), IoSliceMut::new(tail)];
                    file.read_vectored(buffers).await.unwrap()
                }
                // A read that is dropped while it is pending loses no bytes.
                _ => match poll_once(file.read(&mut bytes)).await {
                    Some(count) => count.unwrap(),
                    None => return,
                },
            };
            let mut expected = vec![0; count.max(1)];
            if count == 0 {
                assert_eq!(model.read(&mut expected).unwrap(), 0);
            } else {
                model.read_exact(&mut expected).unwrap();
                assert_same_bytes(&bytes[..count], &expected);
            }
        }
        3..=5 => {
            let bytes = random_bytes(random);
            match random.usize(..3) {
                0 => {
                    file.write_all(&bytes).await.unwrap();
                    model.write_all(&bytes).unwrap();
                }
                1 => {
                    let (head, tail) = bytes.split_at(random.usize(..=bytes.len()));
                    let count = file.write_vectored(&[IoSlice::new(head), IoSlice::new(tail)]).await.unwrap();
                    model.write_all(&bytes[..count]).unwrap();
                }
                // A write is either accepted or has no effect.
                _ => {
                    if let Some(count) = poll_once(file.write(&bytes)).await {
                        model.write_all(&bytes[..count.unwrap()]).unwrap();
                    }
                }
            }
        }
        6 | 7 => {
            let position = random_position(random);
            assert_same_result(file.seek(position).await, model.seek(position));
        }
        8 => assert_eq!(file.stream_position().await.unwrap(), model.stream_position().unwrap()),
        9 => {
            let (mut bytes, offset) = (vec![0; random.usize(..5000)], random.u64(..60_000));
            file.flush().await.unwrap();
            let count = file.read_at(&mut bytes, offset).await.unwrap();
            let mut expected = vec![0; count];
            model.read_exact_at(&mut expected, offset).unwrap();
            assert_same_bytes(&bytes[..count], &expected);
            assert!(count > 0 || bytes.is_empty() || offset >= model.metadata().unwrap().len());
        }
        10 => {
            let (bytes, offset) = (random_bytes(random), random.u64(..60_000));
            discard_unreturned_bytes(file).await;
            if random.usize(..2) == 0 {
                file.write_all_at(&bytes, offset).await.unwrap();
                model.write_all_at(&bytes, offset).unwrap();
            } else {
                let (count, bytes) = file.write_owned_at(bytes, offset).await;
                model.write_all_at(&bytes[..count.unwrap()], offset).unwrap();
            }
        }
        11 => {
            let length = random.u64(..60_000);
            discard_unreturned_bytes(file).await;
            file.set_len(length).await.unwrap();
            model.set_len(length).unwrap();
        }
        12 => {
            let (length, offset) = (random.usize(..5000), random.u64(..60_000));
            file.flush().await.unwrap();
            let (count, bytes) = file.read_owned_at(AlignedBuf::new(length), offset).await;
            let mut expected = vec![0; count.unwrap()];
            model.read_exact_at(&mut expected, offset).unwrap();
            assert_same_bytes(&bytes[..expected.len()], &expected);
        }
        _ => {
            file.flush().await.unwrap();
            evict(file);
        }
    }
}

#[test]
fn random_operations_have_same_effects_as_std() {
    let seed = Rng::new().u64(..);
    eprintln!("seed {seed}");
    on_every_driver_and_sim(move |setup| {
        setup.run(async {
            for program in 0..8 {
                let mut random = Rng::with_seed(seed + program);
                let directory = tempfile::tempdir().unwrap();
                let paths = [directory.path().join("file"), directory.path().join("model")];
                let appends = random.usize(..4) == 0;
                let mut options = fs::OpenOptions::new();
                options.read(true).write(!appends).append(appends).create(true);
                let file = OpenOptions::from(options.clone()).open(&paths[0]).await.unwrap();
                let mut model = options.open(&paths[1]).unwrap();
                for _ in 0..60 {
                    step(&mut random, &file, &mut model).await;
                }
                let file = file.into_std().await.unwrap();
                assert_eq!({ &file }.stream_position().unwrap(), model.stream_position().unwrap());
                assert_same_bytes(&fs::read(&paths[0]).unwrap(), &fs::read(&paths[1]).unwrap());
            }
        });
    });
}

#[test]
fn concurrent_positional_operations_affect_only_their_ranges() {
    const BLOCKS: u64 = 64;
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            for (is_direct, length) in [(false, 4096), (false, 65_536), (true, 4096)] {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).direct(is_direct);
                let file = match options.open(&path).await {
                    Ok(file) => file,
                    Err(error) => return eprintln!("skipped: no direct I/O: {error}"),
                };
                let block = move |index: u64| pattern(index ^ u64::from(is_direct), length);
                let writes = (0..BLOCKS).map(|index| {
                    let file = file.clone();
                    anello::spawn(async move {
                        let bytes = AlignedBuf::from(block(index));
                        file.write_owned_at(bytes, index * length as u64).await.0.unwrap()
                    })
                });
                for write in writes.collect::<Vec<_>>() {
                    assert_eq!(write.await.unwrap(), length);
                }
                if !is_direct {
                    evict(&file);
                }
                let reads = (0..BLOCKS).map(|index| {
                    let file = file.clone();
                    anello::spawn(async move {
                        let offset = index * length as u64;
                        if index % 2 == 0 {
                            let mut bytes = AlignedBuf::new(length);
                            file.read_exact_at(&mut bytes, offset).await.unwrap();
                            return bytes.to_vec();
                        }
                        let (count, bytes) = file.read_owned_at(AlignedBuf::new(length), offset).await;
                        bytes[..count.unwrap()].to_vec()
                    })
                });
                for (index, read) in reads.collect::<Vec<_>>().into_iter().enumerate() {
                    let (read, expected) = (read.await.unwrap(), block(index as u64));
                    // A read of cached data may be short.
                    assert!(!read.is_empty(), "{}", setup.name);
                    assert_same_bytes(&read, &expected[..read.len()]);
                }
            }
        });
    });
}

/// Operations dropped at their first poll complete in the background, and neither leak nor corrupt anything.
#[test]
fn fault_10_dropped_file_operations_complete_in_background() {
    let seed = Rng::new().u64(..);
    eprintln!("seed {seed}");
    on_both_drivers(move |setup| {
        setup.run(async {
            let mut random = Rng::with_seed(seed);
            let directory = tempfile::tempdir().unwrap();
            let content = pattern(seed, 1 << 20);
            let mut files = Vec::new();
            // Separate files: the kernel reports an error if buffered and direct writes collide.
            for is_direct in [false, true] {
                let path = directory.path().join(is_direct.to_string());
                fs::write(&path, &content).unwrap();
                files.extend(
                    OpenOptions::new().read(true).write(true).direct(is_direct).open(&path).await.ok(),
                );
            }
            for round in 0..5000 {
                if round % 8 == 0 {
                    // Restores the budget of the task, without which no operation starts.
                    yield_now().await;
                }
                let file = &files[random.usize(..files.len())];
                let length = if random.usize(..4) == 0 { 65_536 } else { 4096 };
                let start = random.usize(..=(content.len() - length) / 4096) * 4096;
                let (range, offset) = (start..start + length, start as u64);
                if round % 50 == 0 {
                    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                }
                match random.usize(..4) {
                    0 => drop(poll_once(file.read_owned_at(AlignedBuf::registered(length), offset)).await),
                    1 => drop(poll_once(file.read_at(&mut vec![0; length], offset)).await),
                    // Writes the bytes that are already there.
                    2 => {
                        let bytes = AlignedBuf::from(&content[range]);
                        drop(poll_once(file.write_owned_at(bytes, offset)).await);
                    }
                    _ => drop(poll_once(file.write_at(&content[range], offset)).await),
                }
            }
            for file in &files {
                file.sync_all().await.unwrap();
                let mut bytes = AlignedBuf::new(content.len());
                file.read_exact_at(&mut bytes, 0).await.unwrap();
                assert_same_bytes(&bytes, &content);
            }
        });
    });
}

#[test]
fn direct_operations_use_ring_and_other_drivers_use_pool() {
    on_every_driver(|setup| {
        setup.run(async {
            let file = block_file(1);
            if rustix::fs::fcntl_getfl(&file).unwrap().contains(rustix::fs::OFlags::DIRECT) {
                for _ in 0..3 {
                    let (read, buffer) = file.read_owned_at(AlignedBuf::new(4096), 4096).await;
                    assert_eq!(read.unwrap(), 4096, "{}", setup.name);
                    file.write_owned_at(buffer, 4096).await.0.unwrap();
                }
                let expected = if setup.name.contains("uring") { 6 } else { 0 };
                assert_eq!(current_driver_metrics().unwrap().file_operations, expected, "{}", setup.name);
            }
            let mut bytes = AlignedBuf::new(1 << 20);
            file.read_exact_at(&mut bytes, 0).await.unwrap();
            assert_same_bytes(&bytes, &pattern(1, 1 << 20));
        });
    });
}

/// Short writes use the ring, and long ones the queue of the file, which neither reports the result of one write to
/// another nor stops after an error.
#[test]
fn short_cached_writes_use_ring_and_long_ones_use_pool() {
    on_every_driver(|setup| {
        let std = tempfile::tempfile().unwrap();
        let written = pwritev2(&std, &[IoSlice::new(b"?")], 0, ReadWriteFlags::NOWAIT);
        if written != Err(Errno::OPNOTSUPP) {
            return eprintln!("skipped: the file system writes without waiting");
        }
        let read = preadv2(&std, &mut [IoSliceMut::new(&mut [0])], 0, ReadWriteFlags::NOWAIT);
        if read == Err(Errno::OPNOTSUPP) {
            return eprintln!("skipped: all operations of the file system use the pool");
        }
        // Some file systems have no limit.
        let beyond = |length: usize| {
            std.write_at(&pattern(0, length), i64::MAX as u64 - length as u64).map_err(|error| error.kind())
        };
        let results_beyond = [beyond(1000), beyond(100_000)];
        let file = File::from(std);
        setup.run(async {
            for ((length, on_ring), beyond) in [(1000, 8), (100_000, 0)].into_iter().zip(results_beyond) {
                let before = current_driver_metrics().unwrap().file_operations;
                let writes = (0..16).map(|index| {
                    let file = file.clone();
                    // The second half is beyond the largest file of most file systems.
                    let offset =
                        if index < 8 { index * length as u64 } else { i64::MAX as u64 - length as u64 };
                    anello::spawn(async move {
                        let (result, bytes) = file.write_owned_at(pattern(index, length), offset).await;
                        assert_same_bytes(&bytes, &pattern(index, length));
                        result.map_err(|error| error.kind())
                    })
                });
                for (index, write) in writes.collect::<Vec<_>>().into_iter().enumerate() {
                    let expected = if index < 8 { Ok(length) } else { beyond };
                    assert_eq!(write.await.unwrap(), expected, "{} {index}", setup.name);
                }
                let expected = if setup.name.contains("uring") { on_ring * 2 } else { 0 };
                assert_eq!(
                    current_driver_metrics().unwrap().file_operations - before,
                    expected,
                    "{}",
                    setup.name
                );
                let mut bytes = vec![0; 8 * length];
                file.read_exact_at(&mut bytes, 0).await.unwrap();
                for (index, written) in bytes.chunks(length).enumerate() {
                    assert_same_bytes(written, &pattern(index as u64, length));
                }
            }
        });
    });
}

type Operation = Pin<Box<dyn Future<Output = (io::Result<usize>, AlignedBuf)>>>;

/// Starts operations that neither the tasks nor the runtime wait for. Each is polled once with the given waker.
fn start_operations(random: &mut Rng, file: &File, content: &[u8], waker: &Waker) -> Vec<Operation> {
    let start = |_| {
        let (file, block) = (file.clone(), random.usize(..256) * 4096);
        let mut bytes =
            if random.usize(..2) == 0 { AlignedBuf::registered(4096) } else { AlignedBuf::new(4096) };
        bytes.copy_from_slice(&content[block..][..4096]);
        let is_read = random.usize(..2) == 0;
        let mut operation: Operation = Box::pin(async move {
            match is_read {
                true => file.read_owned_at(bytes, block as u64).await,
                // Writes the bytes that are already there.
                false => file.write_owned_at(bytes, block as u64).await,
            }
        });
        let polled = operation.as_mut().poll(&mut Context::from_waker(waker));
        polled.is_pending().then_some(operation)
    };
    (0..20).filter_map(start).collect()
}

/// Operations outlive the task and the runtime that started them, and are polled and dropped anywhere.
#[test]
fn fault_10_file_operations_in_flight_survive_their_runtime() {
    let seed = Rng::new().u64(..);
    eprintln!("seed {seed}");
    on_every_driver(move |setup| {
        let mut random = Rng::with_seed(seed);
        let (file, content) = (block_file(seed), pattern(seed, 1 << 20));
        for _ in 0..10 {
            let runtime = setup.runtime();
            let mut operations = runtime.block_on(async {
                let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
                let operations = start_operations(&mut random, &file, &content, &waker);
                for _ in 0..random.usize(..3) {
                    yield_now().await;
                }
                operations
            });
            match random.usize(..4) {
                // Dropped before, after and without the runtime.
                0 => drop((operations, runtime)),
                1 => drop((runtime, operations)),
                2 => runtime.block_on(async {
                    for operation in operations {
                        operation.await.0.unwrap();
                    }
                }),
                _ => {
                    drop(runtime);
                    // The result is lost, or the operation has been performed on the file pool.
                    setup.run(async {
                        for operation in operations.drain(..) {
                            drop(operation.await);
                        }
                    });
                }
            }
        }
        setup.run(async {
            let mut bytes = AlignedBuf::new(1 << 20);
            file.read_exact_at(&mut bytes, 0).await.unwrap();
            assert_same_bytes(&bytes, &content);
        });
    });
}

thread_local! {
    static STASH: RefCell<Vec<Operation>> = const { RefCell::new(Vec::new()) };
}

/// A waker that drops other operations when it is called or dropped, and then panics.
struct Hostile;

impl Hostile {
    fn act() {
        if STASH.with(|stash| !stash.take().is_empty()) && !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("deliberate panic of a waker"));
        }
    }
}

impl Wake for Hostile {
    fn wake(self: Arc<Self>) {
        Self::act();
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        Self::act();
    }
}

#[test]
fn fault_17_hostile_wakers_of_file_operations_are_contained() {
    let seed = Rng::new().u64(..);
    eprintln!("seed {seed}");
    on_every_driver(move |setup| {
        setup.run(async {
            let mut random = Rng::with_seed(seed);
            let (file, content) = (block_file(seed), pattern(seed, 1 << 20));
            for _ in 0..20 {
                let stashed = start_operations(&mut random, &file, &content, Waker::noop());
                let waker = Waker::from(Arc::new(Hostile));
                let operations = start_operations(&mut random, &file, &content, &waker);
                STASH.with(|stash| stash.borrow_mut().extend(stashed));
                drop(catch_unwind(AssertUnwindSafe(|| drop(waker))));
                for _ in 0..random.usize(..3) {
                    yield_now().await;
                }
                if random.usize(..2) == 0 {
                    drop(catch_unwind(AssertUnwindSafe(|| drop(operations))));
                } else {
                    for mut operation in operations {
                        // Replacing the waker drops it, which panics in the task that polls.
                        let polled = poll_fn(|context| {
                            let poll = AssertUnwindSafe(|| operation.as_mut().poll(context));
                            catch_unwind(poll).map_or(Poll::Ready(None), |polled| polled.map(Some))
                        });
                        if let Some((result, _)) = polled.await {
                            result.unwrap();
                        }
                    }
                }
                drop(catch_unwind(AssertUnwindSafe(|| STASH.with(RefCell::take))));
            }
            let mut bytes = AlignedBuf::new(1 << 20);
            file.read_exact_at(&mut bytes, 0).await.unwrap();
            assert_same_bytes(&bytes, &content);
        });
    });
}

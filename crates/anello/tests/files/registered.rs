//! Registered buffers: the same results on every driver and runtime, whether or not they could be registered.

use std::time::Duration;

use anello::fs::{AlignedBuf, File};
use anello::time::sleep;
use anello::{Runtime, current_driver_metrics, yield_now};

use crate::common::*;

const BLOCK: usize = 4096;

/// More buffers than a ring can have registered.
const MANY: usize = 5000;

fn registered_operations() -> u64 {
    current_driver_metrics().unwrap().registered_file_operations
}

/// Returns whether the file bypasses the page cache. Only such files are certain to be read and written on the ring.
fn is_direct(file: &File) -> bool {
    rustix::fs::fcntl_getfl(file).unwrap().contains(rustix::fs::OFlags::DIRECT)
}

/// Returns whether the kernel has tables of registered buffers, which are as old as rings of receive buffers.
fn can_register(runtime: &Runtime) -> bool {
    runtime.driver().features.contains("buffer-ring")
}

/// Replaces a block of the file and reads it back with the same buffer. Returns the buffer.
async fn replace(file: &File, mut buffer: AlignedBuf, block: usize, seed: u64) -> AlignedBuf {
    let (content, offset) = (pattern(seed, buffer.len()), (block * BLOCK) as u64);
    buffer.copy_from_slice(&content);
    let (written, mut buffer) = file.write_owned_at(buffer, offset).await;
    assert_eq!(written.unwrap(), buffer.len());
    buffer.fill(0);
    let (read, buffer) = file.read_owned_at(buffer, offset).await;
    assert_eq!(read.unwrap(), buffer.len());
    assert_same_bytes(&buffer, &content);
    buffer
}

#[test]
fn registered_buffer_transfers_same_bytes_on_every_driver() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let can_register = can_register(&runtime);
        runtime.block_on(async {
            let (file, cached) = (block_file(1), file_of(&pattern(2, BLOCK)));
            let mut buffer = AlignedBuf::registered(2 * BLOCK);
            assert_eq!(buffer.as_ptr().addr() % BLOCK, 0);
            assert!(buffer.iter().all(|byte| *byte == 0) && buffer.len() == 2 * BLOCK);
            assert!(setup.is_uring() || !buffer.is_registered(), "{}", setup.name);
            assert!(!can_register || buffer.is_registered(), "{}", setup.name);
            for block in 0..10 {
                buffer = replace(&file, buffer, block, block as u64).await;
            }
            let expected = if buffer.is_registered() && is_direct(&file) { 20 } else { 0 };
            assert_eq!(registered_operations(), expected, "{}", setup.name);
            // Reads at the end of the file are short, and invalid ones fail.
            let (read, buffer) = file.read_owned_at(buffer, (1 << 20) - BLOCK as u64).await;
            assert_eq!(read.unwrap(), BLOCK);
            let (read, buffer) = file.read_owned_at(buffer, u64::MAX).await;
            assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EINVAL));
            replace(&cached, buffer, 0, 3).await;
            // Empty buffers are not registered.
            let (read, empty) = file.read_owned_at(AlignedBuf::registered(0), 0).await;
            assert!(read.unwrap() == 0 && !empty.is_registered());
        });
    });
}

#[test]
fn slots_of_dropped_buffers_are_reused() {
    on_both_drivers(|setup| {
        setup.run(async {
            let file = block_file(1);
            let kept = AlignedBuf::registered(BLOCK);
            let is_registered = kept.is_registered();
            for index in 0..MANY {
                let buffer = AlignedBuf::registered(BLOCK);
                assert_eq!(buffer.is_registered(), is_registered, "{}, {index}", setup.name);
                if index % 100 == 0 {
                    let buffer = replace(&file, buffer, index % 256, index as u64).await;
                    std::thread::spawn(|| drop(buffer)).join().unwrap();
                }
            }
            replace(&file, kept, 0, 1).await;
        });
    });
}

#[test]
fn buffers_beyond_limit_are_unregistered() {
    on_both_drivers(|setup| {
        setup.run(async {
            let file = block_file(1);
            // The limit is the size of the table or the limit of locked memory.
            let mut buffers: Vec<_> = (0..MANY).map(|_| AlignedBuf::registered(512)).collect();
            let registered = buffers.iter().filter(|buffer| buffer.is_registered()).count();
            assert!(registered < MANY && !buffers[MANY - 1].is_registered(), "{}", setup.name);
            let last = AlignedBuf::registered(BLOCK);
            assert!(!last.is_registered());
            replace(&file, last, 0, 1).await;
            if registered > 0 {
                buffers.swap_remove(registered / 2);
                let next = AlignedBuf::registered(512);
                assert!(next.is_registered(), "{}", setup.name);
                buffers.push(next);
            }
            for (index, buffer) in buffers.drain(..).enumerate().step_by(50) {
                let (read, _) = file.read_owned_at(buffer, 0).await;
                assert_eq!(read.unwrap(), 512, "{}, {index}", setup.name);
            }
        });
    });
}

#[test]
fn dropped_operation_does_not_write_to_next_buffer() {
    on_every_driver(|setup| {
        setup.run(async {
            let file = block_file(1);
            for round in 0..200 {
                drop(poll_once(file.read_owned_at(AlignedBuf::registered(BLOCK), 0)).await);
                let mut next = AlignedBuf::registered(BLOCK);
                next.fill(round as u8);
                let other = AlignedBuf::registered(BLOCK);
                for _ in 0..round % 4 {
                    yield_now().await;
                }
                let (read, other) = file.read_owned_at(other, BLOCK as u64).await;
                read.unwrap();
                assert!(next.iter().all(|byte| *byte == round as u8), "{}", setup.name);
                assert_same_bytes(&other, &pattern(1, 2 * BLOCK)[BLOCK..]);
            }
        });
    });
}

#[test]
fn buffer_of_other_runtime_uses_no_slot() {
    on_every_driver(|setup| {
        let (first, second) = (setup.runtime(), setup.runtime());
        let file = block_file(1);
        let register = || (0..8).map(|_| AlignedBuf::registered(BLOCK)).collect::<Vec<_>>();
        let mut foreign = first.block_on(async { register() });
        second.block_on(async {
            // They have the same slots as the foreign ones.
            let mut own = register();
            own.iter_mut().for_each(|buffer| buffer.fill(9));
            for (block, buffer) in std::mem::take(&mut foreign).into_iter().enumerate() {
                foreign.push(replace(&file, buffer, block, block as u64).await);
            }
            assert!(own.iter().all(|buffer| buffer.iter().all(|byte| *byte == 9)), "{}", setup.name);
            assert_eq!(registered_operations(), 0, "{}", setup.name);
            let own = replace(&file, own.remove(0), 0, 5).await;
            assert_eq!(
                registered_operations() > 0,
                own.is_registered() && is_direct(&file),
                "{}",
                setup.name
            );
        });
        // The buffers outlive their runtime.
        drop(first);
        let (setup, file, buffer) = (setup.clone(), file.clone(), foreign.remove(0));
        std::thread::spawn(move || setup.run(replace(&file, buffer, 0, 6))).join().unwrap();
        second.block_on(async {
            for (block, buffer) in foreign.into_iter().enumerate() {
                replace(&block_file(2), buffer, block, 7).await;
            }
        });
    });
}

#[test]
fn runtime_dropped_in_flight_waits_for_registered_memory() {
    on_every_driver(|setup| {
        let file = block_file(1);
        for _ in 0..20 {
            let runtime = setup.runtime();
            runtime.block_on(async {
                for block in 0..8 {
                    let buffer = AlignedBuf::registered(BLOCK);
                    drop(poll_once(file.read_owned_at(buffer, block * BLOCK as u64)).await);
                }
            });
            drop(runtime);
        }
        setup.run(async {
            let (read, buffer) = file.read_owned_at(AlignedBuf::registered(1 << 20), 0).await;
            assert_eq!(read.unwrap(), buffer.len());
            assert_same_bytes(&buffer, &pattern(1, 1 << 20));
        });
    });
}

/// Returns the locked memory of this process that was registered, in KiB.
fn pinned_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPin:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Runs in a child process, because the process counts its locked memory.
#[test]
fn memory_of_dropped_buffers_is_unlocked() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            setup.run(async {
                let file = block_file(1);
                let buffers: Vec<_> = (0..100).map(|_| AlignedBuf::registered(BLOCK)).collect();
                let registered = buffers.iter().filter(|buffer| buffer.is_registered()).count();
                assert!(pinned_kib() >= registered * BLOCK / 1024, "{}", setup.name);
                drop(buffers);
                replace(&file, AlignedBuf::new(BLOCK), 0, 1).await;
                // The kernel may unlock the memory in the background.
                while is_direct(&file) && pinned_kib() > 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            });
        });
    });
}

/// Runs in a child process, because capabilities and limits of locked memory apply to the process.
#[test]
fn locked_memory_limit_leaves_buffers_unregistered() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    in_own_process(|| {
        // With this capability, the kernel does not count locked memory.
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        on_both_drivers(|setup| {
            let runtime = setup.runtime();
            let limit = getrlimit(Resource::Memlock);
            setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: limit.maximum }).unwrap();
            let file = block_file(1);
            runtime.block_on(async {
                let buffer = AlignedBuf::registered(BLOCK);
                assert!(!buffer.is_registered(), "{}", setup.name);
                replace(&file, buffer, 0, 1).await;
                assert_eq!(registered_operations(), 0);
            });
            setrlimit(Resource::Memlock, limit).unwrap();
            let can_register = can_register(&runtime);
            runtime.block_on(async {
                let buffer = AlignedBuf::registered(BLOCK);
                assert!(!can_register || buffer.is_registered(), "{}", setup.name);
                replace(&file, buffer, 0, 2).await;
            });
        });
    });
}

/// Represents kernels without sparse tables of registered buffers.
#[test]
fn kernel_without_buffer_table_leaves_buffers_unregistered() {
    if is_own_process() || can_inject() {
        OwnProcess::injecting(&["io_uring_register:error=EINVAL"]).run(|| {
            on_both_drivers(|setup| {
                setup.run(async {
                    let buffer = AlignedBuf::registered(BLOCK);
                    assert!(!buffer.is_registered(), "{}", setup.name);
                    replace(&block_file(1), buffer, 0, 1).await;
                    assert_eq!(registered_operations(), 0);
                });
            });
        });
    }
}

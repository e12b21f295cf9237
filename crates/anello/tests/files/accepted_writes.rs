//! Accepted writes to files when runtimes end.

use std::fs::OpenOptions;
use std::io::Read;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use anello::Runtime;
use anello::fs::File;
use rustix::fs::{CWD, FileType, Mode};

use crate::common::*;

/// More bytes than fit in a pipe.
const BYTES: usize = 1 << 20;

/// Capacity of a pipe, and what its reader takes at a time.
const PIPE_BYTES: usize = (64 + 4) << 10;

/// Returns a named pipe, opened for reading and for writing. A write of `BYTES` waits for the reader.
fn named_pipe() -> (std::fs::File, File) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // A pipe that is opened for both does not wait for the other end.
    let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    (reader, File::from_std(writer))
}

fn write(runtime: &Runtime, file: &File) {
    runtime.block_on(async { file.write_all(&vec![7; BYTES]).await.unwrap() });
}

#[test]
fn last_runtime_waits_for_accepted_writes() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            let (mut reader, file) = named_pipe();
            let (first, last) = (setup.runtime(), setup.runtime());
            write(&first, &file);
            // Not the last one: it does not wait.
            drop(first);
            let reading = thread::spawn(move || {
                let mut bytes = vec![0; BYTES];
                thread::sleep(Duration::from_millis(20));
                reader.read_exact(&mut bytes).unwrap();
                reader
            });
            drop(last);
            // All bytes are in the pipe, so its reader ends.
            drop(reading.join().unwrap());
            // A runtime with a time limit does not wait for longer.
            let (mut reader, file) = named_pipe();
            let runtime = setup.runtime();
            write(&runtime, &file);
            runtime.shutdown_background();
            reader.read_exact(&mut vec![0; BYTES]).unwrap();
        });
    });
}

/// A file needs no runtime, so the executor of another crate can write it, on any thread.
#[test]
fn last_runtime_waits_for_writes_that_were_made_outside_of_runtimes() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            for is_on_other_thread in [false, true] {
                let (mut reader, file) = named_pipe();
                let (ended, last) = (setup.runtime(), setup.runtime());
                // Converted in a runtime that has ended.
                let file = ended.block_on(async { File::from_std(file.into_std().await.unwrap()) });
                drop(ended);
                let write = move || {
                    let mut context = Context::from_waker(Waker::noop());
                    let written = pin!(file.write(&[7; BYTES])).poll(&mut context);
                    assert!(matches!(written, Poll::Ready(Ok(BYTES))), "{written:?}");
                };
                if is_on_other_thread {
                    thread::spawn(write).join().unwrap()
                } else {
                    write()
                }
                let read_bytes = Arc::new(AtomicUsize::new(0));
                let counted = Arc::clone(&read_bytes);
                let reading = thread::spawn(move || {
                    thread::sleep(Duration::from_millis(20));
                    while counted.load(Ordering::SeqCst) < BYTES {
                        let count = reader.read(&mut [0; 4096]).unwrap();
                        counted.fetch_add(count, Ordering::SeqCst);
                    }
                });
                drop(last);
                let read_bytes = read_bytes.load(Ordering::SeqCst);
                assert!(read_bytes + PIPE_BYTES >= BYTES, "{}: {read_bytes} bytes were read", setup.name);
                reading.join().unwrap();
            }
        });
    });
}

/// Runs lost bytes in more than a quarter of all cases when the runtime did not wait.
#[test]
fn bytes_are_in_the_file_when_the_last_runtime_has_ended() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            let directory = tempfile::tempdir().unwrap();
            for number in 0..30 {
                let path = directory.path().join(number.to_string());
                let runtime = setup.runtime();
                runtime.block_on(async {
                    let file = File::create(&path).await.unwrap();
                    file.write_all(&vec![7; BYTES]).await.unwrap();
                });
                drop(runtime);
                assert_eq!(std::fs::metadata(&path).unwrap().len(), BYTES as u64);
            }
        });
    });
}

//! Files and directories: errors, special cases, cancellation, and the traits of tokio and futures.

use std::collections::HashMap;
use std::fs;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use anello::fs::{AlignedBuf, File, OpenOptions, PathError};
use anello::time::sleep;
use anello::yield_now;

use crate::common::*;

fn cause(error: &io::Error) -> &PathError {
    error.get_ref().and_then(|cause| cause.downcast_ref()).unwrap()
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn files_and_most_futures_are_send() {
    fn assert_send<T: Send>(value: T) -> T {
        value
    }
    Setup::new("epoll", anello::DriverKind::Epoll, |_| {}).run(async {
        let file = assert_send(assert_send(File::open("/proc/version")).await.unwrap());
        let mut bytes = [0; 5];
        assert_send(file.read(&mut bytes)).await.unwrap();
        assert_eq!(&bytes, b"Linux");
        assert_send(file.seek(SeekFrom::Start(0))).await.unwrap();
        assert_send(file.metadata()).await.unwrap();
        assert_send(anello::fs::read_dir("/proc/self")).await.unwrap().next_entry().await.unwrap();
        assert_send(anello::fs::read("/proc/version")).await.unwrap();
    });
}

/// They run in parallel on the file pool, because each one waits for the disk.
#[test]
fn concurrent_synchronous_writes() {
    on_both_drivers(|setup| {
        setup.run(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).custom_flags(libc::O_DSYNC);
            let file = options.open(&path).await.unwrap();
            let writes = (0..16u8).map(|index| {
                let (file, length) = (file.clone(), if index % 2 == 0 { 4096 } else { 64 << 10 });
                anello::spawn(async move {
                    let offset = u64::from(index) << 16;
                    file.write_all_at(&vec![index; length], offset).await.unwrap();
                })
            });
            for write in writes.collect::<Vec<_>>() {
                write.await.unwrap();
            }
            let content = fs::read(&path).unwrap();
            for (index, part) in content.chunks(64 << 10).enumerate() {
                let (written, hole) = part.split_at(if index % 2 == 0 { 4096 } else { 64 << 10 });
                assert!(written.iter().all(|byte| usize::from(*byte) == index), "write {index}");
                assert!(hole.iter().all(|byte| *byte == 0), "after write {index}");
            }
            assert_eq!(content.len(), 16 << 16);
        });
    });
}

/// Waits for a future like an executor of another crate.
fn block_on_elsewhere<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn operations_complete_without_running_runtime() {
    on_both_drivers(|setup| {
        let content = pattern(5, 1 << 20);
        let operations = async {
            let file = file_of(&content);
            file.sync_all().await.unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            file.rewind().await.unwrap();
            let mut bytes = [0; 1024];
            for offset in (0..content.len()).step_by(1024) {
                file.read_exact_at(&mut bytes, offset as u64).await.unwrap();
                assert_same_bytes(&bytes, &content[offset..][..1024]);
                file.write_all_at(&bytes, offset as u64).await.unwrap();
                file.read_exact(&mut bytes).await.unwrap();
                assert_same_bytes(&bytes, &content[offset..][..1024]);
            }
        };
        block_on_elsewhere(operations);
        let runtime = setup.runtime();
        // The runtime has been entered, but takes no turns.
        let entered = runtime.enter();
        block_on_elsewhere(async {
            let file = file_of(&content);
            for offset in (0..content.len()).step_by(1024) {
                file.write_all_at(&content[offset..][..1024], offset as u64).await.unwrap();
                file.read_exact_at(&mut [0; 1024], offset as u64).await.unwrap();
            }
        });
        drop(entered);
    });
}

#[test]
fn errors_name_operation_and_path() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let missing = "/no/such/file";
            let errors = [
                (File::open(missing).await.err(), "cannot open /no/such/file: "),
                (File::create(missing).await.err(), "cannot open /no/such/file: "),
                (anello::fs::read(missing).await.err(), "cannot read /no/such/file: "),
                (anello::fs::read_to_string(missing).await.err(), "cannot read /no/such/file: "),
                (anello::fs::write(missing, "").await.err(), "cannot write /no/such/file: "),
                (anello::fs::metadata(missing).await.err(), "cannot read metadata of /no/such/file: "),
                (anello::fs::remove_file(missing).await.err(), "cannot remove /no/such/file: "),
                (anello::fs::remove_dir(missing).await.err(), "cannot remove directory /no/such/file: "),
                (anello::fs::remove_dir_all(missing).await.err(), "cannot remove directory /no/such/file: "),
                (anello::fs::create_dir(missing).await.err(), "cannot create directory /no/such/file: "),
                (anello::fs::read_dir(missing).await.err(), "cannot list /no/such/file: "),
                (anello::fs::read_link(missing).await.err(), "cannot read link /no/such/file: "),
                (anello::fs::canonicalize(missing).await.err(), "cannot resolve /no/such/file: "),
                (
                    anello::fs::rename(missing, "/tmp/x").await.err(),
                    "cannot rename /no/such/file to /tmp/x: ",
                ),
                (anello::fs::copy(missing, "/tmp/x").await.err(), "cannot copy /no/such/file to /tmp/x: "),
                (
                    anello::fs::hard_link(missing, "/tmp/x").await.err(),
                    "cannot link /no/such/file as /tmp/x: ",
                ),
            ];
            for (error, prefix) in errors {
                let error = error.unwrap();
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                assert!(error.to_string().starts_with(prefix), "{error}");
                assert_eq!(cause(&error).path(), Path::new(missing));
                assert_eq!(cause(&error).raw_os_error(), Some(libc::ENOENT));
            }
        });
    });
}

/// Runs in a child process, because the limit applies to the process.
#[test]
fn open_without_free_descriptors_fails_and_recovers() {
    in_own_process(|| {
        on_every_driver(|setup| {
            setup.run(async {
                let mut files = vec![File::open("/proc/version").await.unwrap()];
                let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
                let lowered = rustix::process::Rlimit { current: Some(100), ..limit };
                rustix::process::setrlimit(rustix::process::Resource::Nofile, lowered).unwrap();
                let error = loop {
                    match File::open("/proc/version").await {
                        Ok(file) => files.push(file),
                        Err(error) => break error,
                    }
                };
                assert_eq!(cause(&error).raw_os_error(), Some(libc::EMFILE), "{error}");
                let duplicated = files[0].try_clone().await.unwrap_err();
                assert_eq!(duplicated.raw_os_error(), Some(libc::EMFILE));
                // The open files still work, and a clone needs no descriptor.
                assert_eq!(files[0].clone().read_at(&mut [0; 5], 0).await.unwrap(), 5);
                files.pop();
                files.push(File::open("/proc/version").await.unwrap());
                rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
            });
        });
    });
}

#[test]
fn offsets_beyond_limit_are_rejected_like_in_std() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let file = File::from_std(tempfile::tempfile().unwrap());
            file.write_all(b"0123456789").await.unwrap();
            file.flush().await.unwrap();
            let numbers = |result: io::Result<usize>| result.map_err(|error| error.raw_os_error());
            let max = i64::MAX as u64;
            for offset in [11, 1 << 40, max - 1, max, max + 1, u64::MAX - 1, u64::MAX] {
                let std = file.as_std();
                let (expected, read) =
                    (std.read_at(&mut [0; 4], offset), file.read_at(&mut [0; 4], offset).await);
                assert_eq!(numbers(read), numbers(expected), "{}: read at {offset}", setup.name);
                let read = file.read_owned_at(vec![0; 4], offset).await.0;
                assert_eq!(numbers(read), numbers(std.read_at(&mut [0; 4], offset)), "{offset}");
                if offset < max - 1 {
                    continue;
                }
                let (expected, written) =
                    (std.write_at(b"text", offset), file.write_at(b"text", offset).await);
                assert_eq!(numbers(written), numbers(expected), "{}: write at {offset}", setup.name);
                assert!(file.write_owned_at(vec![0; 4], offset).await.0.is_err());
            }
            // The offset -1 does not select the cursor.
            assert_eq!(file.stream_position().await.unwrap(), 10);
            assert_eq!(file.metadata().await.unwrap().len(), 10);
            let error = file.seek(SeekFrom::Current(-11)).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
            assert_eq!(file.stream_position().await.unwrap(), 10);
        });
    });
}

#[test]
fn error_of_accepted_write_is_returned_by_next_operation() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let full = OpenOptions::new().write(true).open("/dev/full").await.unwrap();
            let is_full = |result: io::Result<()>| {
                let error = result.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
            };
            // The kernel may report the error of a write immediately.
            is_full(async { full.write(b"text").await.map(drop).and(full.flush().await) }.await);
            // It is reported once.
            full.flush().await.unwrap();
            is_full(async { full.write(b"text").await.map(drop).and(full.sync_all().await) }.await);
            is_full(async { full.write_all(&[0; 5 << 20]).await.and(full.flush().await) }.await);
            is_full(full.write_at(b"text", 0).await.map(drop));
            is_full(full.write_owned_at(b"text".to_vec(), 0).await.0.map(drop));
        });
    });
}

#[test]
fn append_mode_ignores_offset_and_cursor() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("log");
            fs::write(&path, "0").unwrap();
            let file = OpenOptions::new().read(true).append(true).open(&path).await.unwrap();
            file.write_all(b"1").await.unwrap();
            file.rewind().await.unwrap();
            file.write_all(b"2").await.unwrap();
            file.flush().await.unwrap();
            file.write_all_at(b"3", 0).await.unwrap();
            file.write_owned_at(b"4".to_vec(), 1).await.0.unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"01234");
        });
    });
}

#[test]
fn concurrent_readers_of_one_cursor_share_its_bytes() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let content = pattern(7, 50_000);
            let file = file_of(&content);
            file.rewind().await.unwrap();
            file.as_std().sync_data().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let readers = (0..5).map(|_| {
                let file = file.clone();
                anello::spawn(async move {
                    let mut chunks = Vec::new();
                    loop {
                        let mut chunk = vec![0; 1000];
                        match file.read(&mut chunk).await.unwrap() {
                            0 => return chunks,
                            count => chunks.push(chunk[..count].to_vec()),
                        }
                    }
                })
            });
            // The offset of each sequence of eight bytes, which is unique.
            let offsets: HashMap<_, _> = content.windows(8).zip(0..).collect();
            let mut total = 0;
            for reader in readers.collect::<Vec<_>>() {
                for chunk in reader.await.unwrap() {
                    total += chunk.len();
                    if let Some(start) = chunk.get(..8) {
                        let offset: usize = offsets[start];
                        assert_same_bytes(&chunk, &content[offset..][..chunk.len()]);
                    }
                }
            }
            assert_eq!(total, content.len(), "{}", setup.name);
        });
    });
}

#[test]
fn into_std_keeps_position_and_written_bytes() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let file = file_of(b"0123456789");
            file.seek(SeekFrom::Start(3)).await.unwrap();
            file.write_all(b"abc").await.unwrap();
            let clone = file.clone();
            let mut std = file.into_std().await.unwrap();
            let mut rest = String::new();
            std.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "6789", "{}", setup.name);
            std.rewind().unwrap();
            std.write_all(b"X").unwrap();
            assert_eq!(clone.stream_position().await.unwrap(), 1);
            let mut all = Vec::new();
            clone.rewind().await.unwrap();
            clone.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"X12abc6789");
            // Without clones, the same descriptor is returned.
            let number = std::os::fd::AsRawFd::as_raw_fd(&clone);
            let std = clone.into_std().await.unwrap();
            assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&std), number);
        });
    });
}

#[test]
fn metadata_operations_match_std() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            let file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path).await.unwrap();
            file.set_permissions(fs::Permissions::from_mode(0o600)).await.unwrap();
            let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
            file.set_len(1000).await.unwrap();
            file.set_times(fs::FileTimes::new().set_modified(time)).await.unwrap();
            let (ours, std) = (file.metadata().await.unwrap(), fs::metadata(&path).unwrap());
            assert_eq!(ours.len(), 1000);
            assert_eq!(ours.modified().unwrap(), time);
            assert_eq!(ours.permissions(), std.permissions());
            assert_eq!(std.permissions().mode() & 0o777, 0o600);
            file.allocate(2000, 3000).await.unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), 5000, "{}", setup.name);
            let error = OpenOptions::new().write(true).create_new(true).open(&path).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        });
    });
}

#[test]
fn path_functions_match_std() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path();
            anello::fs::create_dir_all(root.join("a/b/c")).await.unwrap();
            anello::fs::write(root.join("a/file"), b"content").await.unwrap();
            assert_eq!(anello::fs::copy(root.join("a/file"), root.join("copy")).await.unwrap(), 7);
            anello::fs::rename(root.join("copy"), root.join("a/b/moved")).await.unwrap();
            assert_eq!(anello::fs::read_to_string(root.join("a/b/moved")).await.unwrap(), "content");
            anello::fs::symlink("moved", root.join("a/b/link")).await.unwrap();
            assert_eq!(anello::fs::read_link(root.join("a/b/link")).await.unwrap(), Path::new("moved"));
            assert!(anello::fs::symlink_metadata(root.join("a/b/link")).await.unwrap().is_symlink());
            assert!(anello::fs::metadata(root.join("a/b/link")).await.unwrap().is_file());
            let resolved = anello::fs::canonicalize(root.join("a/b/link")).await.unwrap();
            assert_eq!(resolved, fs::canonicalize(root.join("a/b/moved")).unwrap());
            anello::fs::hard_link(root.join("a/file"), root.join("hard")).await.unwrap();
            anello::fs::remove_file(root.join("a/file")).await.unwrap();
            assert!(!anello::fs::try_exists(root.join("a/file")).await.unwrap());
            assert_eq!(anello::fs::read(root.join("hard")).await.unwrap(), b"content");
            let not_empty = anello::fs::remove_dir(root.join("a")).await.unwrap_err();
            assert_eq!(cause(&not_empty).raw_os_error(), Some(libc::ENOTEMPTY), "{}", setup.name);
            anello::fs::write(root.join("latin"), b"\xff").await.unwrap();
            let invalid = anello::fs::read_to_string(root.join("latin")).await.unwrap_err();
            assert_eq!(invalid.kind(), ErrorKind::InvalidData);
            anello::fs::remove_dir_all(root.join("a")).await.unwrap();
            assert!(!root.join("a").exists());
        });
    });
}

#[test]
fn read_dir_returns_every_entry_once() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let directory = tempfile::tempdir().unwrap();
            // More than one batch, and exactly one batch.
            for count in [0, 1, 31, 32, 33, 100] {
                let path = directory.path().join(count.to_string());
                fs::create_dir(&path).unwrap();
                for number in 0..count {
                    fs::write(path.join(format!("file {number}")), "x".repeat(number)).unwrap();
                }
                let mut entries = anello::fs::read_dir(&path).await.unwrap();
                let mut lengths = Vec::new();
                loop {
                    // A dropped future loses no entry.
                    let entry = match poll_at_most(1, entries.next_entry()).await {
                        Some(entry) => entry.unwrap(),
                        None => {
                            yield_now().await;
                            continue;
                        }
                    };
                    let Some(entry) = entry else { break };
                    let length = entry.metadata().await.unwrap().len() as usize;
                    assert_eq!(entry.path(), path.join(format!("file {length}")));
                    assert!(entry.file_type().await.unwrap().is_file());
                    lengths.push(length);
                }
                assert!(entries.next_entry().await.unwrap().is_none());
                lengths.sort_unstable();
                assert_eq!(lengths, (0..count).collect::<Vec<_>>(), "{}", setup.name);
            }
        });
    });
}

/// Runs in a child process, because the number of descriptors is process-wide.
#[test]
fn fault_11_files_of_cancelled_opens_are_closed() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            setup.run(async {
                File::open("/proc/version").await.unwrap();
                let before = open_descriptors();
                for _ in 0..3000 {
                    let mut opening = pin!(File::open("/proc/version"));
                    poll_fn(|context| Poll::Ready(opening.as_mut().poll(context).is_ready())).await;
                }
                // The pool starts operations in order: all cancelled ones have been started.
                File::open("/proc/version").await.unwrap();
                // Descriptors of the previous driver's files may have been counted in `before`.
                while open_descriptors() > before {
                    sleep(Duration::from_millis(1)).await;
                }
            });
        });
    });
}

#[test]
fn dropped_file_completes_accepted_writes() {
    on_every_driver(|setup| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let content = pattern(3, 3 << 20);
        setup.run(async {
            let file = File::create(&path).await.unwrap();
            file.write_all(&content).await.unwrap();
        });
        // The file and the runtime have been dropped.
        while fs::metadata(&path).unwrap().len() < content.len() as u64 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_same_bytes(&fs::read(&path).unwrap(), &content);
    });
}

#[test]
fn direct_operations_require_alignment() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            let mut options = OpenOptions::new();
            let file = match options.read(true).write(true).create(true).direct(true).open(&path).await {
                Ok(file) => file,
                Err(error) => return eprintln!("skipped: no direct I/O: {error}"),
            };
            if is_in_memory(&file) {
                return eprintln!("skipped: the file system ignores direct I/O");
            }
            let content = pattern(8, 16_384);
            let (written, _) = file.write_owned_at(AlignedBuf::from(&content[..]), 0).await;
            assert_eq!(written.unwrap(), content.len());
            // The cursor uses aligned memory of its own.
            let mut bytes = vec![0; 8192];
            file.read_exact(&mut bytes).await.unwrap();
            assert_same_bytes(&bytes, &content[..8192]);
            file.write_all(&content[..4096]).await.unwrap();
            file.flush().await.unwrap();
            file.read_exact_at(&mut bytes[..4096], 8192).await.unwrap();
            assert_same_bytes(&bytes[..4096], &content[..4096]);
            let mut bytes = vec![0; 4096];
            assert_eq!(file.read_at(&mut bytes, 16_384).await.unwrap(), 0, "{}: EOF", setup.name);
            for (length, offset) in [(100, 0), (4096, 100)] {
                let (read, buffer) = file.read_owned_at(AlignedBuf::new(length), offset).await;
                assert_eq!(buffer.len(), length);
                assert_eq!(read.map_err(|error| error.raw_os_error()), Err(Some(libc::EINVAL)));
            }
        });
    });
}

#[test]
fn tokio_traits_read_write_and_seek() {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufReader};

    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut file = File::from_std(tempfile::tempfile().unwrap());
            AsyncWriteExt::write_all(&mut file, b"one\ntwo\nthree").await.unwrap();
            AsyncWriteExt::shutdown(&mut file).await.unwrap();
            assert_eq!(AsyncSeekExt::seek(&mut file, SeekFrom::End(-5)).await.unwrap(), 8);
            assert_eq!(AsyncSeekExt::stream_position(&mut file).await.unwrap(), 8);
            let mut text = String::new();
            AsyncReadExt::read_to_string(&mut file, &mut text).await.unwrap();
            assert_eq!(text, "three", "{}", setup.name);
            AsyncSeekExt::rewind(&mut file).await.unwrap();
            let mut lines = BufReader::new(file).lines();
            let mut read = Vec::new();
            while let Some(line) = lines.next_line().await.unwrap() {
                read.push(line);
            }
            assert_eq!(read, ["one", "two", "three"]);
            let mut from = lines.into_inner().into_inner();
            AsyncSeekExt::rewind(&mut from).await.unwrap();
            let mut to = File::from_std(tempfile::tempfile().unwrap());
            assert_eq!(tokio::io::copy(&mut from, &mut to).await.unwrap(), 13);
            assert_eq!(to.metadata().await.unwrap().len(), 13);
        });
    });
}

#[test]
fn futures_traits_read_write_and_seek() {
    use futures_util::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut file = File::from_std(tempfile::tempfile().unwrap());
            AsyncWriteExt::write_all(&mut file, b"one\ntwo\nthree").await.unwrap();
            AsyncWriteExt::close(&mut file).await.unwrap();
            assert_eq!(AsyncSeekExt::seek(&mut file, SeekFrom::End(-5)).await.unwrap(), 8);
            let mut text = String::new();
            AsyncReadExt::read_to_string(&mut file, &mut text).await.unwrap();
            assert_eq!(text, "three", "{}", setup.name);
        });
    });
}

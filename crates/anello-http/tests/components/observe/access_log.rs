//! Tests for the access log as a whole: workers, writer thread and file.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anello_http::observe::access_log::{
    AccessLog, AccessLogHandle, AccessLogOptions, FormattedPeer, LogEntry, LogTarget, RequestLine, WorkerLog,
};
use anello_test::wait_until;
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat};
use tempfile::TempDir;

const SECOND_NS: u64 = 1_000_000_000;

/// Returns options with a few small buffers and a long close timeout.
fn options(path: &Path) -> AccessLogOptions {
    let mut options = AccessLogOptions::default();
    options.target = LogTarget::File(path.into());
    options.max_field_bytes = 24;
    options.buffer_bytes = 1024;
    options.max_buffers = 4;
    options.retry_interval = Duration::from_millis(1);
    options.close_timeout = Duration::from_secs(60);
    options
}

/// Creates a temporary directory and returns it with the path of a log file in it.
fn temp_log() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    (directory, path)
}

fn record(log: &mut WorkerLog, number: u64, unix_time_ns: u64) {
    let peer = FormattedPeer::new("127.0.0.1:80".parse().unwrap());
    let target = format!("/{number}");
    log.record(&LogEntry {
        unix_time_ns,
        duration_us: 1,
        peer: &peer,
        request: Some(RequestLine { method: "GET", target: target.as_bytes(), version: "HTTP/1.1" }),
        status: 200,
        body_bytes: 13,
        referer: None,
        user_agent: None,
    });
}

/// Returns the numbers in the targets of all lines. Panics if a line is incomplete.
fn numbers(text: &str) -> Vec<u64> {
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    let number = |line: &str| {
        let rest = line.strip_prefix("127.0.0.1 - - [01/Jan/1970:00:00:00 +0000] \"GET /");
        let rest = rest.and_then(|rest| rest.strip_suffix(" HTTP/1.1\" 200 13 \"-\" \"-\""));
        rest.and_then(|rest| rest.parse().ok()).unwrap_or_else(|| panic!("torn line: {line:?}"))
    };
    text.lines().map(number).collect()
}

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// Opens a FIFO to read from it. It is also opened for writing, so that opening it does not wait for a peer.
fn open_fifo(path: &Path) -> fs::File {
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    fs::OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(path).unwrap()
}

/// Fills a pipe with zeros, so that nothing more can be written until the pipe is read.
fn fill(pipe: &mut fs::File) {
    let flags = fcntl_getfl(&*pipe).unwrap();
    fcntl_setfl(&*pipe, flags | OFlags::NONBLOCK).unwrap();
    for chunk in [&[0; 4096][..], &[0]] {
        while pipe.write(chunk).is_ok() {}
    }
    fcntl_setfl(&*pipe, flags).unwrap();
}

#[test]
fn lines_of_each_worker_are_written_once_in_order() {
    let (_directory, path) = temp_log();
    let mut options = options(&path);
    // Enough buffers for all lines, so that none is dropped on a slow disk.
    options.max_buffers = 10_000;
    let log = AccessLog::start(options).unwrap();
    let workers: Vec<_> = (0..3)
        .map(|worker| {
            let mut log = log.worker(worker);
            std::thread::spawn(move || {
                (0..5000).for_each(|index| record(&mut log, worker as u64 * 10_000 + index, 0));
                assert_eq!(log.dropped_lines(), 0);
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let handle = log.handle();
    log.close().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let numbers = numbers(&text);
    assert_eq!(numbers.len(), 15_000);
    for worker in 0..3 {
        let worker_numbers: Vec<u64> =
            numbers.iter().copied().filter(|number| number / 10_000 == worker).collect();
        assert_eq!(worker_numbers, (worker * 10_000..worker * 10_000 + 5000).collect::<Vec<_>>());
    }
    let stats = handle.stats();
    assert_eq!((stats.written_lines, stats.written_bytes), (15_000, text.len() as u64));
    assert_eq!((stats.dropped_lines, stats.errors, stats.reopens), (0, 0, 0));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o137, 0, "readable by other users");
}

#[test]
fn lines_are_appended_to_existing_file() {
    let (_directory, path) = temp_log();
    for number in 0..2 {
        let log = AccessLog::start(options(&path)).unwrap();
        record(&mut log.worker(0), number, 0);
        log.close().unwrap();
    }
    assert_eq!(numbers(&fs::read_to_string(&path).unwrap()), [0, 1]);
}

#[test]
fn stalled_fifo_reader_causes_drops_without_blocking_workers() {
    let (_directory, path) = temp_log();
    make_fifo(&path);
    let mut reader = open_fifo(&path);
    fill(&mut reader);
    let mut options = options(&path);
    options.close_timeout = Duration::from_millis(10);
    let log = AccessLog::start(options).unwrap();
    let mut worker = log.worker(0);
    let mut recorded = 0;
    // Terminates only if `record` never blocks.
    while worker.dropped_lines() < 1000 {
        record(&mut worker, recorded, 0);
        recorded += 1;
    }
    let handle = log.handle();
    drop(worker);
    let error = log.close().unwrap_err().to_string();
    assert!(error.contains("access log incomplete"), "{error}");
    drop(reader);
    // The writer thread notices that the log is abandoned, and every line is accounted for.
    wait_until(|| handle.stats().dropped_lines == recorded);
    assert_eq!(handle.stats().written_lines, 0);
}

#[test]
fn slow_reader_receives_complete_lines() {
    let (_directory, path) = temp_log();
    make_fifo(&path);
    let mut reader = open_fifo(&path);
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    let mut recorded = 0;
    while worker.dropped_lines() == 0 {
        record(&mut worker, recorded, 0);
        recorded += 1;
    }
    drop(worker);
    let mut bytes = Vec::new();
    let mut chunk = [0; 777];
    let is_accounted_for = || {
        let stats = handle.stats();
        stats.written_lines + stats.dropped_lines == recorded
    };
    while !is_accounted_for() || (bytes.len() as u64) < handle.stats().written_bytes {
        match reader.read(&mut chunk) {
            Ok(length) => bytes.extend_from_slice(&chunk[..length]),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                std::thread::yield_now();
            }
        }
    }
    log.close().unwrap();
    assert_eq!(numbers(&String::from_utf8(bytes).unwrap()), (0..recorded - 1).collect::<Vec<_>>());
}

#[test]
fn lines_are_buffered_until_fifo_has_reader() {
    let (_directory, path) = temp_log();
    make_fifo(&path);
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    record(&mut worker, 0, 0);
    drop(worker);
    wait_until(|| handle.stats().errors > 0);
    let mut reader = open_fifo(&path);
    wait_until(|| handle.stats().written_lines == 1);
    log.close().unwrap();
    let mut bytes = [0; 1000];
    let length = reader.read(&mut bytes).unwrap();
    assert_eq!(numbers(std::str::from_utf8(&bytes[..length]).unwrap()), [0]);
}

#[test]
fn full_disk_does_not_block_workers_and_fails_close() {
    let (directory, path) = temp_log();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    let mut recorded = 0;
    while worker.dropped_lines() < 1000 {
        record(&mut worker, recorded, 0);
        recorded += 1;
    }
    // The write is retried repeatedly.
    wait_until(|| handle.stats().errors > 3);
    // The operator fixes the target, and no buffered line is lost.
    fs::remove_file(&path).unwrap();
    handle.reopen();
    let dropped = worker.dropped_lines();
    drop(worker);
    wait_until(|| handle.stats().written_lines == recorded - dropped);
    assert_eq!(numbers(&fs::read_to_string(&path).unwrap()), (0..recorded - dropped).collect::<Vec<_>>());
    // The disk is full again when the log is closed.
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    handle.reopen();
    wait_until(|| handle.stats().reopens == 2);
    record(&mut log.worker(1), 0, 0);
    let error = log.close().unwrap_err().to_string();
    assert!(error.contains("1 queued lines lost"), "{error}");
    assert_eq!(handle.stats().dropped_lines, dropped + 1);
    drop(directory);
}

#[test]
fn reopen_after_rename_switches_to_new_file() {
    let (directory, path) = temp_log();
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    record(&mut worker, 0, 0);
    assert!(worker.flush());
    wait_until(|| handle.stats().written_lines == 1);
    let old_path = directory.path().join("access.log.1");
    fs::rename(&path, &old_path).unwrap();
    // Until `reopen` is called, lines go to the renamed file.
    record(&mut worker, 1, 0);
    assert!(worker.flush());
    wait_until(|| handle.stats().written_lines == 2);
    handle.reopen();
    wait_until(|| handle.stats().reopens == 1);
    record(&mut worker, 2, 0);
    drop(worker);
    log.close().unwrap();
    assert_eq!(numbers(&fs::read_to_string(&old_path).unwrap()), [0, 1]);
    assert_eq!(numbers(&fs::read_to_string(&path).unwrap()), [2]);
}

#[test]
fn failed_reopen_keeps_old_file_and_is_retried() {
    let (directory, path) = temp_log();
    let logs = directory.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let log = AccessLog::start(options(&logs.join("access.log"))).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    fs::rename(&logs, &path).unwrap();
    handle.reopen();
    wait_until(|| handle.stats().errors > 0);
    record(&mut worker, 0, 0);
    assert!(worker.flush());
    wait_until(|| handle.stats().written_lines == 1);
    // Reopening is retried automatically.
    fs::create_dir(&logs).unwrap();
    wait_until(|| handle.stats().reopens == 1);
    record(&mut worker, 1, 0);
    drop(worker);
    log.close().unwrap();
    assert_eq!(numbers(&fs::read_to_string(path.join("access.log")).unwrap()), [0]);
    assert_eq!(numbers(&fs::read_to_string(logs.join("access.log")).unwrap()), [1]);
}

#[test]
fn handle_is_send_and_sync() {
    fn assert_send_sync<T: Clone + Send + Sync>() {}
    fn assert_send<T: Send>() {}
    assert_send_sync::<AccessLogHandle>();
    assert_send::<WorkerLog>();
    assert_send::<AccessLog>();
}

#[test]
fn lines_after_close_are_dropped_and_counted() {
    let (_directory, path) = temp_log();
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    record(&mut worker, 0, 0);
    log.close().unwrap();
    (1..100).for_each(|number| record(&mut worker, number, 0));
    drop(worker);
    assert_eq!((handle.stats().written_lines, handle.stats().dropped_lines), (0, 100));
    // A worker that starts after `close` also drops its lines.
    let mut late = handle.worker(1);
    (0..100).for_each(|number| record(&mut late, number, 0));
    assert!(!late.flush());
    drop(late);
    assert_eq!((handle.stats().written_lines, handle.stats().dropped_lines), (0, 200));
    handle.reopen();
}

#[test]
fn start_with_invalid_options_returns_error_with_remedy() {
    let (directory, path) = temp_log();
    let start_error = |options: AccessLogOptions| AccessLog::start(options).unwrap_err().to_string();
    let error = start_error(options(directory.path()));
    assert!(error.contains("specify a file in it"), "{error}");
    let error = start_error(options(&directory.path().join("none/access.log")));
    assert!(error.contains("create its directory"), "{error}");
    let mut small = options(&path);
    small.buffer_bytes = 384 + 4 * 24 - 1;
    let error = start_error(small.clone());
    assert!(error.contains("at least 480 required"), "{error}");
    small.buffer_bytes += 1;
    AccessLog::start(small.clone()).unwrap().close().unwrap();
    small.max_buffers = 1;
    assert!(start_error(small).contains("at least 2 buffers"));
    let default = AccessLogOptions::default().close_timeout(Duration::from_secs(60));
    AccessLog::start(default).unwrap().close().unwrap();
}

#[test]
fn old_lines_are_flushed_from_partly_filled_buffer() {
    let (_directory, path) = temp_log();
    let mut options = options(&path);
    // This test uses its own clock.
    options.flush_interval = Duration::from_secs(1);
    let log = AccessLog::start(options).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    let written = |lines| wait_until(|| handle.stats().written_lines == lines);
    record(&mut worker, 0, 100 * SECOND_NS);
    worker.flush_old(101 * SECOND_NS - 1);
    assert_eq!(worker.buffered_lines(), 1);
    worker.flush_old(101 * SECOND_NS);
    assert_eq!(worker.buffered_lines(), 0);
    written(1);
    // `record` also flushes old lines.
    record(&mut worker, 1, 200 * SECOND_NS);
    record(&mut worker, 2, 201 * SECOND_NS);
    assert_eq!(worker.buffered_lines(), 0);
    written(3);
    // A clock that is set back must not delay the flush by the same amount.
    record(&mut worker, 3, 300 * SECOND_NS);
    worker.flush_old(200 * SECOND_NS);
    assert_eq!(worker.buffered_lines(), 0);
    written(4);
    record(&mut worker, 4, 0);
    assert!(worker.flush() && worker.flush());
    written(5);
    drop(worker);
    log.close().unwrap();
}

#[test]
fn reopen_after_partial_write_repeats_whole_line_in_new_file() {
    let (directory, path) = temp_log();
    make_fifo(&path);
    let mut reader = open_fifo(&path);
    fill(&mut reader);
    // Reads one page from the FIFO, to make room for another page.
    let mut page = [0; 4096];
    reader.read_exact(&mut page).unwrap();
    let mut options = options(&path);
    options.buffer_bytes = 8192;
    let log = AccessLog::start(options).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    (0..100).for_each(|number| record(&mut worker, number, 0));
    assert_eq!(worker.buffered_lines(), 100);
    assert!(worker.flush());
    wait_until(|| handle.stats().written_bytes == 4096);
    fs::rename(&path, directory.path().join("access.log.1")).unwrap();
    handle.reopen();
    wait_until(|| handle.stats().written_lines == 100);
    drop(worker);
    log.close().unwrap();
    let mut old_bytes = Vec::new();
    while let Ok(length) = reader.read(&mut page) {
        old_bytes.extend_from_slice(&page[..length]);
    }
    let old_text = String::from_utf8(old_bytes).unwrap();
    let old_text = old_text.trim_start_matches('\0');
    let (complete_lines, partial_line) = old_text.split_at(old_text.rfind('\n').unwrap() + 1);
    let text = complete_lines.to_owned() + &fs::read_to_string(&path).unwrap();
    assert!(!partial_line.is_empty(), "the page must end inside a line");
    assert_eq!(numbers(&text), (0..100).collect::<Vec<_>>());
}

#[test]
fn buffers_are_reused() {
    let (_directory, path) = temp_log();
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    for number in 0..2000 {
        record(&mut worker, number, 0);
        assert!(worker.flush());
        wait_until(|| handle.stats().written_lines == number + 1);
    }
    // One buffer is in use and one is being returned; a third can be allocated before the return completes.
    assert!(worker.buffers() <= 3, "{} buffers", worker.buffers());
}

#[test]
fn buffers_are_freed_after_burst() {
    let (_directory, path) = temp_log();
    make_fifo(&path);
    let mut reader = open_fifo(&path);
    fill(&mut reader);
    let mut options = options(&path);
    options.max_buffers = 100;
    let log = AccessLog::start(options).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    for number in 0..50 {
        record(&mut worker, number, 0);
        assert!(worker.flush());
    }
    assert_eq!(worker.buffers(), 51);
    let mut bytes = Vec::new();
    while handle.stats().written_lines < 50 {
        // Reads all available data until a read would block.
        assert_eq!(reader.read_to_end(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
    // The current buffer and the buffers kept for reuse.
    wait_until(|| worker.buffers() == 9);
    record(&mut worker, 50, 0);
    assert!(worker.flush());
    assert_eq!(worker.buffers(), 9);
    drop(worker);
    log.close().unwrap();
}

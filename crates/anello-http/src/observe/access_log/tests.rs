//! The log as a whole: workers, thread and file.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, mknodat};
use tempfile::TempDir;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

/// Few buffers of few lines, and an end that is not hurried.
fn options(path: &Path) -> AccessLogOptions {
    AccessLogOptions {
        target: LogTarget::File(path.into()),
        max_field_bytes: 24,
        buffer_bytes: 1024,
        max_buffers: 4,
        retry_interval: Duration::from_millis(1),
        close_timeout: Duration::from_secs(60),
        ..AccessLogOptions::default()
    }
}

/// A directory, and a name in it.
fn place() -> (TempDir, PathBuf) {
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

/// The numbers of the lines of a log, which all must be whole.
fn numbers(text: &str) -> Vec<u64> {
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    let number = |line: &str| {
        let rest = line.strip_prefix("127.0.0.1 - - [01/Jan/1970:00:00:00 +0000] \"GET /");
        let rest = rest.and_then(|rest| rest.strip_suffix(" HTTP/1.1\" 200 13 \"-\" \"-\""));
        rest.and_then(|rest| rest.parse().ok()).unwrap_or_else(|| panic!("a torn line: {line:?}"))
    };
    text.lines().map(number).collect()
}

/// Waits for what another thread is about to do. Only a watchdog ends a wait that has no end.
fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// Opens a FIFO as its reader. For both ways, because that does not wait for another end.
fn open_both_ways(path: &Path) -> fs::File {
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    fs::OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(path).unwrap()
}

/// Fills a pipe with zeros, so that not one byte more can be written before it is read.
fn fill(pipe: &mut fs::File) {
    let flags = fcntl_getfl(&*pipe).unwrap();
    fcntl_setfl(&*pipe, flags | OFlags::NONBLOCK).unwrap();
    for piece in [&[0; 4096][..], &[0]] {
        while pipe.write(piece).is_ok() {}
    }
    fcntl_setfl(&*pipe, flags).unwrap();
}

#[test]
fn every_line_of_every_worker_is_written_once_and_in_order() {
    let (_directory, path) = place();
    let mut options = options(&path);
    // Room for all, so that nothing is dropped however slow the disk is.
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
        let of_one: Vec<u64> = numbers.iter().copied().filter(|number| number / 10_000 == worker).collect();
        assert_eq!(of_one, (worker * 10_000..worker * 10_000 + 5000).collect::<Vec<_>>());
    }
    let stats = handle.stats();
    assert_eq!((stats.written_lines, stats.written_bytes), (15_000, text.len() as u64));
    assert_eq!((stats.dropped_lines, stats.errors, stats.reopens), (0, 0, 0));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o137, 0, "others may not read it");
}

#[test]
fn lines_are_appended_to_what_there_is() {
    let (_directory, path) = place();
    for number in 0..2 {
        let log = AccessLog::start(options(&path)).unwrap();
        record(&mut log.worker(0), number, 0);
        log.close().unwrap();
    }
    assert_eq!(numbers(&fs::read_to_string(&path).unwrap()), [0, 1]);
}

#[test]
fn old_lines_are_handed_over_though_the_buffer_has_room() {
    let (_directory, path) = place();
    let mut options = options(&path);
    // The clock of this test is the one that it passes in.
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
    // Recording does it, too.
    record(&mut worker, 1, 200 * SECOND_NS);
    record(&mut worker, 2, 201 * SECOND_NS);
    assert_eq!(worker.buffered_lines(), 0);
    written(3);
    // A clock that was set back must not keep lines for as long as it was set back.
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
fn a_reader_that_never_reads_costs_lines_and_stops_no_worker() {
    let (_directory, path) = place();
    make_fifo(&path);
    let mut reader = open_both_ways(&path);
    fill(&mut reader);
    let mut options = options(&path);
    options.close_timeout = Duration::from_millis(10);
    let log = AccessLog::start(options).unwrap();
    let mut worker = log.worker(0);
    let mut recorded = 0;
    // It ends only if recording never waits.
    while worker.dropped_lines() < 1000 {
        record(&mut worker, recorded, 0);
        recorded += 1;
    }
    let handle = log.handle();
    drop(worker);
    let error = log.close().unwrap_err().to_string();
    assert!(error.contains("did not end properly"), "{error}");
    drop(reader);
    // The thread sees that nobody waits for it, and every line is accounted for.
    wait_until(|| handle.stats().dropped_lines == recorded);
    assert_eq!(handle.stats().written_lines, 0);
}

#[test]
fn a_write_that_hangs_costs_lines_and_stops_no_worker_nor_the_end() {
    let (_directory, path) = place();
    // A pipe of which the writing end waits, as standard output may.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut writer = fs::File::from(OwnedFd::from(writer));
    fill(&mut writer);
    let mut options = options(&path);
    options.close_timeout = Duration::from_millis(10);
    let log = AccessLog::start_on(Output::inherited(writer), options).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    let mut recorded = 0;
    while worker.dropped_lines() < 1000 {
        record(&mut worker, recorded, 0);
        recorded += 1;
    }
    drop(worker);
    assert!(log.close().unwrap_err().to_string().contains("a writer that hangs"));
    // Once it is read, the thread goes on, and ends.
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    wait_until(|| handle.stats().written_lines + handle.stats().dropped_lines == recorded);
    let text = text.trim_start_matches('\0');
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    assert_eq!(numbers(whole), (0..handle.stats().written_lines).collect::<Vec<_>>());
}

#[test]
fn a_slow_reader_gets_whole_lines() {
    let (_directory, path) = place();
    make_fifo(&path);
    let mut reader = open_both_ways(&path);
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    let mut recorded = 0;
    while worker.dropped_lines() == 0 {
        record(&mut worker, recorded, 0);
        recorded += 1;
    }
    drop(worker);
    let mut bytes = Vec::new();
    let mut piece = [0; 777];
    let is_settled = || {
        let stats = handle.stats();
        stats.written_lines + stats.dropped_lines == recorded
    };
    while !is_settled() || (bytes.len() as u64) < handle.stats().written_bytes {
        match reader.read(&mut piece) {
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
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
fn lines_wait_for_the_reader_of_a_fifo() {
    let (_directory, path) = place();
    make_fifo(&path);
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    record(&mut worker, 0, 0);
    drop(worker);
    wait_until(|| handle.stats().errors > 0);
    let mut reader = open_both_ways(&path);
    wait_until(|| handle.stats().written_lines == 1);
    log.close().unwrap();
    let mut bytes = [0; 1000];
    let length = reader.read(&mut bytes).unwrap();
    assert_eq!(numbers(std::str::from_utf8(&bytes[..length]).unwrap()), [0]);
}

#[test]
fn a_full_disk_stops_no_worker_and_the_end_of_the_log_is_an_error() {
    let (directory, path) = place();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    let mut recorded = 0;
    while worker.dropped_lines() < 1000 {
        record(&mut worker, recorded, 0);
        recorded += 1;
    }
    // It is tried again and again.
    wait_until(|| handle.stats().errors > 3);
    // The operator mends it, and no line that was kept is lost.
    fs::remove_file(&path).unwrap();
    handle.reopen();
    let dropped = worker.dropped_lines();
    drop(worker);
    wait_until(|| handle.stats().written_lines == recorded - dropped);
    assert_eq!(numbers(&fs::read_to_string(&path).unwrap()), (0..recorded - dropped).collect::<Vec<_>>());
    // The disk is full again when the log ends.
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    handle.reopen();
    wait_until(|| handle.stats().reopens == 2);
    record(&mut log.worker(1), 0, 0);
    let error = log.close().unwrap_err().to_string();
    assert!(error.contains("1 lines that had been handed over are lost"), "{error}");
    assert_eq!(handle.stats().dropped_lines, dropped + 1);
    drop(directory);
}

#[test]
fn a_renamed_file_is_left_and_a_new_one_begun() {
    let (directory, path) = place();
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    record(&mut worker, 0, 0);
    assert!(worker.flush());
    wait_until(|| handle.stats().written_lines == 1);
    let old = directory.path().join("access.log.1");
    fs::rename(&path, &old).unwrap();
    // Until it is told, the log goes on in the renamed file.
    record(&mut worker, 1, 0);
    assert!(worker.flush());
    wait_until(|| handle.stats().written_lines == 2);
    handle.reopen();
    wait_until(|| handle.stats().reopens == 1);
    record(&mut worker, 2, 0);
    drop(worker);
    log.close().unwrap();
    assert_eq!(numbers(&fs::read_to_string(&old).unwrap()), [0, 1]);
    assert_eq!(numbers(&fs::read_to_string(&path).unwrap()), [2]);
}

#[test]
fn a_new_file_gets_the_whole_of_a_line_that_the_old_one_has_in_part() {
    let (directory, path) = place();
    make_fifo(&path);
    let mut reader = open_both_ways(&path);
    fill(&mut reader);
    // Room for one page of the two that follow.
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
    let mut old = Vec::new();
    while let Ok(length) = reader.read(&mut page) {
        old.extend_from_slice(&page[..length]);
    }
    let old = String::from_utf8(old).unwrap();
    let old = old.trim_start_matches('\0');
    let (whole, part) = old.split_at(old.rfind('\n').unwrap() + 1);
    let both = whole.to_owned() + &fs::read_to_string(&path).unwrap();
    assert!(!part.is_empty(), "the page ends within a line");
    assert_eq!(numbers(&both), (0..100).collect::<Vec<_>>());
}

#[test]
fn the_old_file_is_written_on_while_a_new_one_cannot_be_opened() {
    let (directory, path) = place();
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
    // It is tried again without being asked.
    fs::create_dir(&logs).unwrap();
    wait_until(|| handle.stats().reopens == 1);
    record(&mut worker, 1, 0);
    drop(worker);
    log.close().unwrap();
    assert_eq!(numbers(&fs::read_to_string(path.join("access.log")).unwrap()), [0]);
    assert_eq!(numbers(&fs::read_to_string(logs.join("access.log")).unwrap()), [1]);
}

#[test]
fn buffers_are_used_again_and_spare_ones_freed() {
    let (_directory, path) = place();
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    for number in 0..2000 {
        record(&mut worker, number, 0);
        assert!(worker.flush());
        wait_until(|| handle.stats().written_lines == number + 1);
    }
    // One in use, and those that come back: a third may be made before the first is back.
    assert!(worker.buffers() <= 3, "{} buffers", worker.buffers());
}

#[test]
fn the_buffers_of_a_burst_are_freed() {
    let (_directory, path) = place();
    make_fifo(&path);
    let mut reader = open_both_ways(&path);
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
        // All that there is; then it would have to wait.
        assert_eq!(reader.read_to_end(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
    // The one that it writes into, and the few that are kept.
    wait_until(|| worker.buffers() == 9);
    record(&mut worker, 50, 0);
    assert!(worker.flush());
    assert_eq!(worker.buffers(), 9);
    drop(worker);
    log.close().unwrap();
}

#[test]
fn a_worker_may_leave_and_another_come() {
    let (_directory, path) = place();
    let log = AccessLog::start(options(&path)).unwrap();
    let handle = log.handle();
    for number in 0..100 {
        record(&mut log.worker(0), number, 0);
    }
    wait_until(|| handle.stats().written_lines == 100);
    // The thread forgets those that are gone.
    wait_until(|| log.handle.shared.known_workers() == 0);
    log.close().unwrap();
}

#[test]
fn handles_go_to_every_thread() {
    fn is_shared<T: Clone + Send + Sync>() {}
    fn is_sent<T: Send>() {}
    is_shared::<AccessLogHandle>();
    is_sent::<WorkerLog>();
    is_sent::<AccessLog>();
}

#[test]
fn lines_after_the_end_are_dropped_and_counted() {
    let (_directory, path) = place();
    let log = AccessLog::start(options(&path)).unwrap();
    let (mut worker, handle) = (log.worker(0), log.handle());
    record(&mut worker, 0, 0);
    log.close().unwrap();
    (1..100).for_each(|number| record(&mut worker, number, 0));
    drop(worker);
    assert_eq!((handle.stats().written_lines, handle.stats().dropped_lines), (0, 100));
    // A worker that starts so late finds the end, too.
    let mut late = handle.worker(1);
    (0..100).for_each(|number| record(&mut late, number, 0));
    assert!(!late.flush());
    drop(late);
    assert_eq!((handle.stats().written_lines, handle.stats().dropped_lines), (0, 200));
    handle.reopen();
}

#[test]
fn what_cannot_work_is_refused_at_the_start_with_the_remedy() {
    let (directory, path) = place();
    let refused = |options: AccessLogOptions| AccessLog::start(options).unwrap_err().to_string();
    let error = refused(options(directory.path()));
    assert!(error.contains("name a file in it"), "{error}");
    let error = refused(options(&directory.path().join("none/access.log")));
    assert!(error.contains("make its directory"), "{error}");
    let mut small = options(&path);
    small.buffer_bytes = 384 + 4 * 24 - 1;
    let error = refused(small.clone());
    assert!(error.contains("give it at least 480"), "{error}");
    small.buffer_bytes += 1;
    AccessLog::start(small.clone()).unwrap().close().unwrap();
    small.max_buffers = 1;
    assert!(refused(small).contains("at least 2 buffers"));
    AccessLogOptions::default().check().unwrap();
}

//! Messages logged by the access log, in a process of its own, because the global `tracing` subscriber can be set only
//! once and receives the events of all threads.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anello_http::observe::access_log::{
    AccessLog, AccessLogOptions, FormattedPeer, LogEntry, LogTarget, RequestLine, WorkerLog,
};
use anello_test::{OnEvent, in_own_process, wait_until};
use tracing::{Event, Level};

fn record(log: &mut WorkerLog) {
    log.record(&LogEntry {
        unix_time_ns: 0,
        duration_us: 1,
        peer: &FormattedPeer::unix(),
        request: Some(RequestLine { method: "GET", target: b"/", version: "HTTP/1.1" }),
        status: 200,
        body_bytes: 13,
        referer: None,
        user_agent: None,
    });
}

#[test]
fn failure_recovery_and_drops_are_reported_once() {
    in_own_process(|| {
        let recorded_levels = Arc::new(Mutex::new(Vec::new()));
        let levels = Arc::clone(&recorded_levels);
        let record_level = move |event: &Event<'_>| levels.lock().unwrap().push(*event.metadata().level());
        tracing::subscriber::set_global_default(OnEvent(record_level)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let mut options = AccessLogOptions::default();
        options.target = LogTarget::File(path.clone());
        options.max_buffers = 4;
        options.retry_interval = Duration::from_millis(1);
        options.close_timeout = Duration::from_secs(60);
        let log = AccessLog::start(options).unwrap();
        let (mut worker, handle) = (log.worker(0), log.handle());
        let mut recorded = 0;
        while worker.dropped_lines() < 100 {
            record(&mut worker);
            recorded += 1;
        }
        wait_until(|| handle.stats().errors >= 10);
        // Simulates an operator who fixes the log target.
        fs::remove_file(&path).unwrap();
        handle.reopen();
        drop(worker);
        wait_until(|| handle.stats().written_lines >= recorded - 100);
        log.close().unwrap();
        assert_eq!(handle.stats().dropped_lines, 100);
        let mut levels = recorded_levels.lock().unwrap().clone();
        levels.sort();
        assert_eq!(levels, [Level::ERROR, Level::WARN, Level::INFO]);
    });
}

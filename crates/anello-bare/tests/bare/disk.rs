//! Tests of all disk engines on a real file: reads return the written data, wrong data is detected and failures are
//! reported. Engines that are unavailable on this machine are skipped with a message.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anello_bare::disk::{Command, Engine, Operation, Outcome, Worker};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use serde_json::Value;
use tempfile::TempDir;

const FILE_BYTES: u64 = 2 << 20;
const BLOCKS: u64 = FILE_BYTES / 4096;

/// Runs `case` for all available engines at the same time.
fn for_each_engine(case: impl Fn(Engine) + Sync) {
    thread::scope(|scope| {
        for engine in Engine::value_variants().iter().copied() {
            match engine.check() {
                Ok(()) => {
                    let case = &case;
                    scope.spawn(move || {
                        println!("{engine}");
                        case(engine);
                    });
                }
                Err(error) => println!("{engine}: skipped: {error}"),
            }
        }
    });
}

/// Creates a directory next to the test binaries, which are more likely to be on a disk than the temporary directory.
fn test_directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory")
}

fn file(directory: &TempDir) -> PathBuf {
    directory.path().join("blocks")
}

fn open(engine: Engine, path: &Path) -> Worker {
    Worker::open(engine, path, Some(FILE_BYTES)).unwrap_or_else(|error| panic!("{engine}: {error}"))
}

fn command(operation: Operation) -> Command {
    Command {
        operation,
        direct: false,
        block_bytes: 4096,
        depth: 8,
        duration_ns: 5_000_000,
        seed: 1,
        sync: None,
    }
}

/// Reads sequentially until every block has been read at least once.
fn read_all(worker: &Worker, direct: bool) -> Outcome {
    let mut read = Command { direct, ..command(Operation::SequentialRead) };
    loop {
        let outcome = perform(worker, &read);
        if outcome.operations >= BLOCKS {
            return outcome;
        }
        read.duration_ns *= 2;
    }
}

fn perform(worker: &Worker, command: &Command) -> Outcome {
    let outcome = worker.perform(command);
    outcome.unwrap_or_else(|error| panic!("{worker:?}: {command:?}: {error}"))
}

/// Returns `true` if the file system supports direct I/O.
fn supports_direct_io(worker: &Worker) -> bool {
    match worker.perform(&Command { direct: true, ..command(Operation::RandomRead) }) {
        Ok(_) => true,
        Err(error) => {
            println!("direct I/O skipped: {error}");
            assert!(error.to_string().contains("direct"), "{error}");
            false
        }
    }
}

#[test]
fn reads_return_written_data() {
    for_each_engine(|engine| {
        let directory = test_directory();
        let worker = open(engine, &file(&directory));
        let before = fs::read(file(&directory)).expect("opens the file");
        let direct_modes = if supports_direct_io(&worker) { vec![false, true] } else { vec![false] };
        for direct in direct_modes {
            for depth in [1, 7, 64] {
                for operation in [
                    Operation::RandomWrite,
                    Operation::RandomRead,
                    Operation::SequentialWrite,
                    Operation::SequentialRead,
                ] {
                    for block_bytes in [4096, 16384] {
                        let command = Command { direct, depth, block_bytes, ..command(operation) };
                        let outcome = perform(&worker, &command);
                        assert!(outcome.operations > 0, "{engine}: {command:?}");
                        assert_eq!(outcome.errors, [], "{engine}: {command:?}");
                        assert_eq!(outcome.wrong_blocks, 0, "{engine}: {command:?}");
                        assert!(outcome.elapsed_ns >= command.duration_ns);
                    }
                }
            }
            let outcome = read_all(&worker, direct);
            assert_eq!((outcome.wrong_blocks, outcome.errors), (0, vec![]), "{engine}");
        }
        assert!(
            fs::read(file(&directory)).expect("opens the file") != before,
            "{engine}: nothing was written"
        );
        // The other engines read the same data.
        for other in Engine::value_variants().iter().copied().filter(|other| other.check().is_ok()) {
            assert_eq!(
                read_all(&open(other, &file(&directory)), false).wrong_blocks,
                0,
                "{other} after {engine}"
            );
        }
    });
}

#[test]
fn wrong_blocks_are_counted() {
    for_each_engine(|engine| {
        let directory = test_directory();
        let worker = open(engine, &file(&directory));
        let bytes = OpenOptions::new().write(true).open(file(&directory)).expect("opens the file");
        // Corrupts a byte in one block, and overwrites another block with the contents of a third.
        bytes.write_all_at(&[0x55], 5 * 4096 + 700).expect("writes");
        let mut other_block = vec![0; 4096];
        bytes.sync_all().expect("syncs");
        OpenOptions::new()
            .read(true)
            .open(file(&directory))
            .expect("opens the file")
            .read_exact_at(&mut other_block, 8 * 4096)
            .expect("reads");
        bytes.write_all_at(&other_block, 9 * 4096).expect("writes");
        let depth = 1;
        let read = Command { depth, seed: 4, duration_ns: 0, ..command(Operation::SequentialRead) };
        let outcome = read_all(&worker, false);
        // Each pass over the file detects both blocks; there may have been several passes.
        let rounds = outcome.operations / BLOCKS;
        assert!((2 * rounds..=2 * rounds + 2).contains(&outcome.wrong_blocks), "{engine}: {outcome:?}");
        // With a duration of zero, no request is started.
        assert_eq!(perform(&worker, &read).operations, 0, "{engine}");
    });
}

/// Reads the first `bytes` bytes of the file with one request. Returns `true` if they are wrong.
fn is_first_block_wrong(worker: &Worker, bytes: usize) -> bool {
    let (depth, seed, duration_ns) = (1, 0, 1);
    let read = Command { depth, seed, duration_ns, block_bytes: bytes, ..command(Operation::SequentialRead) };
    let outcome = perform(worker, &read);
    assert_eq!((outcome.operations, outcome.errors), (1, vec![]));
    outcome.wrong_blocks == 1
}

#[test]
fn changed_word_is_detected() {
    let directory = test_directory();
    let worker = open(Engine::Pread, &file(&directory));
    let opened = OpenOptions::new().read(true).write(true).open(file(&directory)).expect("opens the file");
    let mut valid = vec![0; 8192];
    opened.read_exact_at(&mut valid, 0).expect("reads");
    assert!(!is_first_block_wrong(&worker, 4096));
    for position in (0..4096).step_by(8) {
        opened.write_all_at(&[valid[position] ^ 1], position as u64).expect("writes");
        assert!(is_first_block_wrong(&worker, 4096), "changed at {position}");
        opened.write_all_at(&valid[position..=position], position as u64).expect("writes");
    }
    opened.write_all_at(&valid[4096..], 0).expect("writes");
    assert!(is_first_block_wrong(&worker, 4096), "offset differs");
    opened.write_all_at(&[0; 512], 0).expect("writes");
    assert!(is_first_block_wrong(&worker, 512), "unwritten granule");
}

#[test]
fn torn_granule_is_detected_and_torn_block_is_not() {
    let directory = test_directory();
    let worker = open(Engine::Pread, &file(&directory));
    let opened = OpenOptions::new().read(true).write(true).open(file(&directory)).expect("opens the file");
    let (mut old, mut new) = (vec![0; 1024], vec![0; 1024]);
    opened.read_exact_at(&mut old, 0).expect("reads");
    perform(&worker, &Command { seed: 0, ..command(Operation::SequentialWrite) });
    opened.read_exact_at(&mut new, 0).expect("reads");
    assert!(old != new, "nothing was written");
    for (at, is_wrong) in [(512, false), (256, true)] {
        opened.write_all_at(&[&new[..at], &old[at..]].concat(), 0).expect("writes");
        assert_eq!(is_first_block_wrong(&worker, 1024), is_wrong, "torn at {at}");
    }
}

#[test]
fn latency_histogram_covers_all_operations() {
    for_each_engine(|engine| {
        let directory = test_directory();
        let outcome = perform(&open(engine, &file(&directory)), &command(Operation::RandomRead));
        let bytes = STANDARD.decode(&outcome.latency).expect("base64");
        let latency: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).expect("a histogram");
        assert_eq!(latency.len(), outcome.operations, "{engine}");
        // No request takes longer than all of them. The histogram rounds up.
        let max_ns = latency.lowest_equivalent(latency.max());
        assert!(latency.min() > 0 && max_ns <= outcome.elapsed_ns, "{engine}: {max_ns} ns, {outcome:?}");
    });
}

#[test]
fn open_rejects_foreign_files() {
    let directory = test_directory();
    let path = file(&directory);
    let open_error =
        |create_bytes| Worker::open(Engine::Pread, &path, create_bytes).expect_err("open fails").to_string();
    assert!(open_error(None).contains("create it with --create-bytes"));
    assert!(open_error(Some(1000)).contains("multiple of 4096"));
    fs::write(&path, vec![7; 1 << 20]).expect("writes");
    for create_bytes in [None, Some(1 << 20), Some(2 << 20)] {
        assert!(
            open_error(create_bytes).contains("file does not start and end with the disk worker pattern")
        );
    }
    assert!(fs::read(&path).expect("reads") == vec![7; 1 << 20], "foreign file was modified");
    fs::remove_file(&path).expect("removes");
    fs::create_dir(&path).expect("creates a directory");
    assert!(open_error(Some(4096)).contains("not a regular file"));
}

#[test]
fn create_keeps_valid_file_and_replaces_other_length() {
    let directory = test_directory();
    let worker = open(Engine::Pread, &file(&directory));
    perform(&worker, &command(Operation::SequentialWrite));
    let written = fs::read(file(&directory)).expect("reads");
    open(Engine::Pread, &file(&directory));
    assert!(fs::read(file(&directory)).expect("reads") == written, "valid file was recreated");
    let larger = Worker::open(Engine::Pread, &file(&directory), Some(2 * FILE_BYTES)).expect("opens");
    assert_eq!(larger.file_bytes(), 2 * FILE_BYTES);
    assert_eq!(fs::read_dir(directory.path()).expect("lists").count(), 1, "temporary file was left behind");
}

#[test]
fn control_connection_survives_invalid_commands() {
    let directory = test_directory();
    let worker = open(Engine::Threads, &file(&directory));
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let address = listener.local_addr().expect("an address");
    // Serves until the test process exits.
    std::thread::spawn(move || worker.serve(&listener));
    let valid = serde_json::to_string(&command(Operation::RandomRead)).expect("JSON");
    for round in 0..3 {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout");
        let mut reader = BufReader::new(&stream);
        let mut request = |line: &str| -> Value {
            (&stream).write_all(format!("{line}\n").as_bytes()).expect("sends");
            let mut response = String::new();
            reader.read_line(&mut response).expect("receives");
            serde_json::from_str(&response).expect("JSON")
        };
        let invalid = [
            ("", "invalid command"),
            ("{}", "operation"),
            ("{\"operation\":\"erase\"}", "erase"),
            (&valid.replace("4096", "1000"), "multiple of 512"),
            (&valid.replace("4096", "1048576"), "file too small"),
            (&valid.replace("seed", "seeed"), "seeed"),
        ];
        for (line, part) in invalid {
            let response = request(line);
            let reason = response["error"].as_str().unwrap_or_default().to_owned();
            assert!(reason.contains(part), "{line}: {response}");
        }
        let response = request(&valid);
        assert!(response["operations"].as_u64() > Some(0), "round {round}: {response}");
        assert_eq!(response["wrong_blocks"], 0, "{response}");
    }
    // A line that is too long also gets a response, and the next control connection is served.
    let stream = TcpStream::connect(address).expect("connects");
    (&stream).write_all(&vec![b' '; 64 * 1024]).expect("sends");
    let mut response = String::new();
    BufReader::new(&stream).read_line(&mut response).expect("receives");
    assert!(response.contains("line exceeds"), "{response}");
    let mut next = TcpStream::connect(address).expect("connects");
    next.write_all(format!("{valid}\n").as_bytes()).expect("sends");
    let mut response = String::new();
    BufReader::new(&next).read_line(&mut response).expect("receives");
    assert!(response.contains("operations"), "{response}");
}

/// The file is truncated while it is in use: the requests fail, but the worker keeps running.
#[test]
fn failed_requests_are_counted_by_cause() {
    for_each_engine(|engine| {
        let directory = test_directory();
        let worker = open(engine, &file(&directory));
        let bytes = OpenOptions::new().write(true).open(file(&directory)).expect("opens the file");
        bytes.set_len(FILE_BYTES / 2).expect("shortens");
        let outcome = read_all_or_fail(&worker);
        assert_eq!(outcome.errors.len(), 1, "{engine}: {:?}", outcome.errors);
        assert_eq!(outcome.errors[0].0, "short read", "{engine}");
    });
}

fn read_all_or_fail(worker: &Worker) -> Outcome {
    let mut read = command(Operation::RandomRead);
    loop {
        let outcome = perform(worker, &read);
        if !outcome.errors.is_empty() {
            return outcome;
        }
        read.duration_ns *= 2;
        assert!(read.duration_ns < 60_000_000_000, "no read failed");
    }
}

#[test]
fn command_out_of_bounds_reports_bound() {
    let directory = test_directory();
    let worker = Worker::open(Engine::Pread, &file(&directory), Some(1 << 20)).expect("opens");
    let valid = || Command { depth: 16, ..command(Operation::RandomRead) };
    perform(&worker, &valid());
    let invalid = [
        (Command { block_bytes: 0, ..valid() }, "multiple of 512"),
        (Command { block_bytes: 1000, ..valid() }, "multiple of 512"),
        (Command { block_bytes: 32 << 20, ..valid() }, "16777216"),
        (Command { depth: 0, ..valid() }, "1 to 256"),
        (Command { depth: 257, ..valid() }, "1 to 256"),
        (Command { depth: 256, block_bytes: 8 << 20, ..valid() }, "1 GiB"),
        (Command { duration_ns: u64::MAX, ..valid() }, "an hour"),
        (Command { block_bytes: 65536, ..valid() }, "file too small"),
    ];
    for (command, part) in invalid {
        let error = worker.perform(&command).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

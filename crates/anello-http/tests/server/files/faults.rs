//! File serving on every available driver: files that must never be served, and files that change while they are
//! being served.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use anello::fs::spawn_file_operation;
use anello_http::files::negotiate::Codings;
use anello_http::files::options::{FileOptions, Symlinks};
use anello_test::{in_own_process, short_or_long};
use rustix::fs::{CWD, FileType, makedev, mkfifoat, mknodat};

use crate::common::Client;
use crate::common::site::{for_each_driver_with_site, pattern};
use crate::common::versions::VERSIONS;

/// A thread that applies changes in a loop until it is stopped.
struct Changer {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Changer {
    fn start<S: Clone + Send + 'static>(states: Vec<S>, change: impl Fn(&S) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for state in states.iter().cycle() {
                change(state);
                if is_stopped.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        Self { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("thread completes");
    }
}

#[test]
fn fault_32_no_path_escapes_document_root() {
    for_each_driver_with_site(FileOptions::default(), async |address, directory| {
        // This file is next to the document root and has a unique name.
        let mut outside =
            tempfile::NamedTempFile::new_in(directory.parent().expect("parent")).expect("temporary file");
        outside.write_all(b"outside").expect("write file");
        let name = outside.path().file_name().expect("file name").to_str().expect("UTF-8 name");
        for path in [
            "/../NAME",
            "/..%2fNAME",
            "/.%2e/NAME",
            "/%2e%2e/NAME",
            "/docs/../../NAME",
            "/docs/%2e%2e/%2e%2e/NAME",
            "/..%5cNAME",
            "/..\\NAME",
            "/%2e%2e%2fNAME",
            "/%252e%252e/NAME",
            "/..%c0%afNAME",
            "/docs/..%00/NAME",
            "//../NAME",
            "/./../NAME",
            "/..;/NAME",
            "/etc/passwd",
            "//etc/passwd",
            "/%2fetc%2fpasswd",
            "/proc/self/environ",
        ] {
            for version in VERSIONS {
                let mut client = version.connect(address).await;
                let response = client.get(&path.replace("NAME", name)).await;
                assert!(matches!(response.status, 400 | 404), "{path}: {response:?}");
                assert!(!response.text().contains("root:") && response.text() != "outside", "{path}");
            }
        }
    });
}

#[test]
fn fault_33_swapped_links_never_escape_document_root() {
    for symlinks in [Symlinks::FollowBeneath, Symlinks::Deny] {
        // No cache, so that every request resolves the path.
        let options = FileOptions::default()
            .symlinks(symlinks)
            .revalidate_interval(Duration::ZERO)
            .max_cache_bytes(0)
            .max_cached_file_bytes(0);
        for_each_driver_with_site(options, async move |address, directory| {
            let outside = tempfile::tempdir().expect("temporary directory");
            fs::write(outside.path().join("file"), "outside").expect("write file");
            for name in ["in", "swap"] {
                fs::create_dir(directory.join(name)).expect("create directory");
            }
            fs::write(directory.join("in/file"), "inside").expect("write file");
            fs::remove_dir(directory.join("swap")).expect("remove");
            symlink("in", directory.join("swap")).expect("create link");
            let (root, outside_path) = (directory.to_owned(), outside.path().to_owned());
            let targets = ["in", "../", "/proc/self/root"].map(PathBuf::from);
            let swapper = Changer::start([&[outside_path][..], &targets].concat(), move |target| {
                symlink(target, root.join("fresh")).expect("create link");
                fs::rename(root.join("fresh"), root.join("swap")).expect("swap link");
            });
            let follows = symlinks == Symlinks::FollowBeneath;
            for version in VERSIONS {
                let (mut client, mut inside, mut missing) = (version.connect(address).await, 0, 0);
                // Repeat until responses have shown both states of the link.
                while inside + missing < short_or_long(150, 1500) || missing == 0 || (follows && inside == 0)
                {
                    let response = client.get("/swap/file").await;
                    match response.status {
                        200 => {
                            assert_eq!(response.text(), "inside");
                            inside += 1;
                        }
                        status => {
                            assert_eq!(status, 404, "{response:?}");
                            missing += 1;
                        }
                    }
                }
                assert_eq!(inside > 0, follows, "{version:?}: {inside} {missing}");
            }
            swapper.stop();
            fs::remove_file(directory.join("swap")).expect("remove");
            symlink("in", directory.join("swap")).expect("create link");
            let expected = if symlinks == Symlinks::Deny { 404 } else { 200 };
            let mut client = Client::connect(address).await;
            assert_eq!(client.get("/swap/file").await.status, expected);
        });
    }
}

#[test]
fn fault_34_special_files_are_not_served() {
    // A FIFO must not be used as a precompressed variant or an index file either.
    let options = FileOptions::default().precompressed(Codings::ALL);
    for_each_driver_with_site(options, async |address, directory| {
        for path in ["fifo", "hello.txt.gz", "docs/empty/index.html"] {
            mkfifoat(CWD, directory.join(path), 0o644.into()).expect("create FIFO");
        }
        let _socket = std::os::unix::net::UnixListener::bind(directory.join("socket")).expect("bind socket");
        symlink("/dev/null", directory.join("link")).expect("create link");
        symlink("loop", directory.join("loop")).expect("create link");
        let mut missing = vec!["/fifo", "/socket", "/link", "/loop", "/fifo/", "/fifo/under"];
        missing.extend(["/docs/empty/", "/docs/empty/index.html"]);
        // A device like `/dev/null` contains no data, so it could be served as an empty file by mistake.
        match mknodat(CWD, directory.join("device"), FileType::CharacterDevice, 0o666.into(), makedev(1, 3)) {
            Ok(()) => missing.push("/device"),
            Err(error) => eprintln!("device skipped (creating it requires root): {error}"),
        }
        for version in VERSIONS {
            let mut client = version.connect(address).await;
            for path in &missing {
                assert_eq!(client.get(path).await.status, 404, "{version:?}: {path}");
            }
            for (path, location) in [("/docs", "/docs/"), ("/docs/empty", "/docs/empty/")] {
                let response = client.get(path).await;
                assert_eq!((response.status, response.field("Location")), (301, Some(location)), "{path}");
            }
            let response = client.get_with("/hello.txt", &[("accept-encoding", "gzip")]).await;
            assert_eq!((response.field("Content-Encoding"), response.text()), (None, "Hello, world!"));
        }
    });
}

/// As on a dead mount.
#[test]
fn files_are_served_while_file_operations_stall() {
    /// More than the file pool has threads, unless operations stall.
    const STALLED: usize = 40;
    in_own_process(|| {
        let options = FileOptions::default()
            .listing(true)
            .revalidate_interval(Duration::ZERO)
            .max_cache_bytes(0)
            .max_cached_file_bytes(0);
        for_each_driver_with_site(options, async |address, _directory| {
            let stalled = Arc::new(Barrier::new(STALLED + 1));
            for _ in 0..STALLED {
                let stalled = Arc::clone(&stalled);
                drop(spawn_file_operation(move || stalled.wait()));
            }
            for version in VERSIONS {
                let mut client = version.connect(address).await;
                // Reading a directory always needs a thread of the file pool.
                let listing = client.get("/docs/empty/").await;
                assert_eq!(listing.status, 200, "{version:?}: {listing:?}");
                assert_eq!(client.get("/hello.txt").await.text(), "Hello, world!", "{version:?}");
            }
            // Until now, none of the operations has completed.
            stalled.wait();
        });
    });
}

#[test]
fn fault_35_small_changing_file_is_sent_in_one_state() {
    let options = FileOptions::default().revalidate_interval(Duration::ZERO);
    for_each_driver_with_site(options, async |address, directory| {
        // The file is replaced by renaming: each response contains either the old or the new state.
        let states = vec![vec![b'a'; 5000], vec![b'b'; 9000]];
        fs::write(directory.join("small"), &states[0]).expect("write file");
        let root = directory.to_owned();
        let replacer = Changer::start(states.clone(), move |state| {
            fs::write(root.join("fresh"), state).expect("write file");
            fs::rename(root.join("fresh"), root.join("small")).expect("replace file");
        });
        let mut client = Client::connect(address).await;
        for _ in 0..short_or_long(200, 2000) {
            let response = client.get("/small").await;
            assert!(response.status == 200 && states.contains(&response.body), "{}", response.body.len());
        }
        replacer.stop();
        // The file is overwritten in place. The kernel exposes intermediate states; `read_whole` in `document_root.rs`
        // avoids mixing them.
        let root = directory.to_owned();
        let writer =
            Changer::start(states, move |state| fs::write(root.join("small"), state).expect("write file"));
        for _ in 0..short_or_long(200, 2000) {
            let mut client = Client::connect(address).await;
            client.send("GET /small HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
            let (length, body) = only_response(&mut client).await;
            assert!(body.len() <= length.min(9000), "{} of {length} bytes", body.len());
            assert!(body.iter().all(|byte| b"ab\0".contains(byte)), "{}", body.escape_ascii());
        }
        writer.stop();
        // The last state is served.
        fs::write(directory.join("small"), "the last state").expect("write file");
        assert_eq!(client.get("/small").await.text(), "the last state");
        fs::remove_file(directory.join("small")).expect("remove");
        assert_eq!(client.get("/small").await.status, 404);
    });
}

/// Receives until the server closes the connection. Returns the value of `Content-Length` and the bytes after the head.
async fn only_response(client: &mut Client) -> (usize, Vec<u8>) {
    let mut received = client.take_received();
    while let Ok(Some(chunk)) = client.stream.recv().await {
        received.extend_from_slice(&chunk);
    }
    let head_end = received.windows(4).position(|window| window == b"\r\n\r\n").expect("complete head") + 4;
    let body = received.split_off(head_end);
    let head = String::from_utf8(received).expect("UTF-8 head");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("Content-Length");
    (length.parse().expect("numeric length"), body)
}

#[test]
fn fault_35_large_file_truncated_while_sent_closes_connection() {
    let options = FileOptions::default().revalidate_interval(Duration::ZERO);
    for_each_driver_with_site(options, async |address, directory| {
        let file = fs::File::options().write(true).open(directory.join("large.bin")).expect("open file");
        let content = pattern(3 << 20);
        let truncater = Changer::start(vec![100, 3 << 20, 1 << 20], move |length| {
            file.set_len(*length).expect("set length");
        });
        let mut complete_responses = 0;
        while complete_responses < short_or_long(10, 100) {
            let mut client = Client::connect(address).await;
            client
                .send(
                    "GET /large.bin HTTP/1.1\r\nHost: h\r\n\r\n\
                     GET /hello.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
                )
                .await;
            let (length, received) = only_response(&mut client).await;
            let (body, next) = received.split_at(length.min(received.len()));
            // If the file was truncated and then extended again, the affected part reads as zeros.
            let is_from_file = |(byte, original): (&u8, &u8)| byte == original || *byte == 0;
            assert!(body.iter().zip(&content).all(is_from_file), "{} of {length} bytes", body.len());
            if body.len() == length {
                assert!(next.starts_with(b"HTTP/1.1 200 OK\r\n") && next.ends_with(b"Hello, world!"));
                complete_responses += 1;
            }
        }
        truncater.stop();
    });
}

#[test]
fn fault_35_changed_large_file_is_never_sent_in_old_state() {
    // Longer than any test, so each change must be detected before the interval ends.
    let interval = Duration::from_secs(3600);
    let options = FileOptions::default().revalidate_interval(interval).precompressed(Codings::ALL);
    for_each_driver_with_site(options, async |address, directory| {
        let files = [
            ("identity", directory.join("data.css"), 200_000),
            ("gzip", directory.join("data.css.gz"), 150_000),
        ];
        for (_, path, length) in &files {
            fs::write(path, vec![b'a'; *length]).expect("write file");
        }
        // Resuming a download requires a strong validator, so the file must not have changed for a while.
        thread::sleep(Duration::from_millis(1100));
        let mut client = Client::connect(address).await;
        for (accepted, path, length) in files {
            let send_request = async |client: &mut Client, fields: &str| {
                let fields = format!("Accept-Encoding: {accepted}\r\n{fields}");
                client.send(format!("GET /data.css HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
                client.response().await.expect("response")
            };
            let consists_of =
                |body: &[u8], byte| body.len() == length && body.iter().all(|&other| other == byte);
            let first = send_request(&mut client, "").await;
            let tag = first.field("ETag").expect("ETag");
            assert!(consists_of(&first.body, b'a') && tag.starts_with('"'), "{accepted}: {tag}");
            let resume = format!("Range: bytes=100000-\r\nIf-Range: {tag}\r\n");
            let rest = send_request(&mut client, &resume).await;
            assert_eq!((rest.status, rest.body.len()), (206, length - 100_000), "{accepted}");
            // Overwrite the file in place.
            let file = fs::File::options().write(true).open(&path).expect("open file");
            file.write_all_at(&vec![b'b'; length], 0).expect("write file");
            let resumed = send_request(&mut client, &resume).await;
            assert!(
                resumed.status == 200 && consists_of(&resumed.body, b'b'),
                "{accepted}: {}",
                resumed.status
            );
            assert_ne!(resumed.field("ETag"), Some(tag));
            // Replace the file by renaming.
            fs::write(directory.join("fresh"), vec![b'c'; length]).expect("write file");
            fs::rename(directory.join("fresh"), &path).expect("replace file");
            let replaced = send_request(&mut client, &format!("If-None-Match: {tag}\r\n")).await;
            assert!(replaced.status == 200 && consists_of(&replaced.body, b'c'), "{accepted}");
            // Truncate the file before the request: the response has the new length.
            fs::File::options().write(true).open(&path).expect("open file").set_len(150).expect("truncate");
            assert_eq!(send_request(&mut client, "").await.body, [b'c'; 150], "{accepted}");
        }
    });
}

/// The file is truncated after the head has been received, while more data is outstanding than the socket buffers can
/// hold.
#[test]
fn fault_35_truncated_file_is_never_padded() {
    let options = FileOptions::default().revalidate_interval(Duration::ZERO);
    for_each_driver_with_site(options, async |address, directory| {
        let sparse = fs::File::create(directory.join("sparse.bin")).expect("open file");
        let announced_bytes = 512 << 20;
        sparse.set_len(announced_bytes).expect("set length");
        let mut client = Client::connect(address).await;
        client
            .send("GET /sparse.bin HTTP/1.1\r\nHost: h\r\n\r\nGET /hello.txt HTTP/1.1\r\nHost: h\r\n\r\n")
            .await;
        let mut received = client.stream.recv().await.expect("receive").expect("more data").to_vec();
        sparse.set_len(100).expect("truncate");
        while let Ok(Some(chunk)) = client.stream.recv().await {
            received.extend_from_slice(&chunk);
        }
        let head_end =
            received.windows(4).position(|window| window == b"\r\n\r\n").expect("complete head") + 4;
        let head = String::from_utf8_lossy(&received[..head_end]);
        assert!(head.contains(&format!("\r\nContent-Length: {announced_bytes}\r\n")), "{head}");
        // The server closed the connection in the middle of the body, and had sent nothing but file content.
        assert!(((received.len() - head_end) as u64) < announced_bytes, "{}", received.len());
        assert!(received[head_end..].iter().all(|&byte| byte == 0));
        assert_eq!(Client::connect(address).await.get("/sparse.bin").await.body.len(), 100);
    });
}

#[test]
fn fault_36_excessive_ranges_cause_bounded_work() {
    for_each_driver_with_site(FileOptions::default(), async |address, _| {
        let mut client = Client::connect(address).await;
        let many = (0..400).map(|n| format!("{}-{}", n * 10, n * 10 + 1)).collect::<Vec<_>>().join(",");
        let overlapping = vec!["0-"; 30].join(",");
        for (range, status) in [
            (&*many, 200),
            (&*overlapping, 206),
            ("18446744073709551615-", 416),
            ("0-18446744073709551615", 206),
            ("99999999999999999999999-", 416),
            ("5-1", 200),
            ("-0", 416),
        ] {
            client.send(format!("GET /large.bin HTTP/1.1\r\nHost: h\r\nRange: bytes={range}\r\n\r\n")).await;
            let response = client.response().await.expect("response");
            assert_eq!(response.status, status, "{range}");
            assert!(response.body.len() <= (3 << 20) + 4096, "{range}");
        }
    });
}

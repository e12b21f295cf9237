//! Files over the server, on every driver that can be had: what is never sent, and what happens when files change under it.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anello_http::files::negotiate::Codings;
use anello_http::files::options::{FileOptions, Symlinks};
use rustix::fs::{CWD, FileType, makedev, mkfifoat, mknodat};

use common::Client;
use common::site::{for_each_driver_with_site, pattern};

/// Changes something again and again, until it is told to stop.
struct Changing {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Changing {
    fn start<S: Clone + Send + 'static>(states: Vec<S>, change: impl Fn(&S) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for state in states.iter().cycle() {
                change(state);
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        Self { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("changed");
    }
}

#[test]
fn fault_32_no_path_leads_outside() {
    for_each_driver_with_site(FileOptions::default(), async |address, folder| {
        // Beside the folder, by a name that no other run has.
        let mut outside =
            tempfile::NamedTempFile::new_in(folder.parent().expect("a parent")).expect("a file");
        outside.write_all(b"outside").expect("written");
        let name = outside.path().file_name().expect("a name").to_str().expect("text");
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
            let mut client = Client::connect(address).await;
            let response = client.get(&path.replace("NAME", name)).await;
            assert!(matches!(response.status, 400 | 404), "{path}: {response:?}");
            assert!(!response.text().contains("root:") && response.text() != "outside", "{path}");
        }
    });
}

#[test]
fn fault_33_links_that_are_swapped_never_lead_outside() {
    for symlinks in [Symlinks::FollowBeneath, Symlinks::Deny] {
        // Without a cache, so that every request resolves the path.
        let options = FileOptions {
            symlinks,
            revalidate_interval: Duration::ZERO,
            max_cache_bytes: 0,
            max_cached_file_bytes: 0,
            ..FileOptions::default()
        };
        for_each_driver_with_site(options, async move |address, folder| {
            let outside = tempfile::tempdir().expect("a folder");
            fs::write(outside.path().join("file"), "outside").expect("a file");
            for place in ["in", "swap"] {
                fs::create_dir(folder.join(place)).expect("a folder");
            }
            fs::write(folder.join("in/file"), "inside").expect("a file");
            fs::remove_dir(folder.join("swap")).expect("removed");
            symlink("in", folder.join("swap")).expect("a link");
            let (root, outside_path) = (folder.to_owned(), outside.path().to_owned());
            let targets = ["in", "../", "/proc/self/root"].map(PathBuf::from);
            let swapping = Changing::start([&[outside_path][..], &targets].concat(), move |target| {
                symlink(target, root.join("fresh")).expect("a link");
                fs::rename(root.join("fresh"), root.join("swap")).expect("swapped");
            });
            let (mut client, mut inside, mut missing) = (Client::connect(address).await, 0, 0);
            let follows = symlinks == Symlinks::FollowBeneath;
            // Until the link was met in both of its states.
            while inside + missing < 3000 || missing == 0 || (follows && inside == 0) {
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
            swapping.end();
            assert_eq!(inside > 0, follows, "{inside} {missing}");
            fs::remove_file(folder.join("swap")).expect("removed");
            symlink("in", folder.join("swap")).expect("a link");
            let expected = if symlinks == Symlinks::Deny { 404 } else { 200 };
            assert_eq!(client.get("/swap/file").await.status, expected);
        });
    }
}

#[test]
fn fault_34_what_is_no_file_is_not_served() {
    // Beside a file or in a folder, it stands for neither of them.
    let options = FileOptions { precompressed: Codings::ALL, ..FileOptions::default() };
    for_each_driver_with_site(options, async |address, folder| {
        for path in ["fifo", "hello.txt.gz", "docs/empty/index.html"] {
            mkfifoat(CWD, folder.join(path), 0o644.into()).expect("a FIFO");
        }
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).expect("a socket");
        symlink("/dev/null", folder.join("link")).expect("a link");
        symlink("loop", folder.join("loop")).expect("a link");
        let mut missing = vec!["/fifo", "/socket", "/link", "/loop", "/fifo/", "/fifo/under"];
        missing.extend(["/docs/empty/", "/docs/empty/index.html"]);
        // The one that reads as nothing, so that it would be served as an empty file.
        match mknodat(CWD, folder.join("device"), FileType::CharacterDevice, 0o666.into(), makedev(1, 3)) {
            Ok(()) => missing.push("/device"),
            Err(error) => eprintln!("the device is skipped, which takes root to make: {error}"),
        }
        let mut client = Client::connect(address).await;
        for path in missing {
            assert_eq!(client.get(path).await.status, 404, "{path}");
        }
        for (path, location) in [("/docs", "/docs/"), ("/docs/empty", "/docs/empty/")] {
            let response = client.get(path).await;
            assert_eq!((response.status, response.field("Location")), (301, Some(location)), "{path}");
        }
        client.send("GET /hello.txt HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n").await;
        let response = client.response().await.expect("an answer");
        assert_eq!((response.field("Content-Encoding"), response.text()), (None, "Hello, world!"));
    });
}

#[test]
fn fault_35_a_small_file_that_changes_is_sent_whole_in_one_state() {
    let options = FileOptions { revalidate_interval: Duration::ZERO, ..FileOptions::default() };
    for_each_driver_with_site(options, async |address, folder| {
        // Replaced by renaming: always one of the two.
        let states = vec![vec![b'a'; 5000], vec![b'b'; 9000]];
        fs::write(folder.join("small"), &states[0]).expect("a file");
        let root = folder.to_owned();
        let replacing = Changing::start(states.clone(), move |state| {
            fs::write(root.join("fresh"), state).expect("a file");
            fs::rename(root.join("fresh"), root.join("small")).expect("replaced");
        });
        let mut client = Client::connect(address).await;
        for _ in 0..2000 {
            let response = client.get("/small").await;
            assert!(response.status == 200 && states.contains(&response.body), "{}", response.body.len());
        }
        replacing.end();
        // Written anew where it lies. The kernel shows it half written; `read.rs` tells how mixtures are avoided.
        let root = folder.to_owned();
        let writing =
            Changing::start(states, move |state| fs::write(root.join("small"), state).expect("a file"));
        for _ in 0..2000 {
            let mut client = Client::connect(address).await;
            client.send("GET /small HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
            let (length, body) = only_response(&mut client).await;
            assert!(body.len() <= length.min(9000), "{} of {length} bytes", body.len());
            assert!(body.iter().all(|byte| b"ab\0".contains(byte)), "{}", body.escape_ascii());
        }
        writing.end();
        // What is there in the end is what is sent.
        fs::write(folder.join("small"), "the last state").expect("a file");
        assert_eq!(client.get("/small").await.text(), "the last state");
        fs::remove_file(folder.join("small")).expect("removed");
        assert_eq!(client.get("/small").await.status, 404);
    });
}

/// All that comes until the server has ended the connection: the length that the head tells, and what is behind the head.
async fn only_response(client: &mut Client) -> (usize, Vec<u8>) {
    let mut received = client.take_received();
    while let Ok(Some(chunk)) = client.stream.recv().await {
        received.extend_from_slice(&chunk);
    }
    let head_end = received.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let body = received.split_off(head_end);
    let head = String::from_utf8(received).expect("a head of text");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    (length.parse().expect("a number"), body)
}

#[test]
fn fault_35_a_large_file_that_is_cut_while_it_is_sent_ends_the_connection() {
    let options = FileOptions { revalidate_interval: Duration::ZERO, ..FileOptions::default() };
    for_each_driver_with_site(options, async |address, folder| {
        let file = fs::File::options().write(true).open(folder.join("large.bin")).expect("a file");
        let content = pattern(3 << 20);
        let cutting = Changing::start(vec![100, 3 << 20, 1 << 20], move |length| {
            file.set_len(*length).expect("cut");
        });
        let mut whole = 0;
        while whole < 100 {
            let mut client = Client::connect(address).await;
            client
                .send(
                    "GET /large.bin HTTP/1.1\r\nHost: h\r\n\r\n\
                     GET /hello.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
                )
                .await;
            let (length, behind) = only_response(&mut client).await;
            let (body, next) = behind.split_at(length.min(behind.len()));
            // What was cut off is zero when it is there again.
            let is_of_file = |(byte, old): (&u8, &u8)| byte == old || *byte == 0;
            assert!(body.iter().zip(&content).all(is_of_file), "{} of {length} bytes", body.len());
            if body.len() == length {
                assert!(next.starts_with(b"HTTP/1.1 200 OK\r\n") && next.ends_with(b"Hello, world!"));
                whole += 1;
            }
        }
        cutting.end();
    });
}

#[test]
fn fault_35_a_large_file_that_changed_is_never_sent_as_what_it_was() {
    // No test lasts as long: each change happens, and is seen, within the interval.
    let interval = Duration::from_secs(3600);
    let options =
        FileOptions { revalidate_interval: interval, precompressed: Codings::ALL, ..FileOptions::default() };
    for_each_driver_with_site(options, async |address, folder| {
        let files =
            [("identity", folder.join("data.css"), 200_000), ("gzip", folder.join("data.css.gz"), 150_000)];
        for (_, path, length) in &files {
            fs::write(path, vec![b'a'; *length]).expect("a file");
        }
        // Only a file that was left alone for a while has a tag by which downloads are resumed.
        thread::sleep(Duration::from_millis(1100));
        let mut client = Client::connect(address).await;
        for (accepted, path, length) in files {
            let send_request = async |client: &mut Client, fields: &str| {
                let fields = format!("Accept-Encoding: {accepted}\r\n{fields}");
                client.send(format!("GET /data.css HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
                client.response().await.expect("an answer")
            };
            let is_all = |body: &[u8], byte| body.len() == length && body.iter().all(|&other| other == byte);
            let first = send_request(&mut client, "").await;
            let tag = first.field("ETag").expect("a tag");
            assert!(is_all(&first.body, b'a') && tag.starts_with('"'), "{accepted}: {tag}");
            let resume = format!("Range: bytes=100000-\r\nIf-Range: {tag}\r\n");
            let rest = send_request(&mut client, &resume).await;
            assert_eq!((rest.status, rest.body.len()), (206, length - 100_000), "{accepted}");
            // Written anew where it lies.
            let file = fs::File::options().write(true).open(&path).expect("a file");
            file.write_all_at(&vec![b'b'; length], 0).expect("written");
            let resumed = send_request(&mut client, &resume).await;
            assert!(resumed.status == 200 && is_all(&resumed.body, b'b'), "{accepted}: {}", resumed.status);
            assert_ne!(resumed.field("ETag"), Some(tag));
            // Replaced by another one.
            fs::write(folder.join("fresh"), vec![b'c'; length]).expect("a file");
            fs::rename(folder.join("fresh"), &path).expect("replaced");
            let replaced = send_request(&mut client, &format!("If-None-Match: {tag}\r\n")).await;
            assert!(replaced.status == 200 && is_all(&replaced.body, b'c'), "{accepted}");
            // Cut, long before it is asked for: its length is the one that is told.
            fs::File::options().write(true).open(&path).expect("a file").set_len(150).expect("cut");
            assert_eq!(send_request(&mut client, "").await.body, [b'c'; 150], "{accepted}");
        }
    });
}

/// It is cut when its head has come: so much of it is still to be sent that no socket holds it.
#[test]
fn fault_35_a_file_that_was_cut_is_never_filled_up() {
    let options = FileOptions { revalidate_interval: Duration::ZERO, ..FileOptions::default() };
    for_each_driver_with_site(options, async |address, folder| {
        let sparse = fs::File::create(folder.join("sparse.bin")).expect("a file");
        let promised = 512 << 20;
        sparse.set_len(promised).expect("a length");
        let mut client = Client::connect(address).await;
        client
            .send("GET /sparse.bin HTTP/1.1\r\nHost: h\r\n\r\nGET /hello.txt HTTP/1.1\r\nHost: h\r\n\r\n")
            .await;
        let mut received = client.stream.recv().await.expect("bytes").expect("more").to_vec();
        sparse.set_len(100).expect("cut");
        while let Ok(Some(chunk)) = client.stream.recv().await {
            received.extend_from_slice(&chunk);
        }
        let head_end = received.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let head = String::from_utf8_lossy(&received[..head_end]);
        assert!(head.contains(&format!("\r\nContent-Length: {promised}\r\n")), "{head}");
        // The connection has ended, within the body and with nothing else in it.
        assert!(((received.len() - head_end) as u64) < promised, "{}", received.len());
        assert!(received[head_end..].iter().all(|&byte| byte == 0));
        assert_eq!(Client::connect(address).await.get("/sparse.bin").await.body.len(), 100);
    });
}

#[test]
fn fault_36_ranges_without_end_are_bounded_work() {
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
            let response = client.response().await.expect("an answer");
            assert_eq!(response.status, status, "{range}");
            assert!(response.body.len() <= (3 << 20) + 4096, "{range}");
        }
    });
}

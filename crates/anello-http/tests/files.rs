//! Files over the server, on every driver that can be had: what is sent, what is never sent, and what happens when files
//! change under it.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anello_http::files::Files;
use anello_http::files::cache_control::CacheRule;
use anello_http::files::negotiate::Codings;
use anello_http::files::options::{FileOptions, Symlinks};
use anello_http::{Options, Request};
use tempfile::TempDir;

use common::{Client, on_each, real_drivers, serve};

/// A folder with some of everything.
fn site() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |path: &str| folder.path().join(path);
    fs::create_dir_all(at("docs/empty")).expect("folders");
    fs::create_dir(at(".git")).expect("a folder");
    for (path, text) in [
        ("hello.txt", "Hello, world!"),
        ("index.html", "<title>top</title>"),
        ("docs/index.html", "<title>docs</title>"),
        ("docs/a b%20.txt", "blanks"),
        (".git/config", "secret"),
        ("404.html", "<title>lost</title>"),
        ("app.js", "let plain = 1;"),
        ("app.js.gz", "gzipped"),
        ("app.js.br", "brotli"),
    ] {
        fs::write(at(path), text).expect("a file");
    }
    fs::write(at("large.bin"), pattern(3 << 20)).expect("a file");
    folder
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

fn start(root: &Path, options: FileOptions) -> std::net::SocketAddr {
    let files = Rc::new(Files::open(root, options).expect("a folder"));
    serve(Options::default(), async move |request: Request| files.answer(&request).await).1
}

/// Runs a test on each driver against a site of its own.
fn on_site(
    options: FileOptions,
    test: impl AsyncFn(std::net::SocketAddr, &Path) + Clone + Send + Sync + 'static,
) {
    on_each(real_drivers(), move |_| {
        let (options, test) = (options.clone(), test.clone());
        async move {
            let folder = site();
            let address = start(folder.path(), options);
            test(address, folder.path()).await;
        }
    });
}

#[test]
fn files_are_what_they_are() {
    on_site(FileOptions::default(), async |address, _| {
        let mut client = Client::connect(address).await;
        for (path, media_type, body) in [
            ("/hello.txt", "text/plain; charset=utf-8", "Hello, world!"),
            ("/", "text/html; charset=utf-8", "<title>top</title>"),
            ("/docs/", "text/html; charset=utf-8", "<title>docs</title>"),
            ("/docs/a%20b%2520.txt", "text/plain; charset=utf-8", "blanks"),
            ("/app.js", "text/javascript; charset=utf-8", "let plain = 1;"),
        ] {
            // Read, then from memory.
            for _ in 0..2 {
                let answer = client.get(path).await;
                assert_eq!((answer.status, answer.text()), (200, body), "{path}");
                assert_eq!(answer.field("Content-Type"), Some(media_type), "{path}");
                assert!(answer.field("ETag").is_some() && answer.field("Accept-Ranges") == Some("bytes"));
            }
            client.send(format!("HEAD {path} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            let answer = client.answer_to("HEAD").await.expect("an answer");
            assert_eq!(answer.field("Content-Length"), Some(&*body.len().to_string()));
        }
        let large = client.get("/large.bin").await;
        assert!(large.body == pattern(3 << 20), "{}", large.body.len());
        let redirect = client.get("/docs?a=b").await;
        assert_eq!((redirect.status, redirect.field("Location")), (301, Some("/docs/?a=b")));
        for path in ["/nothing", "/hello.txt/", "/docs/empty/", "/.git/config", "/docs/nothing/at/all"] {
            assert_eq!(client.get(path).await.status, 404, "{path}");
        }
        client.send("POST /hello.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
        let refused = client.answer().await.expect("an answer");
        assert_eq!((refused.status, refused.field("Allow")), (405, Some("GET, HEAD, OPTIONS")));
    });
}

#[test]
fn conditions_and_ranges_are_kept() {
    on_site(FileOptions::default(), async |address, folder| {
        let aged = fs::File::options().write(true).open(folder.join("hello.txt")).expect("a file");
        aged.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("a time");
        // Its state tells changes apart only when it has been left alone for a while.
        thread::sleep(Duration::from_millis(1100));
        let mut client = Client::connect(address).await;
        let ask = async |client: &mut Client, fields: &str, path: &str| {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
            client.answer().await.expect("an answer")
        };
        let plain = ask(&mut client, "", "/hello.txt").await;
        let (tag, date) =
            (plain.field("ETag").expect("a tag"), plain.field("Last-Modified").expect("a date"));
        for (fields, status, body) in [
            (format!("If-None-Match: {tag}\r\n"), 304, ""),
            ("If-None-Match: \"other\"\r\n".to_owned(), 200, "Hello, world!"),
            (format!("If-Modified-Since: {date}\r\n"), 304, ""),
            ("If-Match: \"other\"\r\n".to_owned(), 412, "412"),
            ("Range: bytes=0-4\r\n".to_owned(), 206, "Hello"),
            (format!("Range: bytes=-6\r\nIf-Range: {tag}\r\n"), 206, "world!"),
            ("Range: bytes=0-4\r\nIf-Range: \"other\"\r\n".to_owned(), 200, "Hello, world!"),
            ("Range: bytes=100-\r\n".to_owned(), 416, "416"),
        ] {
            let answer = ask(&mut client, &fields, "/hello.txt").await;
            assert_eq!(answer.status, status, "{fields}");
            assert!(answer.text().starts_with(body), "{fields}: {answer:?}");
            match status {
                206 => assert!(answer.field("Content-Range").is_some_and(|range| range.ends_with("/13"))),
                416 => assert_eq!(answer.field("Content-Range"), Some("bytes */13")),
                304 => assert_eq!((answer.field("ETag"), answer.field("Content-Type")), (Some(tag), None)),
                _ => {}
            }
        }
        let large = pattern(3 << 20);
        let part = ask(&mut client, "Range: bytes=1000000-2999999\r\n", "/large.bin").await;
        assert!(part.status == 206 && part.body == large[1_000_000..3_000_000]);
        let several = ask(&mut client, "Range: bytes=0-9,500000-500009,-5\r\n", "/large.bin").await;
        assert_eq!(several.status, 206);
        let content_type = several.field("Content-Type").expect("a type");
        let boundary = content_type.split_once("boundary=").expect("a boundary").1.as_bytes();
        let pieces = several.body.windows(boundary.len()).filter(|window| *window == boundary).count();
        assert_eq!(pieces, 4, "{content_type}");
        let contains = |bytes: &[u8]| several.body.windows(bytes.len()).any(|window| window == bytes);
        assert!(
            contains(&large[..10]) && contains(&large[500_000..500_010]) && contains(&large[(3 << 20) - 5..])
        );
    });
}

#[test]
fn variants_are_negotiated() {
    let options = FileOptions { precompressed: Codings::ALL, ..FileOptions::default() };
    on_site(options, async |address, _| {
        let mut client = Client::connect(address).await;
        let mut tags = Vec::new();
        for (accepted, coding, body) in [
            ("br, gzip", Some("br"), "brotli"),
            ("gzip", Some("gzip"), "gzipped"),
            ("identity", None, "let plain = 1;"),
        ] {
            client
                .send(format!("GET /app.js HTTP/1.1\r\nHost: h\r\nAccept-Encoding: {accepted}\r\n\r\n"))
                .await;
            let answer = client.answer().await.expect("an answer");
            assert_eq!((answer.field("Content-Encoding"), answer.text()), (coding, body), "{accepted}");
            assert_eq!(answer.field("Vary"), Some("Accept-Encoding"));
            assert_eq!(answer.field("Content-Type"), Some("text/javascript; charset=utf-8"));
            tags.push(answer.field("ETag").expect("a tag").to_owned());
        }
        tags.dedup();
        assert_eq!(tags.len(), 3, "{tags:?}");
        assert_eq!(client.get("/hello.txt").await.field("Vary"), None);
    });
}

#[test]
fn folders_are_listed_when_they_may_be_and_pages_stand_in() {
    let options = FileOptions {
        listing: true,
        index_files: vec![],
        not_found_file: Some("404.html".into()),
        single_page_file: Some("docs/index.html".into()),
        cors_origins: vec!["https://example.org".into()],
        ..FileOptions::default()
    };
    on_site(options, async |address, _| {
        let mut client = Client::connect(address).await;
        let page = client.get("/").await;
        assert_eq!(page.field("Content-Type"), Some("text/html; charset=utf-8"));
        assert!(page.text().contains("hello.txt") && !page.text().contains(".git"), "{}", page.text());
        let object: serde_json::Value =
            serde_json::from_slice(&client.get("/docs/?format=json").await.body).expect("JSON");
        assert_eq!(object["path"], "/docs/");
        assert_eq!(client.get("/app/made/up").await.text(), "<title>docs</title>");
        let missing = client.get("/missing.js").await;
        assert_eq!((missing.status, missing.text()), (404, "<title>lost</title>"));
        client.send("GET /hello.txt HTTP/1.1\r\nHost: h\r\nOrigin: https://example.org\r\n\r\n").await;
        let answer = client.answer().await.expect("an answer");
        assert_eq!(answer.field("Access-Control-Allow-Origin"), Some("https://example.org"));
    });
}

#[test]
fn a_page_in_the_place_of_a_file_is_no_state_of_it() {
    let options = FileOptions {
        not_found_file: Some("app.js".into()),
        precompressed: Codings::ALL,
        cache_control: vec![CacheRule { pattern: "**".into(), value: "max-age=31536000, immutable".into() }],
        ..FileOptions::default()
    };
    on_site(options, async |address, _| {
        let mut client = Client::connect(address).await;
        for (fields, coding, body) in [
            ("If-None-Match: *\r\nRange: bytes=0-1\r\n", None, "let plain = 1;"),
            ("Accept-Encoding: gzip\r\n", Some("gzip"), "gzipped"),
            ("Accept-Encoding: identity;q=0\r\n", None, "let plain = 1;"),
        ] {
            client.send(format!("GET /missing.css HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
            let answer = client.answer().await.expect("an answer");
            assert_eq!((answer.status, answer.text()), (404, body), "{fields}");
            let names = ["ETag", "Last-Modified", "Accept-Ranges", "Cache-Control", "Content-Range"];
            assert_eq!(names.map(|name| answer.field(name)), [None; 5], "{fields}");
            assert_eq!(answer.field("Content-Encoding"), coding, "{fields}");
            assert_eq!(answer.field("Content-Type"), Some("text/javascript; charset=utf-8"));
            assert_eq!(answer.field("Vary"), Some("Accept-Encoding"));
        }
    });
}

#[test]
fn fault_32_no_path_leads_outside() {
    on_site(FileOptions::default(), async |address, folder| {
        let outside = folder.parent().expect("a parent").join("outside-of-anello-site");
        fs::write(&outside, "outside").expect("a file");
        let name = outside.file_name().expect("a name").to_str().expect("text");
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
            let answer = client.get(&path.replace("NAME", name)).await;
            assert!(matches!(answer.status, 400 | 404), "{path}: {answer:?}");
            assert!(!answer.text().contains("root:") && answer.text() != "outside", "{path}");
        }
        fs::remove_file(outside).expect("removed");
    });
}

#[test]
fn fault_33_links_that_are_swapped_never_lead_outside() {
    for symlinks in [Symlinks::Within, Symlinks::Refused] {
        // Without a cache, so that every request resolves the path.
        let options = FileOptions {
            symlinks,
            revalidate_interval: Duration::ZERO,
            cache_bytes: 0,
            cache_file_bytes: 0,
            ..FileOptions::default()
        };
        on_site(options, async move |address, folder| {
            let outside = tempfile::tempdir().expect("a folder");
            fs::write(outside.path().join("file"), "outside").expect("a file");
            for place in ["in", "swap"] {
                fs::create_dir(folder.join(place)).expect("a folder");
            }
            fs::write(folder.join("in/file"), "inside").expect("a file");
            fs::remove_dir(folder.join("swap")).expect("removed");
            symlink("in", folder.join("swap")).expect("a link");
            let stop = Arc::new(AtomicBool::new(false));
            let (root, outside_path, stopped) =
                (folder.to_owned(), outside.path().to_owned(), Arc::clone(&stop));
            let swapping = thread::spawn(move || {
                let targets =
                    [outside_path.as_path(), Path::new("in"), Path::new("../"), Path::new("/proc/self/root")];
                for target in targets.iter().cycle() {
                    let fresh = root.join("fresh");
                    symlink(target, &fresh).expect("a link");
                    fs::rename(&fresh, root.join("swap")).expect("swapped");
                    if stopped.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let (mut client, mut inside) = (Client::connect(address).await, 0);
            for _ in 0..3000 {
                let answer = client.get("/swap/file").await;
                match answer.status {
                    200 => {
                        assert_eq!(answer.text(), "inside");
                        inside += 1;
                    }
                    status => assert_eq!(status, 404, "{answer:?}"),
                }
            }
            stop.store(true, Ordering::Relaxed);
            swapping.join().expect("swapped");
            if symlinks == Symlinks::Refused {
                assert_eq!(inside, 0);
            }
            fs::remove_file(folder.join("swap")).expect("removed");
            symlink("in", folder.join("swap")).expect("a link");
            let expected = if symlinks == Symlinks::Refused { 404 } else { 200 };
            assert_eq!(client.get("/swap/file").await.status, expected);
        });
    }
}

#[test]
fn fault_34_what_is_no_file_is_not_served() {
    on_site(FileOptions::default(), async |address, folder| {
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("fifo"), 0o644.into()).expect("a FIFO");
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).expect("a socket");
        symlink("/dev/null", folder.join("device")).expect("a link");
        symlink("loop", folder.join("loop")).expect("a link");
        let mut client = Client::connect(address).await;
        for path in ["/fifo", "/socket", "/device", "/loop", "/fifo/", "/fifo/under"] {
            assert_eq!(client.get(path).await.status, 404, "{path}");
        }
        assert_eq!(client.get("/hello.txt").await.text(), "Hello, world!");
    });
}

#[test]
fn fault_35_a_file_that_changes_is_sent_whole_in_one_state_or_not_at_all() {
    let options = FileOptions { revalidate_interval: Duration::ZERO, ..FileOptions::default() };
    on_site(options, async |address, folder| {
        // Small ones, replaced by renaming: from memory, always one of the two.
        let states = [vec![b'a'; 5000], vec![b'b'; 9000]];
        fs::write(folder.join("small"), &states[0]).expect("a file");
        let stop = Arc::new(AtomicBool::new(false));
        let (root, stopped, new) = (folder.to_owned(), Arc::clone(&stop), states.clone());
        let replacing = thread::spawn(move || {
            for state in new.iter().cycle() {
                fs::write(root.join("fresh"), state).expect("a file");
                fs::rename(root.join("fresh"), root.join("small")).expect("replaced");
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut client = Client::connect(address).await;
        for _ in 0..2000 {
            let answer = client.get("/small").await;
            assert!(answer.status == 200 && states.contains(&answer.body), "{}", answer.body.len());
        }
        stop.store(true, Ordering::Relaxed);
        replacing.join().expect("replaced");
        // What is there in the end is what is sent.
        fs::write(folder.join("small"), "the last state").expect("a file");
        assert_eq!(client.get("/small").await.text(), "the last state");
        fs::remove_file(folder.join("small")).expect("removed");
        assert_eq!(client.get("/small").await.status, 404);
        // Large ones, cut while they are sent: the connection ends instead of going on with a wrong frame.
        let (root, stop) = (folder.to_owned(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let cutting = thread::spawn(move || {
            let file = fs::File::options().write(true).open(root.join("large.bin")).expect("a file");
            for length in [100, 3 << 20, 1 << 20].iter().cycle() {
                file.set_len(*length).expect("cut");
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let (mut whole, mut cut) = (0, 0);
        for _ in 0..300 {
            let mut client = Client::connect(address).await;
            client
                .send("GET /large.bin HTTP/1.1\r\nHost: h\r\n\r\nGET /hello.txt HTTP/1.1\r\nHost: h\r\n\r\n")
                .await;
            let mut received = Vec::new();
            while let Ok(Some(chunk)) = client.stream.recv().await {
                received.extend_from_slice(&chunk);
                if received.ends_with(b"Hello, world!") {
                    break;
                }
            }
            let head_end = received.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
            let head = String::from_utf8_lossy(&received[..head_end]).into_owned();
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "))
                .and_then(|length| length.parse().ok())
                .expect("a length");
            let behind = &received[head_end..];
            if behind.len() > length {
                assert!(behind[length..].starts_with(b"HTTP/1.1 200 OK\r\n"), "framed as promised");
                whole += 1;
            } else {
                assert!(behind.len() <= length);
                cut += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        cutting.join().expect("cut");
        assert_eq!(whole + cut, 300);
        assert!(whole > 0, "{whole} {cut}");
    });
}

#[test]
fn fault_36_ranges_without_end_are_bounded_work() {
    on_site(FileOptions::default(), async |address, _| {
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
            let answer = client.answer().await.expect("an answer");
            assert_eq!(answer.status, status, "{range}");
            assert!(answer.body.len() <= (3 << 20) + 4096, "{range}");
        }
    });
}

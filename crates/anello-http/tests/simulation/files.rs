//! Responses with files, which must depend only on the seed and the clock of the host.

use std::future::pending;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anello::net::{TcpListener, TcpStream};
use anello::sim::Simulation;
use anello::time::sleep;
use anello_http::Server;
use anello_http::files::{FileOptions, Files};

/// Writes a file with a constant modification time.
pub fn write(path: &Path, content: &[u8]) {
    std::fs::write(path, content).expect("a file");
    let file = std::fs::File::options().write(true).open(path).expect("a file");
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000)).expect("a timestamp");
}

/// Requests files several times. Returns all received bytes and the hash of the run.
fn responses(start: Option<SystemTime>) -> (String, u64) {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, bytes) in [("small", 10), ("large", 200_000)] {
        write(&directory.path().join(name), &vec![b'a'; bytes]);
    }
    let mut builder = Simulation::builder().seed(17);
    if let Some(start) = start {
        builder = builder.start_time(start);
    }
    let mut sim = builder.build();
    let path = directory.path().to_owned();
    sim.host("server", move || {
        let path = path.clone();
        async move {
            let files = Files::open(&path, FileOptions::default()).map_err(std::io::Error::other)?;
            let server = Server::builder().build();
            let listener = TcpListener::bind("0.0.0.0:80")?;
            let _accepting = server.serve(listener, async move |request| files.handle(&request).await);
            pending().await
        }
    });
    let received = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let result = std::rc::Rc::clone(&received);
    sim.client("client", async move {
        // The cache revalidates a file after a second.
        for milliseconds in [0, 300, 1100, 70_000] {
            sleep(Duration::from_millis(milliseconds)).await;
            for name in ["small", "large"] {
                let mut stream = TcpStream::connect("server:80").await?;
                let request = format!("GET /{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).await?;
                while let Some(chunk) = stream.recv().await? {
                    received.borrow_mut().extend_from_slice(&chunk);
                }
            }
        }
        Ok(())
    });
    sim.run().unwrap_or_else(|error| panic!("{error}"));
    (String::from_utf8(result.take()).expect("UTF-8").to_lowercase(), sim.trace_hash())
}

#[test]
fn responses_with_files_depend_only_on_seed_and_clock() {
    let year_2100 = UNIX_EPOCH + Duration::from_secs(4_102_444_800);
    for (start, date, last_modified) in
        [(None, "date: sat, 01 jan 2000 00:01:1", 0), (Some(year_2100), "date: fri, 01 jan 2100 00:01:1", 8)]
    {
        let (received, hash) = responses(start);
        assert_eq!(received.matches("http/1.1 200").count(), 8);
        assert!(received.contains(date), "{}", &received[received.len() - 1000..]);
        assert_eq!(received.matches("last-modified: tue, 14 nov 2023 22:13:20 gmt").count(), last_modified);
        if start.is_none() {
            // Continues in the next second of the real clock.
            std::thread::sleep(Duration::from_secs(1));
        }
        assert!(responses(start) == (received, hash), "the responses differ");
    }
}

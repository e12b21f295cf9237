//! Faults that a simulation injects at random, and faults of a simulated disk.

use std::io::{self, ErrorKind};
use std::time::Duration;

use crate::common::echo;
use anello::net::{TcpListener, TcpStream, UnixStream};
use anello::sim::{LinkOptions, SimModel, Simulation};
use anello::spawn;
use anello::time::{Instant, sleep, timeout};
use anello_test::short_or_long;

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

async fn serve_echo() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7")?;
    loop {
        let mut stream = listener.accept().await?;
        spawn(async move { echo(&mut stream).await }).detach();
    }
}

async fn exchange(host: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect((host, 7)).await?;
    stream.write_all(b"ciao").await?;
    let chunk = stream.recv().await?.ok_or(ErrorKind::UnexpectedEof)?;
    assert!(b"ciao".starts_with(&chunk));
    Ok(())
}

#[test]
fn reset_followed_by_fin_is_not_eof() {
    for model in [SimModel::Completion, SimModel::Readiness] {
        let link = LinkOptions::default().resets(100);
        let mut sim = Simulation::builder().model(model).link(link).build();
        sim.host("server", async || {
            let listener = TcpListener::bind("0.0.0.0:7")?;
            loop {
                let mut stream = listener.accept().await?;
                for _ in 0..10 {
                    stream.write_all(&[7; 10]).await.ok();
                    stream.flush().await.ok();
                }
            }
        });
        sim.client("client", async {
            let (mut complete, mut reset) = (0, 0);
            for _ in 0..100 {
                let Ok(mut stream) = TcpStream::connect("server:7").await else {
                    reset += 1;
                    continue;
                };
                let mut received = 0;
                let end = loop {
                    match stream.recv().await {
                        Ok(Some(chunk)) => received += chunk.len(),
                        end => break end.map(drop),
                    }
                };
                complete += u32::from(end.is_ok());
                reset += u32::from(end.is_err());
                assert!(end.is_err() || received == 100, "EOF after {received} bytes");
            }
            assert!(complete > 10 && reset > 10, "{complete} complete, {reset} reset");
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}\n{}", sim.trace()));
    }
}

#[test]
fn disk_delays_and_errors_concern_each_operation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mut sim = Simulation::builder().build();
    let control = sim.control();
    sim.client("client", async move {
        let delay = milliseconds(5);
        anello::fs::write(&path, vec![7; 100_000]).await?;
        let file = anello::fs::OpenOptions::new().read(true).write(true).open(&path).await?;
        control.set_disk_delay("client", delay..=delay);
        let mut buffer = [0; 10];
        let start = Instant::now();
        // All bytes are in the page cache, which must not make a difference.
        assert_eq!(file.read_at(&mut buffer, 0).await?, 10);
        assert_eq!(file.read(&mut buffer).await?, 10);
        file.write_all_at(b"ciao", 0).await?;
        file.sync_all().await?;
        assert!(start.elapsed() >= 4 * delay && start.elapsed() < 5 * delay, "{:?}", start.elapsed());
        let (mut near, mut far) = UnixStream::pair()?;
        let sending = spawn(async move { near.send_file(&file, 0, 1000).await });
        assert!(far.recv().await?.is_some());
        assert!(start.elapsed() >= 5 * delay, "{:?}", start.elapsed());
        assert_eq!(sending.await??, 1000);
        control.set_disk_errors("client", 1000);
        let file = anello::fs::File::from_std(std::fs::File::open(&path)?);
        let errors = [
            file.read_at(&mut buffer, 0).await.map(drop),
            file.sync_all().await,
            anello::fs::metadata(&path).await.map(drop),
            anello::fs::rename(&path, "elsewhere").await,
            anello::fs::read_dir("/").await.map(drop),
        ];
        for error in errors.map(Result::unwrap_err) {
            assert!(error.to_string().contains("Input/output error"), "{error}");
        }
        control.set_disk_errors("client", 0);
        assert_eq!(file.read_at(&mut buffer, 0).await?, 10);
        assert_eq!(&buffer[..4], b"ciao");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn injected_faults_end_and_depend_on_the_seed() {
    let run = |seed| {
        let mut sim = Simulation::builder().seed(seed).build();
        for name in ["a", "b"] {
            sim.host(name, serve_echo);
        }
        let control = sim.control();
        sim.client("client", async move {
            let exchanging = spawn(async {
                let mut failures = 0;
                loop {
                    let exchanged = timeout(milliseconds(100), exchange("a"));
                    failures += u32::from(!matches!(exchanged.await, Ok(Ok(()))));
                    sleep(milliseconds(10)).await;
                    if failures > 10 {
                        return;
                    }
                }
            });
            control.inject_faults(&["a", "b"], Duration::from_secs(60)).await;
            exchanging.await?;
            for name in ["a", "b"] {
                assert!(control.is_running(name));
                let start = Instant::now();
                exchange(name).await?;
                assert!(start.elapsed() < milliseconds(10), "{:?}", start.elapsed());
            }
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{error}\n{}", sim.trace()));
        sim.trace_hash()
    };
    for seed in 0..short_or_long(1, 2) {
        assert_eq!(run(seed), run(seed));
        assert_ne!(run(seed), run(seed + 100));
    }
}

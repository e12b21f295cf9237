//! Simulations of several hosts.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use anello::compat::HyperTimer;
use anello::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream, lookup_host};
use anello::sim::{Control, LinkOptions, SimFaults, SimModel, Simulation, SimulationBuilder, check};
use anello::spawn;
use anello::time::{Instant, sleep, timeout};
use axum::Router;
use axum::routing::get;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::{Request, client};
use hyper_util::service::TowerToHyperService;

use crate::common::{command_for, short_or_long};

const MODELS: [SimModel; 2] = [SimModel::Completion, SimModel::Readiness];

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

async fn echo() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7")?;
    loop {
        let mut stream = listener.accept().await?;
        spawn(async move {
            while let Some(chunk) = stream.recv().await? {
                stream.send(chunk).await?;
            }
            Ok::<_, io::Error>(())
        })
        .detach();
    }
}

async fn exchange(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    stream.write_all(message).await?;
    let mut received = Vec::new();
    while received.len() < message.len() {
        match stream.recv().await? {
            Some(chunk) => received.extend_from_slice(&chunk),
            None => return Err(ErrorKind::UnexpectedEof.into()),
        }
    }
    assert_eq!(received, message);
    Ok(())
}

/// Runs a client against an echo server, on both models.
fn with_echo<F>(configure: fn(SimulationBuilder) -> SimulationBuilder, client: impl Fn(Control) -> F)
where
    F: Future<Output = io::Result<()>> + 'static,
{
    for model in MODELS {
        let mut sim = configure(Simulation::builder().seed(7).model(model)).build();
        sim.host("server", echo);
        let control = sim.control();
        sim.client("client", client(control));
        if let Err(error) = sim.run() {
            panic!("{model:?}: {error}\n{}", sim.trace());
        }
    }
}

#[test]
fn names_and_addresses() {
    with_echo(
        |builder| builder,
        async |control| {
            let server = control.ipv4("server");
            assert_eq!(lookup_host("server:7").await?, [(server, 7).into()]);
            assert_eq!(lookup_host("nobody:7").await.unwrap_err().kind(), ErrorKind::NotFound);
            assert!(lookup_host("localhost:7").await?[0].ip().is_loopback());
            let stream = TcpStream::connect("server:7").await?;
            assert_eq!(stream.peer_addr()?, (server, 7).into());
            assert_eq!(stream.local_addr()?.ip(), control.ipv4("client"));
            let error = TcpListener::bind((server, 7)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
            for refused in ["server:8", "localhost:7", "client:7"] {
                let error = TcpStream::connect(refused).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{refused}");
            }
            let unknown = TcpStream::connect("192.0.2.1:7").await.unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::NetworkUnreachable);
            Ok(())
        },
    );
}

#[test]
fn ipv6_addresses_are_reachable() {
    for model in MODELS {
        let mut sim = Simulation::builder().model(model).build();
        sim.host("server", async || {
            let mut stream = TcpListener::bind("[::]:7")?.accept().await?;
            stream.write_all(b"ciao").await
        });
        let server = sim.ipv6("server");
        sim.client("client", async move {
            let mut stream = TcpStream::connect((server, 7)).await?;
            assert_eq!(stream.recv().await?.as_deref(), Some(&b"ciao"[..]));
            Ok(())
        });
        sim.run().unwrap();
    }
}

#[test]
fn latency_delays_both_directions() {
    with_echo(
        |builder| builder.link(LinkOptions::default().latency(milliseconds(10)..=milliseconds(10))),
        async |_| {
            let start = Instant::now();
            let mut stream = TcpStream::connect("server:7").await?;
            let connected = start.elapsed();
            assert!(connected >= milliseconds(20) && connected < milliseconds(21), "{connected:?}");
            exchange(&mut stream, b"ciao").await?;
            let exchanged = start.elapsed();
            assert!(exchanged >= milliseconds(40) && exchanged < milliseconds(41), "{exchanged:?}");
            Ok(())
        },
    );
}

#[test]
fn loopback_and_unix_sockets_stay_within_a_host() {
    with_echo(
        |builder| builder,
        async |_| {
            let start = Instant::now();
            let listener = TcpListener::bind("0.0.0.0:7")?;
            for address in ["localhost:7", "client:7"] {
                let (near, far) = (TcpStream::connect(address).await?, listener.accept().await?);
                assert_eq!(near.peer_addr()?, far.local_addr()?);
            }
            let listener = UnixListener::bind("/simulated")?;
            UnixStream::connect("/simulated").await?;
            drop(listener);
            assert!(start.elapsed() < milliseconds(1));
            Ok(())
        },
    );
}

#[test]
fn large_transfer_survives_faults_and_small_buffers() {
    with_echo(
        |builder| {
            let link = LinkOptions::default().loss(50);
            builder.faults(SimFaults::lossless(50)).link(link).socket_buffer_bytes(1000)
        },
        async |_| {
            let stream = TcpStream::connect("server:7").await?;
            let data: Vec<u8> = (0..20_000_u32).map(|index| index as u8).collect();
            let (mut reader, mut writer) = stream.into_split();
            let expected = data.clone();
            let sent = spawn(async move {
                writer.write_all(&data).await?;
                writer.shutdown().await
            });
            let mut received = Vec::new();
            while let Some(chunk) = reader.recv().await? {
                received.extend_from_slice(&chunk);
            }
            assert!(received == expected);
            sent.await?
        },
    );
}

#[test]
fn bandwidth_limits_throughput() {
    with_echo(
        |builder| builder.link(LinkOptions::default().bandwidth(Some(100_000))),
        async |_| {
            let start = Instant::now();
            let mut stream = TcpStream::connect("server:7").await?;
            exchange(&mut stream, &[7; 10_000]).await?;
            assert!(start.elapsed() > milliseconds(200) && start.elapsed() < milliseconds(250));
            Ok(())
        },
    );
}

#[test]
fn partition_delays_a_connection_until_it_is_repaired() {
    with_echo(
        |builder| builder,
        async |control| {
            let mut stream = TcpStream::connect("server:7").await?;
            control.partition("client", "server");
            let start = Instant::now();
            assert!(timeout(Duration::from_secs(5), exchange(&mut stream, b"ciao")).await.is_err());
            control.repair("client", "server");
            assert_eq!(stream.recv().await?.as_deref(), Some(&b"ciao"[..]));
            assert!(start.elapsed() < milliseconds(5010));
            control.hold("client", "server");
            assert!(timeout(Duration::from_secs(5), exchange(&mut stream, b"held")).await.is_err());
            control.release("client", "server");
            assert_eq!(stream.recv().await?.as_deref(), Some(&b"held"[..]));
            Ok(())
        },
    );
}

#[test]
fn repairs_do_not_reorder_bytes() {
    with_echo(
        |builder| builder,
        async |control| {
            let (mut reader, mut writer) = TcpStream::connect("server:7").await?.into_split();
            let reading = spawn(async move {
                let mut expected = 0_u8;
                while let Some(chunk) = reader.recv().await? {
                    for byte in chunk.iter() {
                        assert_eq!(*byte, expected);
                        expected = expected.wrapping_add(1);
                    }
                }
                Ok::<_, io::Error>(expected)
            });
            for index in 0..2000_u32 {
                writer.write_all(&[index as u8]).await?;
                sleep(Duration::from_micros(control.random() % 300)).await;
                match control.random() % 20 {
                    0 => control.partition("client", "server"),
                    1..4 => control.repair("client", "server"),
                    4 => control.hold("client", "server"),
                    5..8 => control.release("client", "server"),
                    _ => {}
                }
            }
            control.repair("client", "server");
            control.release("client", "server");
            writer.shutdown().await?;
            assert_eq!(reading.await??, 2000_u32 as u8);
            Ok(())
        },
    );
}

#[test]
fn connection_times_out_during_a_partition() {
    with_echo(
        |builder| builder.tcp_timeout(Duration::from_secs(30)),
        async |control| {
            let mut stream = TcpStream::connect("server:7").await?;
            let mut impatient = TcpStream::connect("server:7").await?;
            impatient.set_tcp_user_timeout(Some(Duration::from_secs(3)))?;
            control.partition_one_way("client", "server");
            let start = Instant::now();
            let error = exchange(&mut impatient, b"ciao").await.unwrap_err();
            assert_eq!((error.kind(), start.elapsed().as_secs()), (ErrorKind::TimedOut, 3));
            let error = exchange(&mut stream, b"ciao").await.unwrap_err();
            assert_eq!((error.kind(), start.elapsed().as_secs()), (ErrorKind::TimedOut, 33));
            let error = TcpStream::connect("server:7").await.unwrap_err();
            assert_eq!((error.kind(), start.elapsed().as_secs()), (ErrorKind::TimedOut, 160));
            Ok(())
        },
    );
}

#[test]
fn crash_resets_connections_after_the_restart() {
    with_echo(
        |builder| builder,
        async |control| {
            let mut stream = TcpStream::connect("server:7").await?;
            exchange(&mut stream, b"ciao").await?;
            control.crash("server");
            assert!(timeout(Duration::from_secs(60), stream.recv()).await.is_err(), "no FIN and no reset");
            assert!(!control.is_running("server"));
            stream.write_all(b"lost").await?;
            assert!(timeout(Duration::from_secs(60), stream.recv()).await.is_err());
            control.restart("server");
            assert_eq!(stream.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            let mut stream = TcpStream::connect("server:7").await?;
            exchange(&mut stream, b"ciao").await
        },
    );
}

/// A crash loses the first packet, which waits on the link. The second one is in transit.
#[test]
fn crash_loses_packets_that_follow_a_lost_one() {
    type Change = fn(&Control);
    const WAYS: [(Change, Change); 2] = [
        (|control| control.hold("client", "server"), |control| control.release("client", "server")),
        (|control| control.partition("client", "server"), |control| control.repair("client", "server")),
    ];
    for (model, (separate, join)) in MODELS.into_iter().flat_map(|model| WAYS.map(|way| (model, way))) {
        let link = LinkOptions::default().latency(milliseconds(10)..=milliseconds(10));
        let mut sim = Simulation::builder().model(model).link(link).build();
        sim.host("server", async || {
            let listener = TcpListener::bind("0.0.0.0:7")?;
            let mut stream = listener.accept().await?;
            stream.recv().await?;
            stream.write_all(b"first").await?;
            sleep(milliseconds(5)).await;
            stream.write_all(b"second").await?;
            std::future::pending().await
        });
        let control = sim.control();
        sim.client("client", async move {
            let mut stream = TcpStream::connect("server:7").await?;
            stream.write_all(b"request").await?;
            stream.flush().await?;
            sleep(milliseconds(17)).await;
            separate(&control);
            sleep(milliseconds(5)).await;
            control.crash("server");
            sleep(milliseconds(1)).await;
            join(&control);
            let received = timeout(Duration::from_secs(60), stream.recv()).await;
            assert!(received.is_err(), "{model:?}: {received:?}");
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}\n{}", sim.trace()));
    }
}

#[test]
fn close_is_reported_after_all_bytes() {
    for model in MODELS {
        let mut sim = Simulation::builder().model(model).build();
        sim.host("server", async || {
            let listener = TcpListener::bind("0.0.0.0:7")?;
            listener.accept().await?.write_all(b"ciao").await?;
            // The second connection is closed with unread bytes.
            let stream = listener.accept().await?;
            sleep(milliseconds(10)).await;
            drop(stream);
            sleep(Duration::from_secs(1)).await;
            Ok(())
        });
        sim.client("client", async {
            let mut stream = TcpStream::connect("server:7").await?;
            assert_eq!(stream.recv().await?.as_deref(), Some(&b"ciao"[..]));
            assert!(stream.recv().await?.is_none());
            let mut stream = TcpStream::connect("server:7").await?;
            stream.write_all(b"unread").await?;
            assert_eq!(stream.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}\n{}", sim.trace()));
    }
}

#[test]
fn resets_of_a_link_break_connections() {
    with_echo(
        |builder| builder.link(LinkOptions::default().resets(200)),
        async |_| {
            let mut stream = TcpStream::connect("server:7").await?;
            loop {
                if let Err(error) = exchange(&mut stream, b"ciao").await {
                    let is_reset = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
                    assert!(is_reset, "{error}");
                    return Ok(());
                }
            }
        },
    );
}

#[test]
fn datagrams_are_lost_during_a_partition() {
    for model in MODELS {
        let mut sim = Simulation::builder().model(model).build();
        sim.host("server", async || {
            let socket = UdpSocket::bind("0.0.0.0:7")?;
            let mut buffer = [0; 100];
            loop {
                let (count, from) = socket.recv_from(&mut buffer).await?;
                socket.send_to(&buffer[..count], from).await?;
            }
        });
        let control = sim.control();
        sim.client("client", async move {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            let mut buffer = [0; 100];
            control.partition("client", "server");
            socket.send_to(b"lost", "server:7").await?;
            sleep(Duration::from_secs(1)).await;
            control.repair("client", "server");
            socket.send_to(b"ciao", "server:7").await?;
            let (count, from) = socket.recv_from(&mut buffer).await?;
            assert_eq!((&buffer[..count], from.ip()), (&b"ciao"[..], control.ipv4("server").into()));
            let connected = UdpSocket::bind("0.0.0.0:0")?;
            connected.connect("server:8").await?;
            connected.send(b"nobody").await?;
            let error = connected.recv(&mut buffer).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}\n{}", sim.trace()));
    }
}

#[test]
fn slow_disk_delays_files_and_a_crash_cancels_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut sim = Simulation::builder().build();
    let written = path.clone();
    sim.host("slow", move || {
        let path = written.clone();
        async move { anello::fs::write(path, "late").await }
    });
    sim.set_disk_delay("slow", milliseconds(100)..=milliseconds(100));
    let control = sim.control();
    sim.client("client", async move {
        control.set_disk_delay("client", milliseconds(7)..=milliseconds(9));
        let start = Instant::now();
        assert!(anello::fs::metadata(&path).await.is_err());
        assert!(start.elapsed() >= milliseconds(7) && start.elapsed() < milliseconds(10));
        control.crash("slow");
        sleep(Duration::from_secs(1)).await;
        assert!(anello::fs::metadata(&path).await.is_err());
        control.restart("slow");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(anello::fs::read(&path).await?, b"late");
        Ok(())
    });
    sim.run().unwrap();
}

/// Serves an axum router with hyper.
async fn serve_router() -> io::Result<()> {
    let router = Router::new().route("/", get(async || "ciao"));
    let listener = TcpListener::bind("0.0.0.0:80")?;
    loop {
        let (stream, service) = (listener.accept().await?, TowerToHyperService::new(router.clone()));
        let connection = http1::Builder::new().timer(HyperTimer).serve_connection(stream, service);
        spawn(connection).detach();
    }
}

#[test]
fn axum_responds_after_a_partition() {
    for model in MODELS {
        let mut sim = Simulation::builder().model(model).build();
        sim.host("server", serve_router);
        let control = sim.control();
        sim.client("client", async move {
            let stream = TcpStream::connect("server:80").await?;
            let (mut sender, connection) =
                client::conn::http1::handshake(stream).await.map_err(io::Error::other)?;
            spawn(connection).detach();
            control.partition("client", "server");
            let request = Request::get("/").header("host", "server").body(Full::<Bytes>::default());
            let mut response = pin!(sender.send_request(request.unwrap()));
            assert!(timeout(Duration::from_secs(9), response.as_mut()).await.is_err());
            control.repair("client", "server");
            let response = response.await.map_err(io::Error::other)?;
            let body = response.into_body().collect().await.map_err(io::Error::other)?;
            assert_eq!(body.to_bytes(), "ciao");
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}\n{}", sim.trace()));
    }
}

#[test]
fn wake_ups_between_hosts_arrive() {
    let (sender, receiver) = anello::sync::oneshot::channel();
    let mut sim = Simulation::builder().build();
    sim.client("receiver", async move {
        assert_eq!(receiver.await.unwrap(), 42);
        Ok(())
    });
    sim.client("sender", async move {
        sleep(Duration::from_secs(1)).await;
        sender.send(42).unwrap();
        sleep(Duration::from_secs(1)).await;
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn errors_name_seed_time_and_host() {
    let mut sim = Simulation::builder().seed(5).build();
    sim.client("failing", async {
        sleep(Duration::from_secs(2)).await;
        Err(io::Error::other("on purpose"))
    });
    let error = sim.run().unwrap_err();
    assert_eq!((error.seed, error.elapsed.as_secs(), error.host.as_deref()), (5, 2, Some("failing")));
    assert!(error.to_string().ends_with("s: on purpose"), "{error}");

    let mut sim = Simulation::builder().build();
    sim.client("waiting", std::future::pending());
    assert_eq!(sim.run().unwrap_err().source.kind(), ErrorKind::Deadlock);
}

/// A run with crashes, partitions and all faults. Returns its hash.
fn chaotic_run(seed: u64) -> u64 {
    let model = MODELS[(seed % 2) as usize];
    let link = LinkOptions::default().loss(20).duplicates(20).resets(5);
    let mut sim = Simulation::builder().seed(seed).model(model).faults(SimFaults::all(20)).link(link).build();
    for name in ["a", "b", "c"] {
        sim.host(name, echo_until_closed);
    }
    let successes = Rc::new(Cell::new(0));
    for client in ["one", "other"] {
        let (control, successes) = (sim.control(), Rc::clone(&successes));
        sim.client(client, async move {
            for _ in 0..30 {
                let name = ["a", "b", "c"][(control.random() % 3) as usize];
                match control.random() % 6 {
                    0 => control.partition(client, name),
                    1 => control.repair(client, name),
                    2 => control.crash(name),
                    3 => control.restart(name),
                    _ => {
                        let exchanged = timeout(Duration::from_secs(1), async {
                            exchange(&mut TcpStream::connect((name, 7)).await?, &[7; 3000]).await
                        });
                        if let Ok(Ok(())) = exchanged.await {
                            successes.set(successes.get() + 1);
                        }
                    }
                }
                sleep(milliseconds(control.random() % 100)).await;
            }
            Ok(())
        });
    }
    sim.run().unwrap_or_else(|error| panic!("{error}\n{}", sim.trace()));
    sim.trace_hash() ^ successes.get()
}

/// Like `echo`, but continues after errors of `accept`, which faults cause.
async fn echo_until_closed() -> io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:7")?;
    loop {
        let Ok(mut stream) = listener.accept().await else { continue };
        spawn(async move {
            while let Ok(Some(chunk)) = stream.recv().await {
                if stream.send(chunk).await.is_err() {
                    return;
                }
            }
        })
        .detach();
    }
}

#[test]
fn seed_determines_a_run() {
    check("seed_determines_a_run", 0..20, |seed| {
        let hash = chaotic_run(seed);
        assert_eq!(hash, chaotic_run(seed));
        assert_ne!(hash, chaotic_run(seed + 1000));
        Ok::<_, io::Error>(())
    });
}

#[test]
fn many_hosts_run_together() {
    let mut sim = Simulation::builder().build();
    sim.host("server", echo);
    for index in 0..short_or_long(300, 1000) {
        sim.client(&format!("client{index}"), async {
            exchange(&mut TcpStream::connect("server:7").await?, b"ciao").await
        });
    }
    sim.run().unwrap();
}

#[test]
fn check_runs_all_seeds_and_reports_a_failure() {
    let seeds = RefCell::new(Vec::new());
    let test = |seed| {
        seeds.borrow_mut().push(seed);
        if seed == 3 { Err("on purpose") } else { Ok(()) }
    };
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check("name", 0..9, test)));
    let message = *failed.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(message, "name failed with seed 3: on purpose");
    assert_eq!(*seeds.borrow(), [0, 1, 2, 3]);
}

/// Makes `failed_seed_is_reported_with_its_trace_and_replayed` fail for one seed, in a child process.
const FAILS: &str = "ANELLO_TEST_FAILS";

#[test]
fn failed_seed_is_reported_with_its_trace_and_replayed() {
    const TEST: &str = "failed_seed_is_reported_with_its_trace_and_replayed";
    if std::env::var_os(FAILS).is_some() {
        return check(TEST, 0..20, |seed| {
            println!("runs seed {seed}");
            let mut sim = Simulation::builder().seed(seed).build();
            sim.host("server", echo);
            sim.client("client", async move {
                TcpStream::connect("server:7").await?.write_all(b"ciao").await?;
                if seed == 17 { Err(io::Error::other("on purpose")) } else { Ok(()) }
            });
            sim.run()
        });
    }
    let run = |seed: Option<&str>| {
        let mut command = command_for(&failed_seed_is_reported_with_its_trace_and_replayed);
        command.env(FAILS, "1");
        command.env_remove("ANELLO_SEED").envs(seed.map(|seed| ("ANELLO_SEED", seed)));
        let output = command.output().unwrap();
        (output.status.success(), [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()))
    };
    let (is_successful, [_, report]) = run(None);
    assert!(!is_successful, "{report}");
    assert!(report.contains(&format!("To replay: ANELLO_SEED=17 cargo test {TEST}\n")), "{report}");
    let trace = |report: &str| {
        let (_, rest) = report.split_once("last operations (seconds, host, operation, peer):\n").unwrap();
        rest.split_once(TEST).unwrap().0.to_owned()
    };
    let operations = trace(&report);
    assert!(operations.contains("server") && operations.contains("client"), "{report}");
    let (is_successful, [seeds, replayed]) = run(Some("17"));
    assert!(!is_successful && seeds.matches("runs seed").count() == 1, "{seeds}");
    assert_eq!(trace(&replayed), operations);
    let (is_successful, [seeds, report]) = run(Some("16"));
    assert!(is_successful && seeds.contains("runs seed 16\n"), "{seeds}{report}");
}

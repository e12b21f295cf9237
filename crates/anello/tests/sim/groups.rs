//! Listener groups on simulated hosts.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use anello::net::{TcpListener, TcpStream};
use anello::server::{Distribution, ListenerGroup, PendingConnections};
use anello::sim::{SimFaults, SimModel, Simulation, check};
use anello::time::{sleep, timeout};
use anello::{JoinHandle, spawn};

use crate::common::seeds;

const MODELS: [SimModel; 2] = [SimModel::Completion, SimModel::Readiness];

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn bind(members: usize) -> io::Result<ListenerGroup<TcpListener>> {
    ListenerGroup::bind("0.0.0.0:80".parse().expect("an address"), members)
}

/// Starts a member that sends its index to each client. The task returns the number of clients.
fn start_member(group: &ListenerGroup<TcpListener>, index: usize) -> JoinHandle<io::Result<u64>> {
    let member = group.join(index);
    spawn(async move {
        let mut accepted = 0;
        while let Some(stream) = member.accept().await? {
            accepted += 1;
            spawn(async move {
                let mut stream = stream;
                stream.write_all(&[index as u8]).await?;
                while stream.recv().await?.is_some() {}
                Ok::<_, io::Error>(())
            })
            .detach();
        }
        Ok(accepted)
    })
}

/// Connects and receives the index of the member that serves the connection.
async fn connect() -> io::Result<(TcpStream, usize)> {
    let mut stream = TcpStream::connect("server:80").await?;
    let chunk = stream.recv().await?.ok_or(ErrorKind::UnexpectedEof)?;
    let index = chunk[0].into();
    drop(chunk);
    Ok((stream, index))
}

fn run_on_both_models<F, C>(server: impl Fn() -> F + Copy + 'static, client: impl Fn() -> C)
where
    F: Future<Output = io::Result<()>> + 'static,
    C: Future<Output = io::Result<()>> + 'static,
{
    for model in MODELS {
        let mut sim = Simulation::builder().model(model).build();
        sim.host("server", server);
        sim.client("client", client());
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}\n{}", sim.trace()));
    }
}

#[test]
fn members_on_one_host_share_connections_evenly() {
    for distribution in [Distribution::Balanced, Distribution::LeastLoaded] {
        let server = move || async move {
            let group = bind(3)?;
            group.set_distribution(distribution);
            for index in 0..3 {
                start_member(&group, index).detach();
            }
            std::future::pending().await
        };
        run_on_both_models(server, || async {
            let (mut streams, mut counts) = (Vec::new(), [0; 3]);
            for _ in 0..30 {
                let (stream, index) = connect().await?;
                counts[index] += 1;
                streams.push(stream);
            }
            assert!(counts.iter().all(|count| (9..=11).contains(count)), "{counts:?}");
            Ok(())
        });
    }
}

#[test]
fn paused_group_leaves_clients_in_accept_queue() {
    let server = || async {
        let group = bind(2)?;
        group.pause();
        let members = [start_member(&group, 0), start_member(&group, 1)];
        sleep(seconds(10)).await;
        group.resume();
        sleep(seconds(10)).await;
        group.pause();
        sleep(seconds(10)).await;
        group.resume();
        drop(members);
        std::future::pending().await
    };
    run_on_both_models(server, || async {
        for _ in 0..2 {
            sleep(seconds(1)).await;
            let mut stream = TcpStream::connect("server:80").await?;
            assert!(timeout(seconds(8), stream.recv()).await.is_err(), "the group is paused");
            assert!(timeout(seconds(2), stream.recv()).await??.is_some(), "the group was resumed");
            drop(stream);
            sleep(seconds(9)).await;
        }
        Ok(())
    });
}

#[test]
fn closed_group_serves_or_resets_pending_connections() {
    for model in MODELS {
        for (pending, served) in [(PendingConnections::Serve, 3), (PendingConnections::Leave, 0)] {
            let mut sim = Simulation::builder().model(model).build();
            sim.host("server", move || async move {
                let group = bind(2)?;
                // The clients connect before any member has joined.
                sleep(seconds(2)).await;
                group.close(pending);
                let members = [start_member(&group, 0), start_member(&group, 1)];
                drop(group);
                let mut accepted = 0;
                for member in members {
                    accepted += member.await.map_err(io::Error::other)??;
                }
                assert_eq!(accepted, served, "{pending:?}");
                std::future::pending().await
            });
            sim.client("client", async move {
                let (mut streams, mut greeted) = (Vec::new(), 0);
                for _ in 0..3 {
                    streams.push(TcpStream::connect("server:80").await?);
                }
                for stream in &mut streams {
                    match stream.recv().await {
                        Ok(chunk) => greeted += u64::from(chunk.is_some()),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
                    }
                }
                assert_eq!(greeted, served, "{pending:?}");
                let refused = TcpStream::connect("server:80").await.expect_err("nobody listens");
                assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
                Ok(())
            });
            sim.run().unwrap_or_else(|error| panic!("{model:?}, {pending:?}: {error}\n{}", sim.trace()));
        }
    }
}

/// Members leave while clients connect. No client may notice.
#[test]
fn connections_of_departing_member_are_served_by_another() {
    check("connections_of_departing_member_are_served_by_another", seeds(20), |seed| {
        let faults = [SimFaults::none(), SimFaults::lossless(50).descriptor_exhaustion(0)]
            [seed as usize / 2 % 2]
            .clone();
        let builder = Simulation::builder().seed(seed).faults(faults);
        let mut sim = builder.model(MODELS[seed as usize % 2]).build();
        let control = sim.control();
        sim.host("server", move || {
            let control = control.clone();
            async move {
                let group = bind(3)?;
                let [one, two, three] = [0, 1, 2].map(|index| start_member(&group, index));
                for member in [one, two] {
                    sleep(Duration::from_millis(control.random() % 20)).await;
                    member.abort();
                }
                three.await.map_err(io::Error::other)?.map(drop)
            }
        });
        for index in 0..4 {
            let control = sim.control();
            sim.client(&format!("client{index}"), async move {
                for _ in 0..10 {
                    sleep(Duration::from_millis(control.random() % 10)).await;
                    let (stream, _) = timeout(seconds(60), connect()).await??;
                    drop(stream);
                }
                Ok(())
            });
        }
        sim.run()
    });
}

#[test]
fn group_can_be_bound_again_after_crash_and_restart() {
    for model in MODELS {
        let mut sim = Simulation::builder().model(model).build();
        let groups = Rc::new(RefCell::new(Vec::new()));
        let kept = Rc::clone(&groups);
        sim.host("server", move || {
            let kept = Rc::clone(&kept);
            async move {
                let group = bind(1)?;
                // The test keeps the group beyond the crash.
                kept.borrow_mut().push(group.clone());
                start_member(&group, 0).await.map_err(io::Error::other)?.map(drop)
            }
        });
        let control = sim.control();
        sim.client("client", async move {
            let (mut stream, _) = connect().await?;
            control.restart("server");
            sleep(seconds(1)).await;
            stream.write_all(b"ciao").await?;
            stream.flush().await?;
            assert_eq!(stream.recv().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            connect().await.map(drop)
        });
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}\n{}", sim.trace()));
        assert_eq!(groups.borrow().len(), 2);
    }
}

#[test]
fn group_of_another_host_cannot_accept() {
    for model in MODELS {
        let mut sim = Simulation::builder().model(model).build();
        let (bound, failed) = (Rc::new(RefCell::new(None)), Rc::new(Cell::new(false)));
        let group = Rc::clone(&bound);
        sim.host("server", move || {
            let bound = Rc::clone(&group);
            async move {
                let group = bind(1)?;
                bound.replace(Some(group.clone()));
                assert_eq!(group.sockets().unwrap_err().kind(), ErrorKind::Unsupported);
                assert_eq!(group.steer_by_core(&[0]).unwrap_err().kind(), ErrorKind::Unsupported);
                std::future::pending().await
            }
        });
        let is_failed = Rc::clone(&failed);
        sim.client("client", async move {
            sleep(seconds(1)).await;
            let group: ListenerGroup<TcpListener> = bound.take().expect("the server runs");
            let error = group.join(0).accept().await.expect_err("another host's socket");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            is_failed.set(true);
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}\n{}", sim.trace()));
        assert!(failed.get());
    }
}

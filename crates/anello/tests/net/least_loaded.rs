//! Distribution of long-lived connections by the number of open connections, and steering by core.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::thread;

use anello::doctor::allowed_cores;
use anello::net::TcpListener;
use anello::server::{Distribution, ListenerGroup, PendingConnections};
use anello::{Workers, spawn};

use crate::common::{Setup, group_setups, hang_timeout, on_each};

const WORKERS: usize = 2;

/// Workers whose connections respond to each byte with the index of their worker.
struct Server {
    group: ListenerGroup<TcpListener>,
    address: SocketAddr,
    workers: Workers<()>,
}

impl Server {
    /// Starts workers that accept from this number of sockets.
    fn start(setup: &Setup, sockets: usize, distribution: Distribution) -> Self {
        let bound = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), sockets);
        let sockets = bound.and_then(|group| group.sockets()).expect("listening sockets");
        let address = sockets[0].local_addr().expect("an address");
        let group = ListenerGroup::<TcpListener>::new(sockets, WORKERS);
        group.set_distribution(distribution);
        assert_eq!(group.distribution(), distribution);
        Self::start_group(Workers::builder().unpinned_workers(WORKERS), setup, group, address)
    }

    fn start_group(
        workers: anello::WorkersBuilder,
        setup: &Setup,
        group: ListenerGroup<TcpListener>,
        address: SocketAddr,
    ) -> Self {
        let joined = group.clone();
        let workers = workers.runtime(setup.builder()).start(move |worker| {
            let joined = joined.clone();
            async move {
                let member = joined.join(worker.index);
                while let Some(mut stream) = member.accept().await.expect("accept succeeds") {
                    spawn(async move {
                        while let Some(chunk) = stream.recv().await? {
                            match chunk[0] {
                                b'?' => stream.send(vec![worker.index as u8]).await?,
                                b'!' => return Ok(stream.into_std().await.map(drop)?),
                                byte => panic!("unexpected {byte}"),
                            }
                        }
                        Ok::<(), std::io::Error>(())
                    })
                    .detach();
                }
            }
        });
        let workers = workers.expect("workers");
        group.wait_applied(hang_timeout()).expect("all members accept");
        Self { group, address, workers }
    }

    fn connect(&self) -> StdStream {
        let client = StdStream::connect(self.address).expect("a connection");
        client.set_read_timeout(Some(hang_timeout())).expect("a timeout");
        client
    }

    /// Waits until the group counts these numbers of open connections.
    fn wait_open(&self, expected: [u64; WORKERS]) {
        while self.group.open_connections() != expected {
            thread::yield_now();
        }
    }

    fn stop(self) {
        self.group.close(PendingConnections::Serve);
        self.workers.join().expect("the workers exit");
    }
}

/// Returns the index of the worker that serves the client.
fn worker_of(mut client: &StdStream) -> usize {
    let mut index = [0];
    client.write_all(b"?").expect("send succeeds");
    client.read_exact(&mut index).expect("a response");
    usize::from(index[0])
}

fn served(clients: &[StdStream]) -> [u64; WORKERS] {
    let mut served = [0; WORKERS];
    clients.iter().for_each(|client| served[worker_of(client)] += 1);
    served
}

#[test]
fn busiest_worker_has_at_most_a_tenth_more_open_connections_than_mean() {
    on_each(group_setups(), |setup| {
        for (sockets, is_queued) in [(1, false), (2, false), (1, true), (2, true)] {
            for count in [3, 10, 100] {
                let server = Server::start(setup, sockets, Distribution::LeastLoaded);
                if is_queued {
                    server.group.pause();
                    server.group.wait_applied(hang_timeout()).expect("all members pause");
                }
                let clients: Vec<_> = (0..count).map(|_| server.connect()).collect();
                server.group.resume();
                let served = served(&clients);
                let case = format!("{}, {sockets} sockets, queued: {is_queued}: {served:?}", setup.name);
                let busiest = *served.iter().max().expect("workers");
                assert_eq!(served.iter().sum::<u64>(), count as u64, "{case}");
                match count {
                    // No distribution of three connections is better than 2 to 1.
                    3 => assert_eq!(busiest, 2, "{case}"),
                    _ => assert!(busiest * WORKERS as u64 * 10 <= count as u64 * 11, "{case}"),
                }
                assert_eq!(server.group.open_connections(), served, "{case}");
                drop(clients);
                server.wait_open([0; WORKERS]);
                server.stop();
            }
        }
    });
}

/// The total number of assigned connections, by which `Balanced` distributes, would send them to both workers.
#[test]
fn worker_whose_connections_close_receives_next_ones() {
    on_each(group_setups(), |setup| {
        let server = Server::start(setup, 1, Distribution::LeastLoaded);
        let clients: Vec<_> = (0..10).map(|_| server.connect()).collect();
        assert_eq!(served(&clients), [5, 5], "{}", setup.name);
        let (closing, mut kept): (Vec<_>, Vec<_>) =
            clients.into_iter().partition(|client| worker_of(client) == 1);
        drop(closing);
        server.wait_open([5, 0]);
        for _ in 0..5 {
            let client = server.connect();
            assert_eq!(worker_of(&client), 1, "{}", setup.name);
            kept.push(client);
        }
        assert_eq!(server.group.open_connections(), [5, 5]);
        server.stop();
        drop(kept);
    });
}

#[test]
fn detached_connection_is_not_counted() {
    on_each(group_setups(), |setup| {
        let server = Server::start(setup, 2, Distribution::LeastLoaded);
        let clients: Vec<_> = (0..4).map(|_| server.connect()).collect();
        assert_eq!(served(&clients), [2, 2], "{}", setup.name);
        let mut detached = clients.iter().find(|client| worker_of(client) == 0).expect("worker 0 has two");
        detached.write_all(b"!").expect("send succeeds");
        server.wait_open([1, 2]);
        server.stop();
    });
}

#[test]
fn connections_under_other_distributions_are_not_counted() {
    on_each(group_setups(), |setup| {
        for distribution in [Distribution::Balanced, Distribution::Kernel] {
            let server = Server::start(setup, 2, distribution);
            let mut clients: Vec<_> = (0..6).map(|_| server.connect()).collect();
            served(&clients);
            assert_eq!(server.group.open_connections(), [0, 0], "{}", setup.name);
            server.group.set_distribution(Distribution::LeastLoaded);
            clients.extend((0..6).map(|_| server.connect()));
            served(&clients);
            assert_eq!(server.group.open_connections(), [3, 3], "{}", setup.name);
            clients.clear();
            server.wait_open([0, 0]);
            server.stop();
        }
    });
}

/// On loopback, a connection arrives on the core of the client.
#[test]
fn connections_are_steered_to_worker_of_their_core() {
    let cores = allowed_cores().expect("a CPU affinity mask");
    if cores.len() < WORKERS {
        return eprintln!("skipped: only one core is allowed");
    }
    // The reverse order differs from the order that the number of the core would give.
    let cores: Vec<usize> = cores.into_iter().take(WORKERS).rev().collect();
    on_each(group_setups(), move |setup| {
        let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), WORKERS);
        let group = group.expect("listening sockets");
        let address = group.sockets().expect("sockets")[0].local_addr().expect("an address");
        group.steer_by_core(&cores).expect("the program is attached");
        assert_eq!(group.distribution(), Distribution::Kernel);
        let builder = Workers::builder().cores(cores.clone());
        let server = Server::start_group(builder, setup, group, address);
        for _ in 0..20 {
            for (index, core) in cores.iter().enumerate() {
                let mut set = rustix::thread::CpuSet::new();
                set.set(*core);
                rustix::thread::sched_setaffinity(None, &set).expect("the core is allowed");
                assert_eq!(worker_of(&server.connect()), index, "{}, core {core}", setup.name);
            }
        }
        server.group.stop_steering().expect("the program is detached");
        server.group.stop_steering().expect("without a program, there is nothing to do");
        worker_of(&server.connect());
        server.stop();
    });
}

#[test]
fn steering_needs_one_socket_per_core() {
    let group = ListenerGroup::<TcpListener>::bind("127.0.0.1:0".parse().unwrap(), 2).expect("sockets");
    let error = group.steer_by_core(&[0, 1, 2]).expect_err("there are two sockets");
    assert!(error.to_string().contains("2 open sockets for 3 cores"), "{error}");
    assert!(ListenerGroup::<TcpListener>::new(Vec::new(), 0).steer_by_core(&[]).is_err());
}

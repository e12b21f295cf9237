//! How the connections of a listener group are distributed over its members, while these come, go and pause, too.

mod common;

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use anello::Workers;
use anello::net::{Distribution, ListenerGroup, PendingConnections, TcpListener, UnixListener, echo};
use anello::time::sleep;
use socket2::{Domain, SockAddr, Socket, Type};

use common::child::raise_open_files;
use common::groups::{available, client, is_echoed, listener, serve};
use common::{Setup, hangs_after, on_each};

/// How 1,000 clients come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Arrival {
    /// Each after the response to the one before, on a connection of its own.
    Sequential,
    /// All connect before the first one reads its response.
    Burst,
    /// All are in the accept queues before any worker accepts.
    Queued,
}

/// Sockets that listen at one address.
fn sockets_at_one_address(count: usize) -> (Vec<StdListener>, SocketAddr) {
    let mut address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut sockets = Vec::new();
    for _ in 0..count {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_reuse_port(true).expect("an option");
        socket.bind(&SockAddr::from(address)).expect("a port");
        socket.listen(4096).expect("listens");
        let listener = StdListener::from(socket);
        address = listener.local_addr().expect("an address");
        sockets.push(listener);
    }
    (sockets, address)
}

/// Workers that count the connections that they serve.
struct Counting {
    group: ListenerGroup<TcpListener>,
    served: Arc<Vec<AtomicUsize>>,
    workers: Option<Workers<()>>,
}

impl Counting {
    fn start(setup: &Setup, group: ListenerGroup<TcpListener>, members: usize) -> Self {
        let served = Arc::new((0..members).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
        let (joined, counted) = (group.clone(), Arc::clone(&served));
        let workers = Workers::builder().unpinned_workers(members).runtime(setup.builder());
        let workers = workers.start(move |worker| {
            let (joined, counted) = (joined.clone(), Arc::clone(&counted));
            async move {
                let member = joined.join(worker.index);
                while let Some(stream) = member.accept().await.expect("accepts") {
                    counted[worker.index].fetch_add(1, Ordering::Relaxed);
                    anello::spawn(async move { echo(stream).await.ok() }).detach();
                }
            }
        });
        let workers = Some(workers.expect("starts"));
        assert_eq!(group.wait_applied(hangs_after()).expect("all have joined"), members);
        Self { group, served, workers }
    }

    fn served(&self) -> Vec<usize> {
        self.served.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    fn end(mut self) -> Vec<usize> {
        self.group.close(PendingConnections::Serve);
        self.workers.take().expect("running").join().expect("they end");
        self.served()
    }
}

fn distribute(setup: &Setup, members: usize, sockets: usize, arrival: Arrival) -> Vec<usize> {
    let (sockets, address) = sockets_at_one_address(sockets);
    let group = ListenerGroup::new_paused(sockets, members);
    let counting = Counting::start(setup, group.clone(), members);
    if arrival != Arrival::Queued {
        group.resume();
        assert_eq!(group.wait_applied(hangs_after()).expect("all accept"), members);
    }
    match arrival {
        Arrival::Sequential => (0..1000).for_each(|_| is_echoed(client(address))),
        Arrival::Burst | Arrival::Queued => {
            let clients: Vec<StdStream> = (0..1000).map(|_| client(address)).collect();
            group.resume();
            clients.into_iter().for_each(is_echoed);
        }
    }
    counting.end()
}

#[test]
fn busiest_worker_gets_at_most_a_tenth_more_than_the_mean() {
    raise_open_files();
    on_each(available(), |setup| {
        for members in [2, 4] {
            for sockets in [1, members] {
                for arrival in [Arrival::Sequential, Arrival::Burst, Arrival::Queued] {
                    let served = distribute(setup, members, sockets, arrival);
                    let case = format!("{}, {members} workers, {sockets} sockets, {arrival:?}", setup.name);
                    eprintln!("{case}: {served:?}");
                    assert_eq!(served.iter().sum::<usize>(), 1000, "{case}: {served:?}");
                    let busiest = *served.iter().max().expect("workers");
                    assert!(busiest * members * 10 <= 1000 * 11, "{case}: {served:?}");
                }
            }
        }
    });
}

#[test]
fn kernel_distribution_leaves_connections_with_the_worker_that_accepts_them() {
    on_each(available(), |setup| {
        for distribution in [Distribution::Kernel, Distribution::Balanced] {
            let ((first, address), (second, _)) = (listener(), listener());
            let group = ListenerGroup::new(vec![first, second], 2);
            assert_eq!(group.distribution(), Distribution::Balanced);
            group.set_distribution(distribution);
            let counting = Counting::start(setup, group, 2);
            (0..100).for_each(|_| is_echoed(client(address)));
            let served = counting.end();
            match distribution {
                Distribution::Kernel => assert_eq!(served, [100, 0], "{}", setup.name),
                _ => assert!(served[0] <= 55 && served[0] + served[1] == 100, "{}: {served:?}", setup.name),
            }
        }
    });
}

/// Without any transfer: a worker accepts once, then is behind the other.
#[test]
fn workers_that_share_a_socket_take_turns_on_uring() {
    on_each(available().into_iter().filter(Setup::is_uring).collect(), |setup| {
        let (listener, address) = listener();
        let group = ListenerGroup::new(vec![listener], 2);
        group.set_distribution(Distribution::Kernel);
        let counting = Counting::start(setup, group, 2);
        (0..200).for_each(|_| is_echoed(client(address)));
        let served = counting.end();
        assert!(served.iter().all(|count| *count > 0), "{}: {served:?}", setup.name);
    });
}

#[test]
fn connections_of_a_shared_unix_socket_are_balanced() {
    on_each(available(), |setup| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let group =
            ListenerGroup::<UnixListener>::new(vec![StdUnixListener::bind(&path).expect("listens")], 2);
        let served = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let (joined, counted) = (group.clone(), Arc::clone(&served));
        let workers = Workers::builder().unpinned_workers(2).runtime(setup.builder());
        let workers = workers.start(move |worker| {
            let (joined, counted) = (joined.clone(), Arc::clone(&counted));
            async move {
                let member = joined.join(worker.index);
                while let Some(stream) = member.accept().await.expect("accepts") {
                    counted[worker.index].fetch_add(1, Ordering::Relaxed);
                    anello::spawn(async move { echo(stream).await.ok() }).detach();
                }
            }
        });
        let workers = workers.expect("starts");
        assert_eq!(group.wait_applied(hangs_after()).expect("both accept"), 2);
        for _ in 0..100 {
            let mut client = StdUnixStream::connect(&path).expect("connects");
            client.set_read_timeout(Some(hangs_after())).expect("a timeout");
            client.write_all(b"ciao").expect("sends");
            is_echoed(client);
        }
        group.close(PendingConnections::Serve);
        workers.join().expect("they end");
        let served = served.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert!(served[0] + served[1] == 100 && served.iter().all(|count| *count <= 55), "{served:?}");
    });
}

/// A worker that joins late, one that leaves early, one that stands still and pauses of all, while clients come.
#[test]
fn no_connection_is_lost_while_members_join_leave_and_pause() {
    on_each(available(), |setup| {
        for sockets in [1, 4] {
            let (sockets, address) = sockets_at_one_address(sockets);
            let group = ListenerGroup::<TcpListener>::new(sockets, 4);
            let clients_are_done = Arc::new(AtomicBool::new(false));
            let accepted = Arc::new(AtomicUsize::new(0));
            let (joined, done, counted) =
                (group.clone(), Arc::clone(&clients_are_done), Arc::clone(&accepted));
            let workers = Workers::builder().unpinned_workers(4).runtime(setup.builder());
            let workers = workers.start(move |worker| {
                let (joined, done, counted) = (joined.clone(), Arc::clone(&done), Arc::clone(&counted));
                async move {
                    if worker.index == 3 {
                        sleep(Duration::from_millis(20)).await;
                    }
                    let member = joined.join(worker.index);
                    for count in 1.. {
                        let Some(stream) = member.accept().await.expect("accepts") else { break };
                        counted.fetch_add(1, Ordering::Relaxed);
                        anello::spawn(async move { echo(stream).await.ok() }).detach();
                        match worker.index {
                            0 if count == 100 => break,
                            // Blocks the thread: what is transferred to it waits.
                            1 if count % 50 == 0 => thread::sleep(Duration::from_millis(5)),
                            _ => {}
                        }
                    }
                    drop(member);
                    // The runtime's end would be that of its connections.
                    while !done.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            });
            let workers = workers.expect("starts");
            let clients: Vec<_> = (0..8)
                .map(|_| thread::spawn(move || (0..200).for_each(|_| is_echoed(client(address)))))
                .collect();
            while clients.iter().any(|thread| !thread.is_finished()) {
                group.pause();
                thread::sleep(Duration::from_millis(1));
                group.resume();
                thread::sleep(Duration::from_millis(10));
            }
            clients.into_iter().for_each(|thread| thread.join().expect("all are served"));
            assert_eq!(accepted.load(Ordering::Relaxed), 1600, "{}", setup.name);
            group.close(PendingConnections::Serve);
            clients_are_done.store(true, Ordering::Relaxed);
            workers.join().expect("they end");
        }
    });
}

/// What was transferred to a worker that then stands still is served by others when it ends.
#[test]
fn connections_transferred_to_a_worker_that_ends_are_served_by_another() {
    on_each(available(), |setup| {
        let ((first, address), (second, at_second)) = (listener(), listener());
        let group = ListenerGroup::<TcpListener>::new(vec![first, second], 2);
        let ((go_on, waits), (stands, when_stands)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
        let (waits, stands) = (Mutex::new(Some(waits)), Mutex::new(stands));
        let joined = group.clone();
        let workers = Workers::builder().unpinned_workers(2).runtime(setup.builder());
        let workers = workers.start(move |worker| {
            let joined = joined.clone();
            let waits = (worker.index == 1).then(|| waits.lock().expect("free").take().expect("once"));
            let stands = stands.lock().expect("free").clone();
            async move {
                let member = joined.join(worker.index);
                let Some(waits) = waits else { return serve(member).await };
                let stream = member.accept().await.expect("accepts").expect("a client");
                echo(stream).await.expect("the client has had its answer, and goes");
                stands.send(()).expect("heard");
                waits.recv().expect("told");
            }
        });
        let workers = workers.expect("starts");
        assert_eq!(group.wait_applied(hangs_after()).expect("both accept"), 2);
        is_echoed(client(at_second));
        when_stands.recv().expect("the second worker stands still");
        // About half of them are transferred.
        let clients: Vec<StdStream> = (0..100).map(|_| client(address)).collect();
        let waiting = |client: &StdStream| {
            client.set_nonblocking(true).expect("a mode");
            let waits = client.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            client.set_nonblocking(false).expect("a mode");
            waits
        };
        // The first worker has dealt with all of them when the last of those that it keeps has its answer.
        while clients.iter().filter(|client| waiting(client)).count() > 52 {
            thread::yield_now();
        }
        go_on.send(()).expect("heard");
        clients.into_iter().for_each(is_echoed);
        group.close(PendingConnections::Serve);
        workers.join().expect("they end");
    });
}

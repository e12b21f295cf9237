//! Distribution of a listener group's connections over its members, including members that join, leave and pause.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::echo;
use anello::Workers;
use anello::net::{TcpListener, UnixListener};
use anello::server::{Distribution, GroupListener, ListenerGroup, PendingConnections};
use anello::time::sleep;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::common::usage::raise_open_files;
use crate::common::{Setup, group_setups, hang_timeout, on_each, short_or_long};
use crate::groups::{assert_echoed, client, listener, serve};

/// Arrival pattern of the clients.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Arrival {
    /// Each client connects after the previous client has received its response.
    Sequential,
    /// All clients connect before the first one reads its response.
    Burst,
    /// All connections are in the accept queues before any worker accepts.
    Queued,
}

/// Returns listening sockets that share one address.
fn sockets_at_one_address(count: usize) -> (Vec<StdListener>, SocketAddr) {
    let mut address: SocketAddr = "127.0.0.1:0".parse().expect("valid address");
    let mut sockets = Vec::new();
    for _ in 0..count {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_reuse_port(true).expect("option is set");
        socket.bind(&SockAddr::from(address)).expect("a port");
        socket.listen(4096).expect("a listening socket");
        let listener = StdListener::from(socket);
        address = listener.local_addr().expect("valid address");
        sockets.push(listener);
    }
    (sockets, address)
}

/// Workers that count the connections they serve.
struct CountingWorkers<L: GroupListener = TcpListener> {
    group: ListenerGroup<L>,
    served: Arc<Vec<AtomicUsize>>,
    workers: Option<Workers<()>>,
}

impl<L: GroupListener> CountingWorkers<L> {
    fn start(setup: &Setup, group: ListenerGroup<L>, members: usize) -> Self {
        let served = Arc::new((0..members).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
        let (joined, counted) = (group.clone(), Arc::clone(&served));
        let workers = Workers::builder().unpinned_workers(members).runtime(setup.builder());
        let workers = workers.start(move |worker| {
            let (joined, counted) = (joined.clone(), Arc::clone(&counted));
            async move {
                let member = joined.join(worker.index);
                while let Some(mut stream) = member.accept().await.expect("accept succeeds") {
                    counted[worker.index].fetch_add(1, Ordering::Relaxed);
                    anello::spawn(async move { echo(&mut stream).await.ok() }).detach();
                }
            }
        });
        let workers = Some(workers.expect("workers"));
        assert_eq!(group.wait_applied(hang_timeout()).expect("all members have joined"), members);
        Self { group, served, workers }
    }

    fn served(&self) -> Vec<usize> {
        self.served.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    fn stop(mut self) -> Vec<usize> {
        self.group.close(PendingConnections::Serve);
        self.workers.take().expect("running").join().expect("the workers exit");
        self.served()
    }
}

/// Returns the number of clients of a group.
fn clients() -> usize {
    short_or_long(400, 1000)
}

fn distribute(setup: &Setup, members: usize, sockets: usize, arrival: Arrival) -> Vec<usize> {
    let (sockets, address) = sockets_at_one_address(sockets);
    let group = ListenerGroup::<TcpListener>::new_paused(sockets, members);
    let counting = CountingWorkers::start(setup, group.clone(), members);
    if arrival != Arrival::Queued {
        group.resume();
        assert_eq!(group.wait_applied(hang_timeout()).expect("all members accept"), members);
    }
    match arrival {
        Arrival::Sequential => (0..clients()).for_each(|_| assert_echoed(client(address))),
        Arrival::Burst | Arrival::Queued => {
            let clients: Vec<StdStream> = (0..clients()).map(|_| client(address)).collect();
            group.resume();
            clients.into_iter().for_each(assert_echoed);
        }
    }
    counting.stop()
}

#[test]
fn busiest_worker_exceeds_mean_by_at_most_a_tenth() {
    raise_open_files();
    on_each(group_setups(), |setup| {
        for members in [2, 4] {
            for sockets in [1, members] {
                for arrival in [Arrival::Sequential, Arrival::Burst, Arrival::Queued] {
                    let served = distribute(setup, members, sockets, arrival);
                    let case = format!("{}, {members} workers, {sockets} sockets, {arrival:?}", setup.name);
                    eprintln!("{case}: {served:?}");
                    assert_eq!(served.iter().sum::<usize>(), clients(), "{case}: {served:?}");
                    let busiest = *served.iter().max().expect("workers");
                    assert!(busiest * members * 10 <= clients() * 11, "{case}: {served:?}");
                }
            }
        }
    });
}

#[test]
fn kernel_distribution_keeps_connections_at_accepting_worker() {
    on_each(group_setups(), |setup| {
        for distribution in [Distribution::Kernel, Distribution::Balanced] {
            let ((first, address), (second, _)) = (listener(), listener());
            let group = ListenerGroup::<TcpListener>::new(vec![first, second], 2);
            assert_eq!(group.distribution(), Distribution::Balanced);
            group.set_distribution(distribution);
            let counting = CountingWorkers::start(setup, group, 2);
            (0..100).for_each(|_| assert_echoed(client(address)));
            let served = counting.stop();
            match distribution {
                Distribution::Kernel => assert_eq!(served, [100, 0], "{}", setup.name),
                _ => assert!(served[0] <= 55 && served[0] + served[1] == 100, "{}: {served:?}", setup.name),
            }
        }
    });
}

/// The workers alternate even without transfers: a worker that has accepted a connection is queued behind the other.
#[test]
fn workers_of_shared_socket_alternate_on_uring() {
    on_each(group_setups().into_iter().filter(Setup::is_uring).collect(), |setup| {
        let (listener, address) = listener();
        let group = ListenerGroup::<TcpListener>::new(vec![listener], 2);
        group.set_distribution(Distribution::Kernel);
        let counting = CountingWorkers::start(setup, group, 2);
        (0..200).for_each(|_| assert_echoed(client(address)));
        let served = counting.stop();
        assert!(served.iter().all(|count| *count > 0), "{}: {served:?}", setup.name);
    });
}

#[test]
fn connections_of_shared_unix_socket_are_balanced() {
    on_each(group_setups(), |setup| {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let group = ListenerGroup::<UnixListener>::new(
            vec![StdUnixListener::bind(&path).expect("a listening socket")],
            2,
        );
        let counting = CountingWorkers::start(setup, group, 2);
        for _ in 0..100 {
            let mut client = StdUnixStream::connect(&path).expect("a connection");
            client.set_read_timeout(Some(hang_timeout())).expect("a timeout");
            client.write_all(b"ciao").expect("send succeeds");
            assert_echoed(client);
        }
        let served = counting.stop();
        assert!(served[0] + served[1] == 100 && served.iter().all(|count| *count <= 55), "{served:?}");
    });
}

/// One worker joins late, one leaves early, one blocks its thread, and all pause, while clients connect.
#[test]
fn no_connection_is_lost_while_members_join_leave_and_pause() {
    on_each(group_setups(), |setup| {
        for (sockets, distribution) in [
            (1, Distribution::Balanced),
            (4, Distribution::Balanced),
            (1, Distribution::LeastLoaded),
            (4, Distribution::LeastLoaded),
        ] {
            let (sockets, address) = sockets_at_one_address(sockets);
            let group = ListenerGroup::<TcpListener>::new(sockets, 4);
            group.set_distribution(distribution);
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
                        let Some(mut stream) = member.accept().await.expect("accept succeeds") else {
                            break;
                        };
                        counted.fetch_add(1, Ordering::Relaxed);
                        anello::spawn(async move { echo(&mut stream).await.ok() }).detach();
                        match worker.index {
                            0 if count == 100 => break,
                            // Blocks the thread, so connections transferred to this worker wait.
                            1 if count % 50 == 0 => thread::sleep(Duration::from_millis(5)),
                            _ => {}
                        }
                    }
                    drop(member);
                    // The runtime closes its connections when it exits.
                    while !done.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            });
            let workers = workers.expect("workers");
            let clients: Vec<_> = (0..8)
                .map(|_| thread::spawn(move || (0..200).for_each(|_| assert_echoed(client(address)))))
                .collect();
            while clients.iter().any(|thread| !thread.is_finished()) {
                group.pause();
                thread::sleep(Duration::from_millis(1));
                group.resume();
                thread::sleep(Duration::from_millis(10));
            }
            clients.into_iter().for_each(|thread| thread.join().expect("every client is served"));
            assert_eq!(accepted.load(Ordering::Relaxed), 1600, "{}", setup.name);
            group.close(PendingConnections::Serve);
            clients_are_done.store(true, Ordering::Relaxed);
            workers.join().expect("the workers exit");
            assert_eq!(group.open_connections(), [0; 4], "{}", setup.name);
        }
    });
}

/// Connections transferred to a blocked worker are served by other workers when it exits.
#[test]
fn connections_transferred_to_exiting_worker_are_served_by_another() {
    on_each(group_setups(), |setup| {
        let ((first, address), (second, at_second)) = (listener(), listener());
        let group = ListenerGroup::<TcpListener>::new(vec![first, second], 2);
        let ((resume_worker, resumed), (now_blocked, blocked)) =
            (mpsc::channel::<()>(), mpsc::channel::<()>());
        let (resumed, now_blocked) = (Mutex::new(Some(resumed)), Mutex::new(now_blocked));
        let joined = group.clone();
        let workers = Workers::builder().unpinned_workers(2).runtime(setup.builder());
        let workers = workers.start(move |worker| {
            let joined = joined.clone();
            let resumed = (worker.index == 1)
                .then(|| resumed.lock().expect("lock is not poisoned").take().expect("once"));
            let now_blocked = now_blocked.lock().expect("lock is not poisoned").clone();
            async move {
                let member = joined.join(worker.index);
                let Some(resumed) = resumed else { return serve(member).await };
                let mut stream = member.accept().await.expect("accept succeeds").expect("a client");
                echo(&mut stream).await.expect("the client disconnects after its response");
                now_blocked.send(()).expect("a receiver");
                resumed.recv().expect("a message");
            }
        });
        let workers = workers.expect("workers");
        assert_eq!(group.wait_applied(hang_timeout()).expect("both members accept"), 2);
        assert_echoed(client(at_second));
        blocked.recv().expect("the second worker is blocked");
        // About half of the connections are transferred.
        let clients: Vec<StdStream> = (0..100).map(|_| client(address)).collect();
        let waiting = |client: &StdStream| {
            client.set_nonblocking(true).expect("blocking mode is set");
            let is_waiting = client.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            client.set_nonblocking(false).expect("blocking mode is set");
            is_waiting
        };
        // Once the last connection kept by the first worker has received its response, that worker has processed all
        // connections.
        while clients.iter().filter(|client| waiting(client)).count() > 52 {
            thread::yield_now();
        }
        resume_worker.send(()).expect("a receiver");
        clients.into_iter().for_each(assert_echoed);
        group.close(PendingConnections::Serve);
        workers.join().expect("the workers exit");
    });
}

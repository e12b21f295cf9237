//! Sockets that outlive the workers accepting from them: connections pending on a stopped worker are served by another.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream as StdStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::echo;
use anello::doctor::allowed_cores;
use anello::net::{TcpListener, TcpStream, UnixListener, raw_os_error};
use anello::server::{GroupMember, ListenerGroup, PendingConnections};
use anello::time::{sleep, timeout};
use anello::{Workers, spawn_blocking};

use crate::common::usage::{limit_open_files, raise_open_files};
use crate::common::{
    Setup, bytes_of_owner, group_setups, hang_timeout, in_own_process, on_each, poll_at_most,
    wait_until_refused,
};
use crate::groups::{assert_echoed, client, listener, serve};

/// How the first worker exits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WorkerExit {
    Returns,
    Panics,
}

/// Returns two cores, or the same core twice if only one is allowed.
fn two_cores() -> Vec<usize> {
    let allowed = allowed_cores().expect("cores");
    vec![allowed[0], allowed[allowed.len() - 1]]
}

/// Runs two workers with one socket each. The first worker, which accepts from its socket only if `accepts_before` is
/// set, blocks and exits while clients are waiting.
fn first_worker_ends(setup: &Setup, exit: WorkerExit, accepts_before: bool) {
    let ((first, at_first), (second, at_second)) = (listener(), listener());
    let group = ListenerGroup::<TcpListener>::new(vec![first, second], 2);
    let ((resume_worker, resumed), (blocked, when_blocked)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let (resumed, blocked) = (Mutex::new(Some(resumed)), Mutex::new(blocked));
    let joined = group.clone();
    let workers = Workers::builder().cores(two_cores()).runtime(setup.builder());
    let workers = workers.start(move |worker| {
        let joined = joined.clone();
        let resumed =
            (worker.index == 0).then(|| resumed.lock().expect("lock is not poisoned").take().expect("once"));
        let blocked = blocked.lock().expect("lock is not poisoned").clone();
        async move {
            let member = joined.join(worker.index);
            let Some(resumed) = resumed else { return serve(member).await };
            if accepts_before {
                // Gives the driver time to start the accept operation.
                let mut stream = member.accept().await.expect("accept succeeds").expect("a client");
                echo(&mut stream).await.expect("the client disconnects after its response");
                let more = timeout(Duration::from_millis(1), member.accept()).await;
                assert!(more.is_err());
            }
            blocked.send(()).expect("a receiver");
            resumed.recv().expect("a message");
            assert!(exit == WorkerExit::Returns, "deliberate panic");
        }
    });
    let workers = workers.expect("workers");
    if accepts_before {
        assert_echoed(client(at_first));
    }
    when_blocked.recv().expect("the first worker is blocked");
    let waiting: Vec<StdStream> = (0..20).map(|_| client(at_first)).collect();
    assert_echoed(client(at_second));
    resume_worker.send(()).expect("a receiver");
    waiting.into_iter().for_each(assert_echoed);
    // Further clients connect to both sockets.
    assert_echoed(client(at_first));
    assert_echoed(client(at_second));
    group.close(PendingConnections::Serve);
    assert_eq!(workers.join().is_err(), exit == WorkerExit::Panics);
}

#[test]
fn fault_39_connections_of_exited_worker_are_served_by_another() {
    on_each(group_setups(), |setup| {
        for exit in [WorkerExit::Returns, WorkerExit::Panics] {
            for accepts_before in [false, true] {
                eprintln!("{}, {exit:?}, accepts before: {accepts_before}", setup.name);
                first_worker_ends(setup, exit, accepts_before);
            }
        }
    });
}

#[test]
fn fault_39_pending_connections_of_closed_group_are_served() {
    on_each(group_setups(), |setup| {
        let ((listener, address), path) = (listener(), tempfile::tempdir().expect("a directory"));
        let path = path.path().join("socket");
        let unix = StdUnixListener::bind(&path).expect("a listening socket");
        let tcp = ListenerGroup::<TcpListener>::new(vec![listener], 1);
        let unix = ListenerGroup::<UnixListener>::new(vec![unix], 1);
        let mut waiting: Vec<StdStream> = (0..10).map(|_| client(address)).collect();
        let mut unix_client = StdUnixStream::connect(&path).expect("a connection");
        unix_client.write_all(b"ciao").expect("send succeeds");
        setup.run(async {
            let (member, unix_member) = (tcp.join(0), unix.join(0));
            // Some connections are accepted before the close.
            for _ in 0..3 {
                let mut stream = member.accept().await.expect("accept succeeds").expect("a client");
                anello::spawn(async move { echo(&mut stream).await.ok() }).detach();
            }
            waiting.push(client(address));
            tcp.close(PendingConnections::Serve);
            unix.close(PendingConnections::Serve);
            // These clients disconnect.
            serve(member).await;
            serve(unix_member).await;
            wait_until_refused(address);
            let clients = thread::spawn(move || {
                waiting.into_iter().for_each(assert_echoed);
                assert_echoed(unix_client);
            });
            while !clients.is_finished() {
                sleep(Duration::from_millis(1)).await;
            }
            clients.join().expect("every client gets a response");
        });
    });
}

#[test]
fn paused_group_keeps_accept_queue_and_serves_accepted_connections() {
    on_each(group_setups(), |setup| {
        let (listener, address) = listener();
        let other = listener.try_clone().expect("a descriptor");
        let group = ListenerGroup::<TcpListener>::new_paused(vec![listener], 2);
        let (joined, served) = (group.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&served);
        let workers = Workers::builder().cores(two_cores()).runtime(setup.builder());
        let workers = workers
            .start(move |worker| {
                let (joined, served) = (joined.clone(), Arc::clone(&counted));
                async move {
                    let member = joined.join(worker.index);
                    while let Some(mut stream) = member.accept().await.expect("accept succeeds") {
                        served.fetch_add(1, Ordering::Relaxed);
                        anello::spawn(async move { echo(&mut stream).await.ok() }).detach();
                    }
                }
            })
            .expect("workers");
        assert_eq!(group.wait_applied(hang_timeout()).expect("all members have joined"), 2);
        let early = client(address);
        group.resume();
        assert_echoed(early);
        for round in 0..20 {
            let early_clients: Vec<StdStream> = (0..5).map(|_| client(address)).collect();
            group.pause();
            assert_eq!(group.wait_applied(hang_timeout()).expect("all members stop"), 2);
            // No member is accepting, so pending connections wait until a process that has the socket accepts them.
            other.set_nonblocking(true).expect("blocking mode is set");
            let mut accepted_here = Vec::new();
            let after = client(address);
            while let Ok((stream, _)) = other.accept() {
                accepted_here.push(thread::spawn(move || {
                    stream.set_nonblocking(false).expect("blocking mode is set");
                    let (mut reader, mut writer) = (&stream, &stream);
                    std::io::copy(&mut reader, &mut writer).expect("an echo");
                }));
            }
            assert!(!accepted_here.is_empty(), "round {round}: no connection was accepted before the pause");
            early_clients.into_iter().for_each(assert_echoed);
            assert_echoed(after);
            accepted_here.into_iter().for_each(|thread| thread.join().expect("no panic"));
            group.resume();
            assert_echoed(client(address));
        }
        assert!(served.load(Ordering::Relaxed) >= 21);
        group.close(PendingConnections::Leave);
        assert!(group.is_closed());
        workers.join().expect("the workers exit");
    });
}

/// Starts two workers that serve the group, and waits until both have joined.
fn two_workers(setup: &Setup, group: &ListenerGroup<TcpListener>) -> Workers<()> {
    let joined = group.clone();
    let workers = Workers::builder().cores(two_cores()).runtime(setup.builder());
    let workers = workers.start(move |worker| {
        let joined = joined.clone();
        async move { serve(joined.join(worker.index)).await }
    });
    let workers = workers.expect("workers");
    assert_eq!(group.wait_applied(hang_timeout()).expect("both members have joined"), 2);
    workers
}

/// Two workers with one socket.
#[test]
fn wait_applied_in_task_submits_wake_ups() {
    on_each(group_setups(), |setup| {
        let (listener, _) = listener();
        let group = ListenerGroup::<TcpListener>::new(vec![listener], 2);
        let workers = two_workers(setup, &group);
        setup.run(async {
            for _ in 0..10 {
                group.pause();
                assert_eq!(group.wait_applied(hang_timeout()).expect("both members stop"), 2);
                group.resume();
                assert_eq!(group.wait_applied(hang_timeout()).expect("both members accept"), 2);
            }
            group.close(PendingConnections::Leave);
            workers.join().expect("both workers exit");
        });
    });
}

#[test]
fn pending_connections_of_closed_shared_socket_are_served() {
    on_each(group_setups(), |setup| {
        for round in 0..20 {
            let (listener, address) = listener();
            let group = ListenerGroup::<TcpListener>::new(vec![listener], 2);
            let (joined, all_served) = (group.clone(), Arc::new(AtomicBool::new(false)));
            let waiting: Vec<StdStream> = (0..20).map(|_| client(address)).collect();
            let stop_requested = Arc::clone(&all_served);
            let workers = Workers::builder().cores(two_cores()).runtime(setup.builder());
            let workers = workers.start(move |worker| {
                let (joined, stop_requested) = (joined.clone(), Arc::clone(&stop_requested));
                async move {
                    serve(joined.join(worker.index)).await;
                    // The runtime closes its connections when it exits.
                    while !stop_requested.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            });
            let workers = workers.expect("workers");
            if round % 2 == 0 {
                assert_eq!(group.wait_applied(hang_timeout()).expect("both members accept"), 2);
            }
            group.close(PendingConnections::Serve);
            waiting.into_iter().for_each(assert_echoed);
            while group.wait_applied(hang_timeout()).expect("both workers exit") > 0 {
                thread::yield_now();
            }
            wait_until_refused(address);
            all_served.store(true, Ordering::Relaxed);
            workers.join().expect("the workers exit");
        }
    });
}

#[test]
fn fault_39_connections_of_worker_exited_while_paused_are_served_after_resume() {
    on_each(group_setups(), |setup| {
        let ((first, at_first), (second, at_second)) = (listener(), listener());
        let group = ListenerGroup::<TcpListener>::new(vec![first, second], 2);
        let (joined, ends) = (group.clone(), Arc::new(AtomicBool::new(false)));
        let stop_requested = Arc::clone(&ends);
        let workers = Workers::builder().cores(two_cores()).runtime(setup.builder());
        let workers = workers.start(move |worker| {
            let (joined, stop_requested) = (joined.clone(), Arc::clone(&stop_requested));
            async move {
                let member = joined.join(worker.index);
                if worker.index == 1 {
                    return serve(member).await;
                }
                while !stop_requested.load(Ordering::Relaxed) {
                    let accepted = timeout(Duration::from_millis(1), member.accept()).await;
                    if let Ok(stream) = accepted {
                        echo(&mut stream.expect("accept succeeds").expect("group is open"))
                            .await
                            .expect("the client disconnects");
                    }
                }
            }
        });
        let workers = workers.expect("workers");
        assert_echoed(client(at_first));
        group.pause();
        assert_eq!(group.wait_applied(hang_timeout()).expect("both members stop"), 2);
        let waiting: Vec<StdStream> = (0..10).map(|_| client(at_first)).collect();
        ends.store(true, Ordering::Relaxed);
        while group.wait_applied(hang_timeout()).expect("the remaining member stops") != 1 {
            thread::yield_now();
        }
        group.resume();
        waiting.into_iter().for_each(assert_echoed);
        assert_echoed(client(at_second));
        group.close(PendingConnections::Serve);
        workers.join().expect("the workers exit");
    });
}

/// Limits this process to `count` additional descriptors.
fn leave_descriptors(count: u64) {
    // The lowest unused descriptor number.
    let next = std::fs::File::open("/dev/null").expect("a descriptor").as_raw_fd();
    limit_open_files(u64::try_from(next).expect("a number") + count).expect("a limit");
}

/// Returns `true` if the client was served, and `false` if it was rejected.
fn is_served(client: &mut StdStream) -> bool {
    match client.read_exact(&mut [0; 4]) {
        Ok(()) => true,
        Err(error) => {
            let kinds = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];
            assert!(kinds.contains(&error.kind()), "neither served nor rejected: {error}");
            false
        }
    }
}

#[test]
fn fault_04_workers_of_shared_socket_reject_clients_without_descriptors() {
    // Runs in a child process, because the limit is process-wide.
    in_own_process(|| {
        on_each(group_setups(), |setup| {
            for _ in 0..5 {
                share_without_descriptors(setup);
            }
        });
    });
}

fn share_without_descriptors(setup: &Setup) {
    let (listener, address) = listener();
    let group = ListenerGroup::<TcpListener>::new_paused(vec![listener], 2);
    let workers = two_workers(setup, &group);
    let mut clients: Vec<StdStream> = (0..100).map(|_| client(address)).collect();
    leave_descriptors(10);
    group.resume();
    let before = clients.len();
    clients.retain_mut(is_served);
    let served = clients.len();
    assert!(served >= 1 && served < before, "{}: {served} of {before} served", setup.name);
    drop(clients);
    raise_open_files();
    // Once descriptors are available, clients are served again.
    while !is_served(&mut client(address)) {}
    group.close(PendingConnections::Serve);
    workers.join().expect("the workers exit");
}

/// Occupies all descriptors until the returned value is dropped.
fn take_every_descriptor(stream: &StdStream) -> Vec<StdStream> {
    leave_descriptors(0);
    std::iter::from_fn(|| stream.try_clone().ok()).collect()
}

/// Asserts that the member waits while all descriptors are taken, and then accepts the pending connection.
async fn assert_accepts_after_release(
    setup: &Setup,
    member: &GroupMember<TcpListener>,
    taken: Vec<StdStream>,
) {
    let mut accepting = pin!(member.accept());
    let accepted = poll_at_most(10, accepting.as_mut()).await;
    assert!(accepted.is_none(), "{}: {accepted:?}", setup.name);
    drop(taken);
    raise_open_files();
    assert!(accepting.await.expect("accept succeeds").is_some(), "{}", setup.name);
}

#[test]
fn fault_04_member_waits_for_descriptor_of_its_socket() {
    in_own_process(|| {
        on_each(group_setups(), |setup| {
            let (listener, address) = listener();
            let waiting = client(address);
            let group = ListenerGroup::<TcpListener>::new(vec![listener], 1);
            setup.run(async {
                let member = group.join(0);
                let taken = take_every_descriptor(&waiting);
                assert_accepts_after_release(setup, &member, taken).await;
            });
        });
    });
}

#[test]
fn fault_04_group_closed_without_descriptors_serves_pending_connections_later() {
    in_own_process(|| {
        on_each(group_setups(), |setup| {
            let (listener, address) = listener();
            let group = ListenerGroup::<TcpListener>::new(vec![listener], 1);
            setup.run(async {
                // Never polled while the group is open, so pending connections stay in the accept queue.
                let member = group.join(0);
                let waiting = client(address);
                let taken = take_every_descriptor(&waiting);
                group.close(PendingConnections::Serve);
                assert_accepts_after_release(setup, &member, taken).await;
                // The accept queue is empty. Detecting this does not require a free descriptor.
                let taken = take_every_descriptor(&waiting);
                let mut accepting = pin!(member.accept());
                let accepted = poll_at_most(1, accepting.as_mut()).await;
                assert!(matches!(accepted, Some(Ok(None))), "{}: {accepted:?}", setup.name);
                drop(taken);
                raise_open_files();
            });
        });
    });
}

#[test]
fn wait_applied_accepts_unlimited_timeout() {
    let group = ListenerGroup::<TcpListener>::new(vec![], 0);
    group.wait_applied(Duration::MAX).unwrap();
    group.close(PendingConnections::Leave);
}

#[test]
fn error_of_bind_contains_address() {
    let (_listener, address) = listener();
    let error = ListenerGroup::<TcpListener>::bind(address, 1).unwrap_err();
    assert_eq!((error.kind(), raw_os_error(&error)), (ErrorKind::AddrInUse, Some(libc::EADDRINUSE)));
    assert!(error.to_string().starts_with(&format!("cannot bind {address}: ")), "{error}");
}

#[test]
fn member_without_accept_ahead_holds_at_most_one_connection() {
    const CLIENTS: usize = 100;
    on_each(group_setups(), |setup| {
        let (listener, address) = listener();
        let group = ListenerGroup::<TcpListener>::new(vec![listener], 1);
        setup.run(async {
            let member = group.join(0);
            let accepted = || anello::current_driver_metrics().expect("a runtime").accepted;
            // Starts an accept operation that may accept connections in advance, then cancels it.
            timeout(Duration::from_millis(1), member.accept()).await.expect_err("no client");
            member.set_accept_ahead(false);
            timeout(Duration::from_millis(20), member.accept()).await.expect_err("no client");
            let clients: Vec<_> = (0..CLIENTS).map(|_| client(address)).collect();
            let mut taken = Vec::new();
            while taken.len() < CLIENTS {
                taken.push(member.accept().await.expect("no error").expect("group is open"));
                // Gives the kernel an opportunity to accept connections before the test requests them.
                sleep(Duration::from_millis(1)).await;
                assert!(accepted() <= taken.len() as u64 + 1, "{}: {} accepted", setup.name, accepted());
            }
            member.set_accept_ahead(true);
            drop(clients);
            let _client = client(address);
            assert!(member.accept().await.expect("no error").is_some(), "{}", setup.name);
        });
    });
}

/// The driver drops bytes that it has sent, and the destructor of their owner drops a group member.
#[test]
fn sockets_of_member_dropped_by_driver_move_to_another() {
    thread_local! {
        static MEMBER: Cell<Option<GroupMember<TcpListener>>> = const { Cell::new(None) };
    }

    on_each(group_setups(), |setup| {
        let ((first, at_first), (second, at_second)) = (listener(), listener());
        let group = ListenerGroup::<TcpListener>::new(vec![first, second], 2);
        let joined = group.clone();
        setup.run(async move {
            let (member, other) = (joined.join(0), joined.join(1));
            // Gives the driver time to start the accept operation.
            assert!(timeout(Duration::from_millis(1), member.accept()).await.is_err());
            MEMBER.set(Some(member));
            let mut stream = TcpStream::connect(at_second).await.expect("a connection");
            let mut peer = other.accept().await.expect("accept succeeds").expect("a client");
            stream.send(bytes_of_owner(|| drop(MEMBER.take()))).await.expect("send succeeds");
            stream.flush().await.expect("the message is sent");
            assert!(peer.recv().await.expect("received bytes").is_some());
            let client = spawn_blocking(move || assert_echoed(client(at_first)));
            let serving = anello::spawn(serve(other));
            client.await.expect("a response");
            joined.close(PendingConnections::Serve);
            serving.await.expect("no panic");
        });
    });
}

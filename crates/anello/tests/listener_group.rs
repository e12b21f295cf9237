//! Sockets that outlive the workers which accept from them: whoever waits at a worker that stops is served by another.

mod common;

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

use anello::net::{
    GroupMember, ListenerGroup, PendingConnections, TcpListener, TcpStream, UnixListener, echo,
};
use anello::time::{sleep, timeout};
use anello::{Workers, allowed_cores, spawn_blocking};

use common::child::{Child, limit_open_files, raise_open_files};
use common::groups::{available, client, is_echoed, listener, serve};
use common::{Setup, bytes_of_owner, hangs_after, on_each, poll_at_most};

/// How the first worker ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Returns,
    Panics,
}

/// Two cores, or one of them twice.
fn two_cores() -> Vec<usize> {
    let allowed = allowed_cores().expect("cores");
    vec![allowed[0], allowed[allowed.len() - 1]]
}

/// Two workers with a socket each. The first has accepted from its own, then stands still, and ends while clients wait.
fn first_worker_ends(setup: &Setup, end: End, accepts_before: bool) {
    let ((first, at_first), (second, at_second)) = (listener(), listener());
    let group = ListenerGroup::<TcpListener>::new(vec![first, second], 2);
    let ((go_on, waits), (stands, when_stands)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let (waits, stands) = (Mutex::new(Some(waits)), Mutex::new(stands));
    let joined = group.clone();
    let workers = Workers::builder().cores(two_cores()).runtime(setup.builder());
    let workers = workers.start(move |worker| {
        let joined = joined.clone();
        let waits = (worker.index == 0).then(|| waits.lock().expect("free").take().expect("once"));
        let stands = stands.lock().expect("free").clone();
        async move {
            let member = joined.join(worker.index);
            let Some(waits) = waits else { return serve(member).await };
            if accepts_before {
                // So that accepting is armed.
                let stream = member.accept().await.expect("accepts").expect("a client");
                echo(stream).await.expect("the client has had its answer, and goes");
                let more = timeout(Duration::from_millis(1), member.accept()).await;
                assert!(more.is_err());
            }
            stands.send(()).expect("heard");
            waits.recv().expect("told");
            assert!(end == End::Returns, "ends as the test wants it to");
        }
    });
    let workers = workers.expect("starts");
    if accepts_before {
        is_echoed(client(at_first));
    }
    when_stands.recv().expect("the first worker stands still");
    let waiting: Vec<StdStream> = (0..20).map(|_| client(at_first)).collect();
    is_echoed(client(at_second));
    go_on.send(()).expect("heard");
    waiting.into_iter().for_each(is_echoed);
    // And further ones, at either socket.
    is_echoed(client(at_first));
    is_echoed(client(at_second));
    group.close(PendingConnections::Serve);
    assert_eq!(workers.join().is_err(), end == End::Panics);
}

#[test]
fn fault_39_who_waits_at_a_worker_that_ends_is_served_by_another() {
    for setup in available() {
        for end in [End::Returns, End::Panics] {
            for accepts_before in [false, true] {
                eprintln!("{}, {end:?}, accepts before: {accepts_before}", setup.name);
                first_worker_ends(&setup, end, accepts_before);
            }
        }
    }
}

#[test]
fn fault_39_who_waits_when_the_group_is_closed_is_served() {
    for setup in available() {
        let ((listener, address), path) = (listener(), tempfile::tempdir().expect("a folder"));
        let path = path.path().join("socket");
        let unix = StdUnixListener::bind(&path).expect("listens");
        let tcp = ListenerGroup::<TcpListener>::new(vec![listener], 1);
        let unix = ListenerGroup::<UnixListener>::new(vec![unix], 1);
        let mut waiting: Vec<StdStream> = (0..10).map(|_| client(address)).collect();
        let mut unix_client = StdUnixStream::connect(&path).expect("connects");
        unix_client.write_all(b"ciao").expect("sends");
        setup.run(async {
            let (member, unix_member) = (tcp.join(0), unix.join(0));
            // Some are accepted before.
            for _ in 0..3 {
                let stream = member.accept().await.expect("accepts").expect("a client");
                anello::spawn(async move { echo(stream).await.ok() }).detach();
            }
            waiting.push(client(address));
            tcp.close(PendingConnections::Serve);
            unix.close(PendingConnections::Serve);
            // These end.
            serve(member).await;
            serve(unix_member).await;
            assert!(StdStream::connect(address).is_err(), "nobody listens any more");
            let clients = thread::spawn(move || {
                waiting.into_iter().for_each(is_echoed);
                is_echoed(unix_client);
            });
            while !clients.is_finished() {
                sleep(Duration::from_millis(1)).await;
            }
            clients.join().expect("all are answered");
        });
    }
}

#[test]
fn a_paused_group_leaves_its_queue_to_others_and_serves_what_it_has_accepted() {
    for setup in available() {
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
                    while let Some(stream) = member.accept().await.expect("accepts") {
                        served.fetch_add(1, Ordering::Relaxed);
                        anello::spawn(async move { echo(stream).await.ok() }).detach();
                    }
                }
            })
            .expect("starts");
        assert_eq!(group.wait_applied(hangs_after()).expect("all have joined"), 2);
        let early = client(address);
        group.resume();
        is_echoed(early);
        for round in 0..20 {
            let before: Vec<StdStream> = (0..5).map(|_| client(address)).collect();
            group.pause();
            assert_eq!(group.wait_applied(hangs_after()).expect("all stop"), 2);
            // Nobody else accepts: those that were not accepted before wait for whoever has the socket.
            other.set_nonblocking(true).expect("a mode");
            let mut accepted_here = Vec::new();
            let after = client(address);
            while let Ok((stream, _)) = other.accept() {
                accepted_here.push(thread::spawn(move || {
                    stream.set_nonblocking(false).expect("a mode");
                    let (mut reader, mut writer) = (&stream, &stream);
                    std::io::copy(&mut reader, &mut writer).expect("echoes");
                }));
            }
            assert!(!accepted_here.is_empty(), "round {round}: the last came when nobody accepted");
            before.into_iter().for_each(is_echoed);
            is_echoed(after);
            accepted_here.into_iter().for_each(|thread| thread.join().expect("ends"));
            group.resume();
            is_echoed(client(address));
        }
        assert!(served.load(Ordering::Relaxed) >= 21);
        group.close(PendingConnections::Leave);
        assert!(group.is_closed());
        workers.join().expect("they end");
    }
}

/// Two workers with one socket.
#[test]
fn settle_in_a_task_submits_the_wake_ups_that_it_waits_for() {
    for setup in available() {
        on_each(vec![setup], |setup| {
            let (listener, _) = listener();
            let group = ListenerGroup::<TcpListener>::new(vec![listener], 2);
            let joined = group.clone();
            let workers = Workers::builder().cores(two_cores()).runtime(setup.builder());
            let workers = workers.start(move |worker| {
                let joined = joined.clone();
                async move { serve(joined.join(worker.index)).await }
            });
            let workers = workers.expect("starts");
            assert_eq!(group.wait_applied(hangs_after()).expect("both accept"), 2);
            setup.run(async {
                for _ in 0..10 {
                    group.pause();
                    assert_eq!(group.wait_applied(hangs_after()).expect("both stop"), 2);
                    group.resume();
                    assert_eq!(group.wait_applied(hangs_after()).expect("both accept"), 2);
                }
                group.close(PendingConnections::Leave);
                workers.join().expect("both end");
            });
        });
    }
}

#[test]
fn who_waits_when_a_shared_socket_is_closed_is_served() {
    on_each(available(), |setup| {
        for round in 0..20 {
            let (listener, address) = listener();
            let group = ListenerGroup::<TcpListener>::new(vec![listener], 2);
            let (joined, all_served) = (group.clone(), Arc::new(AtomicBool::new(false)));
            let waiting: Vec<StdStream> = (0..20).map(|_| client(address)).collect();
            let end = Arc::clone(&all_served);
            let workers = Workers::builder().cores(two_cores()).runtime(setup.builder());
            let workers = workers.start(move |worker| {
                let (joined, end) = (joined.clone(), Arc::clone(&end));
                async move {
                    serve(joined.join(worker.index)).await;
                    // The runtime's end would be that of its connections.
                    while !end.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            });
            let workers = workers.expect("starts");
            if round % 2 == 0 {
                assert_eq!(group.wait_applied(hangs_after()).expect("both accept"), 2);
            }
            group.close(PendingConnections::Serve);
            waiting.into_iter().for_each(is_echoed);
            while group.wait_applied(hangs_after()).expect("both come to an end") > 0 {
                thread::yield_now();
            }
            assert!(StdStream::connect(address).is_err(), "nobody listens any more");
            all_served.store(true, Ordering::Relaxed);
            workers.join().expect("they end");
        }
    });
}

#[test]
fn fault_39_who_waits_at_a_worker_that_ends_while_paused_is_served_when_others_go_on() {
    on_each(available(), |setup| {
        let ((first, at_first), (second, at_second)) = (listener(), listener());
        let group = ListenerGroup::<TcpListener>::new(vec![first, second], 2);
        let (joined, ends) = (group.clone(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&ends);
        let workers = Workers::builder().cores(two_cores()).runtime(setup.builder());
        let workers = workers.start(move |worker| {
            let (joined, told) = (joined.clone(), Arc::clone(&told));
            async move {
                let member = joined.join(worker.index);
                if worker.index == 1 {
                    return serve(member).await;
                }
                while !told.load(Ordering::Relaxed) {
                    let accepted = timeout(Duration::from_millis(1), member.accept()).await;
                    if let Ok(stream) = accepted {
                        echo(stream.expect("accepts").expect("open")).await.expect("the client goes");
                    }
                }
            }
        });
        let workers = workers.expect("starts");
        is_echoed(client(at_first));
        group.pause();
        assert_eq!(group.wait_applied(hangs_after()).expect("both stop"), 2);
        let waiting: Vec<StdStream> = (0..10).map(|_| client(at_first)).collect();
        ends.store(true, Ordering::Relaxed);
        while group.wait_applied(hangs_after()).expect("who is left has stopped") != 1 {
            thread::yield_now();
        }
        group.resume();
        waiting.into_iter().for_each(is_echoed);
        is_echoed(client(at_second));
        group.close(PendingConnections::Serve);
        workers.join().expect("they end");
    });
}

/// Leaves at most so many descriptors to this process.
fn leave_descriptors(count: u64) {
    // The lowest number that is free.
    let next = std::fs::File::open("/dev/null").expect("a descriptor").as_raw_fd();
    limit_open_files(u64::try_from(next).expect("a number") + count).expect("a limit");
}

/// Whether the client has had its answer; else it was refused.
fn is_served(client: &mut StdStream) -> bool {
    match client.read_exact(&mut [0; 4]) {
        Ok(()) => true,
        Err(error) => {
            let kinds = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];
            assert!(kinds.contains(&error.kind()), "neither served nor refused: {error}");
            false
        }
    }
}

#[test]
fn fault_04_workers_that_share_a_socket_refuse_whom_they_cannot_serve() {
    // In a process of its own, because the limit is for all of it.
    let name = "fault_04_workers_that_share_a_socket_refuse_whom_they_cannot_serve";
    Child::default().run(name, || {
        on_each(available(), |setup| {
            for _ in 0..5 {
                share_without_descriptors(setup);
            }
        });
    });
}

fn share_without_descriptors(setup: &Setup) {
    let (listener, address) = listener();
    let group = ListenerGroup::<TcpListener>::new_paused(vec![listener], 2);
    let joined = group.clone();
    let workers = Workers::builder().cores(two_cores()).runtime(setup.builder());
    let workers = workers.start(move |worker| {
        let joined = joined.clone();
        async move { serve(joined.join(worker.index)).await }
    });
    let workers = workers.expect("starts");
    assert_eq!(group.wait_applied(hangs_after()).expect("both have joined"), 2);
    let mut clients: Vec<StdStream> = (0..100).map(|_| client(address)).collect();
    leave_descriptors(10);
    group.resume();
    let before = clients.len();
    clients.retain_mut(is_served);
    let served = clients.len();
    assert!(served >= 1 && served < before, "{}: {served} of {before} served", setup.name);
    drop(clients);
    raise_open_files();
    // As soon as there are descriptors, all is as before.
    while !is_served(&mut client(address)) {}
    group.close(PendingConnections::Serve);
    workers.join().expect("they end");
}

/// None is left until what this gives is dropped.
fn take_every_descriptor(stream: &StdStream) -> Vec<StdStream> {
    leave_descriptors(0);
    std::iter::from_fn(|| stream.try_clone().ok()).collect()
}

#[test]
fn fault_04_a_member_without_a_descriptor_for_its_socket_waits_for_one() {
    let name = "fault_04_a_member_without_a_descriptor_for_its_socket_waits_for_one";
    Child::default().run(name, || {
        on_each(available(), |setup| {
            let (listener, address) = listener();
            let waiting = client(address);
            let group = ListenerGroup::<TcpListener>::new(vec![listener], 1);
            setup.run(async {
                let member = group.join(0);
                let taken = take_every_descriptor(&waiting);
                let mut accepting = pin!(member.accept());
                let accepted = poll_at_most(10, accepting.as_mut()).await;
                assert!(accepted.is_none(), "{}: {accepted:?}", setup.name);
                drop(taken);
                raise_open_files();
                assert!(accepting.await.expect("accepts").is_some(), "{}", setup.name);
            });
        });
    });
}

#[test]
fn fault_04_a_group_that_is_closed_without_descriptors_serves_who_waits_when_there_are_some() {
    let name = "fault_04_a_group_that_is_closed_without_descriptors_serves_who_waits_when_there_are_some";
    Child::default().run(name, || {
        on_each(available(), |setup| {
            let (listener, address) = listener();
            let group = ListenerGroup::<TcpListener>::new(vec![listener], 1);
            setup.run(async {
                // Never polled while the group is open: who waits is the kernel's.
                let member = group.join(0);
                let waiting = client(address);
                let taken = take_every_descriptor(&waiting);
                group.close(PendingConnections::Serve);
                let mut accepting = pin!(member.accept());
                let accepted = poll_at_most(10, accepting.as_mut()).await;
                assert!(accepted.is_none(), "{}: {accepted:?}", setup.name);
                drop(taken);
                raise_open_files();
                assert!(accepting.await.expect("accepts").is_some(), "{}", setup.name);
                // Nobody waits any more: that is known without a descriptor.
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
fn settles_for_ever() {
    let group = ListenerGroup::<TcpListener>::new(vec![], 0);
    group.wait_applied(Duration::MAX).unwrap();
    group.close(PendingConnections::Leave);
}

#[test]
fn member_that_does_not_accept_ahead_holds_one_connection_at_most() {
    const CLIENTS: usize = 100;
    on_each(available(), |setup| {
        let (listener, address) = listener();
        let group = ListenerGroup::<TcpListener>::new(vec![listener], 1);
        setup.run(async {
            let member = group.join(0);
            let accepted = || anello::current_metrics().expect("a runtime").accepted;
            // One is armed that may accept ahead: it is cancelled.
            timeout(Duration::from_millis(1), member.accept()).await.expect_err("no client");
            member.set_accept_ahead(false);
            timeout(Duration::from_millis(20), member.accept()).await.expect_err("no client");
            let clients: Vec<_> = (0..CLIENTS).map(|_| client(address)).collect();
            let mut taken = Vec::new();
            while taken.len() < CLIENTS {
                taken.push(member.accept().await.expect("no error").expect("open"));
                // What the kernel would accept ahead, it does now.
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

/// The driver drops what it has sent, and with it a member.
#[test]
fn member_dropped_by_the_driver_leaves_its_sockets_to_another() {
    thread_local! {
        static MEMBER: Cell<Option<GroupMember<TcpListener>>> = const { Cell::new(None) };
    }

    on_each(available(), |setup| {
        let ((first, at_first), (second, at_second)) = (listener(), listener());
        let group = ListenerGroup::<TcpListener>::new(vec![first, second], 2);
        let joined = group.clone();
        setup.run(async move {
            let (member, other) = (joined.join(0), joined.join(1));
            // So that accepting is armed.
            assert!(timeout(Duration::from_millis(1), member.accept()).await.is_err());
            MEMBER.set(Some(member));
            let mut stream = TcpStream::connect(at_second).await.expect("connects");
            let mut peer = other.accept().await.expect("accepts").expect("a client");
            stream.send(bytes_of_owner(|| drop(MEMBER.take()))).await.expect("sends");
            stream.flush().await.expect("is sent");
            assert!(peer.recv().await.expect("receives").is_some());
            let client = spawn_blocking(move || is_echoed(client(at_first)));
            let serving = anello::spawn(serve(other));
            client.await.expect("is answered");
            joined.close(PendingConnections::Serve);
            serving.await.expect("ends");
        });
    });
}

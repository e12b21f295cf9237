//! Where the sockets of `anello http` come from and where they go: a service manager, the server before, the one after.

mod served;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use rustix::fs::FlockOperation;
use rustix::process::Signal;

use served::{BODY, Served, TIMEOUT, connect, drivers, folder, is_answered, request};

/// Clients that ask all the time until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    /// Half of them keep their connections as long as they may, the others have one for each request.
    fn start(address: &str, clients: usize) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients = (0..clients).map(|client| {
            let (address, stop, answered) = (address.to_owned(), Arc::clone(&stop), Arc::clone(&answered));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let mut stream = connect(&address);
                    let keeps = client % 2 == 0;
                    // Until the server says that it is the last one; nobody may be cut off otherwise.
                    while ask(&mut stream, keeps) {
                        answered.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let clients = clients.collect();
        Self { stop, answered, clients }
    }

    /// Waits for so many more answers.
    fn assert_still_serving(&self, answers: usize) {
        let before = self.answered.load(Ordering::Relaxed);
        served::until(|| {
            assert!(self.clients.iter().all(|client| !client.is_finished()), "a client has failed");
            self.answered.load(Ordering::Relaxed) >= before + answers
        });
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().expect("no request has failed"));
    }
}

/// One request, which has to be answered; whether another may follow.
fn ask(stream: &mut TcpStream, keeps: bool) -> bool {
    stream.write_all(request(keeps).as_bytes()).expect("sends");
    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    while !answer.ends_with(BODY.as_bytes()) {
        let count = served::retry_interrupted(|| stream.read(&mut bytes)).expect("an answer");
        assert_ne!(count, 0, "cut off: {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&bytes[..count]);
    }
    let answer = String::from_utf8(answer).expect("text");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    !answer.to_ascii_lowercase().contains("\r\nconnection: close\r\n")
}

/// Starts servers that hand over at this path. A client that the processor has not got round to for a while is not idle for
/// them: it would be cut off.
fn start(folder: &Path, address: &str, door: &Path, arguments: &[&str]) -> Served {
    let door = door.to_str().expect("text");
    let common = ["--addr", address, "--handover", door, "--drain-min-idle", "60s"];
    Served::start(folder, &[&common, arguments].concat())
}

/// What a newcomer hears until the server has given all it has.
fn read_offer(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b".") {
        bytes.push(read_byte(stream));
    }
    bytes
}

/// The next byte.
fn read_byte(stream: &mut UnixStream) -> u8 {
    let mut byte = [0];
    stream.read_exact(&mut byte).expect("a word");
    byte[0]
}

#[test]
fn fault_38_one_server_after_the_other_takes_over_and_no_request_fails() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let door = places.path().join("door");
    let all_drivers = drivers();
    let first = all_drivers[0];
    let mut server =
        start(files.path(), "127.0.0.1:0", &door, &["--driver", first, "--metrics-addr", "127.0.0.1:0"]);
    let (address, metrics) =
        (server.ready_value("addr").to_owned(), server.ready_value("metrics").to_owned());
    assert_eq!(fs::metadata(&door).expect("the door").permissions().mode() & 0o777, 0o600);
    let load = Load::start(&address, 6);
    load.assert_still_serving(100);
    // From each driver to each, and from fewer workers to more and back.
    let cores = ["0", "0,0", "0"];
    for round in 0..3 * all_drivers.len() {
        let driver = all_drivers[(round / 2) % all_drivers.len()];
        let cores = cores[round % cores.len()];
        let arguments = ["--driver", driver, "--cores", cores, "--metrics-addr", &metrics];
        let next = start(files.path(), &address, &door, &arguments);
        assert_eq!((next.ready_value("addr"), next.ready_value("metrics")), (&*address, &*metrics));
        // The one before ends by itself, while requests go on.
        server.ended();
        server = next;
        load.assert_still_serving(100);
        let mut health = connect(&metrics);
        health.write_all(b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").expect("sends");
        let mut answer = String::new();
        health.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("ready\n"), "{answer}");
    }
    load.end();
    server.end();
    assert!(!door.exists(), "the last one has removed the door");
}

#[test]
fn fault_38_groups_of_sockets_and_files_of_sockets_go_over_whole() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let (door, path) = (places.path().join("door"), places.path().join("http"));
    for driver in drivers() {
        // Two sockets of one port, which one worker takes over; nobody may wait at the other one for ever.
        let two = start(files.path(), "127.0.0.1:0", &door, &["--driver", driver, "--cores", "0,0"]);
        let address = two.ready_value("addr").to_owned();
        let load = Load::start(&address, 4);
        load.assert_still_serving(50);
        let one = start(files.path(), &address, &door, &["--driver", driver]);
        two.ended();
        load.assert_still_serving(50);
        (0..20).for_each(|_| assert!(!ask(&mut connect(&address), false)));
        load.end();
        drop(one);
        // What it has left is no obstacle.
        assert!(door.exists());
        let named = format!("unix:{}", path.display());
        let first = start(files.path(), &named, &door, &["--driver", driver, "--cores", "0,0"]);
        let second = start(files.path(), &named, &door, &["--driver", driver, "--cores", "0,0"]);
        first.ended();
        let mut client = UnixStream::connect(&path).expect("the file is still there");
        client.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        client.write_all(request(false).as_bytes()).expect("sends");
        is_answered(client);
        second.signal(Signal::TERM);
        second.ended();
        assert!(!path.exists() && !door.exists());
    }
}

#[test]
fn fault_38_a_newcomer_that_dies_at_any_step_changes_nothing() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let door = places.path().join("door");
    for driver in drivers() {
        let server = start(files.path(), "127.0.0.1:0", &door, &["--driver", driver, "--cores", "0,0"]);
        let address = server.ready_value("addr").to_owned();
        let load = Load::start(&address, 4);
        load.assert_still_serving(20);
        // It has only knocked; it has heard the offer; it was waited for; it has said something else, which it is told.
        let knock = || UnixStream::connect(&door).expect("the door is open");
        drop(knock());
        let mut newcomer = knock();
        assert!(read_offer(&mut newcomer).starts_with(b"anello handover 1\nssd"));
        drop(newcomer);
        load.assert_still_serving(20);
        let mut newcomer = knock();
        read_offer(&mut newcomer);
        newcomer.write_all(b"r").expect("ready");
        assert_eq!(read_byte(&mut newcomer), b'p', "it has stopped");
        drop(newcomer);
        load.assert_still_serving(20);
        let mut newcomer = knock();
        read_offer(&mut newcomer);
        newcomer.write_all(b"G").expect("sends");
        assert_eq!(read_byte(&mut newcomer), b'x', "it goes on by itself");
        load.assert_still_serving(20);
        // And those that fail by themselves when they have asked: there is no such folder; the address is another.
        for (argument, complaint) in
            [("/no/such/folder", "/no/such/folder"), (files.path().to_str().expect("text"), "127.0.0.1:1")]
        {
            let elsewhere = if argument.starts_with("/no") { &address } else { "127.0.0.1:1" };
            let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
            command.args(["http", argument, "--addr", elsewhere, "--handover"]).arg(&door);
            let output = command.output().expect("runs");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(1) && said.contains(complaint), "{said}");
        }
        load.assert_still_serving(20);
        // The door is open still.
        let next = start(files.path(), &address, &door, &["--driver", driver]);
        server.ended();
        load.assert_still_serving(20);
        load.end();
        next.signal(Signal::TERM);
        next.ended();
    }
}

#[test]
fn fault_38_of_two_newcomers_one_takes_over_from_the_other() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let door = places.path().join("door");
    let server = start(files.path(), "127.0.0.1:0", &door, &[]);
    let address = server.ready_value("addr").to_owned();
    let load = Load::start(&address, 4);
    load.assert_still_serving(20);
    let newcomers: Vec<JoinHandle<Served>> = (0..2)
        .map(|_| {
            let (files, address, door) = (files.path().to_owned(), address.clone(), door.clone());
            thread::spawn(move || start(&files, &address, &door, &[]))
        })
        .collect();
    let mut newcomers: Vec<Served> =
        newcomers.into_iter().map(|newcomer| newcomer.join().expect("it was ready")).collect();
    server.ended();
    // One of them ends by itself, and the other serves.
    served::until(|| newcomers.iter_mut().any(|newcomer| newcomer.has_ended()));
    let last = newcomers.iter_mut().position(|newcomer| !newcomer.has_ended()).expect("one serves");
    let last = newcomers.swap_remove(last);
    load.assert_still_serving(20);
    newcomers.into_iter().for_each(Served::ended);
    load.end();
    last.end();
}

#[test]
fn fault_38_of_servers_that_start_at_once_where_nobody_is_one_is_first() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let (door, socket) = (places.path().join("door"), places.path().join("http"));
    let address = format!("unix:{}", socket.display());
    // They wait for one another as each of them would wait for a third.
    let lock = File::create(places.path().join("door.lock")).expect("a file");
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("locked");
    let starting: Vec<JoinHandle<Served>> = (0..3)
        .map(|_| {
            let (files, address, door) = (files.path().to_owned(), address.clone(), door.clone());
            thread::spawn(move || start(&files, &address, &door, &[]))
        })
        .collect();
    assert!(!door.exists() && !socket.exists());
    drop(lock);
    let mut servers: Vec<Served> =
        starting.into_iter().map(|server| server.join().expect("it was ready")).collect();
    served::until(|| {
        servers.iter_mut().filter_map(|server| (!server.has_ended()).then_some(())).count() == 1
    });
    let last = servers.iter_mut().position(|server| !server.has_ended()).expect("one serves");
    let last = servers.swap_remove(last);
    servers.into_iter().for_each(Served::ended);
    let mut client = UnixStream::connect(&socket).expect("the file is there");
    client.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    client.write_all(request(false).as_bytes()).expect("sends");
    is_answered(client);
    last.end();
    assert!(!door.exists() && !socket.exists());
}

#[test]
fn fault_38_a_server_that_is_told_to_end_while_it_hands_over_leaves_its_files() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let (door, socket) = (places.path().join("door"), places.path().join("http"));
    let address = format!("unix:{}", socket.display());
    for driver in drivers() {
        let knock = || UnixStream::connect(&door).expect("the door is open");
        let server = start(files.path(), &address, &door, &["--driver", driver]);
        let mut newcomer = knock();
        assert!(read_offer(&mut newcomer).starts_with(b"anello handover 1\nsd"));
        server.signal(Signal::TERM);
        server.ended();
        // The newcomer has the sockets, and would serve now.
        assert!(door.exists() && socket.exists());
        for file in [&door, &socket] {
            fs::remove_file(file).expect("removed");
        }
        // After one that came to nothing, they are the server's again.
        let server = start(files.path(), &address, &door, &["--driver", driver]);
        let mut newcomer = knock();
        read_offer(&mut newcomer);
        newcomer.write_all(b"G").expect("sends");
        assert_eq!(read_byte(&mut newcomer), b'x');
        server.signal(Signal::TERM);
        server.ended();
        assert!(!door.exists() && !socket.exists());
    }
}

/// A server that gives a newcomer what it has, says this, and goes without another word.
fn spawn_dying_server(door: &Path, last_words: &'static [u8]) -> (TcpListener, JoinHandle<()>) {
    let (listener, control) =
        (TcpListener::bind("127.0.0.1:0").expect("a port"), UnixListener::bind(door).expect("a door"));
    let given = listener.try_clone().expect("a descriptor");
    let spawn_dying_server = thread::spawn(move || {
        let (stream, _) = control.accept().expect("a newcomer");
        (&stream).write_all(b"anello handover 1\n").expect("sends");
        served::give(&stream, b's', &given);
        served::give(&stream, b'd', &control);
        (&stream).write_all(last_words).expect("sends");
    });
    (listener, spawn_dying_server)
}

#[test]
fn fault_38_a_newcomer_that_is_late_leaves_the_server_alone() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let door = places.path().join("door");
    let (listener, spawn_dying_server) = spawn_dying_server(&door, b".x");
    let address = listener.local_addr().expect("an address").to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("http").arg(files.path()).args(["--addr", &address, "--handover"]).arg(&door);
    let output = command.output().expect("runs");
    spawn_dying_server.join().expect("it has done what it should");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("has not waited for this one"), "{said}");
    assert!(door.exists(), "it is the server's");
}

#[test]
fn fault_38_a_socket_file_that_a_newcomer_does_not_find_is_said_with_its_remedy() {
    let (files, places) = (folder(), [(); 2].map(|()| tempfile::tempdir().expect("a folder")));
    let command = |place: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.current_dir(place).arg("http").arg(files.path()).args(["--addr", "unix:http", "--handover"]);
        command.arg(places[0].path().join("door"));
        command
    };
    let server = Served::of(command(places[0].path()));
    // The same name, but another file.
    let output = command(places[1].path()).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--addr unix:http: ") && said.contains("start in the folder in which"), "{said}");
    let next = Served::of(command(places[0].path()));
    server.ended();
    next.end();
}

#[test]
fn fault_38_a_server_that_dies_while_it_hands_over_leaves_its_sockets() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let door = places.path().join("door");
    let (listener, spawn_dying_server) = spawn_dying_server(&door, b".");
    let address = listener.local_addr().expect("an address").to_string();
    let mut waiting = connect(&address);
    waiting.write_all(request(false).as_bytes()).expect("sends");
    drop(listener);
    let server = start(files.path(), &address, &door, &[]);
    spawn_dying_server.join().expect("it has done what it should");
    is_answered(waiting);
    server.signal(Signal::TERM);
    server.ended();
}

#[test]
fn fault_39_who_waits_to_be_accepted_when_the_server_is_told_to_end_is_answered() {
    let files = folder();
    for driver in drivers() {
        for cores in ["0", "0,0"] {
            eprintln!("{driver}, cores {cores}");
            let server =
                Served::start(files.path(), &["--addr", "127.0.0.1:0", "--driver", driver, "--cores", cores]);
            let address = server.ready_value("addr").to_owned();
            // It stands still: the kernel completes handshakes, and nobody accepts.
            server.signal(Signal::STOP);
            let waiting: Vec<TcpStream> = (0..40)
                .map(|_| {
                    let mut client = connect(&address);
                    client.write_all(request(false).as_bytes()).expect("sends");
                    client
                })
                .collect();
            server.signal(Signal::TERM);
            server.signal(Signal::CONT);
            waiting.into_iter().for_each(is_answered);
            server.ended();
        }
    }
}

#[test]
fn sockets_are_passed_by_a_service_manager_and_stay_its_own() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let path = places.path().join("http");
    for (driver, cores) in drivers().into_iter().flat_map(|driver| [(driver, "0"), (driver, "0,0")]) {
        let (tcp, unix) =
            (TcpListener::bind("127.0.0.1:0").expect("a port"), UnixListener::bind(&path).expect("a path"));
        let address = tcp.local_addr().expect("an address").to_string();
        let notices = served::Notices::new(places.path());
        let environment = [("NOTIFY_SOCKET", notices.path())];
        let both = || [tcp.try_clone().expect("a descriptor").into(), unix.try_clone().expect("one").into()];
        let arguments = ["--driver", driver, "--cores", cores];
        let server = Served::activated(files.path(), &arguments, &both(), &environment);
        assert_eq!(server.ready_value("addr"), format!("{address},unix:{}", path.display()));
        assert_eq!(notices.next(), "READY=1\n");
        assert!(!ask(&mut connect(&address), false));
        let mut client = UnixStream::connect(&path).expect("connects");
        client.write_all(request(false).as_bytes()).expect("sends");
        is_answered(client);
        server.signal(Signal::HUP);
        assert!(notices.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        assert_eq!(notices.next(), "READY=1\n");
        server.signal(Signal::TERM);
        assert_eq!(notices.next(), "STOPPING=1\n");
        server.ended();
        // Whoever comes meanwhile waits for the next one.
        let mut waiting = connect(&address);
        waiting.write_all(request(false).as_bytes()).expect("sends");
        let server = Served::activated(files.path(), &arguments, &both(), &[]);
        is_answered(waiting);
        server.signal(Signal::TERM);
        server.ended();
        assert!(path.exists(), "it is the manager's to remove");
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn a_passed_socket_of_the_name_metrics_tells_them() {
    let files = folder();
    let (tcp, metrics) = (
        TcpListener::bind("127.0.0.1:0").expect("a port"),
        TcpListener::bind("127.0.0.1:0").expect("a port"),
    );
    let (address, observed_at) = (tcp.local_addr().expect("one"), metrics.local_addr().expect("one"));
    let names = [("LISTEN_FDNAMES", Path::new("web:metrics"))];
    let server = Served::activated(files.path(), &[], &[tcp.into(), metrics.into()], &names);
    assert_eq!(server.ready_value("addr"), address.to_string());
    assert_eq!(server.ready_value("metrics"), observed_at.to_string());
}

#[test]
fn ready_line_has_the_sockets_and_the_distribution() {
    let files = folder();
    let tcp = || TcpListener::bind("127.0.0.1:0").expect("a port").into();
    let server = Served::activated(files.path(), &[], &[tcp(), tcp()], &[]);
    assert_eq!([server.ready_value("sockets"), server.ready_value("distribution")], ["2", "balanced"]);
    let server = Served::activated(files.path(), &["--distribution", "kernel"], &[tcp(), tcp()], &[]);
    assert_eq!([server.ready_value("sockets"), server.ready_value("distribution")], ["2", "kernel"]);
    // One for each worker.
    let server = Served::start(files.path(), &["--addr", "127.0.0.1:0"]);
    assert_eq!(server.ready_value("sockets"), server.ready_value("workers"));
}

/// In the sandbox, too: of two workers with a socket each, the second serves half of what comes to the first's.
#[test]
fn transferred_connections_are_served() {
    let files = folder();
    for driver in drivers() {
        let sockets = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let address = sockets[0].local_addr().expect("one").to_string();
        let server = Served::activated(files.path(), &["--driver", driver], &sockets.map(Into::into), &[]);
        for _ in 0..200 {
            let mut client = connect(&address);
            client.write_all(request(false).as_bytes()).expect("sends");
            is_answered(client);
        }
        server.signal(Signal::TERM);
        server.ended();
    }
}

#[test]
fn what_is_passed_and_cannot_be_served_is_said_with_its_remedy() {
    let files = folder();
    let tcp = || TcpListener::bind("127.0.0.1:0").expect("a port").into();
    let fails = |arguments: &[&str], sockets, complaints: &[&str]| {
        let said = Served::refuses(files.path(), arguments, sockets, "");
        assert!(complaints.iter().all(|complaint| said.contains(complaint)), "{said}");
    };
    fails(&["--addr", "127.0.0.1:0"], [tcp(), tcp()], &["LISTEN_FDS", "--addr", "leave one"]);
    fails(&["--handover", "/tmp/door"], [tcp(), tcp()], &["LISTEN_FDS", "--handover", "leave one"]);
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port").into();
    fails(&[], [tcp(), udp], &["descriptor 4 of LISTEN_FDS", "stream sockets that listen"]);
    let (connected, _other) = UnixStream::pair().expect("a pair");
    fails(&[], [connected.into(), tcp()], &["descriptor 3 of LISTEN_FDS", "does not listen"]);
    let file = File::open(files.path()).expect("a folder").into();
    fails(&[], [tcp(), file], &["descriptor 4 of LISTEN_FDS", "not a socket"]);
}

#[test]
fn sockets_of_the_name_metrics_never_serve_the_site() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let tcp = || TcpListener::bind("127.0.0.1:0").expect("a port").into();
    let unix = UnixListener::bind(places.path().join("metrics")).expect("a path").into();
    for (sockets, names, complaint) in [
        ([tcp(), tcp()], "metrics:metrics", "descriptor 4 of LISTEN_FDS (\"metrics\")"),
        ([tcp(), unix], "web:metrics", "descriptor 4 of LISTEN_FDS (\"metrics\")"),
    ] {
        let said = Served::refuses(files.path(), &[], sockets, names);
        assert!(said.contains(complaint) && said.contains("at one TCP socket"), "{said}");
    }
    let mut echo = Command::new("sh");
    let script = "exec 3<&0 4<&2 </dev/null 2>&1; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$@\"";
    echo.args(["-c", script, "sh", env!("CARGO_BIN_EXE_anello"), "echo"])
        .env("LISTEN_FDNAMES", "echo:metrics");
    let [echoing, metrics]: [OwnedFd; 2] = [tcp(), tcp()];
    let output = echo.stdin(echoing).stderr(metrics).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("leave it out"), "{said}");
}

#[test]
fn fault_38_no_request_fails_while_a_service_manager_starts_it_anew() {
    let files = folder();
    for driver in drivers() {
        let sockets = || [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [site, other] = sockets();
        let address = site.local_addr().expect("an address").to_string();
        let given = || [&site, &other].map(|socket| socket.try_clone().expect("a descriptor").into());
        let arguments = ["--driver", driver, "--drain-min-idle", "60s"];
        let mut server = Served::activated(files.path(), &arguments, &given(), &[]);
        let load = Load::start(&address, 4);
        for _ in 0..3 {
            load.assert_still_serving(50);
            // Who comes meanwhile waits.
            server.end();
            server = Served::activated(files.path(), &arguments, &given(), &[]);
        }
        load.assert_still_serving(50);
        load.end();
        server.end();
    }
}

#[test]
fn a_service_manager_without_a_file_is_told_also_from_within_the_sandbox() {
    let files = folder();
    let notices = served::Notices::without_file(&format!("anello-test-{}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command
        .arg("http")
        .arg(files.path())
        .args(["--addr", "127.0.0.1:0"])
        .env("NOTIFY_SOCKET", notices.path());
    let server = Served::of(command);
    assert_eq!(notices.next(), "READY=1\n");
    server.signal(Signal::HUP);
    assert!(notices.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(notices.next(), "READY=1\n");
    server.signal(Signal::TERM);
    assert_eq!(notices.next(), "STOPPING=1\n");
    server.ended();
}

#[test]
fn a_path_for_handing_over_that_cannot_be_one_is_said_with_its_remedy() {
    let (files, places) = (folder(), tempfile::tempdir().expect("a folder"));
    let error = |door: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
        command.arg("http").arg(files.path()).args(["--addr", "127.0.0.1:0", "--handover"]).arg(door);
        let output = command.output().expect("runs");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let file = places.path().join("file");
    fs::write(&file, "precious").expect("a file");
    assert!(error(&file).contains("is no socket"), "{}", error(&file));
    assert_eq!(fs::read_to_string(&file).expect("it is still there"), "precious");
    let said = error(Path::new("/no/such/folder/door"));
    assert!(said.contains("/no/such/folder/door") && said.contains("may write"), "{said}");
    // Somebody who does not hand over.
    let other = places.path().join("other");
    let listener = UnixListener::bind(&other).expect("listens");
    let busy = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(b"SSH-2.0-something else\r\n").expect("sends");
    });
    let said = error(&other);
    assert!(said.contains("stop that server"), "{said}");
    busy.join().expect("it has ended");
}

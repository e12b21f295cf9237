//! `anello http` inside its sandbox (fault 40). It is on by default, so all of `http.rs` runs inside, too; here is what
//! goes where the sandbox could be in the way, and what it says of itself. What it refuses is tried by
//! `src/sandbox/tests.rs`.

mod served;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use rustix::process::Signal;
use rustls::HandshakeKind;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use served::tls::{identity, tls};
use served::{Served, TIMEOUT, connect, get, until};

/// io_uring where it may be had, and epoll.
const DRIVERS: [&str; 2] = ["auto", "epoll"];

fn start(folder: &Path, arguments: &[&str]) -> Served {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("http").arg(folder).args(arguments).env_remove("ANELLO_DRIVER");
    Served::of(command)
}

/// What the kernel says about each of its threads.
fn threads(server: &Served) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).expect("its threads");
    let status = |task: std::io::Result<fs::DirEntry>| {
        // One that has ended meanwhile has nothing to say.
        fs::read_to_string(task.expect("a thread").path().join("status")).ok()
    };
    tasks.filter_map(status).collect()
}

/// The whole answer to a request that ends its connection.
fn ask(stream: impl Read + Write, path: &str, fields: &str) -> Vec<u8> {
    served::ask(stream, &format!("GET {path}"), fields)
}

/// A folder with something of everything; its large file is the same each time.
fn site() -> tempfile::TempDir {
    let outer = tempfile::tempdir().expect("a folder");
    let site = outer.path().join("site");
    fs::create_dir_all(site.join("folder")).expect("folders");
    fs::write(outer.path().join("secret.txt"), "secret").expect("a file");
    fs::write(site.join("hello.txt"), "Hello, world!").expect("a file");
    fs::write(site.join("large.bin"), large()).expect("a file");
    symlink("hello.txt", site.join("inside.txt")).expect("a link");
    symlink("../secret.txt", site.join("outside.txt")).expect("a link");
    symlink(outer.path(), site.join("above")).expect("a link");
    outer
}

/// More than sockets take at a time.
fn large() -> Vec<u8> {
    (0..9_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Has the kernel forget what it has read of a file, so that a thread has to read it again.
fn forget(path: &Path) {
    let file = File::open(path).expect("a file");
    rustix::fs::fsync(&file).expect("written");
    rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
}

/// Asks for everything there is, and checks each answer.
fn everything_is_served<S: Read + Write>(site: &Path, connect: impl Fn() -> S) {
    let ask = |path: &str, fields: &str| ask(connect(), path, fields);
    let text = |path: &str, fields: &str| String::from_utf8(ask(path, fields)).expect("text");
    for path in ["/hello.txt", "/inside.txt"] {
        let answer = text(path, "");
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nHello, world!"), "{answer}");
    }
    for path in ["/outside.txt", "/above/secret.txt", "/above/", "/nothing", "/..%2fsecret.txt"] {
        let answer = text(path, "");
        assert!(answer.starts_with("HTTP/1.1 404 ") && !answer.contains("secret"), "{path}: {answer}");
    }
    let listing = text("/", "Accept: application/json\r\n");
    assert!(listing.contains("\"inside.txt\"") && !listing.contains("outside.txt"), "{listing}");
    assert!(text("/", "").contains("large.bin"));
    assert!(text("/folder", "").starts_with("HTTP/1.1 301 "));
    let ranges = ask("/large.bin", "Range: bytes=0-1,5000000-5000001\r\n");
    let ranges = String::from_utf8_lossy(&ranges);
    assert!(ranges.starts_with("HTTP/1.1 206 ") && ranges.contains("multipart/byteranges"), "{ranges}");
    let large = large();
    for _ in 0..2 {
        assert!(ask("/large.bin", "").ends_with(&large), "the large file is another");
        forget(&site.join("large.bin"));
    }
}

/// What the ready line has to tell, found out without the sandbox; says what this kernel does not have.
fn expected() -> String {
    let has = |abi| {
        let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let mut has = (&mut ruleset).handle_access(AccessFs::from_all(abi)).is_ok();
        if abi >= ABI::V4 {
            has &= (&mut ruleset).handle_access(AccessNet::from_all(abi)).is_ok();
        }
        if abi >= ABI::V6 {
            has &= (&mut ruleset).scope(Scope::from_all(abi)).is_ok();
        }
        has
    };
    let newest = [ABI::V6, ABI::V5, ABI::V4, ABI::V3, ABI::V2, ABI::V1].into_iter().find(|abi| has(*abi));
    let landlock = newest.map_or(String::new(), |abi| format!(",landlock-abi-{}", abi as i32));
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let has_list = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
    let seccomp = if has_list && actions.contains("kill_process") { ",seccomp" } else { "" };
    let expected = format!("no_new_privs{landlock}{seccomp}");
    if expected != ALL {
        eprintln!("skipped in part: this machine only has {expected}");
    }
    expected
}

/// All that is asked for.
const ALL: &str = "no_new_privs,landlock-abi-6,seccomp";

#[test]
fn fault_40_everything_is_served_inside_on_both_drivers() {
    let outer = site();
    let site = outer.path().join("site");
    let ways: [&[&str]; 3] = [&[], &["--cores", "0,0"], &["--max-cache-bytes", "0"]];
    for driver in DRIVERS {
        for way in ways {
            let server =
                start(&site, &[&["--addr", "127.0.0.1:0", "--driver", driver, "--listing"], way].concat());
            let address = server.ready_value("addr").to_owned();
            everything_is_served(&site, || connect(&address));
            // One that goes away in the middle of an answer, and one that has said nothing.
            let mut leaving = connect(&address);
            write!(leaving, "GET /large.bin HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
            leaving.shutdown(Shutdown::Both).expect("it leaves");
            let _idle = connect(&address);
            // Waits with a deadline are taken up again.
            server.signal(Signal::STOP);
            server.signal(Signal::CONT);
            assert!(get(&address, "/hello.txt").ends_with("Hello, world!"));
            server.end();
        }
        let server = start(&site, &["--addr", "127.0.0.1:0", "--driver", driver, "--no-symlinks"]);
        assert!(get(server.ready_value("addr"), "/inside.txt").starts_with("HTTP/1.1 404 "));
        server.end();
    }
}

#[test]
fn fault_40_every_way_of_using_io_uring_works_inside() {
    let outer = site();
    let site = outer.path().join("site");
    for way in
        [&["--registered-files"][..], &["--sqpoll", "20"], &["--completion-per-send", "--one-shot-receive"]]
    {
        let server = start(&site, &[&["--addr", "127.0.0.1:0", "--listing"], way].concat());
        if server.ready_value("driver") != "uring" {
            return eprintln!("skipped: no io_uring here: {}", server.ready);
        }
        let address = server.ready_value("addr").to_owned();
        everything_is_served(&site, || connect(&address));
        server.end();
    }
}

#[test]
fn fault_40_a_unix_socket_is_served_and_removed_inside() {
    let outer = site();
    let site = outer.path().join("site");
    let socket = outer.path().join("socket");
    for driver in DRIVERS {
        let address = format!("unix:{}", socket.display());
        let server = start(&site, &["--addr", &address, "--driver", driver, "--listing"]);
        everything_is_served(&site, || {
            let stream = UnixStream::connect(&socket).expect("connects");
            stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
            stream
        });
        server.end();
        assert!(!socket.exists());
    }
}

#[test]
fn fault_40_clients_are_refused_inside_when_no_descriptors_are_left() {
    let outer = site();
    for driver in DRIVERS {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 48; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_anello"), "http"]);
        command.arg(outer.path().join("site")).args(["--addr", "127.0.0.1:0", "--driver", driver]);
        command.env_remove("ANELLO_DRIVER");
        let server = Served::of(command);
        let address = server.ready_value("addr").to_owned();
        let mut many: Vec<_> = (0..100).map(|_| connect(&address)).collect();
        // The last one is refused, though the first ones have not been answered.
        // By the driver, which has no descriptor for it, or by the server, whose limit of connections follows from theirs.
        let mut answer = Vec::new();
        match many.pop().expect("one").read_to_end(&mut answer) {
            Ok(0) => {}
            Ok(_) if answer.starts_with(b"HTTP/1.1 503 ") => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("{other:?}"),
        }
        drop(many);
        until(|| {
            let mut stream = connect(&address);
            let request = "GET /hello.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            let mut answer = String::new();
            stream.write_all(request.as_bytes()).is_ok()
                && stream.read_to_string(&mut answer).is_ok()
                && answer.ends_with("Hello, world!")
        });
        server.end();
    }
}

#[test]
fn fault_40_every_thread_is_inside() {
    let outer = site();
    let log = outer.path().join("access.log");
    let log = log.to_str().expect("text");
    let expected = expected();
    let wish = if expected == ALL { "on" } else { "auto" };
    for driver in DRIVERS {
        let observed = ["--access-log", log, "--metrics-addr", "127.0.0.1:0", "--listing", "--cores", "0,0"];
        let common = ["--addr", "127.0.0.1:0", "--driver", driver, "--sandbox", wish];
        let server = start(&outer.path().join("site"), &[&common[..], &observed].concat());
        // A listing takes a thread for work that blocks.
        assert!(get(server.ready_value("addr"), "/").contains("hello.txt"));
        assert!(get(server.ready_value("metrics"), "/metrics").contains("process_resident_memory_bytes"));
        assert_eq!(server.ready_value("sandbox"), expected);
        let threads = threads(&server);
        assert!(threads.len() >= 6, "main, two workers, log, metrics, work that blocks: {threads:?}");
        for (part, says) in [("no_new_privs", "\nNoNewPrivs:\t1\n"), ("seccomp", "\nSeccomp:\t2\n")] {
            let all_say = threads.iter().all(|status| status.contains(says));
            assert!(all_say || !expected.contains(part), "{part}: {threads:?}");
        }
        server.end();
    }
}

#[test]
fn fault_40_certificates_and_logs_are_replaced_inside() {
    for driver in DRIVERS {
        let outer = site();
        let at = |name: &str| outer.path().join(name);
        let site = at("site");
        for folder in ["live", "archive", "logs"] {
            fs::create_dir(at(folder)).expect("a folder");
        }
        // As tools for certificates do: links to the newest ones.
        let first = identity(&at("archive/cert-1.pem"), &at("archive/key-1.pem"));
        let point_to = |number: u32| {
            for kind in ["cert", "key"] {
                let (link, new) = (at(&format!("live/{kind}.pem")), at(&format!("live/{kind}.new")));
                symlink(format!("../archive/{kind}-{number}.pem"), &new).expect("a link");
                fs::rename(new, link).expect("replaced");
            }
        };
        point_to(1);
        let [cert, key, log, rotated] =
            ["live/cert.pem", "live/key.pem", "logs/access.log", "logs/access.log.1"].map(at);
        let text = |path: &Path| path.to_str().expect("text").to_owned();
        let [cert, key, log_file] = [&cert, &key, &log].map(|path| text(path));
        let common = ["--addr", "127.0.0.1:0", "--driver", driver, "--listing"];
        let files = ["--tls-cert", &cert, "--tls-key", &key, "--access-log", &log_file];
        let server = start(&site, &[&common[..], &files].concat());
        let address = server.ready_value("addr").to_owned();
        everything_is_served(&site, || tls(&first, &address));
        let second = identity(&at("archive/cert-2.pem"), &at("archive/key-2.pem"));
        point_to(2);
        let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        until(|| lines(&log).contains("/large.bin"));
        fs::rename(&log, &rotated).expect("renamed");
        server.signal(Signal::HUP);
        until(|| log.exists());
        until(|| {
            let mut stream = tls(&second, &address);
            stream.conn.complete_io(&mut stream.sock).is_ok()
        });
        everything_is_served(&site, || tls(&second, &address));
        until(|| lines(&log).contains("/large.bin"));
        server.end();
    }
}

#[test]
fn sessions_are_resumed_whichever_worker_they_come_to() {
    let outer = site();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| outer.path().join(name));
    let client = identity(&cert, &key);
    let [cert, key] = [&cert, &key].map(|path| path.to_str().expect("text"));
    let arguments = ["--addr", "127.0.0.1:0", "--cores", "0,0,0,0", "--tls-cert", cert, "--tls-key", key];
    let server = start(&outer.path().join("site"), &arguments);
    let handshake = || {
        let mut stream = tls(&client, server.ready_value("addr"));
        ask(&mut stream, "/hello.txt", "");
        stream.conn.handshake_kind()
    };
    assert_eq!(handshake(), Some(HandshakeKind::Full));
    for _ in 0..12 {
        assert_eq!(handshake(), Some(HandshakeKind::Resumed));
    }
    server.end();
}

#[test]
fn fault_40_a_log_that_is_a_pipe_or_a_device_is_written_inside() {
    let outer = site();
    let site = outer.path().join("site");
    for (log, line) in [("/dev/stdout", "\"GET /hello.txt HTTP/1.1\" 200 13"), ("/dev/null", "")] {
        let mut server = start(&site, &["--addr", "127.0.0.1:0", "--access-log", log]);
        assert_eq!(server.ready_value("sandbox"), expected());
        get(server.ready_value("addr"), "/hello.txt");
        let mut output = server.output();
        server.end();
        let mut lines = String::new();
        output.read_to_string(&mut lines).expect("text");
        assert!(lines.contains(line), "{lines:?}");
    }
}

#[test]
fn fault_40_without_a_wish_for_it_there_is_no_sandbox() {
    let outer = site();
    let server = start(&outer.path().join("site"), &["--addr", "127.0.0.1:0", "--sandbox", "off"]);
    assert_eq!(server.ready_value("sandbox"), "off");
    let own = fs::read_to_string("/proc/self/status").expect("a status");
    let line = |status: &str| status.lines().find(|line| line.starts_with("Seccomp:")).map(str::to_owned);
    assert!(threads(&server).iter().all(|status| line(status) == line(&own)));
    server.end();
}

/// What the child of the next test is to run the server with, on a kernel that refuses this call.
const CALL: &str = "ANELLO_TEST_REFUSED_CALL";
const FOLDER: &str = "ANELLO_TEST_FOLDER";
const WISH: &str = "ANELLO_TEST_WISH";
const CHECK: &str = "ANELLO_TEST_CHECK";

/// Not a test by itself: refuses a call to itself, and becomes the server.
#[test]
fn a_kernel_without_a_call() {
    let Ok(call) = std::env::var(CALL) else { return };
    let [folder, wish] = [FOLDER, WISH].map(|name| std::env::var(name).expect("it is told"));
    let refused = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let rules = [(call.parse().expect("a number"), Vec::new())].into();
    let machine = std::env::consts::ARCH.try_into().expect("seccomp knows this machine");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, machine).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a program");
    apply_filter(&program).expect("it is taken");
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    let arguments = ["http", &folder, "--addr", "127.0.0.1:0", "--sandbox", &wish];
    command.args(arguments).args(std::env::var_os(CHECK));
    panic!("it does not start: {}", command.exec());
}

/// This program as [`a_kernel_without_a_call`].
fn without(call: i64, folder: &Path, wish: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "a_kernel_without_a_call", "--nocapture"]).env(CALL, call.to_string());
    command.env(FOLDER, folder).env(WISH, wish).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

#[test]
fn fault_40_what_is_missing_is_said_or_an_error() {
    if expected() != ALL {
        return;
    }
    for (call, named, left) in [
        (libc::SYS_landlock_create_ruleset, "Landlock", "no_new_privs,seccomp"),
        (libc::SYS_seccomp, "seccomp", "no_new_privs,landlock-abi-6"),
    ] {
        let outer = site();
        let Output { status, stderr, .. } = without(call, outer.path(), "on").output().expect("it runs");
        let error = String::from_utf8_lossy(&stderr).into_owned();
        assert_eq!(status.code(), Some(1), "{error}");
        assert!(error.contains("--sandbox on: ") && error.contains(named), "{error}");
        // A check finds out what the kernel says to a thread that ends then.
        let checked = without(call, outer.path(), "on").env(CHECK, "--check").output().expect("it runs");
        let error = String::from_utf8_lossy(&checked.stderr).into_owned();
        let is_told = error.contains("anello: --sandbox: ") && error.contains(named);
        assert!(is_told || call == libc::SYS_seccomp, "{error}");

        let mut child = without(call, outer.path(), "auto").spawn().expect("it starts");
        let ready = BufReader::new(child.stdout.take().expect("its output"))
            .lines()
            .map(|line| line.expect("text"))
            .find(|line| line.starts_with("anello http ready "));
        child.kill().expect("it is there");
        let mut told = String::new();
        child.stderr.take().expect("its errors").read_to_string(&mut told).expect("text");
        child.wait().expect("it is ours");
        let ready = ready.unwrap_or_else(|| panic!("{told}"));
        assert!(ready.ends_with(&format!(" sandbox={left}")), "{ready}");
        assert!(told.contains("the sandbox is not whole: ") && told.contains(named), "{told}");
    }
}

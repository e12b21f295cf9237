//! Tests for `anello http` inside its sandbox (fault 40 in `docs/internals/faults.md`). The sandbox is on by default,
//! so the tests in `http.rs` run inside it as well. The tests in this file cover what the sandbox could break and what
//! it reports. `src/http/sandbox/tests.rs` tests what the sandbox denies.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anello_test::{driver_flags, hang_timeout, on_each_driver_flag, wait_until};
use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use rustix::process::Signal;
use rustls::HandshakeKind;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::served;
use crate::served::http2::TranslatingStream;
use crate::served::tls::{connect_tls, create_identity};
use crate::served::{Served, connect, get};

fn start(document_root: &Path, arguments: &[&str]) -> Served {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    command.arg("http").arg(document_root).args(arguments).env_remove("ANELLO_DRIVER");
    Served::spawn(command)
}

/// Returns the kernel's status of each thread.
fn threads(server: &Served) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).expect("read task directory");
    let status = |task: std::io::Result<fs::DirEntry>| {
        // A thread that has exited in the meantime has no status.
        fs::read_to_string(task.expect("task entry").path().join("status")).ok()
    };
    tasks.filter_map(status).collect()
}

/// Sends a GET request with `Connection: close` and returns the whole response.
fn send_request(stream: impl Read + Write, path: &str, fields: &str) -> Vec<u8> {
    served::send_request(stream, &format!("GET {path}"), fields)
}

/// Creates a site with every kind of file. The content of its large file is deterministic.
fn site() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("temporary directory");
    let site = directory.path().join("site");
    fs::create_dir_all(site.join("subdirectory")).expect("create directories");
    fs::write(directory.path().join("secret.txt"), "secret").expect("write file");
    fs::write(site.join("hello.txt"), "Hello, world!").expect("write file");
    fs::write(site.join("large.bin"), large()).expect("write file");
    symlink("hello.txt", site.join("inside.txt")).expect("create symlink");
    symlink("../secret.txt", site.join("outside.txt")).expect("create symlink");
    symlink(directory.path(), site.join("above")).expect("create symlink");
    directory
}

/// Returns content that exceeds the socket buffers.
fn large() -> Vec<u8> {
    (0..9_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Evicts a file from the page cache, so that a thread has to read it again.
fn evict_from_page_cache(path: &Path) {
    let file = File::open(path).expect("open file");
    rustix::fs::fsync(&file).expect("write file");
    rustix::fs::fadvise(file.as_fd(), 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
}

/// Requests every kind of file and checks the responses.
fn assert_site_is_served<S: Read + Write>(site: &Path, connect: impl Fn() -> S) {
    let send_request = |path: &str, fields: &str| send_request(connect(), path, fields);
    let text = |path: &str, fields: &str| String::from_utf8(send_request(path, fields)).expect("UTF-8");
    for path in ["/hello.txt", "/inside.txt"] {
        let response = text(path, "");
        assert!(
            response.starts_with("HTTP/1.1 200 ") && response.ends_with("\r\n\r\nHello, world!"),
            "{response}"
        );
    }
    for path in ["/outside.txt", "/above/secret.txt", "/above/", "/nothing", "/..%2fsecret.txt"] {
        let response = text(path, "");
        assert!(response.starts_with("HTTP/1.1 404 ") && !response.contains("secret"), "{path}: {response}");
    }
    let listing = text("/", "Accept: application/json\r\n");
    assert!(listing.contains("\"inside.txt\"") && !listing.contains("outside.txt"), "{listing}");
    assert!(text("/", "").contains("large.bin"));
    assert!(text("/subdirectory", "").starts_with("HTTP/1.1 301 "));
    let ranges = send_request("/large.bin", "Range: bytes=0-1,5000000-5000001\r\n");
    let ranges = String::from_utf8_lossy(&ranges);
    assert!(ranges.starts_with("HTTP/1.1 206 ") && ranges.contains("multipart/byteranges"), "{ranges}");
    let large = large();
    for _ in 0..2 {
        assert!(send_request("/large.bin", "").ends_with(&large), "content of large.bin");
        evict_from_page_cache(&site.join("large.bin"));
    }
}

/// Returns the sandbox field that the ready line must contain, determined independently of the server. Prints the
/// supported parts if this kernel does not support all of them.
fn expected() -> String {
    let supports = |abi| {
        let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let mut supports = (&mut ruleset).handle_access(AccessFs::from_all(abi)).is_ok();
        if abi >= ABI::V4 {
            supports &= (&mut ruleset).handle_access(AccessNet::from_all(abi)).is_ok();
        }
        if abi >= ABI::V6 {
            supports &= (&mut ruleset).scope(Scope::from_all(abi)).is_ok();
        }
        supports
    };
    let latest =
        [ABI::V6, ABI::V5, ABI::V4, ABI::V3, ABI::V2, ABI::V1].into_iter().find(|abi| supports(*abi));
    let landlock = latest.map_or(String::new(), |abi| format!(",landlock-abi-{}", abi as i32));
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let has_list = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
    let seccomp = if has_list && actions.contains("kill_process") { ",seccomp" } else { "" };
    let expected = format!("no_new_privs{landlock}{seccomp}");
    if expected != ALL {
        eprintln!("partly skipped: this machine supports only {expected}");
    }
    expected
}

/// The complete sandbox.
const ALL: &str = "no_new_privs,landlock-abi-6,seccomp";

#[test]
fn fault_40_both_drivers_serve_files_inside_sandbox() {
    let directory = site();
    let site = directory.path().join("site");
    let flag_sets: [&[&str]; 3] = [&[], &["--cores", "0,0"], &["--max-cache-bytes", "0"]];
    on_each_driver_flag(|driver| {
        for flags in flag_sets {
            let common = ["--addr", "127.0.0.1:0", "--driver", driver, "--listing", "--http2", "cleartext"];
            let server = start(&site, &[&common, flags].concat());
            let address = server.ready_value("addr").to_owned();
            assert_site_is_served(&site, || connect(&address));
            if flags.is_empty() {
                assert_site_is_served(&site, || TranslatingStream::connect(&address));
            }
            // A client that disconnects during a response, and one that sends no request.
            let mut disconnecting = connect(&address);
            write!(disconnecting, "GET /large.bin HTTP/1.1\r\nHost: h\r\n\r\n").expect("send request");
            disconnecting.shutdown(Shutdown::Both).expect("shut down");
            let _idle = connect(&address);
            // Interrupted waits with a timeout are restarted with restart_syscall(2).
            server.signal(Signal::STOP);
            server.signal(Signal::CONT);
            assert!(get(&address, "/hello.txt").ends_with("Hello, world!"));
            server.stop();
        }
        let server = start(&site, &["--addr", "127.0.0.1:0", "--driver", driver, "--no-symlinks"]);
        assert!(get(server.ready_value("addr"), "/inside.txt").starts_with("HTTP/1.1 404 "));
        server.stop();
    });
}

#[test]
fn receive_ring_shrinks_inside_sandbox() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("kernel release");
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let is_reported = (numbers.next(), numbers.next()) >= (Some(6), Some(8));
    if !is_reported || !driver_flags().any(|driver| driver == "uring") {
        return eprintln!("skipped: no io_uring, or Linux before 6.8");
    }
    let site = served::document_root();
    let addresses = ["--addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"];
    let server = start(site.path(), &[&addresses[..], &["--driver", "uring"]].concat());
    let metrics = server.ready_value("metrics").to_owned();
    // Returns the values of all workers.
    let values = |name: &str| -> Vec<u64> {
        let text = get(&metrics, "/metrics");
        let samples = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
        samples.filter_map(|sample| sample.rsplit(' ').next()?.parse().ok()).collect()
    };
    let mut clients: Vec<_> = (0..500).map(|_| connect(server.ready_value("addr"))).collect();
    // All requests are received at the same time.
    server.signal(Signal::STOP);
    clients.iter_mut().for_each(|client| {
        client.write_all(served::request(true).as_bytes()).expect("send request");
    });
    server.signal(Signal::CONT);
    for client in &mut clients {
        let mut response = [0; 15];
        client.read_exact(&mut response).expect("read response");
        assert_eq!(&response, b"HTTP/1.1 200 OK");
    }
    // The workers publish these metrics while they have connections.
    wait_until(|| values("anello_driver_buffer_exhaustions_total").iter().any(|count| *count > 0));
    wait_until(|| values("anello_driver_ring_buffers").iter().all(|buffers| *buffers == 64));
    drop(clients);
    server.stop();
}

#[test]
fn fault_40_io_uring_options_work_inside_sandbox() {
    let directory = site();
    let site = directory.path().join("site");
    for flags in [&["--sqpoll", "20"][..], &["--without", "cqe-skip", "--without", "multishot-recv"]] {
        let server = start(&site, &[&["--addr", "127.0.0.1:0", "--listing"], flags].concat());
        if server.ready_value("driver") != "uring" {
            return eprintln!("skipped: io_uring unavailable: {}", server.ready);
        }
        let address = server.ready_value("addr").to_owned();
        assert_site_is_served(&site, || connect(&address));
        server.stop();
    }
}

#[test]
fn fault_40_unix_socket_is_served_and_removed_inside_sandbox() {
    let directory = site();
    let site = directory.path().join("site");
    let socket = directory.path().join("socket");
    driver_flags().for_each(|driver| {
        let address = format!("unix:{}", socket.display());
        let server = start(&site, &["--addr", &address, "--driver", driver, "--listing"]);
        assert_site_is_served(&site, || {
            let stream = UnixStream::connect(&socket).expect("connect");
            stream.set_read_timeout(Some(hang_timeout())).expect("set timeout");
            stream
        });
        server.stop();
        assert!(!socket.exists());
    });
}

#[test]
fn fault_40_clients_are_rejected_inside_sandbox_when_descriptors_are_exhausted() {
    let directory = site();
    on_each_driver_flag(|driver| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 48; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_anello"), "http"]);
        command.arg(directory.path().join("site")).args(["--addr", "127.0.0.1:0", "--driver", driver]);
        command.env_remove("ANELLO_DRIVER");
        let server = Served::spawn(command);
        let address = server.ready_value("addr").to_owned();
        let mut many: Vec<_> = (0..100).map(|_| connect(&address)).collect();
        // The last client is rejected although the first clients have not sent a request. Either the driver rejects it
        // for lack of a descriptor, or it receives 503 because of the connection limit derived from the open-file
        // limit.
        let mut response = Vec::new();
        match many.pop().expect("local address").read_to_end(&mut response) {
            Ok(0) => {}
            Ok(_) if response.starts_with(b"HTTP/1.1 503 ") => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("{other:?}"),
        }
        drop(many);
        wait_until(|| {
            let mut stream = connect(&address);
            let request = "GET /hello.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            let mut response = String::new();
            stream.write_all(request.as_bytes()).is_ok()
                && stream.read_to_string(&mut response).is_ok()
                && response.ends_with("Hello, world!")
        });
        server.stop();
    });
}

#[test]
fn fault_40_sandbox_applies_to_every_thread() {
    let directory = site();
    let log = directory.path().join("access.log");
    let log = log.to_str().expect("UTF-8");
    let expected = expected();
    let mode = if expected == ALL { "on" } else { "auto" };
    on_each_driver_flag(|driver| {
        let observability =
            ["--access-log", log, "--metrics-addr", "127.0.0.1:0", "--listing", "--cores", "0,0"];
        let common = ["--addr", "127.0.0.1:0", "--driver", driver, "--sandbox", mode];
        let server = start(&directory.path().join("site"), &[&common[..], &observability].concat());
        // A directory listing uses the blocking pool.
        assert!(get(server.ready_value("addr"), "/").contains("hello.txt"));
        let metrics = get(server.ready_value("metrics"), "/metrics");
        for name in ["process_resident_memory_bytes", "process_start_time_seconds"] {
            assert!(metrics.contains(&format!("\n{name} ")), "{name}");
        }
        assert_eq!(server.ready_value("sandbox"), expected);
        let threads = threads(&server);
        assert!(threads.len() >= 6, "main, two workers, log, metrics, blocking pool: {threads:?}");
        for (part, field) in [("no_new_privs", "\nNoNewPrivs:\t1\n"), ("seccomp", "\nSeccomp:\t2\n")] {
            let applies_to_all = threads.iter().all(|status| status.contains(field));
            assert!(applies_to_all || !expected.contains(part), "{part}: {threads:?}");
        }
        server.stop();
    });
}

#[test]
fn fault_40_certificates_and_logs_are_replaced_inside_sandbox() {
    on_each_driver_flag(|driver| {
        let directory = site();
        let at = |name: &str| directory.path().join(name);
        let site = at("site");
        for name in ["live", "archive", "logs"] {
            fs::create_dir(at(name)).expect("create directory");
        }
        // Certificate tools replace the symbolic links with links to the newest files.
        let first = create_identity(&at("archive/cert-1.pem"), &at("archive/key-1.pem"));
        let link_to = |number: u32| {
            for kind in ["cert", "key"] {
                let (link, new) = (at(&format!("live/{kind}.pem")), at(&format!("live/{kind}.new")));
                symlink(format!("../archive/{kind}-{number}.pem"), &new).expect("create symlink");
                fs::rename(new, link).expect("rename");
            }
        };
        link_to(1);
        let [cert, key, log, rotated] =
            ["live/cert.pem", "live/key.pem", "logs/access.log", "logs/access.log.1"].map(at);
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let [cert, key, log_file] = [&cert, &key, &log].map(|path| text(path));
        let common = ["--addr", "127.0.0.1:0", "--driver", driver, "--listing"];
        let files = ["--tls-cert", &cert, "--tls-key", &key, "--access-log", &log_file];
        let server = start(&site, &[&common[..], &files].concat());
        let address = server.ready_value("addr").to_owned();
        assert_site_is_served(&site, || connect_tls(&first, &address));
        let second = create_identity(&at("archive/cert-2.pem"), &at("archive/key-2.pem"));
        link_to(2);
        let lines = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        wait_until(|| lines(&log).contains("/large.bin"));
        fs::rename(&log, &rotated).expect("rename");
        server.signal(Signal::HUP);
        wait_until(|| log.exists());
        wait_until(|| {
            let mut stream = connect_tls(&second, &address);
            stream.conn.complete_io(&mut stream.sock).is_ok()
        });
        assert_site_is_served(&site, || connect_tls(&second, &address));
        wait_until(|| lines(&log).contains("/large.bin"));
        server.stop();
    });
}

#[test]
fn tls_sessions_are_resumed_on_any_worker() {
    let directory = site();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
    let client = create_identity(&cert, &key);
    let [cert, key] = [&cert, &key].map(|path| path.to_str().expect("UTF-8"));
    let arguments = ["--addr", "127.0.0.1:0", "--cores", "0,0,0,0", "--tls-cert", cert, "--tls-key", key];
    let server = start(&directory.path().join("site"), &arguments);
    let handshake = || {
        let mut stream = connect_tls(&client, server.ready_value("addr"));
        send_request(&mut stream, "/hello.txt", "");
        stream.conn.handshake_kind()
    };
    assert_eq!(handshake(), Some(HandshakeKind::Full));
    for _ in 0..12 {
        assert_eq!(handshake(), Some(HandshakeKind::Resumed));
    }
    server.stop();
}

#[test]
fn fault_40_log_to_pipe_or_device_is_written_inside_sandbox() {
    let directory = site();
    let site = directory.path().join("site");
    for (log, line) in [("/dev/stdout", "\"GET /hello.txt HTTP/1.1\" 200 13"), ("/dev/null", "")] {
        let mut server = start(&site, &["--addr", "127.0.0.1:0", "--access-log", log]);
        assert_eq!(server.ready_value("sandbox"), expected());
        get(server.ready_value("addr"), "/hello.txt");
        let mut output = server.output();
        server.stop();
        let mut lines = String::new();
        output.read_to_string(&mut lines).expect("UTF-8");
        assert!(lines.contains(line), "{lines:?}");
    }
}

#[test]
fn fault_40_sandbox_off_applies_no_restrictions() {
    let directory = site();
    let server = start(&directory.path().join("site"), &["--addr", "127.0.0.1:0", "--sandbox", "off"]);
    assert_eq!(server.ready_value("sandbox"), "off");
    let own = fs::read_to_string("/proc/self/status").expect("read status");
    let line = |status: &str| status.lines().find(|line| line.starts_with("Seccomp:")).map(str::to_owned);
    assert!(threads(&server).iter().all(|status| line(status) == line(&own)));
    server.stop();
}

/// Environment variables for the child process in the next test: the system call to deny, and the server arguments.
const CALL: &str = "ANELLO_TEST_DENIED_CALL";
const DIRECTORY: &str = "ANELLO_TEST_DIRECTORY";
const MODE: &str = "ANELLO_TEST_MODE";
const CHECK: &str = "ANELLO_TEST_CHECK";

/// Child process of the next test: installs a filter that denies a system call, then executes the server. Does nothing
/// if the environment names no system call, so that it passes when it is run as an ordinary test.
#[test]
fn kernel_without_call() {
    let Ok(call) = std::env::var(CALL) else { return };
    let [document_root, mode] = [DIRECTORY, MODE].map(|name| std::env::var(name).expect("child environment"));
    let unavailable = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let rules = [(call.parse().expect("call number"), Vec::new())].into();
    let architecture = std::env::consts::ARCH.try_into().expect("supported architecture");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, unavailable, architecture).expect("filter");
    let program: BpfProgram = filter.try_into().expect("BPF program");
    apply_filter(&program).expect("apply filter");
    let mut command = Command::new(env!("CARGO_BIN_EXE_anello"));
    let arguments = ["http", &document_root, "--addr", "127.0.0.1:0", "--sandbox", &mode];
    command.args(arguments).args(std::env::var_os(CHECK));
    panic!("cannot execute the server: {}", command.exec());
}

/// Returns a command that executes [`kernel_without_call`].
fn command_without_call(call: i64, document_root: &Path, mode: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("test binary"));
    command.args(["--exact", "sandbox::kernel_without_call", "--nocapture"]).env(CALL, call.to_string());
    command.env(DIRECTORY, document_root).env(MODE, mode).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

#[test]
fn fault_40_missing_part_is_reported_or_error() {
    if expected() != ALL {
        return;
    }
    for (call, part, remaining) in [
        (libc::SYS_landlock_create_ruleset, "Landlock", "no_new_privs,seccomp"),
        (libc::SYS_seccomp, "seccomp", "no_new_privs,landlock-abi-6"),
    ] {
        let directory = site();
        let Output { status, stderr, .. } =
            command_without_call(call, directory.path(), "on").output().expect("run anello");
        let error = String::from_utf8_lossy(&stderr).into_owned();
        assert_eq!(status.code(), Some(1), "{error}");
        assert!(error.contains("--sandbox on: ") && error.contains(part), "{error}");
        // The check probes the sandbox in a temporary thread.
        let check = command_without_call(call, directory.path(), "on")
            .env(CHECK, "--check")
            .output()
            .expect("run anello");
        let error = String::from_utf8_lossy(&check.stderr).into_owned();
        let is_reported = error.contains("anello: --sandbox: ") && error.contains(part);
        assert!(is_reported || call == libc::SYS_seccomp, "{error}");

        let mut child = command_without_call(call, directory.path(), "auto").spawn().expect("start server");
        let ready = BufReader::new(child.stdout.take().expect("piped stdout"))
            .lines()
            .map(|line| line.expect("UTF-8"))
            .find(|line| line.starts_with("anello http uses "));
        child.kill().expect("process is running");
        let mut stderr_text = String::new();
        child.stderr.take().expect("piped stderr").read_to_string(&mut stderr_text).expect("UTF-8");
        child.wait().expect("wait for child");
        let ready = ready.unwrap_or_else(|| panic!("{stderr_text}"));
        assert!(ready.contains(&format!(" sandbox={remaining} ")), "{ready}");
        assert!(stderr_text.contains("sandbox incomplete: ") && stderr_text.contains(part), "{stderr_text}");
    }
}

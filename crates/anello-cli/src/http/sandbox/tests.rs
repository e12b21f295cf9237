//! Sandbox tests. Each action runs in a child process, which executes this test binary again.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, kill_process, setrlimit};

use super::{AllowedPaths, Sandbox, SandboxMode};

/// Environment variables for the child: the name of its action, and its directory.
const ACTION: &str = "ANELLO_TEST_SANDBOX_ACTION";
const DIRECTORY: &str = "ANELLO_TEST_SANDBOX_DIRECTORY";

/// Name and body of an action inside the sandbox. A child that is not killed and in which no assertion fails exits with
/// 0.
type Action = (&'static str, fn(&Inside));

/// The test directory, with the document root `served` and the log directory `logs`.
struct Inside {
    directory: PathBuf,
    sandbox: Sandbox,
}

impl Inside {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

fn child(action: &str, directory: &Path) -> Output {
    let mut command = Command::new(env::current_exe().expect("test binary"));
    command.args(["--exact", "http::sandbox::tests::inside", "--nocapture"]);
    command
        .env(ACTION, action)
        .env(DIRECTORY, directory)
        .env("RUST_BACKTRACE", "full")
        .output()
        .expect("child")
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("temporary directory");
    for name in ["served", "logs", "elsewhere"] {
        fs::create_dir(directory.path().join(name)).expect("subdirectory");
    }
    let at = |name: &str| directory.path().join(name);
    fs::write(at("served/file"), "served").expect("write file");
    fs::write(at("elsewhere/secret"), "secret").expect("write file");
    std::os::unix::fs::symlink("../elsewhere/secret", at("served/link")).expect("create link");
    directory
}

/// Returns whether a part of the sandbox is available on this machine. Prints a message if it is not.
fn has(part: &str) -> bool {
    let directory = directory();
    let output = child("report", directory.path());
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let in_force = stdout.split("in force: ").nth(1).unwrap_or_else(|| panic!("{output:?}"));
    let is_active = in_force.contains(part);
    if !is_active {
        eprintln!("skipped: no {part} on this machine: {}", String::from_utf8_lossy(&output.stderr));
    }
    is_active
}

/// Entry point of the child processes. Passes as a test if the environment names no action.
#[test]
fn inside() {
    let (Ok(action), Some(directory)) = (env::var(ACTION), env::var_os(DIRECTORY)) else { return };
    let directory = PathBuf::from(directory);
    let (_, run_action) = [UNSEALED, FORBIDDEN, ALLOWED]
        .into_iter()
        .flatten()
        .find(|(name, _)| *name == action)
        .unwrap_or_else(|| panic!("unknown action {action:?}"));
    let allowed_paths = AllowedPaths {
        served: directory.join("served"),
        appended: vec![directory.join("logs/access.log")],
        ..AllowedPaths::default()
    };
    let sandbox = Sandbox::enter(SandboxMode::Auto, &allowed_paths).expect("auto mode does not fail");
    let inside = Inside { directory, sandbox };
    if !UNSEALED.iter().any(|(name, _)| *name == action) {
        inside.sandbox.seal().expect("auto mode does not fail");
    }
    run_action(&inside);
    std::process::exit(0);
}

/// Actions that Landlock denies, run without the seccomp filter.
const UNSEALED: &[Action] = &[
    ("connect", |_| assert_denied(TcpStream::connect("127.0.0.1:9"))),
    ("connect by io_uring", |_| match anello::Runtime::builder().driver(anello::DriverKind::Uring).build() {
        Ok(runtime) => assert_denied(runtime.block_on(anello::net::TcpStream::connect("127.0.0.1:9"))),
        Err(error) => eprintln!("skipped: {error}"),
    }),
    ("listen", |_| assert_denied(TcpListener::bind("127.0.0.1:0"))),
    ("an abstract socket", |inside| {
        let name = inside.directory.to_str().expect("UTF-8 path");
        let address = SocketAddr::from_abstract_name(name).expect("abstract address");
        assert_denied(UnixStream::connect_addr(&address));
    }),
    ("a signal to another", |_| {
        assert_denied(kill_process(getppid().expect("parent process"), Signal::CONT).map_err(Into::into));
    }),
    ("another program", |_| assert_denied(Command::new("/bin/true").status())),
];

/// Actions that kill the process.
const FORBIDDEN: &[Action] = &[
    ("a process", |_| assert_returned(Command::new("/bin/true").status())),
    ("exec", |_| assert_returned(Command::new("/bin/true").exec())),
    ("a socket", |_| assert_returned(TcpStream::connect("127.0.0.1:9"))),
    ("a datagram socket", |_| assert_returned(UdpSocket::bind("127.0.0.1:0"))),
    ("a signal", |_| assert_returned(kill_process(Pid::INIT, Signal::CONT))),
    ("a ring", |_| assert_returned(anello::Runtime::builder().driver(anello::DriverKind::Uring).build())),
    ("a limit", |_| {
        assert_returned(setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }));
    }),
    ("working directory", |_| assert_returned(env::set_current_dir("/"))),
    ("rename", |inside| assert_returned(fs::rename(inside.path("logs"), inside.path("others")))),
    ("permissions of a file", |inside| {
        assert_returned(fs::set_permissions(inside.path("served/file"), fs::Permissions::from_mode(0o777)));
    }),
];

/// Actions that succeed or are denied without killing the process.
const ALLOWED: &[Action] = &[
    ("report", |inside| println!("in force: {}", inside.sandbox)),
    ("files", |inside| {
        let mut text = String::new();
        let mut file = File::open(inside.path("served/file")).expect("served file");
        file.read_to_string(&mut text).expect("UTF-8 file");
        let entries = fs::read_dir(inside.path("served")).expect("document root").count();
        assert_eq!((text.as_str(), entries), ("served", 2));
        let log = inside.path("logs/access.log");
        let mut log = OpenOptions::new().append(true).create(true).open(log).expect("open log");
        log.write_all(b"a line\n").expect("append to log");
        fs::metadata(inside.path("elsewhere/secret")).expect("metadata of an unreadable file");
    }),
    ("files elsewhere", |inside| {
        for path in ["elsewhere/secret", "served/link", "/etc/passwd", "/proc/1/cmdline"] {
            assert_denied(File::open(inside.path(path)));
        }
        assert_denied(fs::read_dir(inside.path("elsewhere")));
        assert_denied(File::create(inside.path("served/new")));
        assert_denied(OpenOptions::new().append(true).open(inside.path("served/file")));
    }),
    ("threads", |_| {
        let start = |n: usize| thread::Builder::new().name(format!("thread {n}")).spawn(|| {});
        let threads: Vec<_> = (0..8).map(start).collect();
        threads.into_iter().for_each(|thread| thread.expect("spawn").join().expect("join"));
    }),
    ("a panic", |_| {
        assert!(thread::spawn(|| panic!("intentional")).join().is_err());
    }),
    ("an abort", |_| std::process::abort()),
];

/// Fails the child, because the call should have killed it.
fn assert_returned<T: std::fmt::Debug>(result: T) {
    panic!("call returned: {result:?}");
}

fn assert_denied<T>(result: std::io::Result<T>) {
    let error = result.err().expect("access denied");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

fn assert_survives(action: &str, directory: &Path) -> Output {
    let output = child(action, directory);
    assert_eq!(output.status.code(), Some(0), "{action}: {output:?}");
    output
}

#[test]
fn fault_40_forbidden_call_kills_process() {
    if !has("seccomp") {
        return;
    }
    for (action, _) in FORBIDDEN {
        let directory = directory();
        let output = child(action, directory.path());
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{action}: {output:?}");
        assert!(directory.path().join("logs").exists());
    }
}

#[test]
fn fault_40_required_calls_are_allowed() {
    let directory = directory();
    for action in ["files", "threads", "a panic"] {
        assert_survives(action, directory.path());
    }
    let aborted = child("an abort", directory.path());
    assert_eq!(aborted.status.signal(), Some(libc::SIGABRT), "{aborted:?}");
    assert_eq!(fs::read_to_string(directory.path().join("logs/access.log")).expect("read log"), "a line\n");
    let panicked = assert_survives("a panic", directory.path());
    let stderr = String::from_utf8_lossy(&panicked.stderr).into_owned();
    let has_symbols = stderr.contains("intentional") && stderr.contains("sandbox::tests");
    assert!(has_symbols, "no symbol names in {stderr}");
}

#[test]
fn fault_40_files_outside_allowed_paths_are_denied() {
    if has("landlock") {
        assert_survives("files elsewhere", directory().path());
    }
}

#[test]
fn fault_40_landlock_restricts_io_uring() {
    if has("landlock-abi-6") {
        let directory = directory();
        let name = SocketAddr::from_abstract_name(directory.path().to_str().expect("UTF-8 path"))
            .expect("abstract address");
        let _abstract = UnixListener::bind_addr(&name).expect("bind");
        for (action, _) in UNSEALED {
            assert_survives(action, directory.path());
        }
    }
}

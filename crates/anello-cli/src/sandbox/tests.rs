//! What is refused inside, and what ends the process: tried by children of this test, each of which is this program again.

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

/// Which deed the child does, in which folder.
const ACTION: &str = "ANELLO_TEST_SANDBOX_DEED";
const FOLDER: &str = "ANELLO_TEST_SANDBOX_FOLDER";

/// What is done inside. Whoever survives and finds nothing wrong exits 0.
type Action = (&'static str, fn(&Inside));

/// The folder of the test, in which `served` is served and the log is in `logs`.
struct Inside {
    folder: PathBuf,
    sandbox: Sandbox,
}

impl Inside {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Runs a child that does this.
fn child(action: &str, folder: &Path) -> Output {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command
        .args(["--exact", "sandbox::tests::inside", "--nocapture"])
        .env(ACTION, action)
        .env(FOLDER, folder);
    command.env("RUST_BACKTRACE", "full").output().expect("it runs")
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for made in ["served", "logs", "elsewhere"] {
        fs::create_dir(folder.path().join(made)).expect("a folder in it");
    }
    fs::write(folder.path().join("served/file"), "served").expect("a file");
    fs::write(folder.path().join("elsewhere/secret"), "secret").expect("a file");
    std::os::unix::fs::symlink("../elsewhere/secret", folder.path().join("served/link")).expect("a link");
    folder
}

/// Whether a part of the sandbox is to be had here; says so if not.
fn has(part: &str) -> bool {
    let folder = folder();
    let output = child("tell", folder.path());
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let in_force = told.split("in force: ").nth(1).unwrap_or_else(|| panic!("{output:?}"));
    let is_there = in_force.contains(part);
    if !is_there {
        eprintln!("skipped: no {part} here: {}", String::from_utf8_lossy(&output.stderr));
    }
    is_there
}

/// Not a test by itself: what the children run.
#[test]
fn inside() {
    let (Ok(action), Some(folder)) = (env::var(ACTION), env::var_os(FOLDER)) else { return };
    let folder = PathBuf::from(folder);
    let (_, act) = [UNSEALED, FORBIDDEN, ALLOWED]
        .into_iter()
        .flatten()
        .find(|(name, _)| *name == action)
        .unwrap_or_else(|| panic!("no deed {action:?}"));
    let allowed_paths = AllowedPaths {
        served: folder.join("served"),
        appended: vec![folder.join("logs/access.log")],
        ..AllowedPaths::default()
    };
    let sandbox = Sandbox::enter(SandboxMode::Auto, &allowed_paths).expect("auto takes what there is");
    let inside = Inside { folder, sandbox };
    if !UNSEALED.iter().any(|(name, _)| *name == action) {
        inside.sandbox.seal().expect("auto takes what there is");
    }
    act(&inside);
    std::process::exit(0);
}

/// What Landlock alone refuses: these are done before system calls are forbidden.
const UNSEALED: &[Action] = &[
    ("connect", |_| refused(TcpStream::connect("127.0.0.1:9"))),
    ("connect by a ring", |_| match anello::Runtime::builder().driver(anello::DriverKind::Uring).build() {
        Ok(runtime) => refused(runtime.block_on(anello::net::TcpStream::connect("127.0.0.1:9"))),
        Err(error) => eprintln!("skipped: {error}"),
    }),
    ("listen", |_| refused(TcpListener::bind("127.0.0.1:0"))),
    ("an abstract socket", |inside| {
        let name = inside.folder.to_str().expect("text");
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        refused(UnixStream::connect_addr(&address));
    }),
    ("a signal to another", |_| {
        refused(kill_process(getppid().expect("a parent"), Signal::CONT).map_err(Into::into));
    }),
    ("another program", |_| refused(Command::new("/bin/true").status())),
];

/// What ends the process.
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
    ("a folder to run in", |_| assert_returned(env::set_current_dir("/"))),
    ("another name", |inside| assert_returned(fs::rename(inside.path("logs"), inside.path("others")))),
    ("rights of a file", |inside| {
        assert_returned(fs::set_permissions(inside.path("served/file"), fs::Permissions::from_mode(0o777)));
    }),
];

/// What goes on as outside, or is refused without harm.
const ALLOWED: &[Action] = &[
    ("tell", |inside| println!("in force: {}", inside.sandbox)),
    ("files", |inside| {
        let mut text = String::new();
        let mut file = File::open(inside.path("served/file")).expect("it is served");
        file.read_to_string(&mut text).expect("text");
        let entries = fs::read_dir(inside.path("served")).expect("a folder").count();
        assert_eq!((text.as_str(), entries), ("served", 2));
        let log = inside.path("logs/access.log");
        let mut log = OpenOptions::new().append(true).create(true).open(log).expect("the log");
        log.write_all(b"a line\n").expect("it is written");
        fs::metadata(inside.path("elsewhere/secret")).expect("it may be looked at, but not read");
    }),
    ("files elsewhere", |inside| {
        for path in ["elsewhere/secret", "served/link", "/etc/passwd", "/proc/1/cmdline"] {
            refused(File::open(inside.path(path)));
        }
        refused(fs::read_dir(inside.path("elsewhere")));
        refused(File::create(inside.path("served/new")));
        refused(OpenOptions::new().append(true).open(inside.path("served/file")));
    }),
    ("threads", |_| {
        let start = |n: usize| thread::Builder::new().name(format!("thread {n}")).spawn(|| {});
        let threads: Vec<_> = (0..8).map(start).collect();
        threads.into_iter().for_each(|thread| thread.expect("it starts").join().expect("it ends"));
    }),
    ("a panic", |_| {
        assert!(thread::spawn(|| panic!("on purpose")).join().is_err());
    }),
    ("an abort", |_| std::process::abort()),
];

/// Of what never comes back.
fn assert_returned<T: std::fmt::Debug>(result: T) {
    panic!("it came back: {result:?}");
}

fn refused<T>(result: std::io::Result<T>) {
    let error = result.err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

fn survives(action: &str, folder: &Path) -> Output {
    let output = child(action, folder);
    assert_eq!(output.status.code(), Some(0), "{action}: {output:?}");
    output
}

#[test]
fn fault_40_forbidden_calls_end_the_process() {
    if !has("seccomp") {
        return;
    }
    for (action, _) in FORBIDDEN {
        let folder = folder();
        let output = child(action, folder.path());
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{action}: {output:?}");
        assert!(folder.path().join("logs").exists());
    }
}

#[test]
fn fault_40_what_serving_needs_goes_on() {
    let folder = folder();
    for action in ["files", "threads", "a panic"] {
        survives(action, folder.path());
    }
    let aborted = child("an abort", folder.path());
    assert_eq!(aborted.status.signal(), Some(libc::SIGABRT), "{aborted:?}");
    assert_eq!(fs::read_to_string(folder.path().join("logs/access.log")).expect("a log"), "a line\n");
    let panicked = survives("a panic", folder.path());
    let told = String::from_utf8_lossy(&panicked.stderr).into_owned();
    assert!(told.contains("on purpose") && told.contains("sandbox::tests"), "no names in {told}");
}

#[test]
fn fault_40_other_files_are_not_opened() {
    if has("landlock") {
        survives("files elsewhere", folder().path());
    }
}

#[test]
fn fault_40_landlock_forbids_what_io_uring_could_be_asked_for() {
    if has("landlock-abi-6") {
        let folder = folder();
        let name = SocketAddr::from_abstract_name(folder.path().to_str().expect("text")).expect("a name");
        let _abstract = UnixListener::bind_addr(&name).expect("it listens");
        for (action, _) in UNSEALED {
            survives(action, folder.path());
        }
    }
}

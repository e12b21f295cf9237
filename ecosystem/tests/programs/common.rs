//! Starts the programs, and the servers and clients that they are tested with.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Time limit for every wait. Only a process that hangs takes this long.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A running process, which is terminated when it is dropped.
pub struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a command. Its standard output is read by [`line`](Self::line).
    pub fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the process starts");
        let stdout = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
        Self { child, stdout }
    }

    /// Reads a line, which the process must have written by the time limit of the test runner.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("standard output is text");
        line.trim_end().to_owned()
    }

    /// Waits until the process accepts connections on a port.
    #[track_caller]
    pub fn wait_for_port(&mut self, port: u16) {
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let exited = self.child.try_wait().expect("the process can be waited for");
            assert!(
                exited.is_none() && start.elapsed() < TIME_LIMIT,
                "no connection to port {port}: {exited:?}"
            );
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > Duration::from_secs(10) {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            sleep(Duration::from_millis(5));
        }
    }
}

/// A runtime and driver on which the programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    Anello(&'static str),
    Tokio,
}

/// Calls the test for each driver that is available here, and for tokio.
pub fn on_each_platform(test: impl Fn(Platform)) {
    let uring = anello::Runtime::builder().driver(anello::DriverKind::Uring).driver_from_environment(false);
    match uring.build() {
        Ok(_) => test(Platform::Anello("uring")),
        Err(error) => eprintln!("skipped on uring: {error}"),
    }
    test(Platform::Anello("epoll"));
    test(Platform::Tokio);
}

/// Returns the command of a program.
pub fn program(name: &str, platform: Platform, arguments: &[&str]) -> Command {
    // Cargo builds the programs next to the directory of the test binaries.
    let directory = Path::new(env!("CARGO_BIN_EXE_tls")).parent().expect("a directory").to_owned();
    let mut command = match platform {
        Platform::Anello(driver) => {
            let mut command = Command::new(directory.join(name));
            command.env("ANELLO_DRIVER", driver);
            command
        }
        Platform::Tokio => Command::new(directory.join(format!("{name}-tokio"))),
    };
    command.args(arguments);
    command
}

/// Starts a program that listens, and returns it and its port.
pub fn serve(name: &str, platform: Platform, arguments: &[&str]) -> (Process, u16) {
    let arguments: Vec<&str> =
        ["server", "127.0.0.1:0"].into_iter().chain(arguments.iter().copied()).collect();
    let mut process = Process::start(&mut program(name, platform, &arguments));
    let line = process.line();
    let port = line.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    (process, port.unwrap_or_else(|| panic!("{name} on {platform:?}: {line}")))
}

/// Runs a command to its end with this standard input, and returns its standard output.
#[track_caller]
pub fn output(command: &mut Command, input: &[u8]) -> String {
    let mut limited = Command::new("timeout");
    limited.arg(TIME_LIMIT.as_secs().to_string()).arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = limited.spawn().expect("timeout is installed");
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("the process exits");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    writer.join().expect("no panic").expect("the process reads its input");
    text
}

/// Runs a program to its end, and returns its standard output.
#[track_caller]
pub fn run(name: &str, platform: Platform, arguments: &[&str]) -> String {
    output(&mut program(name, platform, arguments), b"")
}

/// Returns a port that was free.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    listener.local_addr().expect("an address").port()
}

/// Returns whether a command is available. Installs its package if not, when run as root on Debian.
pub fn ensure(command: &str, package: &str) -> bool {
    // Only one process can install packages.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let is_available = || find(command).is_some();
    if is_available() {
        return true;
    }
    let install =
        "[ $(id -u) = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends \"$1\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", install, "sh", package]).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
    drop(shell.status());
    if !is_available() {
        eprintln!("skipped: {command} is not installed (run: apt-get install {package})");
    }
    is_available()
}

/// Returns the path of a command. Debian installs servers in directories that are not on the path of every user.
pub fn find(command: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    directories.extend(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    if let Ok(versions) = fs::read_dir("/usr/lib/postgresql") {
        directories.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    directories.into_iter().map(|directory| directory.join(command)).find(|file| file.is_file())
}

/// Returns a Python interpreter with the packages of `tests/peers/requirements.txt`, or `None` if they cannot be
/// installed.
pub fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let python = PYTHON.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
        let requirements = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/requirements.txt");
        let install = "cmp -s \"$2\" \"$1/installed\" || { rm -rf \"$1\" && python3 -m venv \"$1\" && \
            \"$1/bin/pip\" install -q -r \"$2\" && cp \"$2\" \"$1/installed\"; }";
        let status =
            Command::new("sh").args(["-c", install, "sh"]).arg(&directory).arg(requirements).status();
        status.is_ok_and(|status| status.success()).then(|| directory.join("bin/python"))
    });
    if python.is_none() {
        eprintln!("skipped: the Python packages in tests/peers/requirements.txt cannot be installed");
    }
    python.as_deref()
}

/// Returns the command of a script in `tests/peers`.
pub fn peer(python: &Path, script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(script)).args(arguments);
    command
}

/// A directory with a certificate for `localhost` and its key, and the paths of both.
pub struct Certificate {
    pub directory: TempDir,
    pub certificate: String,
    pub key: String,
}

impl Certificate {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let write = |name: &str, text: String| {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("the file is written");
            path.to_str().expect("the path is text").to_owned()
        };
        let certificate = write("certificate.pem", generated.cert.pem());
        let key = write("key.pem", generated.signing_key.serialize_pem());
        Self { directory, certificate, key }
    }
}

/// Reads a request of HTTP/1.1 with `Content-Length`, and returns its path and body.
pub fn read_request(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream);
    let (mut path, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("the client sends");
        if line.trim_end().is_empty() {
            break;
        }
        if path.is_empty() {
            path = line.split(' ').nth(1).expect("a request line").to_owned();
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a number");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the client sends the body");
    (path, body)
}

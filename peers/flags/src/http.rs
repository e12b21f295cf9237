//! Flags of HTTP servers besides address and cores, and helpers for a server that is another program: passing the
//! listening socket or the configuration, and printing the ready line.

use std::env;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{IntoRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::{Flags, Ready, choose, pin_or_exit};

/// First argument of the announcer, a process that waits until a server accepts. The second argument is the address.
const ANNOUNCER_ARGUMENT: &str = "announce";

/// Interval between two connection attempts of the announcer.
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of connection attempts: about 20 s.
const MAX_CONNECTS: usize = 2000;

/// Parsed command line of an HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpFlags {
    /// Address and cores.
    pub flags: Flags,
    /// The document root as an absolute path; empty for a server without files.
    pub root: PathBuf,
    /// Certificate and key, if the server uses TLS.
    pub tls: Option<TlsFiles>,
    /// Index of the selected value for a server with a choice, else 0.
    pub choice_index: usize,
}

/// PEM files for TLS; absolute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

/// Flags of a server besides address and cores.
#[derive(Default, Clone, Copy)]
struct SupportedFlags<'a> {
    root: bool,
    tls: bool,
    choice: &'a str,
    values: &'a [&'a str],
}

impl HttpFlags {
    /// Parses the flags of a server that responds from memory: `--addr` and `--cores`. Pins the calling thread to the
    /// cores and exits with status 2 on an error, like [`Flags::from_arguments`].
    pub fn from_arguments() -> Self {
        Self::parse_or_exit(SupportedFlags::default(), "")
    }

    /// Parses the flags of a server that responds from memory and has an additional flag that selects one of `values`.
    /// The default is the first.
    pub fn with_choice(choice: &str, values: &[&str]) -> Self {
        let usage = format!("[{choice} {}]", values.join("|"));
        Self::parse_or_exit(SupportedFlags { choice, values, ..SupportedFlags::default() }, &usage)
    }

    /// Parses the flags of a file server, which requires `--root DIR`.
    pub fn with_root() -> Self {
        Self::parse_or_exit(SupportedFlags { root: true, ..SupportedFlags::default() }, "--root DIR")
    }

    /// Parses the flags of a file server that uses TLS if `--tls-cert FILE` and `--tls-key FILE` are given.
    pub fn with_tls() -> Self {
        let usage = "--root DIR [--tls-cert FILE --tls-key FILE]";
        Self::parse_or_exit(SupportedFlags { root: true, tls: true, ..SupportedFlags::default() }, usage)
    }

    /// Parses the flags of a file server that uses TLS if `--tls-cert FILE` and `--tls-key FILE` are given, and has a
    /// choice like [`with_choice`](Self::with_choice).
    pub fn with_tls_and_choice(choice: &str, values: &[&str]) -> Self {
        let usage = format!("--root DIR [--tls-cert FILE --tls-key FILE] [{choice} {}]", values.join("|"));
        Self::parse_or_exit(SupportedFlags { root: true, tls: true, choice, values }, &usage)
    }

    fn parse_or_exit(supported: SupportedFlags<'_>, usage: &str) -> Self {
        pin_or_exit(Self::parse(std::env::args().skip(1), supported), |http| &http.flags, usage)
    }

    fn parse(arguments: impl Iterator<Item = String>, supported: SupportedFlags<'_>) -> Result<Self, String> {
        let (mut root, mut certificate, mut key, mut choice_index) = (None, None, None, 0);
        let canonicalize = |path: &str| std::fs::canonicalize(path).map_err(|error| error.to_string());
        let flags = Flags::parse_with(arguments, |flag, value| {
            match flag {
                "--root" if supported.root => root = Some(canonicalize(value)?),
                "--tls-cert" if supported.tls => certificate = Some(canonicalize(value)?),
                "--tls-key" if supported.tls => key = Some(canonicalize(value)?),
                flag if flag == supported.choice => choice_index = choose(value, supported.values)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let tls = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (None, None) => None,
            _ => return Err("--tls-cert and --tls-key require each other".to_owned()),
        };
        let root = match root {
            None if supported.root => return Err("missing flag --root".to_owned()),
            root => root.unwrap_or_default(),
        };
        Ok(Self { flags, root, tls, choice_index })
    }
}

/// Clears the close-on-exec flag of a listening socket, so that it stays open across `exec`, and returns its
/// descriptor.
///
/// # Errors
/// Returns the error of `fcntl(2)`.
pub fn into_inheritable_fd(listener: TcpListener) -> io::Result<RawFd> {
    fcntl_setfd(&listener, FdFlags::empty())?;
    Ok(listener.into_raw_fd())
}

/// Starts the announcer, a second process of this program that calls [`run_as_announcer`] for `addr` while this process
/// becomes the server by `exec`. Used for servers that bind their address themselves and print no ready line.
///
/// # Errors
/// Returns an error if the announcer cannot be started.
pub fn spawn_announcer(addr: SocketAddr) -> io::Result<()> {
    // The shell exits immediately, so the announcer is not a child of the server and leaves no zombie process.
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "\"$@\" &", "sh"])
        .arg(env::current_exe()?)
        .args([ANNOUNCER_ARGUMENT, &addr.to_string()]);
    match shell.stdin(Stdio::null()).status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other("sh cannot start the announcer")),
    }
}

/// Runs the announcer if this process was started by [`spawn_announcer`]: waits until the server accepts, prints the
/// ready line with `details`, and returns `true`. Returns `false` in other processes. Call it first in `main`.
///
/// # Errors
/// Returns an error if the server does not accept within about 20 s, or if writing to standard output fails.
pub fn run_as_announcer(details: &'static str) -> io::Result<bool> {
    let arguments: Vec<String> = env::args().collect();
    let [_, first, addr] = arguments.as_slice() else { return Ok(false) };
    if first != ANNOUNCER_ARGUMENT {
        return Ok(false);
    }
    let addr: SocketAddr = addr.parse().map_err(io::Error::other)?;
    for _ in 0..MAX_CONNECTS {
        if TcpStream::connect(addr).is_ok() {
            Ready::new(1, addr, details).announce()?;
            return Ok(true);
        }
        thread::sleep(CONNECT_INTERVAL);
    }
    Err(io::Error::other(format!("server does not accept on {addr}")))
}

/// Creates a file in memory that contains `text`, positioned at its start (`memfd_create(2)`, Linux 3.17). It stays
/// open across `exec`, so the new program can read it at `/proc/self/fd/NUMBER`.
///
/// # Errors
/// Returns the error of `memfd_create(2)` or `write(2)`.
pub fn memory_file(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("configuration", MemfdFlags::empty())?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Returns a path as text if it needs no quoting in the configuration of a server, whose syntax cannot express all
/// paths.
///
/// # Errors
/// Returns an error if the path contains characters other than letters, digits and `/-_.+@,:`.
pub fn plain_path(path: &Path) -> io::Result<&str> {
    let is_plain = |character: char| character.is_alphanumeric() || "/-_.+@,:".contains(character);
    path.to_str().filter(|text| text.chars().all(is_plain)).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{}: cannot represent the path in the server configuration (use only letters, digits and -_.+@,:)",
                path.display()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    const ALL: SupportedFlags<'static> =
        SupportedFlags { root: true, tls: true, choice: "--files", values: &["sendfile", "aio"] };

    fn parse(line: &str, supported: SupportedFlags<'_>) -> Result<HttpFlags, String> {
        HttpFlags::parse(line.split_whitespace().map(String::from), supported)
    }

    #[test]
    fn parse_accepts_all_flags() {
        let line = "--addr 127.0.0.1:80 --cores 1 --root /tmp --files aio --tls-cert /etc --tls-key /usr";
        let http = parse(line, ALL).unwrap();
        assert_eq!(
            (http.flags.addr.port(), http.flags.cores.as_slice(), http.choice_index),
            (80, [1].as_slice(), 1)
        );
        assert_eq!(http.root, PathBuf::from("/tmp"));
        assert_eq!(http.tls, Some(TlsFiles { certificate: "/etc".into(), key: "/usr".into() }));
        assert_eq!(parse("--addr 127.0.0.1:80", SupportedFlags::default()).unwrap().root, PathBuf::new());
    }

    #[test]
    fn parse_error_names_cause() {
        let error =
            |line: &str, supported| parse(&format!("--addr 127.0.0.1:80 {line}"), supported).unwrap_err();
        assert_eq!(error("", ALL), "missing flag --root");
        assert!(error("--root /no/such", ALL).starts_with("invalid --root /no/such: "));
        assert!(error("--root /tmp --tls-key /etc", ALL).contains("require each other"));
        assert!(error("--root /tmp --files mmap", ALL).contains("sendfile, aio"));
        for line in ["--root /tmp", "--tls-key /etc", "--files aio", "--buffer-bytes 1"] {
            assert!(error(line, SupportedFlags::default()).contains("unknown flag"), "{line}");
        }
    }

    #[test]
    fn listening_socket_is_inherited() {
        let listener = crate::listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let fd = into_inheritable_fd(listener).unwrap();
        let is_socket = Command::new("test").args(["-S", &format!("/proc/self/fd/{fd}")]).status();
        assert!(is_socket.unwrap().success());
    }

    #[test]
    fn memory_file_is_inherited() {
        let file = memory_file("value = 42").unwrap();
        let read = Command::new("cat").arg(format!("/proc/self/fd/{}", file.as_raw_fd())).output().unwrap();
        assert_eq!(read.stdout, b"value = 42");
    }

    #[test]
    fn plain_path_with_special_characters_is_rejected() {
        assert_eq!(plain_path(Path::new("/srv/www-1/a_b.pem")).unwrap(), "/srv/www-1/a_b.pem");
        for path in ["/srv/a b", "/srv/\"", "/srv/$x", "/srv/a;b", "/srv/a\nb"] {
            let error = plain_path(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains("letters, digits"), "{path}: {error}");
        }
    }
}

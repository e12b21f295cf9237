//! What HTTP servers take besides address and cores, and how a server that is another program gets its listening socket
//! or its configuration and is announced.

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

use crate::{Flags, Ready, choose, pinned_or_exit};

/// First argument of a process that waits until a server accepts; the address comes next.
const ANNOUNCE: &str = "announce";

/// How long that process waits between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// How many attempts it makes: for about 20 s.
const ATTEMPTS: usize = 2000;

/// What an HTTP server was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpFlags {
    /// Address and cores.
    pub flags: Flags,
    /// The folder to serve, absolute; empty for a server that serves none.
    pub root: PathBuf,
    /// What to serve TLS with, if at all.
    pub tls: Option<TlsFiles>,
    /// The place of the value that was chosen, for a server that has a choice; else 0.
    pub chosen: usize,
}

/// Files for TLS, PEM; absolute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those that it was signed with.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// What a server takes besides address and cores.
#[derive(Default, Clone, Copy)]
struct Accepted<'a> {
    root: bool,
    tls: bool,
    choice: &'a str,
    values: &'a [&'a str],
}

impl HttpFlags {
    /// For a server that answers from memory: `--addr` and `--cores`. Exits with 2 on a mistake and binds the calling
    /// thread to the cores, as [`Flags::from_arguments`] does.
    pub fn from_arguments() -> Self {
        Self::read(Accepted::default(), "")
    }

    /// For a server that answers from memory and has one more flag, which chooses among `values`, of which the first is
    /// taken when the flag is not given.
    pub fn with_choice(choice: &str, values: &[&str]) -> Self {
        let more = format!("[{choice} {}]", values.join("|"));
        Self::read(Accepted { choice, values, ..Accepted::default() }, &more)
    }

    /// For a server that serves files: `--root DIR` must be there, too.
    pub fn with_root() -> Self {
        Self::read(Accepted { root: true, ..Accepted::default() }, "--root DIR")
    }

    /// For a server that serves files, with TLS if `--tls-cert FILE` and `--tls-key FILE` are there.
    pub fn with_tls() -> Self {
        let more = "--root DIR [--tls-cert FILE --tls-key FILE]";
        Self::read(Accepted { root: true, tls: true, ..Accepted::default() }, more)
    }

    /// For a server that serves files, with TLS if `--tls-cert FILE` and `--tls-key FILE` are there, and has a choice as
    /// in [`with_choice`](Self::with_choice).
    pub fn with_tls_and_choice(choice: &str, values: &[&str]) -> Self {
        let more = format!("--root DIR [--tls-cert FILE --tls-key FILE] [{choice} {}]", values.join("|"));
        Self::read(Accepted { root: true, tls: true, choice, values }, &more)
    }

    fn read(accepted: Accepted<'_>, more: &str) -> Self {
        pinned_or_exit(Self::parse(std::env::args().skip(1), accepted), |http| &http.flags, more)
    }

    fn parse(arguments: impl Iterator<Item = String>, accepted: Accepted<'_>) -> Result<Self, String> {
        let (mut root, mut certificate, mut key, mut chosen) = (None, None, None, 0);
        let found = |path: &str| std::fs::canonicalize(path).map_err(|error| error.to_string());
        let flags = Flags::parse_with(arguments, |flag, value| {
            match flag {
                "--root" if accepted.root => root = Some(found(value)?),
                "--tls-cert" if accepted.tls => certificate = Some(found(value)?),
                "--tls-key" if accepted.tls => key = Some(found(value)?),
                flag if flag == accepted.choice => chosen = choose(value, accepted.values)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let tls = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (None, None) => None,
            _ => return Err("--tls-cert and --tls-key go together".to_owned()),
        };
        let root = match root {
            None if accepted.root => return Err("--root is missing".to_owned()),
            root => root.unwrap_or_default(),
        };
        Ok(Self { flags, root, tls, chosen })
    }
}

/// Lets a listening socket live on when this process becomes another program (`exec`), and returns its number there.
///
/// # Errors
/// If the kernel refuses (`fcntl`).
pub fn inheritable(listener: TcpListener) -> io::Result<RawFd> {
    fcntl_setfd(&listener, FdFlags::empty())?;
    Ok(listener.into_raw_fd())
}

/// For a server that is another program, binds its address itself and prints nothing when it accepts: starts a second
/// process of this program, which does [`announced`] for `addr` while this one becomes the server.
///
/// # Errors
/// If it cannot be started.
pub fn announce_once_open(addr: SocketAddr) -> io::Result<()> {
    // The shell ends at once, so that the process in its background is nobody's child when it ends, too.
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\" &", "sh"]).arg(env::current_exe()?).args([ANNOUNCE, &addr.to_string()]);
    match shell.stdin(Stdio::null()).status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other("sh cannot start what waits until the server accepts")),
    }
}

/// Whether this is the second process of [`announce_once_open`], to be asked before all else; if so it has waited until
/// the server accepts, and printed the ready line with `about`.
///
/// # Errors
/// If the server does not accept within some 20 s, or standard output cannot be written to.
pub fn announced(about: &'static str) -> io::Result<bool> {
    let words: Vec<String> = env::args().collect();
    let [_, first, addr] = words.as_slice() else { return Ok(false) };
    if first != ANNOUNCE {
        return Ok(false);
    }
    let addr: SocketAddr = addr.parse().map_err(io::Error::other)?;
    for _ in 0..ATTEMPTS {
        if TcpStream::connect(addr).is_ok() {
            Ready::new(1, addr, about).announce()?;
            return Ok(true);
        }
        thread::sleep(PAUSE);
    }
    Err(io::Error::other(format!("the server does not accept on {addr}")))
}

/// A file that is in memory alone and holds `text`, to be read from its start. It lives on when this process becomes
/// another program, which finds it at `/proc/self/fd/NUMBER` (`memfd_create`, Linux 3.17).
///
/// # Errors
/// If the kernel refuses.
pub fn in_memory(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("configuration", MemfdFlags::empty())?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// A path as text that needs no quoting in the configuration of a server, whose syntax cannot express every path.
///
/// # Errors
/// If the path has characters other than letters, digits and `/-_.+@,:`.
pub fn plain_path(path: &Path) -> io::Result<&str> {
    let plain = |character: char| character.is_alphanumeric() || "/-_.+@,:".contains(character);
    path.to_str().filter(|text| text.chars().all(plain)).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{}: cannot be written into the server's configuration (use a path of letters, digits and -_.+@,:)",
                path.display()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    const ALL: Accepted<'static> =
        Accepted { root: true, tls: true, choice: "--files", values: &["sendfile", "aio"] };

    fn parse(line: &str, accepted: Accepted<'_>) -> Result<HttpFlags, String> {
        HttpFlags::parse(line.split_whitespace().map(String::from), accepted)
    }

    #[test]
    fn reads_every_flag() {
        let line = "--addr 127.0.0.1:80 --cores 1 --root /tmp --files aio --tls-cert /etc --tls-key /usr";
        let http = parse(line, ALL).unwrap();
        assert_eq!(
            (http.flags.addr.port(), http.flags.cores.as_slice(), http.chosen),
            (80, [1].as_slice(), 1)
        );
        assert_eq!(http.root, PathBuf::from("/tmp"));
        assert_eq!(http.tls, Some(TlsFiles { certificate: "/etc".into(), key: "/usr".into() }));
        assert_eq!(parse("--addr 127.0.0.1:80", Accepted::default()).unwrap().root, PathBuf::new());
    }

    #[test]
    fn names_the_mistake() {
        let error =
            |line: &str, accepted| parse(&format!("--addr 127.0.0.1:80 {line}"), accepted).unwrap_err();
        assert_eq!(error("", ALL), "--root is missing");
        assert!(error("--root /no/such", ALL).starts_with("--root /no/such: "));
        assert!(error("--root /tmp --tls-key /etc", ALL).contains("go together"));
        assert!(error("--root /tmp --files mmap", ALL).contains("sendfile, aio"));
        for line in ["--root /tmp", "--tls-key /etc", "--files aio", "--buffer-bytes 1"] {
            assert!(error(line, Accepted::default()).contains("unknown flag"), "{line}");
        }
    }

    #[test]
    fn a_listening_socket_is_handed_on() {
        let listener = crate::listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let number = inheritable(listener).unwrap();
        let there = Command::new("test").args(["-S", &format!("/proc/self/fd/{number}")]).status();
        assert!(there.unwrap().success());
    }

    #[test]
    fn a_configuration_is_handed_on() {
        let file = in_memory("answer = 42").unwrap();
        let read = Command::new("cat").arg(format!("/proc/self/fd/{}", file.as_raw_fd())).output().unwrap();
        assert_eq!(read.stdout, b"answer = 42");
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

//! lighttpd as installed, configured as nginx is: sendfile, no access log, keep-alive for 75 s, a worker per core. A file
//! is checked with `stat(2)` once a second and stays open in between, which is lighttpd's default.
//!
//! This program chooses the port, writes the configuration into memory and becomes lighttpd. lighttpd prints nothing when
//! it accepts, so a second process prints the ready line. On one core lighttpd is this one process, which is all that the
//! lab counts; on several it is a watcher with its workers, which share one listening socket and are bound to these cores
//! together, since lighttpd cannot pin a worker.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use peer_flags::{
    BACKLOG, HttpFlags, TlsFiles, announce_once_open, announced, in_memory, listen, plain_path,
};

/// A program of the distribution's package that prints the content types known to the system as configuration.
const TYPES: &str = "/usr/share/lighttpd/create-mime.conf.pl";

/// Content types where that program is not installed.
const FEW_TYPES: &str = r#"mimetype.assign = (".html" => "text/html", ".txt" => "text/plain", ".bin" => "application/octet-stream")"#;

/// Maximum number of requests on one connection: the largest value that lighttpd's 16 bits hold.
const MAX_REQUESTS: u16 = u16::MAX;

/// Maximum number of descriptors, half of which lighttpd allows for connections; as many as the process may open if fewer.
const MAX_DESCRIPTORS: usize = 32768;

fn main() -> io::Result<()> {
    if announced("driver=epoll")? {
        return Ok(());
    }
    let http = HttpFlags::with_tls();
    let addr = listen(http.flags.addr, false)?.local_addr()?;
    let configuration = in_memory(&configuration(&http, addr)?)?;
    announce_once_open(addr)?;
    let path = format!("/proc/self/fd/{}", configuration.as_raw_fd());
    Err(Command::new("lighttpd").args(["-D", "-f", &path]).exec())
}

/// The text of `lighttpd.conf`. Without `server.username` the process keeps its user, who may be the only one allowed to
/// read the document root.
fn configuration(http: &HttpFlags, addr: SocketAddr) -> io::Result<String> {
    let (root, ip, port) = (plain_path(&http.root)?, addr.ip(), addr.port());
    let ip = if addr.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
    // With workers lighttpd has a watcher process; without, it is one process.
    let workers = if http.flags.threads() > 1 { http.flags.threads() } else { 0 };
    let descriptors = MAX_DESCRIPTORS.min(descriptor_limit()?);
    let connections = descriptors / 2;
    let types =
        if Path::new(TYPES).is_file() { format!("include_shell \"{TYPES}\"") } else { FEW_TYPES.to_owned() };
    let (module, secure) = match &http.tls {
        Some(TlsFiles { certificate, key }) => {
            let (certificate, key) = (plain_path(certificate)?, plain_path(key)?);
            let secure =
                format!("ssl.engine = \"enable\"\nssl.pemfile = \"{certificate}\"\nssl.privkey = \"{key}\"");
            ("\"mod_openssl\", ", secure)
        }
        None => ("", String::new()),
    };
    Ok(format!(
        "
server.modules = ({module}\"mod_indexfile\", \"mod_staticfile\")
server.compat-module-load = \"disable\"
server.document-root = \"{root}\"
server.bind = \"{ip}\"
server.port = {port}
server.listen-backlog = {BACKLOG}
server.max-worker = {workers}
server.max-fds = {descriptors}
server.max-connections = {connections}
server.network-backend = \"sendfile\"
server.max-keep-alive-idle = 75
server.max-keep-alive-requests = {MAX_REQUESTS}
server.stat-cache-engine = \"simple\"
{types}
{secure}
"
    ))
}

/// The hard limit on open descriptors (`RLIMIT_NOFILE`); `usize::MAX` if unlimited.
fn descriptor_limit() -> io::Result<usize> {
    let limits = fs::read_to_string("/proc/self/limits")?;
    let row = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let hard = row.and_then(|row| row.split_whitespace().nth(1));
    Ok(hard.and_then(|hard| hard.parse().ok()).unwrap_or(usize::MAX))
}

//! lighttpd as installed, with the same settings as nginx: sendfile, no access log, keep-alive for 75 s, one worker
//! per core. It checks a file with `stat(2)` once per second and keeps it open in between, which is the default.
//!
//! This program chooses the port, writes the configuration into memory and becomes lighttpd by `exec`. lighttpd
//! prints no ready line, so a second process, the announcer, prints it. On one core, lighttpd is this one process,
//! which is all that the lab measures. On several cores, it is a watcher process with workers that share one
//! listening socket. They are restricted to these cores, because lighttpd cannot pin workers.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use peer_flags::{
    BACKLOG, HttpFlags, TlsFiles, listen, memory_file, plain_path, run_as_announcer, spawn_announcer,
};

/// A program of the Debian package that prints the content types of the system as configuration.
const TYPES: &str = "/usr/share/lighttpd/create-mime.conf.pl";

/// Content types if that program is not installed.
const FALLBACK_TYPES: &str = r#"mimetype.assign = (".html" => "text/html", ".txt" => "text/plain", ".bin" => "application/octet-stream")"#;

/// Maximum number of requests on one connection: the largest value of the 16-bit setting.
const MAX_REQUESTS: u16 = u16::MAX;

/// Maximum number of descriptors, unless the limit of the process is lower. lighttpd uses half of them for connections.
const MAX_DESCRIPTORS: usize = 32768;

fn main() -> io::Result<()> {
    if run_as_announcer("driver=epoll")? {
        return Ok(());
    }
    let http = HttpFlags::with_tls();
    let addr = listen(http.flags.addr, false)?.local_addr()?;
    let configuration = memory_file(&configuration(&http, addr)?)?;
    spawn_announcer(addr)?;
    let path = format!("/proc/self/fd/{}", configuration.as_raw_fd());
    Err(Command::new("lighttpd").args(["-D", "-f", &path]).exec())
}

/// Returns the text of `lighttpd.conf`. Without `server.username` the process keeps its user, which may be the only one
/// with read access to the document root.
fn configuration(http: &HttpFlags, addr: SocketAddr) -> io::Result<String> {
    let (root, ip, port) = (plain_path(&http.root)?, addr.ip(), addr.port());
    let ip = if addr.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
    // With 0 workers, lighttpd is a single process without a watcher.
    let workers = if http.flags.threads() > 1 { http.flags.threads() } else { 0 };
    let descriptors = MAX_DESCRIPTORS.min(descriptor_limit()?);
    let connections = descriptors / 2;
    let types = if Path::new(TYPES).is_file() {
        format!("include_shell \"{TYPES}\"")
    } else {
        FALLBACK_TYPES.to_owned()
    };
    let (tls_module, tls) = match &http.tls {
        Some(TlsFiles { certificate, key }) => {
            let (certificate, key) = (plain_path(certificate)?, plain_path(key)?);
            let tls =
                format!("ssl.engine = \"enable\"\nssl.pemfile = \"{certificate}\"\nssl.privkey = \"{key}\"");
            ("\"mod_openssl\", ", tls)
        }
        None => ("", String::new()),
    };
    Ok(format!(
        "
server.modules = ({tls_module}\"mod_indexfile\", \"mod_staticfile\")
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
{tls}
"
    ))
}

/// Returns the hard limit of open descriptors (`RLIMIT_NOFILE`); `usize::MAX` if unlimited.
fn descriptor_limit() -> io::Result<usize> {
    let limits = fs::read_to_string("/proc/self/limits")?;
    let row = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let hard = row.and_then(|row| row.split_whitespace().nth(1));
    Ok(hard.and_then(|hard| hard.parse().ok()).unwrap_or(usize::MAX))
}

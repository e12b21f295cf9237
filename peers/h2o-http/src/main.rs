//! h2o as installed, with the same settings as nginx: no access log, keep-alive for 75 s, one thread per core. It
//! keeps files open while it serves them and reads them with `pread(2)`; this version does not support sendfile.
//!
//! This program chooses the port, writes the configuration into memory and becomes h2o by `exec`. h2o prints its own
//! message when it accepts, so a second process, the announcer, prints the ready line. On one core, h2o serves from
//! one thread that is pinned to it. On several cores, it has one thread with its own listening socket per core. The
//! process is restricted to these cores, because h2o cannot pin threads.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use peer_flags::{HttpFlags, TlsFiles, listen, memory_file, plain_path, run_as_announcer, spawn_announcer};

fn main() -> io::Result<()> {
    if run_as_announcer("driver=epoll")? {
        return Ok(());
    }
    let http = HttpFlags::with_tls();
    let addr = listen(http.flags.addr, false)?.local_addr()?;
    let configuration = memory_file(&configuration(&http, addr)?)?;
    spawn_announcer(addr)?;
    let path = format!("/proc/self/fd/{}", configuration.as_raw_fd());
    Err(Command::new("h2o").args(["-m", "worker", "-c", &path]).exec())
}

/// Returns the text of `h2o.conf`. h2o runs as root only if `user` is set to root.
///
/// Private keys stay in this process (`neverbleed: OFF`), because the lab measures its CPU time. OCSP is off, because
/// the certificate of the lab names no responder. TLS 1.3 uses OpenSSL, because h2o's implementation supports only
/// drafts.
fn configuration(http: &HttpFlags, addr: SocketAddr) -> io::Result<String> {
    let (root, ip, port, threads) = (plain_path(&http.root)?, addr.ip(), addr.port(), http.flags.threads());
    // The owner of /proc/self is the effective user of the process.
    let user = if fs::metadata("/proc/self")?.uid() == 0 { "user: root" } else { "" };
    let tls = match &http.tls {
        Some(TlsFiles { certificate, key }) => {
            let (certificate, key) = (plain_path(certificate)?, plain_path(key)?);
            format!(
                "ssl:
    certificate-file: {certificate}
    key-file: {key}
    minimum-version: TLSv1.2
    neverbleed: OFF
    ocsp-update-interval: 0"
            )
        }
        None => String::new(),
    };
    Ok(format!(
        "{user}
num-threads: {threads}
max-connections: 16384
tcp-fastopen: 0
http1-request-timeout: 75
http1-upgrade-to-http2: OFF
listen:
  host: {ip}
  port: {port}
  {tls}
hosts:
  default:
    paths:
      /:
        file.dir: {root}
"
    ))
}

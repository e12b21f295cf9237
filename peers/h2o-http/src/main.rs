//! h2o as installed, configured as nginx is: no access log, keep-alive for 75 s, a thread per core. It keeps files open
//! while it serves them and reads them with `pread(2)`; this version has no sendfile.
//!
//! This program chooses the port, writes the configuration into memory and becomes h2o. h2o prints its own message when it
//! accepts, so a second process prints the ready line. On one core h2o serves from one thread, pinned to it; on several it
//! has a thread with a listening socket of its own for each, bound to these cores together, since h2o cannot pin a thread.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use peer_flags::{HttpFlags, TlsFiles, announce_once_open, announced, in_memory, listen, plain_path};

fn main() -> io::Result<()> {
    if announced("driver=epoll")? {
        return Ok(());
    }
    let http = HttpFlags::with_tls();
    let addr = listen(http.flags.addr, false)?.local_addr()?;
    let configuration = in_memory(&configuration(&http, addr)?)?;
    announce_once_open(addr)?;
    let path = format!("/proc/self/fd/{}", configuration.as_raw_fd());
    Err(Command::new("h2o").args(["-m", "worker", "-c", &path]).exec())
}

/// The text of `h2o.conf`. h2o refuses to run as root unless `user` says so.
///
/// Private keys stay in the process itself (`neverbleed: OFF`), whose CPU time is what the lab counts, and OCSP is off, since
/// the lab's certificate names no responder. TLS 1.3 is OpenSSL's: h2o's own knows drafts of the standard only.
fn configuration(http: &HttpFlags, addr: SocketAddr) -> io::Result<String> {
    let (root, ip, port, threads) = (plain_path(&http.root)?, addr.ip(), addr.port(), http.flags.threads());
    // The process's own directory belongs to its effective user.
    let user = if fs::metadata("/proc/self")?.uid() == 0 { "user: root" } else { "" };
    let secure = match &http.tls {
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
  {secure}
hosts:
  default:
    paths:
      /:
        file.dir: {root}
"
    ))
}

//! nginx as it is installed, with the configuration that its documentation gives for serving many files fast: sendfile,
//! tcp_nopush, a cache of open files, no access log, connections that last, and a worker per core, pinned to it. With
//! `--files threads` a pool of threads does what may wait for the disk.
//!
//! This program chooses the port, writes the configuration into memory and becomes nginx. Since nginx prints nothing that
//! says when it accepts, a second process prints the ready line. On one core nginx is this one process, which is all that
//! the lab counts; on several it is a master with its workers.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use peer_flags::{HttpFlags, TlsFiles, announce_once_open, announced, in_memory, listen, plain_path};

/// Where Debian and most others keep the types of files.
const TYPES: &str = "/etc/nginx/mime.types";

/// What nginx of 1.23.4 and later does by itself: before, TLS 1.3 had to be asked for.
const VERSIONS: &str = "ssl_protocols TLSv1.2 TLSv1.3;";

fn main() -> io::Result<()> {
    if announced("driver=epoll")? {
        return Ok(());
    }
    let http = HttpFlags::with_tls_and_choice("--files", &["sendfile", "threads"]);
    let addr = listen(http.flags.addr, false)?.local_addr()?;
    let folder = std::env::current_exe()?.with_file_name("nginx-run");
    fs::create_dir_all(&folder)?;
    let configuration = in_memory(&configuration(&http, addr, &folder)?)?;
    announce_once_open(addr)?;
    let mut nginx = Command::new("nginx");
    nginx.args(["-e", "stderr", "-p"]).arg(folder);
    Err(nginx.args(["-c", &format!("/proc/self/fd/{}", configuration.as_raw_fd())]).exec())
}

/// The text of `nginx.conf`. `folder` is for what nginx writes. Workers stay who started them, to whom a folder of root's
/// may be open alone; where that is not root, nginx ignores the line.
fn configuration(http: &HttpFlags, addr: SocketAddr, folder: &Path) -> io::Result<String> {
    let (several, workers) = (http.flags.threads() > 1, http.flags.threads());
    let (root, folder, port) = (plain_path(&http.root)?, plain_path(folder)?, addr.port());
    let master = if several { "on" } else { "off" };
    let affinity = affinity(&http.flags.cores);
    let types = if Path::new(TYPES).is_file() { format!("include {TYPES};") } else { String::new() };
    let files = if http.chosen == 1 { "aio threads;" } else { "" };
    let (secure, reuse) =
        (if http.tls.is_some() { " ssl" } else { "" }, if several { " reuseport" } else { "" });
    let certificate = match &http.tls {
        Some(TlsFiles { certificate, key }) => {
            let (certificate, key) = (plain_path(certificate)?, plain_path(key)?);
            format!("ssl_certificate {certificate}; ssl_certificate_key {key}; {VERSIONS}")
        }
        None => String::new(),
    };
    Ok(format!(
        "
daemon off;
user root;
master_process {master};
worker_processes {workers};
{affinity}
pid {folder}/{port}.pid;
error_log stderr crit;
events {{
    worker_connections 16384;
}}
http {{
    client_body_temp_path {folder}/temporary;
    proxy_temp_path {folder}/temporary;
    fastcgi_temp_path {folder}/temporary;
    uwsgi_temp_path {folder}/temporary;
    scgi_temp_path {folder}/temporary;
    {types}
    default_type application/octet-stream;
    access_log off;
    sendfile on;
    tcp_nopush on;
    {files}
    keepalive_timeout 75s;
    keepalive_requests 1000000000;
    open_file_cache max=1000 inactive=60s;
    open_file_cache_valid 30s;
    open_file_cache_min_uses 1;
    open_file_cache_errors on;
    server {{
        listen {addr}{secure}{reuse} backlog=4096;
        {certificate}
        root {root};
    }}
}}
"
    ))
}

/// Each worker on a core of its own, as nginx wants it: as numbers of base two. A single process is bound already.
fn affinity(cores: &[usize]) -> String {
    if cores.len() < 2 {
        return String::new();
    }
    let masks: Vec<String> = cores.iter().map(|core| format!("1{}", "0".repeat(*core))).collect();
    format!("worker_cpu_affinity {};", masks.join(" "))
}

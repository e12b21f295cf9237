//! nginx as installed, with the settings that its documentation recommends for fast static files: sendfile,
//! tcp_nopush, an open file cache, no access log, long keep-alive, and one pinned worker per core. With `--files
//! threads`, a thread pool executes file operations that can block.
//!
//! This program chooses the port, writes the configuration into memory and becomes nginx by `exec`. nginx prints no
//! ready line, so a second process, the announcer, prints it. On one core, nginx is this one process, which is all
//! that the lab measures. On several cores, it is a master process with workers.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use peer_flags::{HttpFlags, TlsFiles, listen, memory_file, plain_path, run_as_announcer, spawn_announcer};

/// Content types on Debian and most other distributions.
const TYPES: &str = "/etc/nginx/mime.types";

/// The default since nginx 1.23.4; earlier versions enable TLS 1.3 only if configured.
const TLS_VERSIONS: &str = "ssl_protocols TLSv1.2 TLSv1.3;";

fn main() -> io::Result<()> {
    if run_as_announcer("driver=epoll")? {
        return Ok(());
    }
    let http = HttpFlags::with_tls_and_choice("--files", &["sendfile", "threads"]);
    let addr = listen(http.flags.addr, false)?.local_addr()?;
    let directory = std::env::current_exe()?.with_file_name("nginx-run");
    fs::create_dir_all(&directory)?;
    let configuration = memory_file(&configuration(&http, addr, &directory)?)?;
    spawn_announcer(addr)?;
    let mut nginx = Command::new("nginx");
    nginx.args(["-e", "stderr", "-p"]).arg(directory);
    Err(nginx.args(["-c", &format!("/proc/self/fd/{}", configuration.as_raw_fd())]).exec())
}

/// Returns the text of `nginx.conf`. nginx writes its files to `directory`. Workers keep the user root, because other
/// users may have no access to the document root. If nginx is not started by root, it ignores the line.
fn configuration(http: &HttpFlags, addr: SocketAddr, directory: &Path) -> io::Result<String> {
    let (has_master, workers) = (http.flags.threads() > 1, http.flags.threads());
    let (root, directory, port) = (plain_path(&http.root)?, plain_path(directory)?, addr.port());
    let master = if has_master { "on" } else { "off" };
    let affinity = affinity(&http.flags.cores);
    let types = if Path::new(TYPES).is_file() { format!("include {TYPES};") } else { String::new() };
    let files = if http.choice_index == 1 { "aio threads;" } else { "" };
    let (ssl, reuseport) =
        (if http.tls.is_some() { " ssl" } else { "" }, if has_master { " reuseport" } else { "" });
    let certificate = match &http.tls {
        Some(TlsFiles { certificate, key }) => {
            let (certificate, key) = (plain_path(certificate)?, plain_path(key)?);
            format!("ssl_certificate {certificate}; ssl_certificate_key {key}; {TLS_VERSIONS}")
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
pid {directory}/{port}.pid;
error_log stderr crit;
events {{
    worker_connections 16384;
}}
http {{
    client_body_temp_path {directory}/temporary;
    proxy_temp_path {directory}/temporary;
    fastcgi_temp_path {directory}/temporary;
    uwsgi_temp_path {directory}/temporary;
    scgi_temp_path {directory}/temporary;
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
        listen {addr}{ssl}{reuseport} backlog=4096;
        {certificate}
        root {root};
    }}
}}
"
    ))
}

/// Returns the directive that pins each worker to its own core with a binary mask. A single process is already pinned.
fn affinity(cores: &[usize]) -> String {
    if cores.len() < 2 {
        return String::new();
    }
    let masks: Vec<String> = cores.iter().map(|core| format!("1{}", "0".repeat(*core))).collect();
    format!("worker_cpu_affinity {};", masks.join(" "))
}

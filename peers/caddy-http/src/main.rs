//! Caddy as installed, with its file server and default settings, except for features that access the network: no
//! administration endpoint and no automatic certificates. Its own files are stored next to this program. Caddy logs
//! no requests by default. With TLS it uses the given certificate and disables HTTP/3, which would need another
//! socket.
//!
//! This program chooses the port, writes the configuration into memory and becomes Caddy by `exec`. Caddy prints no
//! ready line, so a second process, the announcer, prints it.

#![forbid(unsafe_code)]

use std::env;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use peer_flags::{HttpFlags, TlsFiles, listen, memory_file, run_as_announcer, spawn_announcer};

fn main() -> io::Result<()> {
    if run_as_announcer("driver=epoll")? {
        return Ok(());
    }
    let HttpFlags { flags, root, tls, .. } = HttpFlags::with_tls();
    let addr = listen(flags.addr, false)?.local_addr()?;
    let configuration = memory_file(&caddyfile(addr, &root, tls.as_ref())?)?;
    spawn_announcer(addr)?;
    let directory = env::current_exe()?.with_file_name("caddy-run");
    let mut caddy = Command::new("caddy");
    caddy.env("XDG_CONFIG_HOME", &directory).env("XDG_DATA_HOME", &directory);
    Err(caddy.args(["run", "--adapter", "caddyfile", "--config", "-"]).stdin(configuration).exec())
}

fn caddyfile(addr: SocketAddr, root: &Path, tls: Option<&TlsFiles>) -> io::Result<String> {
    let root = quote(root)?;
    let (ip, port) = (addr.ip(), addr.port());
    let (scheme, protocols, files) = match tls {
        None => ("http", "h1 h2 h3", String::new()),
        Some(TlsFiles { certificate, key }) => {
            ("https", "h1 h2", format!("tls {} {}", quote(certificate)?, quote(key)?))
        }
    };
    Ok(format!(
        "{{
	admin off
	auto_https off
	log {{
		level ERROR
	}}
	servers {{
		protocols {protocols}
	}}
}}
{scheme}://:{port} {{
	bind {ip}
	{files}
	root * {root}
	file_server
}}
"
    ))
}

/// Quotes a path for the configuration. Between backquotes all other characters are literal.
fn quote(path: &Path) -> io::Result<String> {
    let text = path.to_str().filter(|text| !text.contains(['`', '{', '\n'])).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{}: cannot represent the path in a Caddyfile", path.display()),
        )
    })?;
    Ok(format!("`{text}`"))
}

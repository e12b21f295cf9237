//! Caddy as it is installed, with its file server and the rest of its defaults but for what would reach outside: no
//! administration, no certificates of its own, and its own files are kept beside this program. Caddy logs no requests unless
//! told to. Under TLS, with the certificate that it is given, it leaves HTTP/3 out: that would be another socket.
//!
//! This program chooses the port, writes the configuration into memory and becomes Caddy. Since Caddy prints nothing that
//! says when it accepts, a second process prints the ready line.

#![forbid(unsafe_code)]

use std::env;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use peer_flags::{HttpFlags, TlsFiles, announce_once_open, announced, in_memory, listen};

fn main() -> io::Result<()> {
    if announced("driver=epoll")? {
        return Ok(());
    }
    let HttpFlags { flags, root, tls, .. } = HttpFlags::with_tls();
    let addr = listen(flags.addr, false)?.local_addr()?;
    let configuration = in_memory(&caddyfile(addr, &root, tls.as_ref())?)?;
    announce_once_open(addr)?;
    let folder = env::current_exe()?.with_file_name("caddy-run");
    let mut caddy = Command::new("caddy");
    caddy.env("XDG_CONFIG_HOME", &folder).env("XDG_DATA_HOME", &folder);
    Err(caddy.args(["run", "--adapter", "caddyfile", "--config", "-"]).stdin(configuration).exec())
}

fn caddyfile(addr: SocketAddr, root: &Path, tls: Option<&TlsFiles>) -> io::Result<String> {
    let root = word(root)?;
    let (ip, port) = (addr.ip(), addr.port());
    let (scheme, protocols, files) = match tls {
        None => ("http", "h1 h2 h3", String::new()),
        Some(TlsFiles { certificate, key }) => {
            ("https", "h1 h2", format!("tls {} {}", word(certificate)?, word(key)?))
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

/// A path as a word of the configuration: between backquotes every other character stands for itself.
fn word(path: &Path) -> io::Result<String> {
    let text = path.to_str().filter(|text| !text.contains(['`', '{', '\n'])).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{}: cannot stand in a Caddyfile", path.display()),
        )
    })?;
    Ok(format!("`{text}`"))
}

//! Caddy as it is installed, with its file server and the rest of its defaults but for what would reach outside: no
//! administration, no certificates, and its own files are kept beside this program. Caddy logs no requests unless told to.
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

use peer_flags::{HttpFlags, announce_once_open, announced, in_memory, listen};

fn main() -> io::Result<()> {
    if announced("driver=epoll")? {
        return Ok(());
    }
    let HttpFlags { flags, root, .. } = HttpFlags::with_root();
    let addr = listen(flags.addr, false)?.local_addr()?;
    let configuration = in_memory(&caddyfile(addr, &root)?)?;
    announce_once_open(addr)?;
    let folder = env::current_exe()?.with_file_name("caddy-run");
    let mut caddy = Command::new("caddy");
    caddy.env("XDG_CONFIG_HOME", &folder).env("XDG_DATA_HOME", &folder);
    Err(caddy.args(["run", "--adapter", "caddyfile", "--config", "-"]).stdin(configuration).exec())
}

fn caddyfile(addr: SocketAddr, root: &Path) -> io::Result<String> {
    // Between backquotes every other character stands for itself.
    let root = root.to_str().filter(|root| !root.contains(['`', '{', '\n'])).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{}: cannot stand in a Caddyfile", root.display()),
        )
    })?;
    let (ip, port) = (addr.ip(), addr.port());
    Ok(format!(
        "{{
	admin off
	auto_https off
	log {{
		level ERROR
	}}
}}
http://:{port} {{
	bind {ip}
	root * `{root}`
	file_server
}}
"
    ))
}

//! static-web-server, its own command line and settings with nothing but address and root given: a tokio runtime with a
//! worker per core, and further threads that read files.
//!
//! It does not tell the port that it got, so this program listens first and then becomes the server (a second start of
//! itself), which takes over the socket as it does systemd's.

#![forbid(unsafe_code)]

use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::{Command, id};

use peer_flags::{HttpFlags, Ready, inheritable, listen};
use static_web_server::{Server, Settings};

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var("LISTEN_PID").is_ok_and(|pid| pid == id().to_string()) {
        return Ok(Server::new(Settings::get(true)?)?.run_standalone(None)?);
    }
    let HttpFlags { flags, root, .. } = HttpFlags::with_root();
    let listener = listen(flags.addr, false)?;
    let ready = Ready::new(1, listener.local_addr()?, "driver=epoll");
    let mut server = Command::new(std::env::current_exe()?);
    server.env("LISTEN_PID", id().to_string()).env("LISTEN_FDS", "1");
    server.env("LISTEN_FDS_FIRST_FD", inheritable(listener)?.to_string());
    server.args(["--fd", "0", "--root"]).arg(root);
    // Whoever connects from here on waits in the socket's queue.
    ready.announce()?;
    Err(server.exec().into())
}

//! static-web-server with default settings except for address and root: a tokio runtime with one worker per core, and
//! further threads that read files.
//!
//! It does not report its port, so this program listens first and then becomes the server by `exec` of itself. The
//! server inherits the socket with the protocol of systemd socket activation.

#![forbid(unsafe_code)]

use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::{Command, id};

use peer_flags::{HttpFlags, Ready, into_inheritable_fd, listen};
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
    server.env("LISTEN_FDS_FIRST_FD", into_inheritable_fd(listener)?.to_string());
    server.args(["--fd", "0", "--root"]).arg(root);
    // From here on, connections wait in the accept queue of the socket.
    ready.announce()?;
    Err(server.exec().into())
}

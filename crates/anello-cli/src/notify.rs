//! What the service manager is told, where there is one (`NOTIFY_SOCKET`, as sd_notify(3) has it).

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// A socket that is connected to the service manager, if there is one. Nothing is connected to later, so that a sandbox
/// need not allow it.
#[derive(Debug)]
pub struct ServiceManager(Option<UnixDatagram>);

impl ServiceManager {
    /// Finds it (`socket(2)`, `connect(2)`). One that cannot be reached is warned of, and not told anything.
    pub fn find() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self(None);
        };
        match connect(&name) {
            Ok(socket) => Self(Some(socket)),
            Err(error) => {
                tracing::warn!(%error, ?name, "the service manager (NOTIFY_SOCKET) cannot be reached");
                Self(None)
            }
        }
    }

    /// The server accepts connections. `took_over` from another process, instead of which the manager is to watch this one.
    pub fn ready(&self, took_over: bool) {
        match took_over {
            true => self.notify(&format!("MAINPID={}\nREADY=1\n", std::process::id())),
            false => self.notify("READY=1\n"),
        }
    }

    /// The server ends.
    pub fn stopping(&self) {
        self.notify("STOPPING=1\n");
    }

    /// The server reads something anew, and says that it is ready when it has.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}\n"));
    }

    fn notify(&self, states: &str) {
        if let Some(socket) = &self.0
            && let Err(error) = socket.send(states.as_bytes())
        {
            tracing::warn!(%error, "the service manager (NOTIFY_SOCKET) cannot be told: {states:?}");
        }
    }
}

/// Connects to a path, or with an `@` before it, to an abstract name.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

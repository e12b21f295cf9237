//! Notifications to the service manager over `NOTIFY_SOCKET` (sd_notify(3)).

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// A socket to the service manager, if there is one. Connected at startup, because the sandbox denies `connect(2)`.
pub struct ServiceManager(Option<UnixDatagram>);

impl ServiceManager {
    /// Connects to the socket named by `NOTIFY_SOCKET` (`socket(2)`, `connect(2)`). Logs a warning if that fails;
    /// later notifications are then discarded.
    pub fn find() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self(None);
        };
        let socket = connect(&name).inspect_err(|error| {
            tracing::warn!(%error, ?name, "cannot connect to the service manager (NOTIFY_SOCKET)");
        });
        Self(socket.ok())
    }

    /// Reports that the server is accepting connections. After a handover (`took_over`), also sends `MAINPID`, so that
    /// the service manager supervises this process instead of the old one.
    pub fn ready(&self, took_over: bool) {
        let main_pid = if took_over { format!("MAINPID={}\n", std::process::id()) } else { String::new() };
        self.notify(&format!("{main_pid}READY=1\n"));
    }

    pub fn stopping(&self) {
        self.notify("STOPPING=1\n");
    }

    /// Reports that a reload has started. [`ready`](Self::ready) reports its end.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}\n"));
    }

    fn notify(&self, states: &str) {
        if let Some(socket) = &self.0
            && let Err(error) = socket.send(states.as_bytes())
        {
            tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET): {states:?}");
        }
    }
}

/// Connects to a path, or to an abstract name if the name starts with `@`.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

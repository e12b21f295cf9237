//! Server sandbox: drops privileges that serving does not need, so that an attacker who controls the process does not
//! have them either (fault 40).
//!
//! ```text
//!   single thread  sockets bound, files and certificates checked
//!     │ enter      no_new_privs, capabilities, Landlock: for this thread and all threads it starts
//!   all threads    workers, access log, metrics
//!     │ seal       seccomp: for all threads, when all workers are ready
//!   ready line, requests
//! ```
//!
//! The mechanisms complement each other. seccomp restricts system calls regardless of their targets and kills the
//! process on a violation, but it sees only `io_uring_enter(2)`, not the operations of a ring. Landlock restricts only
//! access to files and ports, but it also covers io_uring operations.

pub mod capabilities;
mod landlock;
mod seccomp;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anello::DriverInfo;
use clap::ValueEnum;

pub use self::landlock::AllowedPaths;
use self::landlock::Landlock;
use crate::common::output::print_stderr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxMode {
    /// Apply the whole sandbox, or fail
    On,
    /// Do not apply the sandbox
    Off,
    /// Apply as much of the sandbox as the kernel supports
    Auto,
}

/// The privileges that this process has dropped.
pub struct Sandbox {
    mode: SandboxMode,
    has_no_new_privileges: bool,
    landlock: Option<Landlock>,
    is_sealed: AtomicBool,
    /// Whether a worker uses io_uring.
    has_rings: AtomicBool,
    has_socket_files: bool,
}

impl Sandbox {
    /// Prevents programs from gaining privileges by execve(2) (`PR_SET_NO_NEW_PRIVS`, Linux 3.5), drops [capabilities],
    /// and denies connect(2) and bind(2) on TCP sockets, signals to other processes, and access to all files except the
    /// allowed paths (`landlock_restrict_self(2)`, Linux 5.13 and later). Applies to the calling thread and threads
    /// that it starts later, so it must be called while the process is single-threaded.
    ///
    /// If a part is unavailable, returns `Unsupported` in mode [`On`](SandboxMode::On), and reports it in mode `Auto`.
    pub fn enter(mode: SandboxMode, allowed_paths: &AllowedPaths) -> io::Result<Self> {
        let mut sandbox = Self {
            mode,
            has_no_new_privileges: false,
            landlock: None,
            is_sealed: AtomicBool::new(false),
            has_rings: AtomicBool::new(false),
            has_socket_files: !allowed_paths.sockets.is_empty(),
        };
        if mode == SandboxMode::Off {
            return Ok(sandbox);
        }
        match rustix::thread::set_no_new_privs(true) {
            Ok(()) => sandbox.has_no_new_privileges = true,
            Err(error) => sandbox.report_missing(&format!("cannot set no_new_privs: {error}"))?,
        }
        match capabilities::drop_all_but_required(allowed_paths) {
            Ok(kept) if kept.is_empty() => {}
            Ok(kept) => {
                let names: Vec<_> = kept.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
                print_stderr(format_args!(
                    "anello: {} kept: this user cannot otherwise access the document root, certificates, log or sockets \
                     (use --user with their owner, or change their owner)",
                    names.join(" and ")
                ));
            }
            Err(reason) => sandbox.report_missing(&reason)?,
        }
        match Landlock::restrict(allowed_paths) {
            Ok(landlock) => {
                if let Some(gaps) = landlock.gaps() {
                    sandbox.report_missing(&gaps)?;
                }
                sandbox.landlock = Some(landlock);
            }
            Err(reason) => sandbox.report_missing(&reason)?,
        }
        Ok(sandbox)
    }

    /// Checks whether the whole sandbox is available, by [entering](Self::enter) it in a temporary thread. The seccomp
    /// filter is checked only as far as possible without installing it.
    pub fn probe(allowed_paths: &AllowedPaths) -> io::Result<()> {
        let result =
            thread::scope(|scope| scope.spawn(|| Self::enter(SandboxMode::On, allowed_paths)).join());
        let sandbox = result.map_err(|_| io::Error::other("sandbox probe thread panicked"))??;
        seccomp::probe().or_else(|reason| sandbox.report_missing(&reason))
    }

    /// Records a worker's driver, because the filter must allow the driver's system calls.
    pub fn register_driver(&self, driver: &DriverInfo) {
        self.has_rings.fetch_or(driver.name == "uring", Ordering::Relaxed);
    }

    /// Denies, in all threads, every system call that serving does not need (`seccomp(2)` with
    /// `SECCOMP_FILTER_FLAG_TSYNC`, Linux 3.17). A denied call kills the process with SIGSYS
    /// (`SECCOMP_RET_KILL_PROCESS`, Linux 4.14). Must be called after all workers are ready and have [registered their
    /// drivers](Self::register_driver). Returns the same errors as [`enter`](Self::enter).
    pub fn seal(&self) -> io::Result<()> {
        if self.mode == SandboxMode::Off {
            return Ok(());
        }
        match seccomp::install_filter(self.has_rings.load(Ordering::Relaxed), self.has_socket_files) {
            Ok(()) => self.is_sealed.store(true, Ordering::Relaxed),
            Err(reason) => self.report_missing(&reason)?,
        }
        Ok(())
    }

    /// Reports a part that is unavailable: as an error if the mode is `On`, otherwise on standard error.
    fn report_missing(&self, reason: &str) -> io::Result<()> {
        if self.mode == SandboxMode::On {
            let message =
                format!("--sandbox on: {reason} (use --sandbox auto to continue without the missing part)");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        print_stderr(format_args!("anello: sandbox incomplete: {reason}"));
        Ok(())
    }
}

/// Formats the active parts as a list, such as `no_new_privs,landlock-abi-6,seccomp`, or as `none` or `off`.
impl fmt::Display for Sandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.has_no_new_privileges.then(|| "no_new_privs".to_owned()),
            self.landlock.as_ref().map(ToString::to_string),
            self.is_sealed.load(Ordering::Relaxed).then(|| "seccomp".to_owned()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match (self.mode, parts.is_empty()) {
            (SandboxMode::Off, _) => formatter.write_str("off"),
            (_, true) => formatter.write_str("none"),
            _ => formatter.write_str(&parts.join(",")),
        }
    }
}

//! What a server gives up before it serves: rights that serving does not need, so that whoever takes it over has not got
//! them either (fault 40).
//!
//! ```text
//!   one thread     sockets are bound, folders and certificates looked at
//!     │ enter      no_new_privs, capabilities and Landlock: for this thread, and for all that it starts
//!   all threads    workers, log, metrics
//!     │ seal       seccomp: for all threads at once, when the last worker is ready
//!   ready line, requests
//! ```
//!
//! The two complete each other. seccomp forbids calls, whatever they are about, and ends the process that makes one; but of
//! io_uring it sees `io_uring_enter(2)`, not what is asked for there. Landlock forbids files and ports, whoever asks for
//! them, a ring as well; but knows only these.

pub mod capabilities;
mod landlock;
mod seccomp;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anello::DriverInfo;
use clap::ValueEnum;

use self::landlock::Landlock;
use crate::output::print_stderr;

/// Whether there is to be a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxMode {
    /// All of it, or an error.
    On,
    /// None of it.
    Off,
    /// As much of it as the kernel allows.
    Auto,
}

/// What serving does need: the sandbox leaves it open.
#[derive(Clone, Debug, Default)]
pub struct AllowedPaths {
    /// The folder that is served. Everything below it may be read.
    pub served: PathBuf,
    /// Files that are read again when they have been replaced. The folders that they are in may be read.
    pub reloaded: Vec<PathBuf>,
    /// Files that are appended to, and created again when they have been renamed, in whose folders files may be made and
    /// written.
    pub appended: Vec<PathBuf>,
    /// Files of Unix sockets, which are removed at the end. Whatever is in their folders may be removed.
    pub sockets: Vec<PathBuf>,
}

/// What this process has given up.
#[derive(Debug)]
pub struct Sandbox {
    mode: SandboxMode,
    has_no_new_privileges: bool,
    landlock: Option<Landlock>,
    is_sealed: AtomicBool,
    /// A worker runs on io_uring.
    has_rings: AtomicBool,
    has_socket_files: bool,
}

impl Sandbox {
    /// Gives up new privileges (`PR_SET_NO_NEW_PRIVS`, Linux 3.5), [capabilities], all files but those that are named, connecting by TCP,
    /// listening elsewhere, and signals to others (`landlock_restrict_self(2)`, Linux 5.13 and later): for the calling
    /// thread and those that it starts. So call it before there are others.
    ///
    /// # Errors
    /// When something is not to be had and the wish is [`On`](SandboxMode::On); otherwise standard error says what is missing.
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
            Err(error) => sandbox.report_missing(&format!("no_new_privs was refused: {error}"))?,
        }
        match capabilities::drop_all_but_required(allowed_paths) {
            Ok(kept) if kept.is_empty() => {}
            Ok(kept) => {
                let names: Vec<_> = kept.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
                print_stderr(format_args!(
                    "anello: {} is kept: permission bits do not let this user use the paths of the folder, certificates, log \
                     or sockets; name their owner as --user, or give them to this user",
                    names.join(" and ")
                ));
            }
            Err(why) => sandbox.report_missing(&why)?,
        }
        match Landlock::restrict(allowed_paths) {
            Ok(landlock) => {
                if let Some(gaps) = landlock.gaps() {
                    sandbox.report_missing(&gaps)?;
                }
                sandbox.landlock = Some(landlock);
            }
            Err(why) => sandbox.report_missing(&why)?,
        }
        Ok(sandbox)
    }

    /// Whether all of it is to be had here, as far as that can be told without giving anything up: a thread that ends then
    /// [enters](Self::enter).
    ///
    /// # Errors
    /// What is missing.
    pub fn probe(allowed_paths: &AllowedPaths) -> io::Result<()> {
        let entering =
            thread::scope(|scope| scope.spawn(|| Self::enter(SandboxMode::On, allowed_paths)).join());
        let sandbox = entering.map_err(|_| io::Error::other("the sandbox could not be tried out"))??;
        seccomp::probe().or_else(|why| sandbox.report_missing(&why))
    }

    /// A worker has this driver.
    pub fn register_driver(&self, driver: &DriverInfo) {
        self.has_rings.fetch_or(driver.name == "uring", Ordering::Relaxed);
    }

    /// Gives up all system calls but those that serving needs (`seccomp(2)` with `SECCOMP_FILTER_FLAG_TSYNC`, Linux
    /// 3.17): for all threads. Any other ends the process by SIGSYS (`SECCOMP_RET_KILL_PROCESS`, Linux 4.14). To be called
    /// when all workers have said what they [use](Self::register_driver) and are ready.
    ///
    /// # Errors
    /// As those of [`enter`](Self::enter).
    pub fn seal(&self) -> io::Result<()> {
        if self.mode == SandboxMode::Off {
            return Ok(());
        }
        let rings = self.has_rings.load(Ordering::Relaxed);
        match seccomp::install_filter(seccomp::FilterOptions { rings, socket_files: self.has_socket_files }) {
            Ok(()) => self.is_sealed.store(true, Ordering::Relaxed),
            Err(why) => self.report_missing(&why)?,
        }
        Ok(())
    }

    /// Something is not to be had.
    fn report_missing(&self, why: &str) -> io::Result<()> {
        if self.mode == SandboxMode::On {
            let message = format!("--sandbox on: {why}; --sandbox auto does without what is missing");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        print_stderr(format_args!("anello: the sandbox is not whole: {why}"));
        Ok(())
    }
}

/// What is in force, as the ready line has it: `no_new_privs,landlock-abi-6,seccomp`; `none` where nothing could be had,
/// `off` where nothing was wished.
impl fmt::Display for Sandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.has_no_new_privileges {
            parts.push("no_new_privs".to_owned());
        }
        parts.extend(self.landlock.as_ref().map(ToString::to_string));
        if self.is_sealed.load(Ordering::Relaxed) {
            parts.push("seccomp".to_owned());
        }
        match (self.mode, parts.is_empty()) {
            (SandboxMode::Off, _) => formatter.write_str("off"),
            (_, true) => formatter.write_str("none"),
            _ => formatter.write_str(&parts.join(",")),
        }
    }
}

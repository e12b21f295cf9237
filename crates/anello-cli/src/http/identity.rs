//! `--user` and `--group`: who the process is once its sockets are bound.

use std::ffi::CString;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use nix::unistd::{Group, User, getgrouplist};
use rustix::fs::{AtFlags, CWD, chownat};
use rustix::process::{Gid, Uid, getegid, geteuid, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::sandbox_setup::is_single_threaded;
use crate::sandbox::capabilities;

/// Who the process is to be.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Identity")]
pub struct IdentityFlags {
    /// Change to this user once the sockets are bound: a name, or a number. Its groups are that of --group, or its own, and
    /// those that it is a member of. The server has to be started as root.
    #[arg(long, value_name = "NAME|UID")]
    user: Option<String>,

    /// Change to this group once the sockets are bound: a name, or a number. By default that of --user.
    #[arg(long, value_name = "NAME|GID")]
    group: Option<String>,
}

/// A user and groups that were found.
#[derive(Debug)]
pub struct Identity {
    uid: Uid,
    group: Gid,
    groups: Vec<Gid>,
    flags: String,
}

impl IdentityFlags {
    /// Looks them up; `None` where the process stays who it is.
    ///
    /// # Errors
    /// `InvalidInput` for a user or a group that there is not; the error of `getpwnam_r(3)` or `getgrnam_r(3)`.
    pub fn resolve(&self) -> io::Result<Option<Identity>> {
        let user = self.user.as_deref().map(find_user).transpose()?;
        let group = self.group.as_deref().map(find_group).transpose()?;
        let flags = self.text();
        let (uid, group, groups) = match (user, group) {
            (None, None) => return Ok(None),
            (None, Some(group)) => (geteuid(), group, vec![group]),
            (Some((uid, Some(entry))), group) => {
                let group = group.unwrap_or_else(|| Gid::from_raw(entry.gid.as_raw()));
                (uid, group, group_list(&entry, group)?)
            }
            (Some((uid, None)), Some(group)) => (uid, group, vec![group]),
            (Some((_, None)), None) => {
                let why =
                    "the user database has no entry for this number, which would name a group: add --group";
                return Err(invalid(format!("{flags}: {why}")));
            }
        };
        let is_unchanged = (uid, uid, group) == (geteuid(), getuid(), getegid());
        Ok((!is_unchanged).then_some(Identity { uid, group, groups, flags }))
    }

    fn text(&self) -> String {
        let flags = [("--user", &self.user), ("--group", &self.group)];
        let given = flags.iter().filter_map(|(flag, value)| Some(format!("{flag} {}", value.as_ref()?)));
        given.collect::<Vec<_>>().join(" ")
    }
}

/// A user's number and its entry in the user database, which a number need not have.
fn find_user(text: &str) -> io::Result<(Uid, Option<User>)> {
    if let Some(uid) = parse_id(text) {
        let entry = database_entry("--user", text, User::from_uid(nix::unistd::Uid::from_raw(uid)))?;
        return Ok((Uid::from_raw(uid), entry));
    }
    match database_entry("--user", text, User::from_name(text))? {
        Some(entry) => Ok((Uid::from_raw(entry.uid.as_raw()), Some(entry))),
        None => Err(invalid(format!("--user {text}: there is no such user: create it, or give another one"))),
    }
}

/// An entry of the user database, which may be missing as a whole: getpwnam(3) lists the errors that say so.
fn database_entry<T>(flag: &str, text: &str, entry: nix::Result<Option<T>>) -> io::Result<Option<T>> {
    match entry {
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => Ok(None),
        Err(error) => {
            let why = format!(
                "{flag} {text}: the user database cannot be read: {error}: give a number, or repair it"
            );
            Err(io::Error::new(io::Error::from(error).kind(), why))
        }
        Ok(entry) => Ok(entry),
    }
}

/// This group, and those that the user is a member of.
fn group_list(entry: &User, group: Gid) -> io::Result<Vec<Gid>> {
    let name = CString::new(entry.name.as_str()).map_err(io::Error::other)?;
    let groups = getgrouplist(&name, nix::unistd::Gid::from_raw(group.as_raw()))?;
    Ok(groups.into_iter().map(|group| Gid::from_raw(group.as_raw())).collect())
}

fn find_group(text: &str) -> io::Result<Gid> {
    if let Some(gid) = parse_id(text) {
        return Ok(Gid::from_raw(gid));
    }
    match database_entry("--group", text, Group::from_name(text))? {
        Some(entry) => Ok(Gid::from_raw(entry.gid.as_raw())),
        None => {
            Err(invalid(format!("--group {text}: there is no such group: create it, or give another one")))
        }
    }
}

/// The largest number means "unchanged" to the kernel.
fn parse_id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number != u32::MAX)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

impl Identity {
    /// Gives a socket's file to this user, which is to remove it, and to the group (`fchownat(2)`).
    ///
    /// # Errors
    /// That of the call.
    pub fn chown_socket_file(&self, file: &Path) -> io::Result<()> {
        let owned = chownat(CWD, file, Some(self.uid), Some(self.group), AtFlags::SYMLINK_NOFOLLOW);
        owned.map_err(|error| {
            self.permission_error(error).unwrap_or_else(|error| with_path(&self.flags, file, error.into()))
        })
    }

    /// Changes to it: groups, group and user (`setgroups(2)`, `setresgid(2)`, `setresuid(2)`), and no capability is left
    /// that the user would not have. It holds for the calling thread and those that it starts.
    ///
    /// # Errors
    /// `PermissionDenied` if the process may not do that.
    pub fn assume(&self) -> io::Result<()> {
        let change = || {
            capabilities::drop_bounding_set()?;
            set_thread_groups(&self.groups)?;
            set_thread_res_gid(self.group, self.group, self.group)?;
            set_thread_res_uid(self.uid, self.uid, self.uid)?;
            // The kernel does that, unless it was told not to (securebits).
            if self.uid.is_root() { Ok(()) } else { capabilities::drop_all() }
        };
        change().map_err(|error| self.permission_error(error).unwrap_or_else(|error| error.into()))
    }

    /// As [`assume`](Self::assume), of the whole process, which must have one thread.
    pub fn assume_process_wide(&self) -> io::Result<()> {
        // One that has been joined may still be there for a moment.
        let ends = Instant::now() + Duration::from_secs(1);
        while !is_single_threaded() {
            if Instant::now() > ends {
                let why = "other threads have started: this is a fault of anello, report it";
                return Err(io::Error::other(format!("{}: {why}", self.flags)));
            }
            thread::yield_now();
        }
        self.assume()
    }

    /// Does something by a thread that has assumed the identity, and ends then.
    ///
    /// # Errors
    /// Those of [`assume`](Self::assume), and what is returned.
    pub fn run_as<T: Send>(&self, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let tried = thread::scope(|scope| {
            let trying = scope.spawn(|| {
                self.assume()?;
                act().map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.flags)))
            });
            trying.join()
        });
        tried.unwrap_or_else(|_| Err(io::Error::other(format!("{}: it could not be tried out", self.flags))))
    }

    fn permission_error(&self, error: rustix::io::Errno) -> Result<io::Error, rustix::io::Errno> {
        if error != rustix::io::Errno::PERM {
            return Err(error);
        }
        let why = "this process may not change its user or groups: start it as root (with CAP_SETUID, CAP_SETGID and \
                   CAP_CHOWN), or as that user without these flags";
        Ok(io::Error::new(io::ErrorKind::PermissionDenied, format!("{}: {why}", self.flags)))
    }
}

fn with_path(flags: &str, file: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{flags}: {}: {error}", file.display()))
}

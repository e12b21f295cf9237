//! `--user` and `--group`: the user and group that the process switches to after binding its sockets.

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

use super::sandbox::capabilities;
use crate::common::error::{Context, invalid_input};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Identity")]
pub struct IdentityFlags {
    /// Switch to this user (name or UID) after binding the sockets
    ///
    /// The process gets the user's supplementary groups and the group given with --group or, without that flag, the
    /// user's primary group. The server must be started as root.
    #[arg(long, value_name = "NAME|UID")]
    user: Option<String>,
    /// Switch to this group (name or GID) after binding the sockets [default: the primary group of --user]
    #[arg(long, value_name = "NAME|GID")]
    group: Option<String>,
}

pub struct Identity {
    uid: Uid,
    group: Gid,
    groups: Vec<Gid>,
    flags: String,
}

impl IdentityFlags {
    /// Resolves the flags. Returns `None` if the process keeps its user and group.
    pub fn resolve(&self) -> io::Result<Option<Identity>> {
        let user = self.user.as_deref().map(|user| find_user("--user", user)).transpose()?;
        let group = self.group.as_deref().map(|group| find_group("--group", group)).transpose()?;
        let given = [("--user", &self.user), ("--group", &self.group)].into_iter();
        let given = given.filter_map(|(flag, value)| Some(format!("{flag} {}", value.as_ref()?)));
        let flags = given.collect::<Vec<_>>().join(" ");
        let (uid, group, groups) = match (user, group) {
            (None, None) => return Ok(None),
            (None, Some(group)) => (geteuid(), group, vec![group]),
            (Some((uid, Some(entry))), group) => {
                let group = group.unwrap_or_else(|| Gid::from_raw(entry.gid.as_raw()));
                (uid, group, group_list(&entry, group)?)
            }
            (Some((uid, None)), Some(group)) => (uid, group, vec![group]),
            (Some((_, None)), None) => {
                let cause = "no primary group: this UID is not in the user database (add --group)";
                return Err(invalid_input(cause)).context(flags);
            }
        };
        let is_unchanged = (uid, uid, group) == (geteuid(), getuid(), getegid());
        Ok((!is_unchanged).then_some(Identity { uid, group, groups, flags }))
    }
}

/// The owner of a socket file.
pub struct Owner {
    text: String,
    uid: Uid,
    group: Option<Gid>,
}

impl Owner {
    /// Resolves `USER` or `USER:GROUP`.
    pub fn find(text: &str) -> io::Result<Self> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let flag = "--socket-owner";
        let group = group.map(|group| find_group(flag, group)).transpose()?;
        let (uid, _) = find_user(flag, user)?;
        Ok(Self { text: text.to_owned(), uid, group })
    }

    /// Changes the owner of a socket file.
    pub fn chown(&self, file: &Path) -> io::Result<()> {
        let result = chownat(CWD, file, Some(self.uid), self.group, AtFlags::SYMLINK_NOFOLLOW);
        let remedy = "start as root with CAP_CHOWN, or name this user and one of its groups";
        let what = format_args!("--socket-owner {}: {}", self.text, file.display());
        if result == Err(rustix::io::Errno::PERM) {
            return result.context_and_remedy(what, remedy);
        }
        result.context(what)
    }
}

/// Returns the user's UID and the user's entry in the user database, if there is one.
fn find_user(flag: &str, value: &str) -> io::Result<(Uid, Option<User>)> {
    if let Some(uid) = parse_id(value) {
        let entry = database_entry(flag, value, User::from_uid(nix::unistd::Uid::from_raw(uid)))?;
        return Ok((Uid::from_raw(uid), entry));
    }
    let entry = database_entry(flag, value, User::from_name(value))?;
    let entry = entry.ok_or_else(|| unknown(flag, "user", value))?;
    Ok((Uid::from_raw(entry.uid.as_raw()), Some(entry)))
}

/// Treats the errors that getpwnam(3) lists for "not found", and a missing user database, as a missing entry.
fn database_entry<T>(flag: &str, value: &str, entry: nix::Result<Option<T>>) -> io::Result<Option<T>> {
    if let Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) = entry {
        return Ok(None);
    }
    let remedy = "use a numeric ID or repair the database";
    entry.context_and_remedy(format_args!("{flag} {value}: cannot read the user database"), remedy)
}

fn group_list(entry: &User, group: Gid) -> io::Result<Vec<Gid>> {
    let name = CString::new(entry.name.as_str()).map_err(io::Error::other)?;
    let groups = getgrouplist(&name, nix::unistd::Gid::from_raw(group.as_raw()))?;
    Ok(groups.into_iter().map(|group| Gid::from_raw(group.as_raw())).collect())
}

fn find_group(flag: &str, value: &str) -> io::Result<Gid> {
    if let Some(gid) = parse_id(value) {
        return Ok(Gid::from_raw(gid));
    }
    let entry = database_entry(flag, value, Group::from_name(value))?;
    Ok(Gid::from_raw(entry.ok_or_else(|| unknown(flag, "group", value))?.gid.as_raw()))
}

fn unknown(flag: &str, kind: &str, value: &str) -> io::Error {
    invalid_input(format!("{flag} {value}: unknown {kind} (create it or use another one)"))
}

/// Parses a numeric ID. `u32::MAX` is rejected, because the kernel interprets it as "unchanged".
fn parse_id(value: &str) -> Option<u32> {
    value.parse().ok().filter(|number| *number != u32::MAX)
}

impl Identity {
    /// Changes the owner and group of a socket file (`fchownat(2)`), so that this user can remove it.
    pub fn chown_socket_file(&self, file: &Path) -> io::Result<()> {
        let result = chownat(CWD, file, Some(self.uid), Some(self.group), AtFlags::SYMLINK_NOFOLLOW);
        self.describe(result, Some(file))
    }

    /// Switches to this identity: supplementary groups, group and user (`setgroups(2)`, `setresgid(2)`,
    /// `setresuid(2)`). Drops all capabilities unless the user is root. Applies to the calling thread and to threads
    /// that it starts later. Returns `PermissionDenied` if the process lacks the capabilities for this.
    pub fn assume(&self) -> io::Result<()> {
        let change = || {
            capabilities::drop_bounding_set()?;
            set_thread_groups(&self.groups)?;
            set_thread_res_gid(self.group, self.group, self.group)?;
            set_thread_res_uid(self.uid, self.uid, self.uid)?;
            // The kernel drops the capabilities itself, unless the securebits disable that.
            if self.uid.is_root() { Ok(()) } else { capabilities::drop_all() }
        };
        self.describe(change(), None)
    }

    /// Switches to this identity for the whole process, which must be single-threaded. See [`assume`](Self::assume).
    pub fn assume_process_wide(&self) -> io::Result<()> {
        // The kernel can list a thread for a short time after it has been joined.
        let deadline = Instant::now() + Duration::from_secs(1);
        while !is_single_threaded() {
            if Instant::now() > deadline {
                let cause = "cannot switch user and group: other threads are running (a bug in anello, please report it)";
                return Err(io::Error::other(cause)).context(&self.flags);
            }
            thread::yield_now();
        }
        self.assume()
    }

    /// Runs a closure in a temporary thread that has switched to this identity.
    pub fn run_as<T: Send>(&self, closure: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let result = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.assume()?;
                closure().context(&self.flags)
            });
            thread.join()
        });
        result.unwrap_or_else(|_| Err(io::Error::other("thread panicked")).context(&self.flags))
    }

    /// Adds the command-line flags to a kernel error and, if the error concerns a file, the path of the file.
    fn describe(&self, result: rustix::io::Result<()>, file: Option<&Path>) -> io::Result<()> {
        match (result, file) {
            (Err(rustix::io::Errno::PERM), _) => {
                let cause = "not permitted to change the user or groups (start as root with CAP_SETUID, CAP_SETGID \
                    and CAP_CHOWN, or start as the target user without these flags)";
                Err(io::Error::new(io::ErrorKind::PermissionDenied, cause)).context(&self.flags)
            }
            (result, Some(file)) => result.context(format_args!("{}: {}", self.flags, file.display())),
            (result, None) => Ok(result?),
        }
    }
}

/// Returns `true` if the process has a single thread, or if /proc is unavailable.
pub fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(true, |threads| threads.count() == 1)
}

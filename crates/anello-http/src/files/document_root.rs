//! The document root: opens files by relative path, and never outside the directory.
//!
//! The kernel resolves a path in one call: `openat2(2)` with `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS` (Linux
//! 5.6) follows no `..` and no symbolic link out of the directory, even if files are renamed concurrently. If
//! `openat2` is unavailable (older kernel or seccomp filter), each path component is opened separately and symbolic
//! links are not followed.
//!
//! Paths in the dentry cache are resolved without blocking (`RESOLVE_CACHED`, Linux 5.12). Other paths are resolved
//! on a blocking thread.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anello::fs::File;
use anello::fs::spawn_file_operation;
use anello::log_event;
use rustix::fs::{
    Access, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, accessat, fstat, openat, openat2,
    statat,
};
use rustix::io::Errno;

use super::listing::{Contents, Listing};
use super::options::Symlinks;
use super::path::Dotfiles;
use super::stamp::{FileStamp, Timestamp};

/// Set once `openat2` has turned out to be unavailable. It is then not called again.
static OPENAT2_UNAVAILABLE: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Debug)]
pub(super) struct DocumentRoot {
    root: Arc<OwnedFd>,
    symlinks: Symlinks,
}

#[derive(Debug)]
pub(super) enum Opened {
    File {
        file: File,
        stamp: FileStamp,
    },
    Directory,
    /// A file of another type, for example a FIFO or a device. Such files are not served.
    Other,
}

/// `O_NONBLOCK` avoids waiting for the writer of a FIFO, and `O_NOCTTY` avoids acquiring a controlling terminal.
const READ_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Flags for lookups in a directory. `O_PATH` needs no read permission.
const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl DocumentRoot {
    pub fn open(path: &Path, symlinks: Symlinks) -> io::Result<Self> {
        let root = openat(rustix::fs::CWD, path, PATH_FLAGS, Mode::empty())?;
        Ok(Self { root: Arc::new(root), symlinks })
    }

    /// Opens a relative path. An empty path stands for the document root itself. Fails if the path does not exist, is not
    /// accessible, or leads outside the document root.
    pub async fn find(&self, path: &str) -> io::Result<Opened> {
        let path = if path.is_empty() { "." } else { path };
        let opened = match self.open_path(path).await {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::ACCESS) => {
                return self.find_unreadable(path, error).await;
            }
            other => other?,
        };
        let stat = fstat(&opened)?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                Opened::File { stamp: stamp(&stat), file: fs::File::from(opened).into() }
            }
            FileType::Directory => Opened::Directory,
            _ => Opened::Other,
        })
    }

    async fn open_path(&self, path: &str) -> io::Result<OwnedFd> {
        match self.open_cached(path) {
            Err(Errno::AGAIN) => {
                let (root, path) = (self.clone(), path.to_owned());
                spawn_file_operation(move || root.open_blocking(&path, READ_FLAGS)).await?
            }
            other => Ok(other?),
        }
    }

    /// Returns [`Opened::Directory`] for a directory that is searchable but not readable, because files in it may
    /// be readable.
    async fn find_unreadable(&self, path: &str, error: io::Error) -> io::Result<Opened> {
        // Resolving `.` in a directory requires only search permission.
        let (root, path) = (self.clone(), format!("{path}/."));
        let opened = spawn_file_operation(move || root.open_blocking(&path, PATH_FLAGS)).await?;
        opened.map(|_| Opened::Directory).map_err(|_| error)
    }

    /// Opens a path if it can be resolved from the dentry cache. Returns `EAGAIN` otherwise.
    fn open_cached(&self, path: &str) -> Result<OwnedFd, Errno> {
        if OPENAT2_UNAVAILABLE.load(Ordering::Relaxed) {
            return Err(Errno::AGAIN);
        }
        let resolve_flags = self.resolve_flags() | ResolveFlags::CACHED;
        match openat2(&*self.root, path, READ_FLAGS, Mode::empty(), resolve_flags) {
            // Kernels before 5.12 reject `RESOLVE_CACHED`.
            Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => Err(Errno::AGAIN),
            other => other,
        }
    }

    fn resolve_flags(&self) -> ResolveFlags {
        let flags = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match self.symlinks {
            Symlinks::FollowBeneath => flags,
            Symlinks::Deny => flags | ResolveFlags::NO_SYMLINKS,
        }
    }

    /// Can block, so call it on a blocking thread.
    fn open_blocking(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        // The kernel returns `EAGAIN` if a rename or mount in the system races with resolving a `..` in a link.
        const MAX_ATTEMPTS: usize = 100;
        for _ in 0..MAX_ATTEMPTS {
            if OPENAT2_UNAVAILABLE.load(Ordering::Relaxed) {
                break;
            }
            match openat2(&*self.root, path, flags, Mode::empty(), self.resolve_flags()) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error @ Errno::NOSYS) => disable_openat2(error),
                Err(error @ Errno::PERM) if self.is_openat2_filtered() => disable_openat2(error),
                // The `EPERM` comes from the file itself, so opening it component by component fails as well.
                Err(Errno::PERM) => break,
                other => return Ok(other?),
            }
        }
        self.open_by_component(path, flags)
    }

    /// Returns `true` if `openat2` fails for the document root, which is already open. Only a seccomp filter causes this.
    fn is_openat2_filtered(&self) -> bool {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        openat2(&*self.root, ".", flags, Mode::empty(), ResolveFlags::BENEATH).err() == Some(Errno::PERM)
    }

    /// Opens a path one component at a time, without `openat2` and without following symbolic links.
    fn open_by_component(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut parent: Option<OwnedFd> = None;
        let open_at = |parent: &Option<OwnedFd>, name: &str, flags| {
            openat(parent.as_ref().unwrap_or(&self.root), name, flags | OFlags::NOFOLLOW, Mode::empty())
        };
        for directory in directories.split('/').filter(|directory| !directory.is_empty()) {
            // Resolved targets contain no `..`, but a path in the configuration might.
            if directory == ".." {
                return Err(Errno::XDEV.into());
            }
            parent = Some(open_at(&parent, directory, PATH_FLAGS)?);
        }
        if name == ".." {
            return Err(Errno::XDEV.into());
        }
        Ok(open_at(&parent, name, flags)?)
    }

    /// Lists a directory (`getdents64(2)`, then `fstatat(2)` and `faccessat(2)` for each entry). Can block. A symbolic
    /// link is listed as its target. Inaccessible entries and links that lead outside the document root are omitted.
    pub fn list_blocking(&self, path: &str, dotfiles: Dotfiles, max_entries: usize) -> io::Result<Listing> {
        let opened = self.open_blocking(if path.is_empty() { "." } else { path }, READ_FLAGS)?;
        let mut listing = Listing::new(path, dotfiles, max_entries);
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name();
            if !listing.includes(name.to_bytes()) {
                continue;
            }
            let Ok(mut stat) = statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                let Ok(name) = name.to_str() else { continue };
                let link_path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
                // Entering a directory does not require read permission.
                let opened = self.open_blocking(&link_path, READ_FLAGS);
                let opened = opened.or_else(|_| self.open_blocking(&format!("{link_path}/."), PATH_FLAGS));
                let Ok(target) = opened else { continue };
                stat = fstat(&target)?;
                if is_directory(&stat) && !is_accessible(&target, c".", &stat) {
                    continue;
                }
            } else if !is_accessible(&opened, name, &stat) {
                continue;
            }
            let contents = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Contents::File { bytes: stat.st_size.unsigned_abs() },
                FileType::Directory => Contents::Directory,
                _ => continue,
            };
            if !listing.add(name.to_bytes(), contents, stamp(&stat).modified) {
                break;
            }
        }
        Ok(listing)
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Returns `true` if a file is readable or a directory is searchable.
fn is_accessible(directory: &OwnedFd, name: &CStr, stat: &Stat) -> bool {
    let access = if is_directory(stat) { Access::EXEC_OK } else { Access::READ_OK };
    accessat(directory, name, access, AtFlags::empty()).is_ok()
}

fn disable_openat2(error: Errno) {
    if OPENAT2_UNAVAILABLE.swap(true, Ordering::Relaxed) {
        return;
    }
    let cause = match error {
        Errno::PERM => {
            "fails with EPERM, probably because of a seccomp profile (allow openat2 in the profile)"
        }
        _ => "unavailable (requires Linux 5.6; denied by RestrictSUIDSGID= and DynamicUser= of systemd)",
    };
    log_event!(WARN, "openat2 {cause}: symbolic links are not followed");
}

pub(super) fn stamp(stat: &Stat) -> FileStamp {
    let time = |seconds, nanoseconds: u64| Timestamp { seconds, nanoseconds: nanoseconds as u32 };
    FileStamp {
        size_bytes: stat.st_size.unsigned_abs(),
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
        inode: stat.st_ino,
        device: stat.st_dev,
    }
}

/// After this many attempts to read a file that keeps changing, the response is sent from the open file.
const MAX_READ_ATTEMPTS: usize = 3;

/// Reads a file whose stamp was `previous` when it was last checked. Returns the contents and the stamp that was
/// current both before and after the read. If the file keeps changing, returns its latest stamp and no contents.
pub(super) async fn read_whole(file: &File, previous: FileStamp) -> io::Result<(Option<Vec<u8>>, FileStamp)> {
    let read = async |buffer: &mut [u8], offset| file.read_at(buffer, offset).await;
    let stat = || Ok(stamp(&fstat(file)?));
    read_consistent(read, stat, previous).await
}

/// Reads again if the file changed during the read.
async fn read_consistent(
    read: impl AsyncFn(&mut [u8], u64) -> io::Result<usize>,
    stat: impl Fn() -> io::Result<FileStamp>,
    mut previous: FileStamp,
) -> io::Result<(Option<Vec<u8>>, FileStamp)> {
    for _ in 0..MAX_READ_ATTEMPTS {
        let mut bytes = vec![0; usize::try_from(previous.size_bytes).map_err(io::Error::other)?];
        let mut filled = 0;
        while filled < bytes.len() {
            match read(&mut bytes[filled..], filled as u64).await? {
                0 => break,
                count => filled += count,
            }
        }
        let after = stat()?;
        if after == previous && filled == bytes.len() {
            return Ok((Some(bytes), after));
        }
        previous = after;
    }
    Ok((None, previous))
}

/// Returns the reason if a configured file cannot be served.
pub(super) fn check_opened(result: io::Result<Opened>) -> Result<(), String> {
    match result {
        Ok(Opened::File { .. }) => Ok(()),
        Ok(Opened::Directory) => Err("it is a directory (specify a file)".to_owned()),
        Ok(Opened::Other) => Err("it is not a regular file (specify a regular file)".to_owned()),
        Err(error) => Err(format!(
            "cannot open the file in the document root: {error} (create it, make it readable for this user, or \
             remove the option)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::Future;
    use std::os::unix::fs::symlink;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::files::response::is_missing;

    /// A document root with links, and a file outside it.
    fn site() -> (tempfile::TempDir, DocumentRoot) {
        let parent = tempfile::tempdir().unwrap();
        let at = |path: &str| parent.path().join(path);
        fs::create_dir_all(at("site/docs/deep")).unwrap();
        for path in ["outside", "site/file", "site/docs/deep/file"] {
            fs::write(at(path), path).unwrap();
        }
        for (path, target) in [
            ("site/link", "file"),
            ("site/docs-link", "docs"),
            ("site/docs/up", ".."),
            ("site/docs/out", "../../outside"),
            ("site/absolute", "/etc/passwd"),
        ] {
            symlink(target, at(path)).unwrap();
        }
        let root = DocumentRoot::open(&at("site"), Symlinks::FollowBeneath).unwrap();
        (parent, root)
    }

    fn is_same_file(opened: &OwnedFd, path: &Path) -> bool {
        stamp(&fstat(opened).unwrap()) == stamp(&rustix::fs::stat(path).unwrap())
    }

    #[test]
    fn fault_32_open_by_component_stays_in_root() {
        let (parent, root) = site();
        for (path, expected) in [
            ("file", "site/file"),
            ("docs/deep/file", "site/docs/deep/file"),
            ("./docs/./deep/file", "site/docs/deep/file"),
            ("docs", "site/docs"),
            ("docs/.", "site/docs"),
            (".", "site"),
        ] {
            let opened = root.open_by_component(path, READ_FLAGS).unwrap();
            assert!(is_same_file(&opened, &parent.path().join(expected)), "{path}");
        }
        for path in
            ["..", "../outside", "docs/..", "docs/../file", "docs/../../outside", "./..", "/etc/passwd", ""]
        {
            let error = root.open_by_component(path, READ_FLAGS).unwrap_err();
            assert!(is_missing(&error), "{path}: {error}");
        }
    }

    #[test]
    fn fault_33_open_by_component_follows_no_link() {
        let (_parent, root) = site();
        for path in
            ["link", "docs-link", "docs-link/deep/file", "docs/up/file", "docs/out", "absolute", "file/under"]
        {
            let error = root.open_by_component(path, READ_FLAGS).unwrap_err();
            assert!(is_missing(&error), "{path}: {error}");
        }
    }

    /// Reads a ten-byte file, at most four bytes at a time. Each element of `writes` consists of a number of reads and
    /// a length: after that many reads, the file is overwritten with the next letter and gets that length. Returns the
    /// contents, and whether the stamp describes the last state.
    fn read_while(writes: &[(usize, usize)]) -> (Option<String>, bool) {
        let (state, length, reads) = (Cell::new(0_u8), Cell::new(10_usize), Cell::new(0));
        let stat = || -> io::Result<FileStamp> {
            let changed = Timestamp { seconds: i64::from(state.get()), nanoseconds: 0 };
            Ok(FileStamp { size_bytes: length.get() as u64, changed, ..FileStamp::default() })
        };
        let read = async |buffer: &mut [u8], offset: u64| {
            let count = buffer.len().min(4).min(length.get().saturating_sub(offset as usize));
            buffer[..count].fill(b'a' + state.get());
            reads.update(|reads| reads + 1);
            if let Some((after, new_length)) = writes.get(usize::from(state.get()))
                && *after == reads.get()
            {
                state.update(|state| state + 1);
                length.set(*new_length);
            }
            Ok(count)
        };
        let future = pin!(read_consistent(read, stat, stat().unwrap()));
        let polled = future.poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok((bytes, stamp))) = polled else { panic!("read is pending") };
        (bytes.map(|bytes| String::from_utf8(bytes).unwrap()), stamp == stat().unwrap())
    }

    #[test]
    fn fault_35_file_changed_during_read_is_read_again() {
        for (writes, expected) in [
            (&[][..], Some("aaaaaaaaaa")),
            (&[(1, 10)], Some("bbbbbbbbbb")),
            (&[(2, 10)], Some("bbbbbbbbbb")),
            (&[(3, 10)], Some("bbbbbbbbbb")),
            (&[(1, 3)], Some("bbb")),
            (&[(1, 0)], Some("")),
            (&[(2, 20)], Some("bbbbbbbbbbbbbbbbbbbb")),
            (&[(1, 10), (4, 10)], Some("cccccccccc")),
            (&[(1, 10), (2, 10), (3, 10)], Some("dddddddddd")),
            // A file that keeps changing is sent from its descriptor.
            (&[(1, 10), (4, 10), (7, 10)], None),
        ] {
            assert_eq!(read_while(writes), (expected.map(str::to_owned), true), "{writes:?}");
        }
    }
}

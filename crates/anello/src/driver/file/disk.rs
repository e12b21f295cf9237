//! Operations on the disk of a simulated host: errors, and the loss of unsynced changes in a crash.
//!
//! Files are real. A [`Journal`] keeps what is necessary to undo the changes since the last sync: the previous contents
//! of sectors that have been overwritten or cut off, and the previous state of directory entries. In a crash, the seed
//! decides for each file whether all changes survive, none, or a part of the sectors and of the length. Of the changes
//! to directories, the first ones survive, because file systems write them in order.

use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use rustix::fs::{OFlags, fcntl_getfl};

/// Bytes that a disk writes either completely or not at all.
const SECTOR_BYTES: u64 = 512;

/// What a crash of a simulated host loses; see [`Control::set_crash_loss`](crate::sim::Control::set_crash_loss).
///
/// ```
/// assert_eq!(anello::sim::CrashLoss::default(), anello::sim::CrashLoss::Nothing);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashLoss {
    /// Nothing: the program ends, but the operating system does not. The default.
    #[default]
    Nothing,
    /// Writes that have not been synced, as in a power failure.
    Data,
    /// The same, and also new, renamed and removed names in a directory that has not been synced.
    DataAndNames,
}

/// The disk as an operation on it finds it. Outside of simulated hosts, it has no effect.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// The error with which the operation fails instead of being performed.
    error: Option<io::Error>,
    journal: Option<Journal>,
}

/// Change of the last name in the path of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameChange {
    None,
    /// The operation creates the name if there is none.
    Create,
    /// The same, and the previous contents of a file are discarded.
    Replace,
    Remove,
}

impl Disk {
    pub fn new(fails: bool, journal: Option<Journal>) -> Self {
        Self { error: fails.then(|| io::Error::from_raw_os_error(libc::EIO)), journal }
    }

    /// Performs an operation that changes nothing.
    pub fn read<T>(self, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.error.map_or_else(operation, Err)
    }

    /// Performs a write, at the cursor if there is no offset.
    pub fn write<T>(
        self,
        file: &File,
        offset: Option<u64>,
        bytes: usize,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if let (None, Some(journal)) = (&self.error, &self.journal) {
            journal.before_write(file, offset, bytes as u64)?;
        }
        self.read(operation)
    }

    /// Performs an operation that changes the length of a file.
    pub fn set_length<T>(
        self,
        file: &File,
        length: u64,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if let (None, Some(journal)) = (&self.error, &self.journal) {
            journal.lock().preserve(file, length..u64::MAX)?;
        }
        self.read(operation)
    }

    /// Performs a sync of a file or directory.
    pub fn sync<T>(self, file: &File, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let journal = self.journal.clone();
        let done = self.read(operation)?;
        if let Some(journal) = journal {
            journal.lock().mark_synced(&file.metadata()?);
        }
        Ok(done)
    }

    /// Performs an operation on a path.
    pub fn on_path<T>(
        self,
        change: NameChange,
        path: &Path,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match self.journal.clone().filter(|_| change != NameChange::None && self.error.is_none()) {
            Some(journal) => journal.change_name(change, path, operation),
            None => self.read(operation),
        }
    }

    /// Performs an operation that renames a file or directory.
    pub fn rename<T>(
        self,
        from: &Path,
        to: &Path,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match self.journal.clone().filter(|_| self.error.is_none()) {
            Some(journal) => journal.rename(from, to, operation),
            None => self.read(operation),
        }
    }
}

/// The unsynced changes of one host. Clones refer to the same journal.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    unsynced: Arc<Mutex<Unsynced>>,
    /// Set if unsynced changes of directories are lost, too.
    loses_names: bool,
}

#[derive(Debug, Default)]
struct Unsynced {
    /// In the order of the first change, which does not depend on the numbers of the files.
    files: Vec<UnsyncedFile>,
    names: Vec<UnsyncedName>,
}

/// Device and inode number.
type FileId = (u64, u64);

#[derive(Debug)]
struct UnsyncedFile {
    id: FileId,
    /// Open for reading and writing.
    file: File,
    /// Length at the last sync.
    length: u64,
    /// Contents at the last sync of the sectors that may have changed since, by index.
    sectors: BTreeMap<u64, Vec<u8>>,
}

#[derive(Debug)]
struct UnsyncedName {
    /// The directory whose sync makes the change permanent.
    directory: FileId,
    undo: Undo,
}

#[derive(Debug)]
enum Undo {
    Remove(PathBuf),
    Restore(PathBuf, Removed),
    RenameBack { from: PathBuf, to: PathBuf, replaced: Option<Removed> },
}

/// A removed file, which is open.
#[derive(Debug)]
struct Removed(File);

fn id(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// Opens a file again, for reading and writing.
fn reopen(file: &File) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn directory_of(path: &Path) -> io::Result<FileId> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).metadata().map(|metadata| id(&metadata))
}

impl Journal {
    pub fn new(loses_names: bool) -> Self {
        Self { unsynced: Arc::default(), loses_names }
    }

    fn lock(&self) -> MutexGuard<'_, Unsynced> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn before_write(&self, file: &File, offset: Option<u64>, bytes: u64) -> io::Result<()> {
        let flags = fcntl_getfl(file)?;
        if flags.intersects(OFlags::SYNC | OFlags::DSYNC) {
            return Ok(());
        }
        let start = match offset {
            // Such a file ignores the offset.
            _ if flags.contains(OFlags::APPEND) => file.metadata()?.len(),
            Some(offset) => offset,
            None if !file.metadata()?.is_file() => return Ok(()),
            None => Seek::stream_position(&mut { file })?,
        };
        self.lock().preserve(file, start..start.saturating_add(bytes))
    }

    fn change_name<T>(
        &self,
        change: NameChange,
        path: &Path,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let previous = path.symlink_metadata().ok();
        let existed = previous.is_some();
        let mut removed = None;
        if change == NameChange::Replace && path.is_file() {
            self.lock().preserve(&File::open(path)?, 0..u64::MAX)?;
        }
        if change == NameChange::Remove && previous.is_some_and(|previous| previous.is_file()) {
            removed = Some(Removed(File::open(path)?));
        }
        let done = operation()?;
        if existed {
            if let Some(removed) = removed {
                self.add_name(path, Undo::Restore(path.to_owned(), removed))?;
            }
            return Ok(done);
        }
        if change != NameChange::Remove {
            if change == NameChange::Replace && path.is_file() {
                self.lock().add_file(&File::open(path)?, 0)?;
            }
            self.add_name(path, Undo::Remove(path.to_owned()))?;
        }
        Ok(done)
    }

    fn rename<T>(&self, from: &Path, to: &Path, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let replaced = to.is_file().then(|| File::open(to).map(Removed)).transpose()?;
        let done = operation()?;
        self.add_name(to, Undo::RenameBack { from: from.to_owned(), to: to.to_owned(), replaced })?;
        Ok(done)
    }

    fn add_name(&self, path: &Path, undo: Undo) -> io::Result<()> {
        if self.loses_names {
            let directory = directory_of(path)?;
            self.lock().names.push(UnsyncedName { directory, undo });
        }
        Ok(())
    }

    /// Undoes a random part of the unsynced changes.
    ///
    /// # Errors
    /// Returns the error of a system call that undoes a change.
    pub fn lose(&self, random: &mut Rng) -> io::Result<()> {
        let Unsynced { files, mut names } = std::mem::take(&mut *self.lock());
        for file in files {
            file.lose(random)?;
        }
        if !names.is_empty() {
            let kept = random.usize(..=names.len());
            for name in names.drain(kept..).rev() {
                name.undo.perform()?;
            }
        }
        Ok(())
    }
}

impl Unsynced {
    fn add_file(&mut self, file: &File, length: u64) -> io::Result<&mut UnsyncedFile> {
        let id = id(&file.metadata()?);
        let index = match self.files.iter().position(|other| other.id == id) {
            Some(index) => index,
            None => {
                let file = reopen(file)?;
                self.files.push(UnsyncedFile { id, file, length, sectors: BTreeMap::new() });
                self.files.len() - 1
            }
        };
        Ok(&mut self.files[index])
    }

    /// Stores the contents of a range that is about to change.
    fn preserve(&mut self, file: &File, range: Range<u64>) -> io::Result<()> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(());
        }
        let unsynced = self.add_file(file, metadata.len())?;
        for index in range.start / SECTOR_BYTES..range.end.min(unsynced.length).div_ceil(SECTOR_BYTES) {
            if unsynced.sectors.contains_key(&index) {
                continue;
            }
            let start = index * SECTOR_BYTES;
            let mut sector = vec![0; SECTOR_BYTES.min(unsynced.length - start) as usize];
            unsynced.file.read_exact_at(&mut sector, start)?;
            unsynced.sectors.insert(index, sector);
        }
        Ok(())
    }

    fn mark_synced(&mut self, metadata: &Metadata) {
        let synced = id(metadata);
        if metadata.is_dir() {
            self.names.retain(|name| name.directory != synced);
        } else {
            self.files.retain(|file| file.id != synced);
        }
    }
}

impl UnsyncedFile {
    /// Undoes none, all or a part of the changes.
    fn lose(&self, random: &mut Rng) -> io::Result<()> {
        let current = self.file.metadata()?.len();
        let (is_partial, length) = match random.u8(..4) {
            0 => return Ok(()),
            1 => (false, self.length),
            _ => (true, random.u64(current.min(self.length)..=current.max(self.length))),
        };
        self.file.set_len(length)?;
        for (index, sector) in &self.sectors {
            let start = index * SECTOR_BYTES;
            // A sector that has been cut off has not changed.
            let is_lost = !is_partial || start + sector.len() as u64 > current || random.bool();
            if is_lost && start < length {
                let kept = sector.len().min((length - start) as usize);
                self.file.write_all_at(&sector[..kept], start)?;
            }
        }
        // The length can be written before the contents, which are then zero.
        let mut start = self.length;
        while is_partial && start < length.min(current) {
            let end = (start / SECTOR_BYTES + 1) * SECTOR_BYTES;
            if random.u8(..4) == 0 {
                let zeros = [0; SECTOR_BYTES as usize];
                self.file.write_all_at(&zeros[..(end.min(length) - start) as usize], start)?;
            }
            start = end;
        }
        Ok(())
    }
}

impl Undo {
    fn perform(self) -> io::Result<()> {
        let undone = match self {
            Self::Remove(path) if path.is_dir() => std::fs::remove_dir(path),
            Self::Remove(path) => std::fs::remove_file(path),
            Self::Restore(path, removed) => removed.restore(&path),
            Self::RenameBack { from, to, replaced } => {
                std::fs::rename(&to, &from).and_then(|()| replaced.map_or(Ok(()), |file| file.restore(&to)))
            }
        };
        match undone {
            // A later change of another directory, which has been synced, has already removed the name.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

impl Removed {
    /// Creates the file again.
    fn restore(mut self, path: &Path) -> io::Result<()> {
        let permissions = self.0.metadata()?.permissions();
        let mut file = File::create(path)?;
        io::copy(&mut self.0, &mut file)?;
        file.set_permissions(permissions)
    }
}

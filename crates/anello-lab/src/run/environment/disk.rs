//! Storage that holds the disk workers' file, according to `/proc/self/mountinfo` and the block devices under `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::result::Disk;
use crate::run::environment::tree::{Tree, bracketed_option};

impl Disk {
    /// Returns the storage of `file`, which need not exist yet. `None` if no mount point contains it.
    pub(super) fn of(tree: &Tree<'_>, file: &Path) -> Option<Disk> {
        let (mounts, file) = (tree.text("proc/self/mountinfo")?, resolve_links(file));
        // The innermost mount contains the file. If several mounts have the same path, the last one hides the others.
        let containing =
            mounts.lines().filter_map(Mount::parse).filter(|mount| file.starts_with(&mount.mount_point));
        let mount = containing.max_by_key(|mount| mount.mount_point.components().count())?;
        let device = mount.device_directory(tree);
        Some(Disk {
            file_system: mount.file_system.to_owned(),
            device: device.as_deref().and_then(|directory| device_name(tree, directory)),
            scheduler: device.as_deref().and_then(|directory| scheduler(tree, directory)),
        })
    }
}

/// A line of mountinfo: `36 35 98:0 /root /mount-point options [tags] - type source options`.
struct Mount<'a> {
    numbers: &'a str,
    mount_point: PathBuf,
    file_system: &'a str,
    source: String,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(2);
        let mut kind = kind.split(' ');
        let (numbers, mount_point) = (mount.next()?, mount.nth(1)?);
        let (file_system, source) = (kind.next()?, kind.next()?);
        Some(Mount {
            numbers,
            mount_point: unescape(mount_point).into(),
            file_system,
            source: unescape(source),
        })
    }

    /// Returns the directory of the block device. If a file system spans several devices, its device number belongs to
    /// no block device, so the name of the mounted source is used instead.
    fn device_directory(&self, tree: &Tree<'_>) -> Option<String> {
        let by_name = || {
            let source = self.source.strip_prefix('/').filter(|source| source.starts_with("dev/"))?;
            // Device mapper names are symbolic links.
            let target = fs::read_link(tree.root.join(source)).unwrap_or_else(|_| source.into());
            Some(format!("sys/class/block/{}", target.file_name()?.to_str()?))
        };
        let directories = [Some(format!("sys/dev/block/{}", self.numbers)), by_name()];
        directories.into_iter().flatten().find(|directory| tree.root.join(directory).is_dir())
    }
}

fn device_name(tree: &Tree<'_>, directory: &str) -> Option<String> {
    let uevent = tree.text(&format!("{directory}/uevent"))?;
    uevent.lines().find_map(|line| Some(line.strip_prefix("DEVNAME=")?.to_owned()))
}

/// Returns the active scheduler. A partition uses the scheduler of its device, whose directory is the parent directory.
fn scheduler(tree: &Tree<'_>, directory: &str) -> Option<String> {
    let queues = [format!("{directory}/queue/scheduler"), format!("{directory}/../queue/scheduler")];
    let line = queues.iter().find_map(|path| tree.line(path))?;
    Some(bracketed_option(&line).unwrap_or(line))
}

/// Resolves symbolic links in the path of a file that may not exist yet.
fn resolve_links(file: &Path) -> PathBuf {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let in_parent = || Some(fs::canonicalize(file.parent()?).ok()?.join(file.file_name()?));
    fs::canonicalize(&file).ok().or_else(in_parent).unwrap_or(file)
}

/// Decodes octal escapes in mountinfo.
fn unescape(text: &str) -> String {
    let escapes = [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\043", "#"), (r"\134", r"\")];
    escapes.into_iter().fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

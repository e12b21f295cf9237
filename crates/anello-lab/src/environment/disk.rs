//! What the file of the disk workers lies on, as `/proc/self/mountinfo` and the block devices under `/sys` tell it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Tree, bracketed_option};

/// What a file lies on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// The type of the file system: "ext4", "tmpfs".
    pub file_system: String,
    /// The block device below it, as the kernel calls it: "nvme0n1p2"; none where there is none or it cannot be told.
    pub device: Option<String>,
    /// What orders the device's requests: "mq-deadline", "none"; none if it cannot be told.
    pub scheduler: Option<String>,
}

impl Disk {
    /// That of `file`, which need not exist yet; none if no mount can be found for it.
    pub(super) fn of(tree: &Tree<'_>, file: &Path) -> Option<Disk> {
        let (mounts, file) = (tree.text("proc/self/mountinfo")?, without_links(file));
        // The innermost mount holds the file; of several in one place the last, which hides the others.
        let above = mounts.lines().filter_map(Mount::parse).filter(|mount| file.starts_with(&mount.place));
        let mount = above.max_by_key(|mount| mount.place.components().count())?;
        let device = mount.device_folder(tree);
        Some(Disk {
            file_system: mount.file_system.to_owned(),
            device: device.as_deref().and_then(|folder| name_of_device(tree, folder)),
            scheduler: device.as_deref().and_then(|folder| scheduler(tree, folder)),
        })
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.as_deref().unwrap_or("no known device");
        let scheduler = self.scheduler.as_deref().unwrap_or("unknown");
        write!(formatter, "{} on {device}, I/O scheduler {scheduler}", self.file_system)
    }
}

/// A line of mountinfo: `36 35 98:0 /root /place options [tags] - type source options`.
struct Mount<'a> {
    /// Major and minor number of the device: "98:0".
    numbers: &'a str,
    /// Where it is mounted.
    place: PathBuf,
    file_system: &'a str,
    /// What was mounted, in the file system's own words.
    source: String,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(2);
        let mut kind = kind.split(' ');
        let (numbers, place) = (mount.next()?, mount.nth(1)?);
        let (file_system, source) = (kind.next()?, kind.next()?);
        Some(Mount { numbers, place: unescaped(place).into(), file_system, source: unescaped(source) })
    }

    /// The folder of the block device. File systems of several devices have numbers of their own, behind which there is
    /// no device: of those it is the one that was mounted.
    fn device_folder(&self, tree: &Tree<'_>) -> Option<String> {
        let by_name = || {
            let source = self.source.strip_prefix('/').filter(|source| source.starts_with("dev/"))?;
            // What device mapper makes is called by a link.
            let target = fs::read_link(tree.root.join(source)).unwrap_or_else(|_| source.into());
            Some(format!("sys/class/block/{}", target.file_name()?.to_str()?))
        };
        let folders = [Some(format!("sys/dev/block/{}", self.numbers)), by_name()];
        folders.into_iter().flatten().find(|folder| tree.root.join(folder).is_dir())
    }
}

fn name_of_device(tree: &Tree<'_>, folder: &str) -> Option<String> {
    let event = tree.text(&format!("{folder}/uevent"))?;
    event.lines().find_map(|line| Some(line.strip_prefix("DEVNAME=")?.to_owned()))
}

/// The scheduler stands in brackets among those that there are. A partition has none of its own: it is a folder within
/// that of its device.
fn scheduler(tree: &Tree<'_>, folder: &str) -> Option<String> {
    let queues = [format!("{folder}/queue/scheduler"), format!("{folder}/../queue/scheduler")];
    let line = queues.iter().find_map(|path| tree.line(path))?;
    Some(bracketed_option(&line).unwrap_or(line))
}

/// The path that a file has, or will have, when no link stands in it any more.
fn without_links(file: &Path) -> PathBuf {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let of_folder = || Some(fs::canonicalize(file.parent()?).ok()?.join(file.file_name()?));
    fs::canonicalize(&file).ok().or_else(of_folder).unwrap_or(file)
}

/// Mountinfo writes blanks and the like as three octal digits: `\040`.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                whole.push(char::from(code));
                whole.push_str(&part[3..]);
            }
            None => {
                whole.push('\\');
                whole.push_str(part);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::environment::tests::write;

    const MOUNTS: &str = "\
        22 1 8:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
        23 22 0:21 / /no-such/memory rw - tmpfs tmpfs rw\n\
        24 22 8:16 / /no-such/data rw,noatime - ext4 /dev/sdb rw\n\
        25 24 8:17 / /no-such/data/fast\\040disk rw - xfs /dev/sdb1 rw\n\
        26 22 0:40 /home /no-such/many rw - btrfs /dev/mapper/pool rw\n\
        27 22 0:50 / /no-such/far rw - nfs4 host.example:/export rw\n\
        28 22 0:51 / /no-such/twice rw - ext4 /dev/sdb rw\n\
        29 28 0:52 / /no-such/twice rw - tmpfs tmpfs rw\n";

    /// A machine with two disks, one of them with a partition, and a device made of others.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| write(root.path(), path, text);
        write("proc/self/mountinfo", MOUNTS);
        write("sys/devices/one/uevent", "MAJOR=8\nDEVNAME=sda\nDEVTYPE=disk\n");
        write("sys/devices/two/uevent", "DEVNAME=sdb\n");
        write("sys/devices/two/queue/scheduler", "none [mq-deadline] kyber\n");
        write("sys/devices/two/sdb1/uevent", "DEVNAME=sdb1\n");
        write("sys/class/block/dm-3/uevent", "DEVNAME=dm-3\n");
        write("sys/class/block/dm-3/queue/scheduler", "none\n");
        let link = |from: &str, to: &str| {
            let from = root.path().join(from);
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            symlink(to, from).unwrap();
        };
        link("sys/dev/block/8:0", "../../devices/one");
        link("sys/dev/block/8:16", "../../devices/two");
        link("sys/dev/block/8:17", "../../devices/two/sdb1");
        link("dev/mapper/pool", "../dm-3");
        root
    }

    fn told(file: &str) -> String {
        let root = machine();
        Disk::of(&Tree { root: root.path() }, Path::new(file)).unwrap().to_string()
    }

    #[test]
    fn a_file_lies_on_the_innermost_mount_above_it() {
        assert_eq!(told("/no-such/file"), "ext4 on sda, I/O scheduler unknown");
        assert_eq!(told("/no-such/data/file"), "ext4 on sdb, I/O scheduler mq-deadline");
        assert_eq!(told("/no-such/database/file"), "ext4 on sda, I/O scheduler unknown");
        assert_eq!(told("/no-such/twice/file"), "tmpfs on no known device, I/O scheduler unknown");
    }

    #[test]
    fn a_partition_has_the_scheduler_of_its_disk() {
        assert_eq!(told("/no-such/data/fast disk/file"), "xfs on sdb1, I/O scheduler mq-deadline");
    }

    #[test]
    fn a_device_without_numbers_of_its_own_is_found_by_name() {
        assert_eq!(told("/no-such/many/file"), "btrfs on dm-3, I/O scheduler none");
    }

    #[test]
    fn where_there_is_no_device_none_is_invented_and_no_host_is_named() {
        assert_eq!(told("/no-such/memory/file"), "tmpfs on no known device, I/O scheduler unknown");
        assert_eq!(told("/no-such/far/file"), "nfs4 on no known device, I/O scheduler unknown");
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(Disk::of(&Tree { root: nothing.path() }, Path::new("/no-such/file")), None);
    }

    #[test]
    fn links_in_the_path_lead_to_where_the_file_will_be() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(real.join("real")).unwrap();
        symlink("real", real.join("link")).unwrap();
        assert_eq!(without_links(&folder.path().join("link/absent")), real.join("real/absent"));
        fs::write(real.join("real/there"), "").unwrap();
        assert_eq!(without_links(&folder.path().join("link/there")), real.join("real/there"));
        assert_eq!(unescaped(r"/a\040b\134c\9"), r"/a b\c\9");
    }
}

//! What the kernel says about this process, from files of `/proc` that are opened once: a scrape inside of a sandbox that
//! forbids opening them still reads them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::{Resource, getrlimit};

/// Files of this process, open.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// `/proc/self/stat`
    stat: Option<File>,
    /// `/proc/self/fd`, the directory.
    descriptors: Option<File>,
    /// When the machine was started, in nanoseconds since the Unix epoch, as far as `/proc/stat` tells.
    boot_unix_ns: Option<u64>,
}

/// What was read; none for what the kernel did not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessSnapshot {
    pub(super) stat: Option<Stat>,
    pub(super) start_unix_ns: Option<u64>,
    pub(super) open_descriptors: Option<u64>,
    pub(super) descriptors_limit: Option<u64>,
}

/// Some fields of `/proc/self/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// User and kernel time of all threads, in ticks.
    cpu_ticks: u64,
    /// From the start of the machine to that of the process, in ticks.
    start_ticks: u64,
    pub(super) virtual_bytes: u64,
    resident_pages: u64,
}

impl Process {
    /// Opens the files. Where there is no `/proc`, its figures are missing from a scrape.
    pub(super) fn open() -> Self {
        let opened = |path: &str| {
            File::open(path)
                .inspect_err(
                    |error| tracing::warn!(path, %error, "metrics of the process are missing: mount /proc"),
                )
                .ok()
        };
        let boot_unix_ns = fs::read_to_string("/proc/stat").ok().and_then(|stat| boot_unix_ns(&stat));
        Self { stat: opened("/proc/self/stat"), descriptors: opened("/proc/self/fd"), boot_unix_ns }
    }

    /// Reads them (`pread(2)`, `fstat(2)`, `getrlimit(2)`).
    pub(super) fn snapshot(&self) -> ProcessSnapshot {
        let stat = self.stat.as_ref().and_then(|file| read(file).ok()).and_then(|text| Stat::parse(&text));
        let start_unix_ns = match (stat, self.boot_unix_ns) {
            (Some(stat), Some(boot)) => Some(boot.saturating_add(ticks_ns(stat.start_ticks))),
            _ => None,
        };
        ProcessSnapshot {
            stat,
            start_unix_ns,
            open_descriptors: self.descriptors.as_ref().and_then(count_descriptors),
            descriptors_limit: getrlimit(Resource::Nofile).current,
        }
    }
}

/// Since Linux 6.2 the size of the directory is the number of descriptors. Before it is 0, and they are listed, which takes
/// one for itself.
fn count_descriptors(directory: &File) -> Option<u64> {
    match directory.metadata().ok()?.len() {
        0 => u64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()?.checked_sub(1),
        count => Some(count),
    }
}

/// Reads a small file from its beginning. The kernel makes its content anew for each such read.
fn read(file: &File) -> io::Result<String> {
    let mut bytes = [0; 1024];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

impl Stat {
    /// Fields are counted from the end of the name, which may have anything in it (`proc_pid_stat(5)`).
    fn parse(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(')')?;
        // The first of them is the third of all.
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let field = |number: usize| -> Option<u64> { fields.get(number - 3)?.parse().ok() };
        Some(Self {
            cpu_ticks: field(14)?.saturating_add(field(15)?),
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }

    pub(super) fn cpu_ns(&self) -> u64 {
        ticks_ns(self.cpu_ticks)
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        self.resident_pages.saturating_mul(rustix::param::page_size() as u64)
    }
}

fn ticks_ns(ticks: u64) -> u64 {
    ticks.saturating_mul(1_000_000_000 / rustix::param::clock_ticks_per_second().max(1))
}

fn boot_unix_ns(stat: &str) -> Option<u64> {
    let seconds: u64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    seconds.checked_mul(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn this_process_has_memory_descriptors_and_a_start() {
        let process = Process::open();
        let before = process.snapshot();
        let held: Vec<File> = (0..100).map(|_| File::open("/dev/null").unwrap()).collect();
        let after = process.snapshot();
        drop(held);
        assert!(before.stat.unwrap().resident_bytes() > 100_000);
        assert!(before.stat.unwrap().virtual_bytes >= before.stat.unwrap().resident_bytes());
        assert!(after.stat.unwrap().cpu_ns() >= before.stat.unwrap().cpu_ns());
        // Other tests open and close some of their own meanwhile, but not that many.
        assert!(after.open_descriptors.unwrap() > 100);
        assert!(after.descriptors_limit.unwrap() >= after.open_descriptors.unwrap());
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let day_ns = 86_400_000_000_000;
        let start_ns = before.start_unix_ns.unwrap();
        assert!(start_ns < now_ns + day_ns && start_ns > now_ns - day_ns, "{start_ns} and {now_ns}");
    }

    #[test]
    fn a_name_with_anything_in_it_does_not_shift_the_fields() {
        let text = "7 (a b) 1) c) S 1 2 3 4 5 6 7 8 9 10 140 15 16 17 18 19 20 21 2200 23000 24 25\n";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.cpu_ticks, stat.start_ticks), (155, 2200));
        assert_eq!((stat.virtual_bytes, stat.resident_pages), (23_000, 24));
        assert_eq!(Stat::parse("7 (a) S 1 2"), None);
        assert_eq!(Stat::parse(""), None);
        assert_eq!(boot_unix_ns("cpu 1\nbtime 12\n"), Some(12_000_000_000));
        assert_eq!(boot_unix_ns("cpu 1\n"), None);
    }
}

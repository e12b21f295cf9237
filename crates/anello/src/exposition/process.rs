//! Process metrics from `/proc`. The files are opened once, so a scrape can still read them inside a sandbox that
//! denies `open(2)`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use crate::driver::log_event;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// The `/proc` files from which [`Exposition::process`](super::Exposition::process) reads the metrics of this process.
///
/// They are opened once, so that they can also be read inside a sandbox that allows `pread64`, `prlimit64`, and either
/// `fstat` or `statx`. Open them before entering the sandbox. Before Linux 6.2, `/proc/self/fd` is also opened for each
/// reading; if that is denied, `process_open_fds` is omitted.
#[derive(Debug, Default)]
pub struct ProcessFiles {
    stat: Option<File>,
    /// `/proc/self/fd`.
    descriptors: Option<File>,
    /// Boot time of the machine.
    boot_unix_ns: u64,
}

/// A value that could not be read is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessSnapshot {
    pub(super) stat: Option<Stat>,
    pub(super) start_unix_ns: Option<u64>,
    pub(super) open_descriptors: Option<u64>,
    pub(super) descriptors_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// User and system CPU time of all threads, in clock ticks.
    cpu_ticks: u64,
    /// Start time of the process, in clock ticks since boot.
    start_ticks: u64,
    pub(super) virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessFiles {
    /// Opens the files. If `/proc` is unavailable, a scrape omits the process metrics.
    pub fn open() -> Self {
        let warn = |path: &str, error: io::Error| log_event!(WARN, path, %error, "process metrics unavailable (mount /proc)");
        let open_file = |path| File::open(path).map_err(|error| warn(path, error)).ok();
        Self {
            stat: open_file("/proc/self/stat"),
            descriptors: open_file("/proc/self/fd"),
            boot_unix_ns: boot_unix_ns(),
        }
    }

    pub(super) fn snapshot(&self) -> ProcessSnapshot {
        let stat = self.stat.as_ref().and_then(|file| read(file).ok()).and_then(|text| Stat::parse(&text));
        let start_unix_ns = stat.map(|stat| self.boot_unix_ns.saturating_add(ticks_ns(stat.start_ticks)));
        ProcessSnapshot {
            stat,
            start_unix_ns,
            open_descriptors: self.descriptors.as_ref().and_then(count_descriptors),
            descriptors_limit: getrlimit(Resource::Nofile).current,
        }
    }
}

/// Returns the number of open file descriptors.
///
/// Since Linux 6.2 this is the size of the directory `/proc/self/fd`. Older kernels report 0; the directory is then
/// listed, and the descriptor that the listing itself uses is subtracted.
fn count_descriptors(directory: &File) -> Option<u64> {
    match directory.metadata().ok()?.len() {
        0 => u64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()?.checked_sub(1),
        count => Some(count),
    }
}

/// Reads a small file from offset 0. The kernel regenerates the content of `/proc` files on each such read.
fn read(file: &File) -> io::Result<String> {
    let mut bytes = [0; 1024];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

impl Stat {
    /// Parses the contents of `/proc/self/stat` (`proc_pid_stat(5)`).
    fn parse(text: &str) -> Option<Self> {
        // The command name, which ends at the last `)`, can contain spaces and parentheses.
        let (_, fields) = text.rsplit_once(')')?;
        // Field numbers are 1-based: the first field after the command name is field 3.
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

/// Returns the boot time in nanoseconds since the Unix epoch, from the clocks: a sandbox can deny `/proc/stat`.
fn boot_unix_ns() -> u64 {
    let ns = |clock| {
        let time = clock_gettime(clock);
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    // The result is less than zero if the clock has not been set since boot.
    u64::try_from(ns(ClockId::Realtime) - ns(ClockId::Boottime)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_parser_handles_parentheses_in_command_name() {
        let text = "7 (a b) 1) c) S 1 2 3 4 5 6 7 8 9 10 140 15 16 17 18 19 20 21 2200 23000 24 25\n";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.cpu_ticks, stat.start_ticks), (155, 2200));
        assert_eq!((stat.virtual_bytes, stat.resident_pages), (23_000, 24));
        assert_eq!(Stat::parse("7 (a) S 1 2"), None);
        assert_eq!(Stat::parse(""), None);
    }
}

//! Tests in a process of their own: where limits, descriptors, memory and processor time of the process are what is
//! tested, and where `strace` is to make system calls fail.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Names the test that this process was started for.
const CHILD: &str = "ANELLO_TEST_CHILD";

/// How a child is run.
#[derive(Default)]
pub struct Child {
    wrapper: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Child {
    /// Makes system calls of the child fail: arguments of `strace -e inject=`.
    pub fn injecting(injections: &[&str]) -> Self {
        let mut wrapper: Vec<_> =
            ["strace", "-f", "-qqq", "-e", "signal=none", "-o", "/dev/null"].map(str::to_owned).into();
        for injection in injections {
            let calls = injection.split(':').next().unwrap_or_default();
            wrapper.extend(["-e".to_owned(), format!("trace={calls}")]);
            wrapper.extend(["-e".to_owned(), format!("inject={injection}")]);
        }
        // A checker of leaks stops its process as strace does, and there can be but one who does.
        Self { wrapper, environment: vec![("LSAN_OPTIONS", "detect_leaks=0".to_owned())] }
    }

    /// Starts the child with SIGHUP ignored, as nohup(1) does.
    pub fn with_hang_up_ignored() -> Self {
        let wrapper = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"].map(str::to_owned).into();
        Self { wrapper, ..Self::default() }
    }

    pub fn variable(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Runs this test of this program again, alone in a process; there, `body` runs. What the child prints is shown,
    /// and its failure is this one's.
    pub fn run(self, test: &str, body: impl FnOnce()) {
        let Some(output) = self.output(test, body) else { return };
        assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
            "the child process of {test}: {}",
            output.status
        );
    }

    /// Runs this test in the same way, where a signal is to kill the process.
    pub fn run_killed_by(self, signal: i32, test: &str, body: impl FnOnce()) {
        let Some(output) = self.output(test, body) else { return };
        assert_eq!(output.status.signal(), Some(signal), "the child process of {test}: {}", output.status);
    }

    /// Runs the child and returns how it has ended; in the child, runs `body`.
    fn output(self, test: &str, body: impl FnOnce()) -> Option<Output> {
        if std::env::var(CHILD).is_ok_and(|name| name == test) {
            // The kernel would make huge pages of what is in use, when it comes to that: memory that nobody asked for.
            rustix::thread::disable_transparent_huge_pages(true).unwrap();
            body();
            return None;
        }
        let program = std::env::current_exe().unwrap();
        let mut words = self.wrapper.into_iter().chain([program.to_string_lossy().into_owned()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args([test, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(CHILD, test).envs(self.environment).stdin(Stdio::null());
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        for text in [&output.stdout, &output.stderr] {
            eprintln!("{}", String::from_utf8_lossy(text));
        }
        Some(output)
    }
}

/// Whether this is the child of that test.
pub fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|name| name == test)
}

/// Whether system calls can be made to fail here; says why not.
pub fn can_inject() -> bool {
    let tried = Command::new("strace")
        .args([
            "-f",
            "-qqq",
            "-o",
            "/dev/null",
            "-e",
            "trace=getppid",
            "-e",
            "inject=getppid:error=EPERM",
            "true",
        ])
        .stdin(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!(
                "skipped: strace may not trace here: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            false
        }
        Err(error) => {
            eprintln!("skipped: strace is not here: {error}");
            false
        }
    }
}

/// What a process uses, by its number; seen from outside, it needs no descriptor of its own for that.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Processor time, in steps of a hundredth of a second.
    pub processor: Duration,
    pub descriptors: usize,
    pub resident_bytes: usize,
}

/// What that process uses now.
pub fn usage_of(process: u32) -> Usage {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap();
    let (stat, statm) = (read("stat"), read("statm"));
    // The name in parentheses may hold spaces; the times are fields 14 and 15.
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    Usage {
        processor: Duration::from_millis(ticks * 10),
        descriptors: std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count(),
        resident_bytes: pages * 4096,
    }
}

/// What this process uses now.
pub fn usage() -> Usage {
    let usage = usage_of(std::process::id());
    // One is of the listing.
    Usage { descriptors: usage.descriptors - 1, ..usage }
}

/// Whether a checker keeps what was freed, to see who still uses it (`ANELLO_FREED_IS_KEPT`). How much memory the process
/// takes says nothing then.
pub fn freed_is_kept() -> bool {
    std::env::var_os("ANELLO_FREED_IS_KEPT").is_some()
}

/// Fails when memory has grown by more than it may. Where freed memory is kept it is only told.
#[track_caller]
pub fn assert_grown_less(name: &str, grown_bytes: usize, bound_bytes: usize) {
    if grown_bytes >= bound_bytes && freed_is_kept() {
        return eprintln!("skipped on {name}: {grown_bytes} bytes of memory, freed memory among them");
    }
    assert!(grown_bytes < bound_bytes, "{name}: {grown_bytes} bytes of memory, more than {bound_bytes}");
}

/// Limits the open files of this process.
pub fn limit_open_files(count: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum })?)
}

/// Raises the limit of open files to what this process may have, and returns it.
pub fn raise_open_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    limit.maximum.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX))
}

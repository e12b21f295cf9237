//! Runs tests in a child process: tests of process-wide limits, descriptors, memory or CPU time, and tests in which
//! `strace` makes system calls fail.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Environment variable that is set in a child process.
const CHILD: &str = "ANELLO_TEST_CHILD";

/// Configuration of a child process.
#[derive(Default)]
pub struct Child {
    wrapper: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Child {
    /// Injects errors into system calls of the child. Each item is an argument to `strace -e inject=`.
    pub fn injecting(injections: &[&str]) -> Self {
        let mut wrapper: Vec<_> =
            ["strace", "-f", "-qqq", "-e", "signal=none", "-o", "/dev/null"].map(str::to_owned).into();
        for injection in injections {
            let calls = injection.split(':').next().unwrap_or_default();
            wrapper.extend(["-e".to_owned(), format!("trace={calls}")]);
            wrapper.extend(["-e".to_owned(), format!("inject={injection}")]);
        }
        // Like strace, the leak checker traces its process, and a process can have only one tracer.
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

    /// Runs the test that contains the closure `body` again in a child process, which calls `body`. The output of the
    /// child is printed. Fails if the child fails.
    pub fn run(self, body: impl FnOnce()) {
        let Some(output) = self.output(body) else { return };
        assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
            "the child process: {}",
            output.status
        );
    }

    /// Runs the test like [`run`](Self::run), and expects the child to be killed by a signal.
    pub fn run_killed_by(self, signal: i32, body: impl FnOnce()) {
        let Some(output) = self.output(body) else { return };
        assert_eq!(output.status.signal(), Some(signal), "the child process: {}", output.status);
    }

    /// Runs the child and returns its output. In the child, calls `body`.
    fn output(self, body: impl FnOnce()) -> Option<Output> {
        if is_child() {
            // Otherwise, the kernel would eventually replace the memory in use with huge pages and thus change the
            // memory usage.
            rustix::thread::disable_transparent_huge_pages(true).unwrap();
            body();
            return None;
        }
        let test = command_for(&body);
        let program = [test.get_program()].into_iter().chain(test.get_args());
        let mut arguments = self.wrapper.iter().map(OsStr::new).chain(program);
        let mut command = Command::new(arguments.next().unwrap());
        command.args(arguments).env(CHILD, "1").envs(self.environment).stdin(Stdio::null());
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        for text in [&output.stdout, &output.stderr] {
            eprintln!("{}", String::from_utf8_lossy(text));
        }
        Some(output)
    }
}

/// Returns whether this process was started by [`Child`].
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Returns a command that runs one test of this program: the function `test`, or the one that contains the closure
/// `test`.
pub fn command_for<F>(_test: &F) -> Command {
    let path = std::any::type_name::<F>();
    let function = path.split("::{{closure}}").next().unwrap();
    let (_program, name) = function.split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// Returns whether system calls can be made to fail here, and prints the reason if not.
pub fn can_inject() -> bool {
    let result = Command::new("strace")
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
    match result {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!(
                "skipped: strace is not permitted to trace: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            false
        }
        Err(error) => {
            eprintln!("skipped: cannot run strace: {error}");
            false
        }
    }
}

/// Resource usage of a process. It is read from another process, so that the measurement itself uses no descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// CPU time, with a resolution of 10 ms.
    pub processor: Duration,
    pub descriptors: usize,
    /// Memory in use, without pages of files: code counts only once it has run.
    pub resident_bytes: usize,
}

/// Returns the current resource usage of a process.
pub fn usage_of(process: u32) -> Usage {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap();
    let (stat, status) = (read("stat"), read("status"));
    // The name in parentheses may contain spaces. The times are fields 14 and 15.
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let kilobytes = |name: &str| -> usize {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    Usage {
        processor: Duration::from_millis(ticks * 10),
        descriptors: std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count(),
        resident_bytes: (kilobytes("RssAnon:") + kilobytes("RssShmem:")) * 1024,
    }
}

/// Returns the current resource usage of this process.
pub fn usage() -> Usage {
    let usage = usage_of(std::process::id());
    // One descriptor belongs to the directory listing.
    Usage { descriptors: usage.descriptors - 1, ..usage }
}

/// Returns whether a checker keeps freed memory to detect later accesses (`ANELLO_FREED_IS_KEPT`). The memory usage of
/// the process is then meaningless.
pub fn freed_is_kept() -> bool {
    std::env::var_os("ANELLO_FREED_IS_KEPT").is_some()
}

/// Fails if memory has grown by `bound_bytes` or more. If freed memory is kept, only prints the growth.
#[track_caller]
pub fn assert_grown_less(name: &str, grown_bytes: usize, bound_bytes: usize) {
    if grown_bytes >= bound_bytes && freed_is_kept() {
        return eprintln!("skipped on {name}: memory grew by {grown_bytes} bytes, including freed memory");
    }
    assert!(grown_bytes < bound_bytes, "{name}: memory grew by {grown_bytes} bytes (limit {bound_bytes})");
}

/// Limits the number of open files in this process.
pub fn limit_open_files(count: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum })?)
}

/// Raises the open-file limit to its maximum and returns it.
pub fn raise_open_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    limit.maximum.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX))
}

//! Tests that need a process of their own: those that change or count what all threads of a process share (descriptors,
//! memory, limits, environment variables, a global log subscriber), and those in which `strace` makes system calls fail.

use std::any::type_name;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

/// Environment variable that is set in a process that [`OwnProcess`] starts.
const VARIABLE: &str = "ANELLO_TEST_OWN_PROCESS";

/// Runs a test in a process of its own. The closure must be in the test function itself.
///
/// # Panics
///
/// Panics if the test fails.
pub fn in_own_process(test: impl FnOnce()) {
    OwnProcess::default().run(test);
}

/// Configuration of a process that runs one test.
#[derive(Default)]
pub struct OwnProcess {
    wrapper: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl OwnProcess {
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

    /// Sets an environment variable of the process.
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
        if is_own_process() {
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
        command.args(arguments).env(VARIABLE, "1").envs(self.environment).stdin(Stdio::null());
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        for text in [&output.stdout, &output.stderr] {
            eprintln!("{}", String::from_utf8_lossy(text));
        }
        Some(output)
    }
}

/// Returns whether this process was started by [`OwnProcess`].
pub fn is_own_process() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Returns a command that runs one test of this program: the function `test`, or the one that contains the closure
/// `test`.
pub fn command_for<F>(_test: &F) -> Command {
    let path = type_name::<F>();
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

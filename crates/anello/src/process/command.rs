//! Configuration and start of a process.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::rc::Rc;

use super::child::Child;
use super::orphans;
use crate::driver::with_context;
use crate::executor::{Shared, current};

/// Builder for a child process; wraps [`std::process::Command`]. See the [module](super) for an example.
///
/// A command can be started several times. Starting a process blocks the thread until the program has been loaded
/// (`vfork(2)` and `execve(2)`): typically less than a millisecond, more on a slow disk or if a process with much
/// memory must use `fork(2)`, which [`uid`](Self::uid), [`gid`](Self::gid) and `pre_exec` require.
///
/// ```
/// # anello::example! {
/// use std::process::Stdio;
///
/// use anello::process::Command;
///
/// let mut command = Command::new("sh");
/// command.args(["-c", "echo ciao"]).stdout(Stdio::piped()).kill_on_drop(true);
/// let output = command.spawn()?.wait_with_output().await?;
/// assert_eq!(output.stdout, b"ciao\n");
/// # }
/// ```
#[derive(Debug)]
pub struct Command {
    inner: std::process::Command,
    kill_on_drop: bool,
    /// Whether stdin, stdout and stderr have been configured.
    is_configured: [bool; 3],
}

impl Command {
    /// Returns a command that runs `program`: a path, or a name that is searched in `PATH`. It has no arguments,
    /// inherits the environment and the working directory, and is not killed on drop.
    ///
    /// ```
    /// # anello::example! {
    /// let status = anello::process::Command::new("true").status().await?;
    /// assert!(status.success());
    /// # }
    /// ```
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self::from(std::process::Command::new(program))
    }

    /// Returns the standard library's command, for example to inspect its arguments.
    ///
    /// ```
    /// # use anello::process::Command;
    /// assert_eq!(Command::new("ls").as_std().get_program(), "ls");
    /// ```
    #[must_use]
    pub fn as_std(&self) -> &std::process::Command {
        &self.inner
    }

    /// Returns the standard library's command, to set options that this type lacks, such as
    /// [`pre_exec`](std::os::unix::process::CommandExt::pre_exec), which is unsafe. Set the standard streams with the
    /// methods of this type: [`output`](Self::output) replaces streams that were set here.
    ///
    /// ```
    /// # use anello::process::Command;
    /// let mut command = Command::new("ls");
    /// command.as_std_mut().arg("-l");
    /// ```
    #[must_use]
    pub fn as_std_mut(&mut self) -> &mut std::process::Command {
        &mut self.inner
    }

    /// Converts this into the standard library's command. The setting of [`kill_on_drop`](Self::kill_on_drop) is lost.
    ///
    /// ```
    /// # use anello::process::Command;
    /// let status = Command::new("true").into_std().status()?;
    /// # assert!(status.success());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn into_std(self) -> std::process::Command {
        self.inner
    }

    /// Adds one argument. It is passed to the program as it is; no shell is involved.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("ls").arg("-l").arg("/");
    /// ```
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.inner.arg(argument);
        self
    }

    /// Adds several arguments.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("ls").args(["-l", "/"]);
    /// ```
    pub fn args<S: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = S>) -> &mut Self {
        self.inner.args(arguments);
        self
    }

    /// Sets the first argument (`argv[0]`), which is the program name by default.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("sh").arg0("-sh");
    /// ```
    pub fn arg0(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.inner.arg0(name);
        self
    }

    /// Sets an environment variable.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("ls").env("LC_ALL", "C");
    /// ```
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env(name, value);
        self
    }

    /// Sets several environment variables.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("ls").envs([("LC_ALL", "C"), ("TZ", "UTC")]);
    /// ```
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        &mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> &mut Self {
        self.inner.envs(variables);
        self
    }

    /// Removes an environment variable, which is then neither set nor inherited.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("ls").env_remove("LS_COLORS");
    /// ```
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env_remove(name);
        self
    }

    /// Removes all environment variables, including inherited ones.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("/bin/ls").env_clear();
    /// ```
    pub fn env_clear(&mut self) -> &mut Self {
        self.inner.env_clear();
        self
    }

    /// Sets the working directory. If `program` is a relative path, use an absolute path instead: which directory it is
    /// relative to is unspecified.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("ls").current_dir("/");
    /// ```
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.inner.current_dir(directory);
        self
    }

    /// Sets the standard input. Inherited by default; [`output`](Self::output) uses `/dev/null`. With
    /// [`Stdio::piped`], [`Child::stdin`] is the write end of the pipe.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("cat").stdin(std::process::Stdio::piped());
    /// ```
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.is_configured[0] = true;
        self.inner.stdin(stdin);
        self
    }

    /// Sets the standard output. Inherited by default; [`output`](Self::output) uses a pipe. With [`Stdio::piped`],
    /// [`Child::stdout`] is the read end of the pipe.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("ls").stdout(std::process::Stdio::piped());
    /// ```
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.is_configured[1] = true;
        self.inner.stdout(stdout);
        self
    }

    /// Sets the standard error. Inherited by default; [`output`](Self::output) uses a pipe. With [`Stdio::piped`],
    /// [`Child::stderr`] is the read end of the pipe.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("ls").stderr(std::process::Stdio::null());
    /// ```
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.is_configured[2] = true;
        self.inner.stderr(stderr);
        self
    }

    /// Sets whether the child is killed (SIGKILL) when its [`Child`] is dropped. Off by default. This also applies to
    /// the futures of [`status`](Self::status), [`output`](Self::output) and
    /// [`wait_with_output`](Child::wait_with_output). The processes that the child has started are not killed.
    ///
    /// ```
    /// # use anello::process::Command;
    /// # anello::example! {
    /// let child = Command::new("sleep").arg("1000").kill_on_drop(true).spawn()?;
    /// drop(child);
    /// # }
    /// ```
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Self {
        self.kill_on_drop = kill;
        self
    }

    /// Returns the setting of [`kill_on_drop`](Self::kill_on_drop).
    ///
    /// ```
    /// # use anello::process::Command;
    /// assert!(!Command::new("ls").get_kill_on_drop());
    /// ```
    #[must_use]
    pub fn get_kill_on_drop(&self) -> bool {
        self.kill_on_drop
    }

    /// Sets the user ID of the child (`setuid(2)`). If it fails, [`spawn`](Self::spawn) returns the error.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("id").uid(65534);
    /// ```
    pub fn uid(&mut self, id: u32) -> &mut Self {
        self.inner.uid(id);
        self
    }

    /// Sets the group ID of the child (`setgid(2)`). If it fails, [`spawn`](Self::spawn) returns the error.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("id").gid(65534);
    /// ```
    pub fn gid(&mut self, id: u32) -> &mut Self {
        self.inner.gid(id);
        self
    }

    /// Sets the process group of the child (`setpgid(2)`). 0 creates a new group, whose ID is that of the child.
    /// Signals of the terminal, such as SIGINT on Ctrl-C, then do not reach the child.
    ///
    /// ```
    /// # use anello::process::Command;
    /// Command::new("sleep").arg("1").process_group(0);
    /// ```
    pub fn process_group(&mut self, id: i32) -> &mut Self {
        self.inner.process_group(id);
        self
    }

    /// Starts the process (`posix_spawn(3)`, or `fork(2)` and `execve(2)`). Standard streams that are not configured
    /// are inherited.
    ///
    /// ```
    /// # anello::example! {
    /// let mut child = anello::process::Command::new("true").spawn()?;
    /// assert!(child.id().is_some());
    /// assert!(child.wait().await?.success());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of [`std::process::Command::spawn`] with the program, for example `NotFound` if there is no
    /// such program, `EMFILE` if the open-file limit is reached, in which case the process is killed if it was started,
    /// and `Unsupported` on the simulated driver.
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn spawn(&mut self) -> io::Result<Child> {
        self.start(current(), std::process::Command::spawn)
    }

    /// Starts the process with a function, which usually calls [`std::process::Command::spawn`]. Otherwise behaves like
    /// [`spawn`](Self::spawn).
    ///
    /// ```
    /// # anello::example! {
    /// let mut command = anello::process::Command::new("true");
    /// let mut child = command.spawn_with(|command| command.env("LC_ALL", "C").spawn())?;
    /// assert!(child.wait().await?.success());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the function; see [`spawn`](Self::spawn).
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn spawn_with(
        &mut self,
        spawn: impl FnOnce(&mut std::process::Command) -> io::Result<std::process::Child>,
    ) -> io::Result<Child> {
        self.start(current(), spawn)
    }

    fn start(
        &mut self,
        shared: Rc<Shared>,
        spawn: impl FnOnce(&mut std::process::Command) -> io::Result<std::process::Child>,
    ) -> io::Result<Child> {
        let started = if shared.is_simulated() {
            Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "processes are unsupported on the simulated driver (use the uring or epoll driver)",
            ))
        } else {
            orphans::reap();
            spawn(&mut self.inner).and_then(|child| Child::new(shared, child, self.kill_on_drop))
        };
        started.map_err(|error| {
            let program = Path::new(self.inner.get_program()).display();
            with_context(format_args!("cannot start {program}"), error)
        })
    }

    /// Starts the process, and waits for it to exit. Pipes to its standard streams are closed immediately.
    ///
    /// The process is started by this call, before the future is polled. If the future is dropped, the process
    /// continues to run unless [`kill_on_drop`](Self::kill_on_drop) is set.
    ///
    /// ```
    /// # anello::example! {
    /// let status = anello::process::Command::new("sh").args(["-c", "exit 3"]).status().await?;
    /// assert_eq!(status.code(), Some(3));
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`spawn`](Self::spawn) and [`Child::wait`].
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn status(&mut self) -> impl Future<Output = io::Result<ExitStatus>> + use<> {
        let child = self.spawn();
        async move {
            let mut child = child?;
            drop((child.stdin.take(), child.stdout.take(), child.stderr.take()));
            child.wait().await
        }
    }

    /// Starts the process, waits for it to exit, and returns what it has written to its standard output and standard
    /// error. Both are read concurrently.
    ///
    /// By default, standard output and standard error are pipes, and standard input is `/dev/null`. Handles that were
    /// set with [`stdin`](Self::stdin), [`stdout`](Self::stdout) and [`stderr`](Self::stderr) are used instead. The
    /// size of the output is not limited: for a program that is not trusted, use [`spawn`](Self::spawn) and read the
    /// pipes in parts.
    ///
    /// The process is started by this call, before the future is polled. If the future is dropped, the process
    /// continues to run unless [`kill_on_drop`](Self::kill_on_drop) is set; a write to its output then fails with
    /// `EPIPE`.
    ///
    /// ```
    /// # anello::example! {
    /// let output = anello::process::Command::new("echo").arg("ciao").output().await?;
    /// assert_eq!(output.stdout, b"ciao\n");
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`spawn`](Self::spawn) and [`Child::wait_with_output`].
    ///
    /// # Panics
    /// Panics if no runtime is running on this thread.
    #[track_caller]
    pub fn output(&mut self) -> impl Future<Output = io::Result<Output>> + use<> {
        let [stdin, stdout, stderr] = self.is_configured;
        if !stdin {
            self.inner.stdin(Stdio::null());
        }
        if !stdout {
            self.inner.stdout(Stdio::piped());
        }
        if !stderr {
            self.inner.stderr(Stdio::piped());
        }
        let child = self.spawn();
        // A later call of `spawn` must not use these handles.
        if !stdin {
            self.inner.stdin(Stdio::inherit());
        }
        if !stdout {
            self.inner.stdout(Stdio::inherit());
        }
        if !stderr {
            self.inner.stderr(Stdio::inherit());
        }
        async move { child?.wait_with_output().await }
    }
}

impl From<std::process::Command> for Command {
    /// Converts a command of the standard library. Its standard streams count as not configured; see
    /// [`output`](Command::output).
    fn from(inner: std::process::Command) -> Self {
        Self { inner, kill_on_drop: false, is_configured: [false; 3] }
    }
}

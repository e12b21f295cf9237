//! A running child process.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::process::{ExitStatus, Output};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::orphans;
use super::running::Process;
use super::stdio::{ChildStderr, ChildStdin, ChildStdout, read_available};
use crate::executor::Shared;

/// Child process, returned by [`Command::spawn`](super::Command::spawn).
///
/// Dropping it neither waits for the process nor, by default, kills it; see the [module](super).
///
/// ```
/// use std::process::Stdio;
///
/// # anello::example! {
/// let mut child = anello::process::Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
/// child.stdin.as_mut().expect("stdin is piped").write_all(b"ciao").await?;
/// child.kill().await?;
/// assert_eq!(child.id(), None);
/// # }
/// ```
pub struct Child {
    /// Write end of the pipe to the standard input, if it was configured as [`piped`](std::process::Stdio::piped).
    /// Dropping it closes the pipe, and the child reads EOF.
    pub stdin: Option<ChildStdin>,
    /// Read end of the pipe from the standard output, if it was configured as piped.
    pub stdout: Option<ChildStdout>,
    /// Read end of the pipe from the standard error, if it was configured as piped.
    pub stderr: Option<ChildStderr>,
    /// `None` once the process has been reaped.
    process: Option<Process>,
    status: Option<ExitStatus>,
    kill_on_drop: bool,
}

impl Child {
    pub(super) fn new(
        shared: Rc<Shared>,
        mut child: std::process::Child,
        kill_on_drop: bool,
    ) -> io::Result<Self> {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let process = match Process::new(shared, child) {
            Ok(process) => process,
            Err((error, mut child)) => {
                child.kill().ok();
                orphans::add(child);
                return Err(error);
            }
        };
        let mut this = Self {
            stdin: None,
            stdout: None,
            stderr: None,
            process: Some(process),
            status: None,
            // Kills the process if an error is returned.
            kill_on_drop: true,
        };
        this.stdin = stdin.map(ChildStdin::from_std).transpose()?;
        this.stdout = stdout.map(ChildStdout::from_std).transpose()?;
        this.stderr = stderr.map(ChildStderr::from_std).transpose()?;
        this.kill_on_drop = kill_on_drop;
        Ok(this)
    }

    /// Returns the process ID, or `None` if the process has been reaped: its ID may then belong to another process.
    ///
    /// ```
    /// # anello::example! {
    /// let mut child = anello::process::Command::new("true").spawn()?;
    /// assert!(child.id().is_some());
    /// child.wait().await?;
    /// assert_eq!(child.id(), None);
    /// # }
    /// ```
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }

    /// Closes [`stdin`](Self::stdin), so that a child that reads from it does not wait forever, and waits for the
    /// process to exit. Returns the same status again if it is called again. Cancel-safe, except that `stdin` is
    /// closed.
    ///
    /// A child that writes to a pipe that is not read may never exit; see [`wait_with_output`](Self::wait_with_output).
    ///
    /// ```
    /// # anello::example! {
    /// let mut child = anello::process::Command::new("false").spawn()?;
    /// assert_eq!(child.wait().await?.code(), Some(1));
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns `ECHILD` if other code has reaped the process, or if the process ignores SIGCHLD, or `NotConnected` if
    /// the runtime has been shut down.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        poll_fn(|context| self.poll_wait(context)).await
    }

    fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<io::Result<ExitStatus>> {
        match (&mut self.process, self.status) {
            (Some(process), _) => {
                let status = ready!(process.poll_wait(context))?;
                self.set_exited(status);
                Poll::Ready(Ok(status))
            }
            (None, Some(status)) => Poll::Ready(Ok(status)),
            (None, None) => unreachable!("the status is set when the process is reaped"),
        }
    }

    fn set_exited(&mut self, status: ExitStatus) {
        self.status = Some(status);
        self.process = None;
    }

    /// Returns the status if the process has exited, and `None` otherwise (`waitpid(2)` with `WNOHANG`). Unlike
    /// [`wait`](Self::wait), does not close [`stdin`](Self::stdin).
    ///
    /// ```
    /// use std::process::Stdio;
    ///
    /// # anello::example! {
    /// let mut child = anello::process::Command::new("cat").stdin(Stdio::piped()).spawn()?;
    /// assert_eq!(child.try_wait()?, None);
    /// child.wait().await?;
    /// assert!(child.try_wait()?.is_some());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of `waitpid(2)`.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if let Some(process) = &mut self.process
            && let Some(status) = process.child.try_wait()?
        {
            self.set_exited(status);
        }
        Ok(self.status)
    }

    /// Sends SIGKILL to the process, without waiting for it to exit (`kill(2)`). Does nothing if the process has been
    /// reaped.
    ///
    /// ```
    /// # anello::example! {
    /// let mut child = anello::process::Command::new("sleep").arg("1000").spawn()?;
    /// child.start_kill()?;
    /// assert!(!child.wait().await?.success());
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns `EPERM` if the process runs as another user.
    pub fn start_kill(&mut self) -> io::Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.child.kill())
    }

    /// Sends SIGKILL to the process and waits for it to exit. Cancel-safe: the signal is sent at the first poll.
    ///
    /// ```
    /// # anello::example! {
    /// let mut child = anello::process::Command::new("sleep").arg("1000").spawn()?;
    /// child.kill().await?;
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`start_kill`](Self::start_kill) and [`wait`](Self::wait).
    pub async fn kill(&mut self) -> io::Result<()> {
        self.start_kill()?;
        self.wait().await?;
        Ok(())
    }

    /// Closes [`stdin`](Self::stdin), waits for the process to exit, and returns what remains to be read from
    /// [`stdout`](Self::stdout) and [`stderr`](Self::stderr). Both are read concurrently, until EOF. The output of a
    /// stream that is not piped, or was taken, is empty.
    ///
    /// EOF is read once all processes that have the write end of the pipe have closed it, which can be later than the
    /// exit of the child. If the future is dropped, the output is lost, and the child is dropped.
    ///
    /// ```
    /// use std::process::Stdio;
    ///
    /// # anello::example! {
    /// let child = anello::process::Command::new("echo").arg("ciao").stdout(Stdio::piped()).spawn()?;
    /// assert_eq!(child.wait_with_output().await?.stdout, b"ciao\n");
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`wait`](Self::wait). Also returns an error of `read(2)`.
    pub async fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let mut stdout = self.stdout.take().map(|pipe| pipe.0);
        let mut stderr = self.stderr.take().map(|pipe| pipe.0);
        let (mut stdout_bytes, mut stderr_bytes) = (Vec::new(), Vec::new());
        let status = poll_fn(|context| {
            let is_stdout_read = read_available(&mut stdout, &mut stdout_bytes, context)?.is_ready();
            let is_stderr_read = read_available(&mut stderr, &mut stderr_bytes, context)?.is_ready();
            let status = ready!(self.poll_wait(context))?;
            if is_stdout_read && is_stderr_read {
                Poll::Ready(Ok::<_, io::Error>(status))
            } else {
                Poll::Pending
            }
        });
        Ok(Output { status: status.await?, stdout: stdout_bytes, stderr: stderr_bytes })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        if self.kill_on_drop {
            // Fails only if the process runs as another user.
            process.child.kill().ok();
        }
        orphans::adopt(process);
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Child");
        debug.field("id", &self.id()).field("status", &self.status);
        debug.field("stdin", &self.stdin).field("stdout", &self.stdout).field("stderr", &self.stderr);
        debug.finish_non_exhaustive()
    }
}

//! Limits for tests that hang.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::data::variable;

/// Time after which a test is considered to hang: a hundred times as long as tests need, also beside other programs.
pub fn hang_timeout() -> Duration {
    scaled_timeout(Duration::from_secs(180))
}

/// Multiplies a test's time limit by `ANELLO_TIMEOUT_FACTOR`, which is set if the processor is emulated or a memory
/// checker is used.
pub fn scaled_timeout(limit: Duration) -> Duration {
    limit * variable("ANELLO_TIMEOUT_FACTOR").unwrap_or(1)
}

/// Runs a function on a new thread, and fails if it does not return within the limit. The thread is then abandoned.
///
/// # Panics
///
/// Panics if the function panics or hangs.
pub fn within<T: Send + 'static>(limit: Duration, name: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    Watched::start(name, run).join(limit)
}

/// A function that runs on a thread of its own.
pub(crate) struct Watched<T> {
    name: String,
    thread: thread::JoinHandle<()>,
    reports: mpsc::Receiver<T>,
}

impl<T: Send + 'static> Watched<T> {
    pub(crate) fn start(name: &str, run: impl FnOnce() -> T + Send + 'static) -> Self {
        let (report, reports) = mpsc::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // The receiver has been dropped if the test has already failed.
            report.send(run()).ok();
        });
        Self { name: name.to_owned(), thread: thread.expect("a thread"), reports }
    }

    /// Returns what the function returned. Panics if the function panicked, or does not return within the limit.
    pub(crate) fn join(self, limit: Duration) -> T {
        let Self { name, thread, reports } = self;
        match reports.recv_timeout(limit) {
            Ok(value) => {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                value
            }
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name}: no result within {limit:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
                Err(panic) => {
                    eprintln!("failed on {name}");
                    std::panic::resume_unwind(panic)
                }
                Ok(()) => unreachable!("a thread that returns without a panic sends its result"),
            },
        }
    }
}

/// Blocks the thread until the condition is true.
///
/// # Panics
///
/// Panics if it does not become true within [`hang_timeout`].
#[track_caller]
pub fn wait_until(mut condition: impl FnMut() -> bool) {
    let (start, limit) = (Instant::now(), hang_timeout());
    while !condition() {
        assert!(start.elapsed() < limit, "the condition is not met within {limit:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Blocks the thread until no socket listens at the address. A process that another test starts has copies of all
/// descriptors until it executes its program, so a listener may still accept when its owner has closed it.
///
/// # Panics
///
/// Panics if a socket still listens after [`hang_timeout`].
#[track_caller]
pub fn wait_until_refused(address: SocketAddr) {
    wait_until(|| TcpStream::connect(address).is_err());
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn within_returns_the_result_or_the_panic() {
        assert_eq!(within(hang_timeout(), "value", || 7), 7);
        let panic = catch_unwind(|| within(hang_timeout(), "panic", || panic!("a reason"))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a reason"));
    }

    #[test]
    fn within_ends_tests_that_hang() {
        let hang = || within(Duration::from_millis(1), "name", thread::park);
        let panic = catch_unwind(hang).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("name: no result within 1ms"));
    }
}

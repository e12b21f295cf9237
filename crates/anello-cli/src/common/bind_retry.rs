//! Binding to an address that a process which has exited may still occupy.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Time for which the commands wait for an address that is in use.
///
/// When a process with an io_uring ring is killed, the kernel closes the sockets of the ring up to 0.1 s after the exit of
/// the process, or later on a busy machine.
const BIND_TIMEOUT: Duration = Duration::from_secs(2);

const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Calls `bind` until it does not fail with `AddrInUse`, for up to [`BIND_TIMEOUT`].
pub fn bind_with_retry<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    let mut bound = bind();
    while bound.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        && start.elapsed() < BIND_TIMEOUT
    {
        thread::sleep(RETRY_INTERVAL);
        bound = bind();
    }
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_in_use_are_tried_again() {
        for (kind, expected) in [(io::ErrorKind::AddrInUse, 3), (io::ErrorKind::AddrNotAvailable, 1)] {
            let mut attempts = 0;
            let bound = bind_with_retry(|| {
                attempts += 1;
                if attempts < 3 { Err(kind.into()) } else { Ok(attempts) }
            });
            assert_eq!((attempts, bound.is_ok()), (expected, expected == 3));
        }
    }

    #[test]
    fn address_that_stays_in_use_is_reported() {
        let error = bind_with_retry(|| Err::<(), _>(io::ErrorKind::AddrInUse.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}

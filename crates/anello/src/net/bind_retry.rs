//! Binding to an address that a process which was killed may still occupy.

use std::io;
use std::time::Duration;

use crate::time::{Instant, pause};

/// Delay before an address that is in use is bound again.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// Calls `bind` until it does not fail with `AddrInUse`, for up to `timeout`.
pub(super) async fn bind_with_retry<T>(timeout: Duration, bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < timeout => {
                pause(RETRY_DELAY).await;
            }
            bound => return bound,
        }
    }
}

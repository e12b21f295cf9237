//! Reads and writes on the ring of the current runtime.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use super::owned_buf::zeroed;
use crate::driver::{FileOperation, Key, Memory, Transfer};
use crate::executor::{Shared, try_current, with_current};

/// Key of an operation in flight. Dropping it releases the operation, which completes in the background.
struct Operation {
    shared: Rc<Shared>,
    key: Key,
}

impl Operation {
    fn new(shared: Rc<Shared>, key: Key) -> Self {
        Self { shared, key }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        match self.shared.driver.try_borrow_mut() {
            Ok(mut driver) => driver.release_file(self.key),
            Err(_borrowed) => return self.shared.release_deferred(self.key, Self::new),
        }
        self.shared.flush_driver_unless_current();
    }
}

/// Returns whether the current runtime is running and has a ring.
pub(super) fn is_available() -> bool {
    with_current(|shared| shared.is_running() && shared.driver.borrow().supports_files()) == Some(true)
}

/// Transfers bytes on the ring. Returns the memory if there is no ring, or if the kernel requests that the operation be
/// repeated. If the result is lost, the memory is lost as well, and an empty one is returned.
pub(super) async fn transfer(
    transfer: Transfer,
    file: &Arc<std::fs::File>,
    memory: Memory,
    offset: u64,
) -> Result<(io::Result<usize>, Memory), Memory> {
    let Some(shared) = try_current() else { return Err(memory) };
    let operation = FileOperation::new(transfer, Arc::clone(file), memory, offset);
    let started = shared.driver.borrow_mut().start_file(operation);
    let key = match started {
        Ok(key) => key,
        Err(operation) => return Err(operation.into_memory()),
    };
    let operation = Operation::new(shared, key);
    let done = poll_fn(|context| {
        operation.shared.poll_driver(context, |driver, waker| driver.poll_file(key, waker), |_bytes| 0)
    });
    match done.await {
        // Kernel threads of the ring can be interrupted, and some files never support the ring's operations.
        Ok((errno, memory)) if matches!(-errno, libc::EINTR | libc::EAGAIN | libc::EOPNOTSUPP) => Err(memory),
        Ok((errno @ ..0, memory)) => Ok((Err(io::Error::from_raw_os_error(-errno)), memory)),
        Ok((count, memory)) => Ok((Ok(count as usize), memory)),
        Err(error) => Ok((Err(error), zeroed(0, false))),
    }
}

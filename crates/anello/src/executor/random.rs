//! Random bytes.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

use super::context::with_current;

/// Fills a buffer with random bytes that cannot be predicted (`getrandom(2)`). On the simulated driver, they depend only
/// on the seed and on earlier operations, so that a run can be reproduced.
///
/// Programs that run on simulated hosts should use this function, or seed a generator with it, instead of another source
/// of random numbers.
///
/// ```
/// use anello::sim::SimOptions;
/// use anello::{DriverKind, Runtime, fill_random};
///
/// let mut number = [0; 8];
/// fill_random(&mut number)?;
/// let request_id = u64::from_ne_bytes(number);
///
/// let simulated = || {
///     let runtime = Runtime::builder().driver(DriverKind::Sim(SimOptions::new(17))).build()?;
///     let mut number = [0; 8];
///     runtime.block_on(async { fill_random(&mut number) })?;
///     Ok::<_, std::io::Error>(u64::from_ne_bytes(number))
/// };
/// assert_eq!(simulated()?, simulated()?);
/// # assert_ne!(request_id, simulated()?);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Returns the error from `getrandom(2)`.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    if with_current(|shared| shared.is_simulated() && shared.driver.borrow_mut().fill_random(bytes))
        == Some(true)
    {
        return Ok(());
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = rustix::io::retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::empty()))?;
        rest = &mut rest[count..];
    }
    Ok(())
}

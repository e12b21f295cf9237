//! The guard of a driver whose calls can run code of the application.

use std::ops::{Deref, DerefMut};

use crate::driver::Driver;

/// The driver of an event loop. It can only be changed by a call that has entered it.
///
/// A call can run destructors of the application, for example those of queued bytes. A destructor that ends the process,
/// itself or in a panic hook, drops an event loop that is in a `thread_local!`, while the call is changing the driver.
/// Such a driver is leaked (invariant 14). That of a runtime is in a `RefCell`, which shows the same.
#[derive(Debug)]
pub(super) struct EnterableDriver(Driver);

impl EnterableDriver {
    pub fn new(driver: Driver) -> Self {
        Self(driver)
    }

    #[inline(always)]
    pub fn enter(&mut self) -> Entered<'_> {
        self.0.is_entered = true;
        Entered(&mut self.0)
    }
}

impl Deref for EnterableDriver {
    type Target = Driver;

    #[inline(always)]
    fn deref(&self) -> &Driver {
        &self.0
    }
}

/// A driver during a call.
#[derive(Debug)]
pub(super) struct Entered<'a>(&'a mut Driver);

impl Deref for Entered<'_> {
    type Target = Driver;

    #[inline(always)]
    fn deref(&self) -> &Driver {
        self.0
    }
}

impl DerefMut for Entered<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Driver {
        self.0
    }
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.is_entered = false;
    }
}

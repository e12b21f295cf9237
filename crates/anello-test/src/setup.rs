//! A driver and its options, for which a test runs.

use std::fmt::{self, Display, Formatter};
use std::future::Future;
use std::pin::Pin;

use anello::{DriverKind, DriverOptions, Runtime, RuntimeBuilder};

/// Driver and its options.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Name that `ANELLO_TEST_SETUP` selects: lower-case letters, digits and hyphens.
    pub name: &'static str,
    /// Driver of the runtime.
    pub kind: DriverKind,
    /// Options of the driver.
    pub options: DriverOptions,
}

impl Display for Setup {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl Setup {
    /// Returns a set-up with the default options and a change to them.
    pub fn new(name: &'static str, kind: DriverKind, change: impl FnOnce(&mut DriverOptions)) -> Self {
        let mut options = DriverOptions::default();
        change(&mut options);
        Self { name, kind, options }
    }

    /// Returns a builder for the set-up. The environment does not change its driver.
    pub fn builder(&self) -> RuntimeBuilder {
        let builder = Runtime::builder().driver(self.kind.clone()).options(self.options.clone());
        builder.driver_from_environment(false)
    }

    /// Builds a runtime.
    pub fn runtime(&self) -> Runtime {
        self.builder().build().unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// Runs a future on a new runtime.
    pub fn run<'a, F: Future + 'a>(&self, future: F) -> F::Output {
        // Boxed, so that a runtime is compiled once for each type of output, and not for each test.
        let future: Pin<Box<dyn Future<Output = F::Output> + 'a>> = Box::pin(future);
        self.runtime().block_on(future)
    }

    /// Returns whether the driver is io_uring.
    pub fn is_uring(&self) -> bool {
        self.kind == DriverKind::Uring
    }

    /// Returns whether the kernel is simulated.
    pub fn is_simulated(&self) -> bool {
        matches!(self.kind, DriverKind::Sim(_))
    }

    /// Returns a copy with changed options and the same name.
    #[must_use]
    pub fn with(&self, change: impl FnOnce(&mut DriverOptions)) -> Self {
        let mut setup = self.clone();
        change(&mut setup.options);
        setup
    }
}

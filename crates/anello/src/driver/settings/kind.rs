//! Selection and description of a driver.

use std::fmt;
use std::io;

#[cfg(feature = "sim")]
use super::sim_options::SimOptions;

/// The I/O driver of a runtime.
///
/// ```
/// use anello::{DriverKind, Runtime};
///
/// let kind: DriverKind = "epoll".parse()?;
/// assert_eq!(kind, DriverKind::Epoll);
/// let runtime = Runtime::builder().driver(kind).driver_from_environment(false).build()?;
/// assert_eq!(runtime.driver().name, "epoll");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum DriverKind {
    /// io_uring if it is available, otherwise epoll. The reason for the fallback is logged.
    #[default]
    Auto,
    /// io_uring. Fails with an error that states the cause and the remedy if io_uring is unavailable.
    Uring,
    /// epoll.
    Epoll,
    /// A simulated kernel with in-memory sockets, a virtual clock and seeded faults.
    #[cfg(feature = "sim")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sim")))]
    Sim(SimOptions),
}

impl DriverKind {
    pub(crate) fn is_simulated(&self) -> bool {
        #[cfg(feature = "sim")]
        return matches!(self, Self::Sim(_));
        #[cfg(not(feature = "sim"))]
        false
    }
}

impl std::str::FromStr for DriverKind {
    type Err = io::Error;

    fn from_str(name: &str) -> io::Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "uring" | "io_uring" => Ok(Self::Uring),
            "epoll" => Ok(Self::Epoll),
            other => {
                let text = format!("unknown driver {other:?} (expected auto, uring or epoll)");
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
        }
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Epoll => "epoll",
            #[cfg(feature = "sim")]
            Self::Sim(_) => "sim",
        })
    }
}

/// Description of the selected driver.
///
/// ```
/// let driver = anello::Runtime::new()?.driver();
/// println!("driver {}, features {}", driver.name, driver.features);
/// if let Some(reason) = driver.fallback_reason {
///     assert_eq!(driver.name, "epoll");
///     println!("io_uring is unavailable: {reason}");
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverInfo {
    /// Name of the driver: `uring`, `epoll` or `sim`.
    pub name: &'static str,
    /// Kernel features in use, separated by commas.
    pub features: String,
    /// Reason why [`DriverKind::Auto`] selected epoll. `None` if it selected io_uring or was not used.
    pub fallback_reason: Option<String>,
}

impl DriverInfo {
    /// Returns whether the kernel is simulated: time is virtual, and only the simulated network is reachable. Always
    /// `false` without the feature `sim`.
    ///
    /// Programs run unchanged on the simulated driver. Use this function only for decisions that depend on the real
    /// machine, such as the use of a real clock.
    ///
    /// ```
    /// use anello::sim::SimOptions;
    /// use anello::{DriverKind, Runtime};
    ///
    /// let runtime = Runtime::builder().driver(DriverKind::Sim(SimOptions::new(17))).build()?;
    /// assert!(runtime.driver().is_simulated());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.name == "sim"
    }
}

//! Probes: what this machine and the limits of this process let a program use.
//!
//! The command `anello doctor` prints their results, with more facts and with advice. The driver of a running runtime
//! describes itself; see [`current_driver`](crate::current_driver).
//!
//! ```
//! use anello::DriverOptions;
//! use anello::doctor::{allowed_cores, probe_uring};
//!
//! println!("{} cores", allowed_cores()?.len());
//! match probe_uring(&DriverOptions::default()) {
//!     Ok(features) => {
//!         for (name, is_used) in features {
//!             println!("io_uring: {name}: {is_used}");
//!         }
//!     }
//!     // The error states the cause and the remedy.
//!     Err(error) => println!("{error}"),
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

pub use crate::driver::probe_uring;
pub use crate::executor::allowed_cores;

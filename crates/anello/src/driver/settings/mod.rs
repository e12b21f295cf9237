//! Settings of a driver: its kind, its options, and the model and faults of a simulated kernel.

pub(super) mod kind;
pub(super) mod options;
#[cfg(feature = "sim")]
pub(super) mod sim_options;

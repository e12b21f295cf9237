//! Errors that name their context, log events, and containment of panics in application code.

pub(super) mod catch_panic;
pub(super) mod context;
pub(super) mod impossible;
pub(super) mod log;
pub(super) mod owner_process;

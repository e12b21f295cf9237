//! Readiness sources: the kinds of readiness, and the state of a source.

pub(super) mod interest;
pub(super) mod readiness;

//! Descriptors that a type reads and writes itself when the driver reports that they are ready.

mod pipe_end;
mod registration;

pub(crate) use pipe_end::PipeEnd;
pub(crate) use registration::Registration;

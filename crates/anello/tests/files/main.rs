//! Files, pipes and other descriptors, copying and buffered reading.

#[path = "../common/mod.rs"]
mod common;

mod accepted_writes;
mod api;
mod async_fd;
mod io;
mod pipes;
mod programs;
mod registered;
mod transfers;

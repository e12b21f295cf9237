//! Random programs, and every operation that waits: futures that are dropped, leaked or moved at any moment, and wakers
//! and destructors that misbehave. The allocator of this program counts the allocations of each thread.

#[path = "../common/mod.rs"]
mod common;

mod allocation;
mod allocator;
mod deliberate;
mod operations;
mod programs;
mod undefined;
mod undefined_contexts;

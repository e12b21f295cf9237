//! Tests for the echo servers and the disk workers.

#![forbid(unsafe_code)]

mod disk;
mod echo;
mod options;

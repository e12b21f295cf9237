//! The programs of the tutorial.

#![forbid(unsafe_code)]

pub mod echo;
pub mod proxy;
pub mod service;
pub mod workers;

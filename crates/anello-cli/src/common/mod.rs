//! Flags, value parsers, sockets and output that several commands share.

pub mod activation;
pub mod address;
pub mod build_identity;
pub mod cores;
pub mod count;
pub mod driver_flags;
pub mod duration;
pub mod error;
pub mod limits;
pub mod listening;
pub mod output;
pub mod stop;
pub mod value_errors;

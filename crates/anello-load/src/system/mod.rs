//! Information from the operating system: clocks, processes and cores.

pub(crate) mod clock;
pub mod machine;
pub mod process;

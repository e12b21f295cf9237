//! `anello bare`: the baseline servers and the disk workers.

mod flags;
mod run;

pub use self::flags::Arguments;
pub use self::run::run;

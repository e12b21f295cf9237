//! `anello man`: manual pages, generated from the definition of the command line.

mod flags;
mod run;

pub use self::flags::Arguments;
pub use self::run::run;

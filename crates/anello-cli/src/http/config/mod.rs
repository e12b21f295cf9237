//! `--config`: flags of `anello http` from a TOML file.
//!
//! The command-line definition is the only list of flags. Each key of the file is converted to the corresponding
//! argument and inserted before the given arguments, unless they contain the same flag. The merged command line is then
//! parsed as usual. A new flag is thus available as a key, with the same values and error messages:
//!
//! ```text
//!   anello http --config site.toml --addr 127.0.0.1:0
//!                         │ addr = "0.0.0.0:80"                overridden: omitted
//!                         │ index = ["a.html", "b.html"]       --index=a.html --index=b.html
//!                         ▼
//!   anello http --index=a.html --index=b.html --config site.toml --addr 127.0.0.1:0
//! ```

mod configuration;
mod file;
mod key;
mod read;
mod settings;

#[cfg(test)]
mod tests;

pub use self::configuration::Configuration;
pub use self::read::read;

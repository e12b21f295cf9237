//! What this program was built from and with, as `build.rs` found it out.

/// The last commit that touched the sources, or "unknown" and why.
const COMMIT: &str = env!("ANELLO_BUILD_COMMIT");

/// Compiler, profile, optimization and flags.
const TOOLS: &str = env!("ANELLO_BUILD_TOOLS");

/// What `anello --version` says; `-V` says the version alone.
pub const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit ",
    env!("ANELLO_BUILD_COMMIT"),
    "\nbuilt with ",
    env!("ANELLO_BUILD_TOOLS")
);

/// The commit of the sources, with "+changes" where they had been changed since; none if it is not known.
pub fn commit() -> Option<String> {
    (!COMMIT.starts_with("unknown")).then(|| COMMIT.to_owned())
}

/// Language, compiler and what it was told, in the words in which peers tell theirs.
pub fn built_with() -> String {
    format!("Rust ({TOOLS})")
}

//! Source commit and build tools of this binary, determined by `build.rs`.

/// The last commit that changed the sources, or "unknown: " and the reason.
const COMMIT: &str = env!("ANELLO_BUILD_COMMIT");

/// Compiler, profile, optimization level and flags.
const TOOLS: &str = env!("ANELLO_BUILD_TOOLS");

/// Output of `anello --version` after the command name. `-V` prints only the version.
pub const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit ",
    env!("ANELLO_BUILD_COMMIT"),
    "\nbuilt with ",
    env!("ANELLO_BUILD_TOOLS")
);

/// Returns the source commit, with "+changes" if the sources were modified; `None` if the commit is unknown.
pub fn commit() -> Option<String> {
    (!COMMIT.starts_with("unknown")).then(|| COMMIT.to_owned())
}

/// Returns the language, compiler and flags in the format of the peers' build records.
pub fn built_with() -> String {
    format!("Rust ({TOOLS})")
}

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

/// Returns the commit of the sources, with "+changes" if they were modified; `None` if the commit is unknown.
pub fn commit() -> Option<String> {
    (!COMMIT.starts_with("unknown")).then(|| COMMIT.to_owned())
}

/// Returns language, compiler and flags, in the format that the build records of peers use.
pub fn built_with() -> String {
    format!("Rust ({TOOLS})")
}

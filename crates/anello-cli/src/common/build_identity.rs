//! Source commit and build tools of this binary, determined by `build.rs`.

/// Output of `anello --version` after the command name. `-V` prints only the version.
pub const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit ",
    env!("ANELLO_BUILD_COMMIT"),
    "\nbuilt with ",
    env!("ANELLO_BUILD_TOOLS")
);

/// Returns the last commit that changed the sources, with "+changes" if they have been modified since; `None` if
/// unknown.
pub fn commit() -> Option<String> {
    let commit = env!("ANELLO_BUILD_COMMIT");
    (!commit.starts_with("unknown")).then(|| commit.to_owned())
}

/// Returns the language, compiler, profile and flags in the format of the peers' build records.
pub fn built_with() -> String {
    format!("Rust ({})", env!("ANELLO_BUILD_TOOLS"))
}

//! The command that repeats a failed test.

use std::path::{Path, PathBuf};
use std::thread;

use crate::selection::VARIABLE;

/// The running test program, as `cargo test` started it.
struct Program {
    /// `CARGO_PKG_NAME`, or `None` if the program was started without Cargo.
    package: Option<String>,
    /// `CARGO_MANIFEST_DIR`.
    directory: PathBuf,
    path: PathBuf,
    /// Name of the test, unless it runs on the main thread (`--test-threads=1`).
    test: Option<String>,
    /// Names that the command line selects.
    filters: Vec<String>,
}

impl Program {
    fn current() -> Self {
        let variable = |name| std::env::var(name).ok();
        // The test harness gives each thread the name of its test.
        let test = thread::current().name().filter(|name| *name != "main").map(str::to_owned);
        Self {
            package: variable("CARGO_PKG_NAME"),
            directory: variable("CARGO_MANIFEST_DIR").unwrap_or_default().into(),
            path: std::env::current_exe().unwrap_or_default(),
            test,
            filters: std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect(),
        }
    }

    fn command(&self, setup: &str) -> String {
        let start = match &self.package {
            Some(package) => format!("cargo test -p {package} --all-features {} ", self.target(package)),
            None => format!("{} ", self.path.display()),
        };
        let separator = if self.package.is_some() { "-- " } else { "" };
        let tests = match &self.test {
            Some(test) => format!("{test} {separator}--exact"),
            None => format!("{} {separator}--test-threads=1", self.filters.join(" ")),
        };
        format!("{VARIABLE}='^{setup}$' {start}{}", tests.trim_start())
    }

    /// Returns Cargo's option for the program: an integration test, or the unit tests of a library or binary.
    fn target(&self, package: &str) -> String {
        let stem = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = stem.rsplit_once('-').map_or(&*stem, |(name, _hash)| name);
        let exists = |path: &str| self.directory.join("tests").join(Path::new(path)).is_file();
        if exists(&format!("{name}.rs")) || exists(&format!("{name}/main.rs")) {
            format!("--test {name}")
        } else if name == package.replace('-', "_") {
            "--lib".to_owned()
        } else {
            format!("--bin {name}")
        }
    }
}

/// Prints the command that repeats this thread's test on a set-up, if it is dropped during a panic.
pub(crate) struct PrintOnPanic(String);

impl PrintOnPanic {
    pub(crate) fn new(setup: &str) -> Self {
        Self(Program::current().command(setup))
    }
}

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("to repeat: {}", self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &str, test: Option<&str>) -> Program {
        Program {
            package: Some("anello-test".to_owned()),
            directory: env!("CARGO_MANIFEST_DIR").into(),
            path: path.into(),
            test: test.map(str::to_owned),
            filters: vec!["one".to_owned(), "two".to_owned()],
        }
    }

    #[test]
    fn command_names_integration_tests() {
        assert_eq!(
            program("/target/deps/harness-0123abcd", Some("module::name")).command("epoll"),
            "ANELLO_TEST_SETUP='^epoll$' cargo test -p anello-test --all-features --test harness module::name -- --exact"
        );
    }

    #[test]
    fn command_names_unit_tests_of_libraries_and_binaries() {
        assert_eq!(
            program("/target/deps/anello_test-0123abcd", Some("name")).command("uring"),
            "ANELLO_TEST_SETUP='^uring$' cargo test -p anello-test --all-features --lib name -- --exact"
        );
        assert_eq!(
            program("/target/deps/anello-0123abcd", Some("name")).command("uring"),
            "ANELLO_TEST_SETUP='^uring$' cargo test -p anello-test --all-features --bin anello name -- --exact"
        );
    }

    #[test]
    fn command_has_the_filters_of_the_command_line_if_the_test_is_unknown() {
        assert_eq!(
            program("/target/deps/harness-0123abcd", None).command("epoll"),
            "ANELLO_TEST_SETUP='^epoll$' cargo test -p anello-test --all-features --test harness one two -- --test-threads=1"
        );
    }

    #[test]
    fn command_starts_the_program_if_cargo_did_not() {
        let program = Program { package: None, ..program("/tests/net-0123abcd", Some("name")) };
        assert_eq!(program.command("epoll"), "ANELLO_TEST_SETUP='^epoll$' /tests/net-0123abcd name --exact");
    }
}

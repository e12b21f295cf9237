//! `ANELLO_TEST_SETUP`: the set-ups on which tests run.

use std::io::{self, Write};
use std::sync::OnceLock;

use regex_lite::Regex;

use crate::table::{DEFAULT_NAMES, linux_setups, sim_setups};
use crate::{Setup, all_setups, both_drivers};

/// Environment variable with a regular expression, or with [`LIST`].
pub(crate) const VARIABLE: &str = "ANELLO_TEST_SETUP";

/// Value that prints the names of all set-ups instead of running tests.
const LIST: &str = "list";

/// Set-ups on which tests run.
pub(crate) enum Selection {
    Default,
    Matching(Regex),
    List,
}

impl Selection {
    /// Parses the value of the variable. Returns a message if it is invalid, or matches none of the names.
    fn parse(value: Option<&str>, names: &[&str]) -> Result<Self, String> {
        let value = match value {
            None | Some("") => return Ok(Self::Default),
            Some(LIST) => return Ok(Self::List),
            Some(value) => value,
        };
        let remedy = format!("{VARIABLE}={LIST} cargo test -p anello-test prints the names");
        let regex = Regex::new(value).map_err(|error| {
            format!("cannot parse {VARIABLE}={value} as a regular expression: {error} ({remedy})")
        })?;
        if !names.iter().any(|name| regex.is_match(name)) {
            return Err(format!("cannot select set-ups: {VARIABLE}={value} matches none of them ({remedy})"));
        }
        Ok(Self::Matching(regex))
    }

    /// Returns the selection of this process. Prints the list once, if that is what the variable requests.
    ///
    /// # Panics
    ///
    /// Panics if the variable is invalid.
    pub(crate) fn current() -> &'static Self {
        static CURRENT: OnceLock<Result<Selection, String>> = OnceLock::new();
        let current = CURRENT.get_or_init(|| {
            let names: Vec<_> = all_setups().iter().map(|setup| setup.name).collect();
            let value = std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned());
            let selection = Self::parse(value.as_deref(), &names);
            if matches!(selection, Ok(Self::List)) {
                print_uncaptured(&list(&names));
            }
            selection
        });
        current.as_ref().unwrap_or_else(|message| panic!("{message}"))
    }

    /// Returns whether a test that runs on every set-up runs on the one with this name.
    pub(crate) fn is_selected(&self, name: &str) -> bool {
        match self {
            Self::Default => DEFAULT_NAMES.contains(&name),
            Self::Matching(regex) => regex.is_match(name),
            Self::List => false,
        }
    }

    /// Returns whether a test that names its set-ups runs on the one with this name: unless the variable excludes it.
    pub(crate) fn is_included(&self, name: &str) -> bool {
        matches!(self, Self::Default) || self.is_selected(name)
    }
}

/// Returns the names, one in each line.
fn list(names: &[&str]) -> String {
    let mut text = format!("{VARIABLE} selects set-ups by a regular expression for these names:\n");
    for name in names {
        let suffix = if DEFAULT_NAMES.contains(name) { "  (default)" } else { "" };
        text.push_str(&format!("  {name}{suffix}\n"));
    }
    text
}

/// Prints to standard error even if the test harness captures the test's output.
pub(crate) fn print_uncaptured(text: &str) {
    // Nothing can be reported if standard error is closed.
    io::stderr().write_all(text.as_bytes()).ok();
}

/// Returns the selected set-ups on Linux.
pub fn all_drivers() -> Vec<Setup> {
    selected(linux_setups())
}

/// Returns the two Linux drivers with their default options, or else the set-ups on Linux that `ANELLO_TEST_SETUP`
/// selects, for tests of code whose behaviour does not depend on the features of io_uring.
pub fn main_drivers() -> Vec<Setup> {
    match Selection::current() {
        Selection::Default => both_drivers(),
        _ => all_drivers(),
    }
}

/// Returns the set-ups of [`main_drivers`], and the selected simulated kernels.
pub fn main_drivers_and_sim() -> Vec<Setup> {
    main_drivers().into_iter().chain(simulated_drivers()).collect()
}

/// Returns the selected set-ups with a simulated kernel, for tests that use only the runtime's sockets.
pub fn simulated_drivers() -> Vec<Setup> {
    selected(sim_setups())
}

fn selected(mut setups: Vec<Setup>) -> Vec<Setup> {
    let selection = Selection::current();
    setups.retain(|setup| selection.is_selected(setup.name));
    setups
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["uring", "uring-small", "epoll"];

    fn selected_by(value: Option<&str>) -> Vec<&'static str> {
        let selection = Selection::parse(value, &NAMES).expect("a valid value");
        NAMES.into_iter().filter(|name| selection.is_selected(name)).collect()
    }

    #[test]
    fn selects_defaults_if_unset_or_empty() {
        assert_eq!(selected_by(None), ["uring", "epoll"]);
        assert_eq!(selected_by(Some("")), ["uring", "epoll"]);
    }

    #[test]
    fn searches_the_regular_expression_in_names() {
        assert_eq!(selected_by(Some(".")), NAMES);
        assert_eq!(selected_by(Some("uring")), ["uring", "uring-small"]);
        assert_eq!(selected_by(Some("^uring$")), ["uring"]);
        assert_eq!(selected_by(Some("small|epoll")), ["uring-small", "epoll"]);
    }

    #[test]
    fn tests_that_name_their_setups_run_on_other_than_the_defaults() {
        let default = Selection::parse(None, &NAMES).expect("a valid value");
        assert!(!default.is_selected("uring-small") && default.is_included("uring-small"));
        let epoll = Selection::parse(Some("epoll"), &NAMES).expect("a valid value");
        assert!(!epoll.is_included("uring-small") && epoll.is_included("epoll"));
    }

    #[test]
    fn list_selects_nothing_and_marks_defaults() {
        assert_eq!(selected_by(Some("list")), [""; 0]);
        let text = list(&NAMES);
        assert!(text.contains("\n  uring  (default)\n  uring-small\n  epoll  (default)\n"), "{text}");
    }

    #[test]
    fn reports_invalid_expressions_and_those_that_match_nothing() {
        let error = |value| Selection::parse(Some(value), &NAMES).err().expect("an error");
        let invalid = error("uring(");
        assert!(
            invalid.starts_with("cannot parse ANELLO_TEST_SETUP=uring( as a regular expression: "),
            "{invalid}"
        );
        let unmatched = error("kqueue");
        assert!(
            unmatched.starts_with("cannot select set-ups: ANELLO_TEST_SETUP=kqueue matches none of them"),
            "{unmatched}"
        );
        assert!(unmatched.contains("ANELLO_TEST_SETUP=list"), "{unmatched}");
    }
}

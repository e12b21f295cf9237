//! Tests that start this program again, with another value of `ANELLO_TEST_SETUP`.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use anello_test::{
    all_setups, driver_flags, each_available, in_own_process, main_drivers, on_both_drivers, on_each,
    on_every_driver_and_sim,
};

/// Environment variable that makes [`child`] run.
const CHILD: &str = "ANELLO_TEST_HARNESS_CHILD";

/// Runs the test `child` in a process with this selection, and returns its output as text.
fn run_child(kind: &str, selection: Option<&str>) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["child", "--exact", "--test-threads=2"]).env(CHILD, kind).env_remove("ANELLO_TEST_SETUP");
    command.envs(selection.map(|value| ("ANELLO_TEST_SETUP", value)));
    let Output { status, stdout, stderr } = command.output().expect("the program starts");
    let text = [stdout, stderr].concat();
    (status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Not a test: body of the child processes.
#[test]
fn child() {
    match std::env::var(CHILD).as_deref() {
        Ok("fails") => on_both_drivers(|setup| panic!("{} is not a number", setup.name)),
        Ok("fails in a loop") => {
            driver_flags()
                .for_each(|driver| assert!(driver.parse::<u8>().is_ok(), "{driver} is not a number"));
        }
        Ok("loops") => {
            each_available(main_drivers()).for_each(|setup| assert_eq!(setup.name, "uring", "in a loop"));
        }
        Ok("prints") => {
            // Shown only for a test that fails.
            on_every_driver_and_sim(|setup| println!("ran on {}.", setup.name));
            panic!("shows the output; drivers: {:?}", driver_flags().collect::<Vec<_>>());
        }
        _ => {}
    }
}

#[test]
fn every_setup_can_be_built_where_it_is_available() {
    on_each(all_setups(), |setup| {
        let number = setup.run(async { anello::spawn(async { 7 }).await });
        assert_eq!(number.ok(), Some(7), "{}", setup.name);
    });
}

#[test]
fn failed_test_prints_the_command_that_repeats_it() {
    let command = match std::env::var_os("CARGO_PKG_NAME") {
        Some(_) => {
            "ANELLO_TEST_SETUP='^epoll$' cargo test -p anello-test --all-features --test harness child -- --exact"
        }
        None => "ANELLO_TEST_SETUP='^epoll$' ",
    };
    for kind in ["fails", "fails in a loop"] {
        let (success, text) = run_child(kind, Some("^epoll$"));
        assert!(!success && text.contains("epoll is not a number"), "{text}");
        assert!(text.contains(&format!("to repeat: {command}")), "{text}");
    }
}

#[test]
fn runs_on_the_defaults_and_on_no_other_setup() {
    let (_, text) = run_child("prints", None);
    for name in ["epoll", "sim-completion", "sim-readiness"] {
        assert!(text.contains(&format!("ran on {name}.")), "{text}");
    }
    for name in ["uring", "uring-min"] {
        let is_skipped = text.contains(&format!("skipped on {name}: "));
        assert!(is_skipped || text.contains(&format!("ran on {name}.")), "{text}");
    }
    assert!(text.matches("ran on ").count() <= 5, "{text}");
}

#[test]
fn runs_on_the_selected_setups_only() {
    let (_, text) = run_child("prints", Some("small$"));
    for name in ["epoll-small", "sim-completion-small", "sim-readiness-small"] {
        assert!(text.contains(&format!("ran on {name}.")), "{text}");
    }
    assert!(!text.contains("ran on epoll.") && text.contains("drivers: []"), "{text}");
    let (_, text) = run_child("prints", Some("^epoll$"));
    assert!(text.matches("ran on ").count() == 1 && text.contains("drivers: [\"epoll\"]"), "{text}");
}

#[test]
fn list_prints_all_names_once_and_runs_nothing() {
    let (_, text) = run_child("prints", Some("list"));
    for setup in all_setups() {
        let lines = text.lines().filter(|line| line.split_whitespace().next() == Some(setup.name));
        assert_eq!(lines.count(), 1, "{}: {text}", setup.name);
    }
    assert!(!text.contains("ran on "), "{text}");
}

#[test]
fn invalid_selections_fail_with_the_reason() {
    for (value, reason) in [("(", "cannot parse"), ("kqueue", "matches none of them")] {
        let (success, text) = run_child("fails", Some(value));
        assert!(!success && text.contains(reason), "{text}");
    }
}

#[test]
fn loop_over_setups_prints_the_command_that_repeats_it() {
    let (success, text) = run_child("loops", None);
    assert!(!success && text.contains("in a loop"), "{text}");
    assert!(text.contains("to repeat: ANELLO_TEST_SETUP='^epoll$' "), "{text}");
    let (_, text) = run_child("loops", Some("epoll-small"));
    assert!(text.contains("to repeat: ANELLO_TEST_SETUP='^epoll-small$' "), "{text}");
}

#[test]
fn process_of_its_own_has_only_one_test() {
    static OTHERS: AtomicBool = AtomicBool::new(false);
    OTHERS.store(std::env::var_os("ANELLO_TEST_OWN_PROCESS").is_none(), Ordering::Relaxed);
    in_own_process(|| assert!(!OTHERS.load(Ordering::Relaxed)));
}

//! Tests that need a process of their own.

use std::any::type_name;
use std::process::Command;

/// Environment variable of the processes in which [`in_own_process`] runs tests.
const VARIABLE: &str = "ANELLO_TEST_OWN_PROCESS";

/// Runs a test in a process of its own, because it changes or counts what all threads of a process share: descriptors,
/// memory, limits, environment variables or a global log subscriber. The closure must be in the test function itself.
///
/// # Panics
///
/// Panics if the test fails.
pub fn in_own_process<T: FnOnce()>(test: T) {
    if std::env::var_os(VARIABLE).is_some() {
        return test();
    }
    // The type of the closure has the path of the test function in it, which the name of the thread has only if several
    // tests run at the same time.
    let path = type_name::<T>().trim_end_matches("::{{closure}}");
    let name = path.split_once("::").map_or(path, |(_program, name)| name);
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([name, "--exact", "--nocapture"]).env(VARIABLE, name);
    let output = command.output().expect("the program starts");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    print!("{stdout}");
    eprint!("{stderr}");
    assert!(output.status.success(), "{name}: {}", output.status);
    assert!(stdout.contains("1 passed"), "{name} is not the name of a test");
}

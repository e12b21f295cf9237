//! Availability of a set-up on this machine.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::thread;

use crate::Setup;
use crate::selection::print_uncaptured;

/// Returns whether the error means that io_uring is unavailable here, rather than a defect of the driver.
pub fn is_uring_unavailable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported | io::ErrorKind::OutOfMemory
    )
}

/// Returns whether the set-up is available here, and prints the reason if not. Each name is probed once per process,
/// with the options of the first test that uses it.
pub(crate) fn is_available(setup: &Setup) -> bool {
    static PROBED: Mutex<BTreeMap<&str, Result<bool, String>>> = Mutex::new(BTreeMap::new());
    if !setup.is_uring() {
        return true;
    }
    let mut probed = PROBED.lock().expect("no probe panics");
    let result = probed.entry(setup.name).or_insert_with(|| probe(setup)).clone();
    drop(probed);
    result.unwrap_or_else(|message| panic!("{message}"))
}

fn probe(setup: &Setup) -> Result<bool, String> {
    let probed = setup.clone();
    // Probes on a separate thread, because the kernel interrupts the thread that closes a ring.
    match thread::spawn(move || probed.builder().build().map(drop)).join() {
        Ok(Ok(())) => Ok(true),
        Ok(Err(error)) if is_uring_unavailable(&error) => {
            print_uncaptured(&format!("skipped on {}: {error}\n", setup.name));
            Ok(false)
        }
        Ok(Err(error)) => Err(format!("{}: {error}", setup.name)),
        Err(_) => Err(format!("{}: the probe panicked", setup.name)),
    }
}

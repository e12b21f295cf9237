//! Runs a command where `io_uring_setup(2)` is refused with EPERM, as in many containers: what does a service do there?
//!
//! ```text
//! cargo run --example without_io_uring -- anello doctor
//! ```
//!
//! By a seccomp filter, which the command and all its children keep, and nothing else: no container, no tracer, no
//! slower system call. The command can gain no rights by what it starts (no_new_privs), as filters demand.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args_os().skip(1);
    let program = words.next().ok_or("no command: say which is to run without io_uring")?;
    apply_filter(&refusal()?)?;
    let error = Command::new(&program).args(words).exec();
    Err(format!("{} was not started: {error}", program.display()).into())
}

/// Allows every system call but the one that sets a ring up.
fn refusal() -> Result<BpfProgram, Box<dyn Error>> {
    let refused = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
    let eperm = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, eperm, env::consts::ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}

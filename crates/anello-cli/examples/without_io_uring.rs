//! Runs a command with a seccomp filter that makes `io_uring_setup(2)` fail with EPERM, as many containers do.
//!
//! ```text
//! cargo run --example without_io_uring -- anello doctor
//! ```
//!
//! The command and all its child processes inherit the filter. No container or tracer is needed, and other system calls
//! are not slowed down. The filter requires `no_new_privs`, so set-user-ID programs that the command starts gain no
//! privileges.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args_os().skip(1);
    let program = words.next().ok_or("missing command (usage: without_io_uring COMMAND [ARGUMENT]...)")?;
    apply_filter(&filter()?)?;
    let error = Command::new(&program).args(words).exec();
    Err(format!("cannot start {}: {error}", program.display()).into())
}

/// Returns a filter that allows all system calls except `io_uring_setup(2)`.
fn filter() -> Result<BpfProgram, Box<dyn Error>> {
    let rules = BTreeMap::from([(libc::SYS_io_uring_setup, Vec::new())]);
    let eperm = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, eperm, env::consts::ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}

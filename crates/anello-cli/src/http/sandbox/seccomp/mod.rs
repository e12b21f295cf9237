//! System-call restrictions with seccomp: listed calls are allowed; any other call kills the process.
//!
//! There are two filters, and the stricter result applies. The first makes clone3(2) fail with ENOSYS, because its
//! flags are in memory, which a filter cannot read. The C library then falls back to clone(2), for which the second
//! filter allows only threads.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod calls;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn install_filter(_has_rings: bool, _has_socket_files: bool) -> Result<(), String> {
    Err(format!("seccomp filter unavailable on {}", std::env::consts::ARCH))
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use filter::install_filter;

/// Checks that there is a filter for this architecture, and that seccomp can kill the whole process (Linux 4.14).
pub fn probe() -> Result<(), String> {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return Err(format!("seccomp filter unavailable on {}", std::env::consts::ARCH));
    }
    // A missing file is inconclusive, because containers hide it.
    match std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail") {
        Ok(actions) if !actions.contains("kill_process") => {
            Err("seccomp cannot kill processes (use Linux 4.14 or later)".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod filter {
    use std::collections::BTreeMap;

    use seccompiler::SeccompCmpArgLen::{Dword, Qword};
    use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
    use seccompiler::{
        BackendError, BpfProgram, Error, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule,
        TargetArch, apply_filter_all_threads,
    };

    use super::calls::{Call, Condition, lists};

    pub fn install_filter(has_rings: bool, has_socket_files: bool) -> Result<(), String> {
        let programs = [without_clone3(), build_filter(lists(has_rings, has_socket_files))]
            .map(|program| program.map_err(|error| error.to_string()));
        for program in programs {
            apply_filter_all_threads(&program?).map_err(|error| match error {
                Error::Seccomp(error) => format!(
                    "cannot install the seccomp filter: {error} (use a kernel with CONFIG_SECCOMP_FILTER, or allow \
                     seccomp in the container's profile)"
                ),
                other => format!("cannot install the seccomp filter: {other}"),
            })?;
        }
        Ok(())
    }

    fn without_clone3() -> Result<BpfProgram, BackendError> {
        let enosys = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        SeccompFilter::new(rules, SeccompAction::Allow, enosys, architecture()?)?.try_into()
    }

    fn build_filter(lists: Vec<&[Call]>) -> Result<BpfProgram, BackendError> {
        let mut rules = BTreeMap::new();
        for call in lists.into_iter().flatten() {
            match call {
                Call::Any(numbers) => rules.extend(numbers.iter().map(|number| (*number, Vec::new()))),
                Call::Only(number, alternatives) => {
                    let alternatives = alternatives.iter().map(|conditions| rule(conditions));
                    rules.insert(*number, alternatives.collect::<Result<_, _>>()?);
                }
            }
        }
        SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, architecture()?)?
            .try_into()
    }

    fn architecture() -> Result<TargetArch, BackendError> {
        std::env::consts::ARCH.try_into()
    }

    /// Converts one alternative of a call to a rule that requires all of its conditions.
    fn rule(conditions: &[Condition]) -> Result<SeccompRule, BackendError> {
        let conditions = conditions.iter().map(|condition| {
            // The kernel reads these arguments as 32-bit values and ignores the upper half. Pointers have 64 bits.
            let (argument, length, operator, value) = match *condition {
                Condition::Is(argument, value) => (argument, Dword, Eq, value),
                Condition::Has(argument, bits) => (argument, Dword, MaskedEq(bits), bits),
                Condition::Lacks(argument, bits) => (argument, Dword, MaskedEq(bits), 0),
                Condition::IsNull(argument) => (argument, Qword, Eq, 0),
                Condition::IsThisProcess(argument) => (argument, Dword, Eq, std::process::id().into()),
            };
            SeccompCondition::new(argument, length, operator, value)
        });
        SeccompRule::new(conditions.collect::<Result<_, _>>()?)
    }

    #[cfg(test)]
    mod tests {
        use std::collections::BTreeSet;

        use super::*;

        #[test]
        fn lists_contain_only_used_calls_without_duplicates() {
            let numbers = |has_rings, has_socket_files| {
                let mut seen = BTreeSet::new();
                for call in lists(has_rings, has_socket_files).into_iter().flatten() {
                    let numbers = match call {
                        Call::Any(numbers) => numbers,
                        Call::Only(number, _) => std::slice::from_ref(number),
                    };
                    numbers.iter().for_each(|number| assert!(seen.insert(*number), "system call {number}"));
                }
                seen
            };
            assert!(numbers(true, false).contains(&libc::SYS_io_uring_enter));
            assert!(!numbers(false, false).contains(&libc::SYS_io_uring_enter));
            assert!(numbers(false, true).contains(&libc::SYS_unlinkat));
            assert!(!numbers(false, false).contains(&libc::SYS_unlinkat));
            let never =
                [libc::SYS_execve, libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_ptrace];
            assert!(never.iter().all(|number| !numbers(true, true).contains(number)));
        }
    }
}

//! System calls, by seccomp: those of the list are allowed, any other ends the process.
//!
//! Two filters, of which the stricter answer counts. The first says of clone3(2) that there is none, because its flags lie
//! in memory, where no filter can look: the C library then calls clone(2), of which the second allows threads and no
//! processes.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod calls;

/// What the list depends on.
#[derive(Clone, Copy, Debug)]
pub struct FilterOptions {
    /// A worker runs on io_uring.
    pub rings: bool,
    /// There is the file of a Unix socket.
    pub socket_files: bool,
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn install_filter(_: FilterOptions) -> Result<(), String> {
    Err(format!("there is no list of system calls for {}: seccomp is not in force", std::env::consts::ARCH))
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use filter::install_filter;

/// Whether there is a list for this machine, and the kernel ends processes by it (Linux 4.14), as far as it tells.
pub fn probe() -> Result<(), String> {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return Err(format!("there is no list of system calls for {}", std::env::consts::ARCH));
    }
    // A folder that is not there tells nothing: containers hide it.
    match std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail") {
        Ok(actions) if !actions.contains("kill_process") => {
            Err("seccomp cannot end processes: take a kernel of Linux 4.14 or later".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod filter {
    use std::collections::BTreeMap;

    use seccompiler::{
        BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
        SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
    };

    use super::FilterOptions;
    use super::calls::{Call, Condition, lists};

    /// Forbids all threads of the process all system calls that are not on the list.
    pub fn install_filter(options: FilterOptions) -> Result<(), String> {
        let programs = [without_clone3(), build_filter(options)]
            .map(|program| program.map_err(|error| error.to_string()));
        for program in programs {
            apply_filter_all_threads(&program?).map_err(|error| match error {
                Error::Seccomp(error) => format!(
                    "seccomp was refused: {error}: take a kernel with CONFIG_SECCOMP_FILTER, or allow seccomp in the \
                     container's profile"
                ),
                other => format!("seccomp was not put in force: {other}"),
            })?;
        }
        Ok(())
    }

    fn without_clone3() -> Result<BpfProgram, BackendError> {
        let none = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        SeccompFilter::new(rules, SeccompAction::Allow, none, architecture()?)?.try_into()
    }

    fn build_filter(options: FilterOptions) -> Result<BpfProgram, BackendError> {
        let mut rules = BTreeMap::new();
        for call in lists(options).into_iter().flatten() {
            match call {
                Call::Any(number) => rules.insert(*number, Vec::new()),
                Call::Only(number, ways) => {
                    let ways = ways.iter().map(|way| rule(way)).collect::<Result<_, _>>()?;
                    rules.insert(*number, ways)
                }
            };
        }
        SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, architecture()?)?
            .try_into()
    }

    fn architecture() -> Result<TargetArch, BackendError> {
        std::env::consts::ARCH.try_into()
    }

    /// One way of calling: all of its conditions.
    fn rule(conditions: &[Condition]) -> Result<SeccompRule, BackendError> {
        let conditions = conditions.iter().map(|condition| {
            // The kernel takes these arguments as 32 bits, whatever stands above them; a pointer has 64.
            let (argument, length, operator, value) = match *condition {
                Condition::Is(argument, value) => {
                    (argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
                }
                Condition::Has(argument, bits) => {
                    (argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bits), bits)
                }
                Condition::Lacks(argument, bits) => {
                    (argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bits), 0)
                }
                Condition::IsNull(argument) => (argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0),
                Condition::IsThisProcess(argument) => {
                    (argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, std::process::id().into())
                }
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
        fn no_call_is_listed_twice() {
            let mut seen = BTreeSet::new();
            for call in lists(FilterOptions { rings: true, socket_files: true }).into_iter().flatten() {
                let (Call::Any(number) | Call::Only(number, _)) = call;
                assert!(seen.insert(*number), "system call {number}");
            }
        }

        #[test]
        fn what_is_not_used_is_not_allowed() {
            let numbers = |rings, socket_files| -> BTreeSet<_> {
                let calls = lists(FilterOptions { rings, socket_files }).into_iter().flatten();
                calls
                    .map(|call| match call {
                        Call::Any(number) | Call::Only(number, _) => *number,
                    })
                    .collect()
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

//! Making the ring: the best set of flags that this kernel takes.

use std::io;

use io_uring::{Builder, IoUring, cqueue, squeue};
use rustix::io::Errno;

/// Submission entries. Few, so that they stay in the cache; a turn that needs more takes more enters.
pub(crate) const SQ_ENTRIES: u32 = 512;
/// Completion entries; what does not fit is kept by the kernel and fetched.
pub(crate) const CQ_ENTRIES: u32 = 4096;

/// Sets flags for a ring that is to be made.
type SetFlags = fn(&mut Builder<squeue::Entry, cqueue::Entry>);

/// From the newest kernel to the oldest: each rung does without one more flag. What they are called, and the flags.
const FLAG_SETS: [(&str, SetFlags); 4] = [
    // Linux 6.6
    ("no-sqarray,defer-taskrun,single-issuer,coop-taskrun", |builder| {
        builder.setup_coop_taskrun().setup_taskrun_flag().setup_single_issuer().setup_defer_taskrun();
        builder.setup_no_sqarray();
    }),
    // Linux 6.1
    ("defer-taskrun,single-issuer,coop-taskrun", |builder| {
        builder.setup_coop_taskrun().setup_taskrun_flag().setup_single_issuer().setup_defer_taskrun();
    }),
    // Linux 6.0
    ("single-issuer,coop-taskrun", |builder| {
        builder.setup_coop_taskrun().setup_taskrun_flag().setup_single_issuer();
    }),
    // Linux 5.19
    ("coop-taskrun", |builder| {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }),
];

/// Sets up a ring, stepping down the ladder while the kernel knows a flag not, and tells what its flags are called.
/// Where there is none to be had, the error tells to use something `alternative`.
pub(crate) fn build_ring(alternative: &str) -> io::Result<(IoUring, &'static str)> {
    let mut error = io::Error::from(Errno::INVAL);
    for (names, set_flags) in FLAG_SETS {
        let mut builder = IoUring::builder();
        builder.setup_submit_all().setup_cqsize(CQ_ENTRIES).setup_clamp();
        set_flags(&mut builder);
        match builder.build(SQ_ENTRIES) {
            Ok(ring) => return Ok((ring, names)),
            Err(setup_error) => error = setup_error,
        }
        if Errno::from_io_error(&error) != Some(Errno::INVAL) {
            break;
        }
    }
    Err(describe_setup_error(error, alternative))
}

/// Says what to do about a kernel that will not make a ring, and what to use `alternative`.
pub(crate) fn describe_setup_error(error: io::Error, alternative: &str) -> io::Error {
    let remedy = match Errno::from_io_error(&error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            "allow it: sysctl kernel.io_uring_disabled=0, and a seccomp profile with io_uring_setup, \
             io_uring_enter and io_uring_register"
        }
        Some(Errno::NOSYS | Errno::INVAL) => "it needs Linux 6.0 or later, built with CONFIG_IO_URING",
        Some(Errno::NOMEM) => "raise the locked-memory limit (ulimit -l)",
        Some(Errno::MFILE | Errno::NFILE) => "raise the open-files limit (ulimit -n)",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("no io_uring here ({error}): {remedy}, or use {alternative}"))
}

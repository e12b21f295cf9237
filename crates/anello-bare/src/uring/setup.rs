//! Ring setup with the newest set of flags that the kernel supports.

use std::io;

use io_uring::{Builder, IoUring, cqueue, squeue};
use rustix::io::Errno;

/// Size of the submission queue. It is small enough to stay in the CPU cache; a turn that needs more enters
/// repeatedly.
pub(crate) const SQ_ENTRIES: u32 = 512;
/// Size of the completion queue. The kernel keeps further completions in its overflow list.
pub(crate) const CQ_ENTRIES: u32 = 4096;

/// Sets the flags of a new ring.
type SetFlags = fn(&mut Builder<squeue::Entry, cqueue::Entry>);

/// Sets of flags with their names, newest kernel first. Each set has one flag less than the preceding set.
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

/// Creates a ring with the first supported set of flags, and returns it with the names of the flags. If none is
/// supported, the error recommends `alternative`.
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

/// Adds a remedy to the error of a ring setup, and recommends `alternative`.
pub(crate) fn describe_setup_error(error: io::Error, alternative: &str) -> io::Error {
    let remedy = match Errno::from_io_error(&error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            "set sysctl kernel.io_uring_disabled=0 and allow io_uring_setup, io_uring_enter and io_uring_register \
             in the seccomp profile"
        }
        Some(Errno::NOSYS | Errno::INVAL) => "Linux 6.0 or later with CONFIG_IO_URING is required",
        Some(Errno::NOMEM) => "raise the locked-memory limit (ulimit -l)",
        Some(Errno::MFILE | Errno::NFILE) => "raise the open-files limit (ulimit -n)",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("io_uring unavailable: {error} ({remedy}, or use {alternative})"))
}

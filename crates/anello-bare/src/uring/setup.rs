//! Ring setup: with the newest flags that the kernel supports, or with selected options.

use std::io;
use std::os::fd::RawFd;

use io_uring::{Builder, IoUring, cqueue, squeue};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::errors::{unsupported, with_message};
use crate::options::{TaskWork, UringOptions};

/// Size of the submission queue. It is small enough to stay in the CPU cache; a turn that needs more entries enters the
/// kernel repeatedly.
const SQ_ENTRIES: u32 = 512;
/// Size of the completion queue. The kernel keeps additional completions in its overflow list.
const CQ_ENTRIES: u32 = 4096;
/// Maximum size of the table of registered files. The limit on open descriptors also applies.
const MAX_REGISTERED_FILES: u64 = 1 << 16;
/// Maximum numbers of worker threads per ring, for bounded requests and for unbounded requests (sockets).
const MAX_WORKERS: [u32; 2] = [4, 64];

/// Sets of flags with their names, in descending order of the required kernel version. The columns after the names are
/// task work, SINGLE_ISSUER and NO_SQARRAY. Each set has one flag fewer than the preceding set.
const FLAG_SETS: [(&str, TaskWork, bool, bool); 4] = [
    ("no-sqarray,defer-taskrun,single-issuer,coop-taskrun", TaskWork::Deferred, true, true), // Linux 6.6
    ("defer-taskrun,single-issuer,coop-taskrun", TaskWork::Deferred, true, false),           // Linux 6.1
    ("single-issuer,coop-taskrun", TaskWork::Cooperative, true, false),                      // Linux 6.0
    ("coop-taskrun", TaskWork::Cooperative, false, false),                                   // Linux 5.19
];

fn builder(
    task_work: TaskWork,
    single_issuer: bool,
    no_sqarray: bool,
) -> Builder<squeue::Entry, cqueue::Entry> {
    let mut builder = IoUring::builder();
    builder.setup_submit_all().setup_cqsize(CQ_ENTRIES).setup_clamp();
    if task_work != TaskWork::Interrupting {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }
    if matches!(task_work, TaskWork::Deferred | TaskWork::DeferredOnce) {
        builder.setup_defer_taskrun();
    }
    if single_issuer {
        builder.setup_single_issuer();
    }
    if no_sqarray {
        builder.setup_no_sqarray();
    }
    builder
}

/// Creates a ring with the first supported set of flags. Returns the ring and the names of the flags.
pub(crate) fn build_ring(alternative: &str) -> io::Result<(IoUring, &'static str)> {
    let mut error = io::Error::from(Errno::INVAL);
    for (names, task_work, single_issuer, no_sqarray) in FLAG_SETS {
        match builder(task_work, single_issuer, no_sqarray).build(SQ_ENTRIES) {
            Ok(ring) => return Ok((ring, names)),
            Err(setup_error) => error = setup_error,
        }
        if !is_invalid(&error) {
            break;
        }
    }
    Err(describe_error(error, alternative))
}

/// Creates a ring with the selected options. If `attach` is the descriptor of another ring, the new ring shares the
/// worker threads of that ring.
pub(super) fn build_ring_with(options: &UringOptions, attach: Option<RawFd>) -> io::Result<IoUring> {
    let build = |no_sqarray| {
        let task_work = match options.sqpoll {
            Some(_) => TaskWork::Interrupting,
            None => options.task_work.unwrap_or(TaskWork::Deferred),
        };
        let mut builder = builder(task_work, true, no_sqarray);
        if let Some(idle) = options.sqpoll {
            builder.setup_sqpoll(idle.as_millis().try_into().unwrap_or(u32::MAX));
        }
        if let Some(core) = options.sqpoll_core {
            builder.setup_sqpoll_cpu(core);
        }
        if let Some(other) = attach {
            builder.setup_attach_wq(other);
        }
        builder.build(SQ_ENTRIES)
    };
    // NO_SQARRAY is supported since Linux 6.6.
    let ring = build(true).or_else(|error| if is_invalid(&error) { build(false) } else { Err(error) });
    let ring = ring.map_err(|error| match options.sqpoll_core {
        _ if !is_invalid(&error) => describe_error(error, "epoll"),
        Some(core) => {
            let remedy = "choose an online core that this process may use";
            with_message(&error, format!("cannot use --sqpoll-core {core}: {error} ({remedy})"))
        }
        None => unsupported(
            "options not supported by this kernel: deferred task work requires Linux 6.1, single issuer 6.0, \
             cooperative task work 5.19 (upgrade the kernel, omit the options, or use epoll)",
        ),
    })?;
    if options.bundles && !ring.params().is_feature_recvsend_bundle() {
        return Err(unsupported("--bundles requires Linux 6.10 or later"));
    }
    let submitter = ring.submitter();
    let mut workers = MAX_WORKERS;
    submitter.register_iowq_max_workers(&mut workers)?;
    if options.registered_files {
        let files = max_registered_files();
        submitter.register_files_sparse(files).map_err(|error| {
            let remedy = "--registered-files requires Linux 5.19 or later";
            with_message(&error, format!("cannot register {files} files: {error} ({remedy})"))
        })?;
    }
    Ok(ring)
}

pub(super) fn max_registered_files() -> u32 {
    getrlimit(Resource::Nofile).current.unwrap_or(MAX_REGISTERED_FILES).min(MAX_REGISTERED_FILES) as u32
}

fn is_invalid(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::INVAL)
}

/// Adds a remedy to a ring setup error.
fn describe_error(error: io::Error, alternative: &str) -> io::Error {
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
    with_message(&error, format!("io_uring unavailable: {error} ({remedy}, or use {alternative})"))
}

//! Ring setup with the selected options, and remedies for setup errors.

use std::io;
use std::os::fd::RawFd;

use io_uring::IoUring;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::options::{TaskWork, UringOptions};
use crate::uring::setup::{CQ_ENTRIES, SQ_ENTRIES, describe_setup_error};

/// Maximum size of the table of registered files. The limit of open descriptors is another bound.
const MAX_REGISTERED_FILES: u64 = 1 << 16;
/// Maximum numbers of worker threads of a ring: for bounded requests, and for unbounded requests (sockets).
const MAX_WORKERS: [u32; 2] = [4, 64];

/// Creates a ring. `attach` is another ring whose worker threads it shares.
pub(super) fn build_ring(options: &UringOptions, attach: Option<RawFd>) -> io::Result<IoUring> {
    // The flag is supported since Linux 6.6.
    let ring = match try_build(options, attach, true) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => try_build(options, attach, false),
        result => result,
    };
    let ring = ring.map_err(|error| describe_error(error, options))?;
    if options.bundles && !ring.params().is_feature_recvsend_bundle() {
        return Err(unsupported("--bundles requires Linux 6.10 or later"));
    }
    let submitter = ring.submitter();
    let mut workers = MAX_WORKERS;
    submitter.register_iowq_max_workers(&mut workers)?;
    if options.registered_files {
        let files = max_registered_files();
        submitter.register_files_sparse(files).map_err(|error| {
            let reason = format!(
                "cannot register {files} files: {error} (--registered-files requires Linux 5.19 or later)"
            );
            io::Error::new(error.kind(), reason)
        })?;
    }
    Ok(ring)
}

/// Returns the size of the table of registered files.
pub(super) fn max_registered_files() -> u32 {
    getrlimit(Resource::Nofile).current.unwrap_or(MAX_REGISTERED_FILES).min(MAX_REGISTERED_FILES) as u32
}

fn try_build(options: &UringOptions, attach: Option<RawFd>, no_sqarray: bool) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_submit_all().setup_cqsize(CQ_ENTRIES).setup_clamp().setup_single_issuer();
    if no_sqarray {
        builder.setup_no_sqarray();
    }
    if let Some(idle) = options.sqpoll {
        builder.setup_sqpoll(idle.as_millis().try_into().unwrap_or(u32::MAX));
        if let Some(core) = options.sqpoll_core {
            builder.setup_sqpoll_cpu(core);
        }
    } else {
        match options.task_work.unwrap_or(TaskWork::Deferred) {
            TaskWork::Deferred | TaskWork::DeferredOnce => {
                builder.setup_coop_taskrun().setup_taskrun_flag().setup_defer_taskrun()
            }
            TaskWork::Cooperative => builder.setup_coop_taskrun().setup_taskrun_flag(),
            TaskWork::Interrupting => &mut builder,
        };
    }
    if let Some(other) = attach {
        builder.setup_attach_wq(other);
    }
    builder.build(SQ_ENTRIES)
}

/// Adds the likely cause to a setup error.
fn describe_error(error: io::Error, options: &UringOptions) -> io::Error {
    match (Errno::from_io_error(&error), options.sqpoll_core) {
        (Some(Errno::INVAL), Some(core)) => io::Error::new(
            error.kind(),
            format!(
                "cannot use --sqpoll-core {core}: {error} (choose an online core that this process may use)"
            ),
        ),
        (Some(Errno::INVAL), None) => unsupported(
            "options not supported by this kernel: deferred task work requires Linux 6.1, single issuer 6.0, \
             cooperative task work 5.19 (or use anello bare uring without options, or epoll)",
        ),
        _ => describe_setup_error(error, "epoll"),
    }
}

fn unsupported(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, reason)
}

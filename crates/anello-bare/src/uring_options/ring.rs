//! Making a ring with the chosen options, and saying what to do about a kernel that refuses.

use std::io;
use std::os::fd::RawFd;

use io_uring::IoUring;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::options::{TaskWork, UringOptions};
use crate::uring::setup::{CQ_ENTRIES, SQ_ENTRIES, describe_setup_error};

/// Most entries of the table of registered files; the limit of open descriptors bounds it, too.
const MAX_REGISTERED_FILES: u64 = 1 << 16;
/// Worker threads of a ring: for requests that end by themselves, and for those that wait (sockets).
const MAX_WORKERS: [u32; 2] = [4, 64];

/// Sets up a ring; `attach` is another one whose worker threads it is to share.
pub(super) fn build_ring(options: &UringOptions, attach: Option<RawFd>) -> io::Result<IoUring> {
    // Linux 6.6 can do without the submission array; before, that flag is not known.
    let ring = match try_build(options, attach, true) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => try_build(options, attach, false),
        result => result,
    };
    let ring = ring.map_err(|error| describe_error(error, options))?;
    if options.bundles && !ring.params().is_feature_recvsend_bundle() {
        return Err(unsupported("--bundles needs Linux 6.10 or later"));
    }
    let submitter = ring.submitter();
    let mut workers = MAX_WORKERS;
    submitter.register_iowq_max_workers(&mut workers)?;
    if options.registered_files {
        let files = max_registered_files();
        submitter.register_files_sparse(files).map_err(|error| {
            let reason =
                format!("--registered-files needs Linux 5.19 or later: no table of {files}: {error}");
            io::Error::new(error.kind(), reason)
        })?;
    }
    Ok(ring)
}

/// Entries of a table of registered files.
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

/// Names the likely cause of a refusal.
fn describe_error(error: io::Error, options: &UringOptions) -> io::Error {
    match (Errno::from_io_error(&error), options.sqpoll_core) {
        (Some(Errno::INVAL), Some(core)) => io::Error::new(
            error.kind(),
            format!(
                "--sqpoll-core {core}: the kernel refuses it ({error}): it must be a core that is online and \
                     that this process may use"
            ),
        ),
        (Some(Errno::INVAL), None) => unsupported(
            "the kernel does not know the options: deferred task work needs Linux 6.1, one issuer 6.0, cooperative \
             task work 5.19; or use anello bare uring without options, or epoll",
        ),
        _ => describe_setup_error(error, "epoll"),
    }
}

fn unsupported(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, reason)
}

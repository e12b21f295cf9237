//! Process-wide state: the limit on open files, huge pages, and the stop flag of commands that print a result.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::disable_transparent_huge_pages;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use super::error::usage_error;
use super::terminal;

/// Exit code after a second signal: 128 plus the signal number of SIGINT, following the shell convention.
const INTERRUPTED: i32 = 130;

/// Standard streams, listening sockets, signals, access log, metrics thread, temporary descriptors of a handover.
const BASE_DESCRIPTORS: usize = 24;

/// Files of the output, and files that the load generator opens for a moment to read the CPU time of the machine and of
/// the server.
const LOAD_DESCRIPTORS: usize = 8;

/// Driver, two wake-up descriptors, and the file that a thread opens for a moment to read its own CPU time.
const DESCRIPTORS_PER_LOAD_THREAD: usize = 4;

/// Driver, wake-up descriptors, signals, document root, and a duplicate of each listening socket.
const DESCRIPTORS_PER_WORKER: usize = 10;

/// Raises the soft limit on open files to the hard limit, because each connection needs a file descriptor.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::debug!(%error, "cannot raise the soft limit on open files");
    }
}

/// Disables transparent huge pages for the process (`PR_SET_THP_DISABLE`). Otherwise, if they are enabled for all
/// programs, the kernel joins the few pages of the heap that are still in use after a burst with the pages that have been
/// returned, and the memory of the server grows again.
pub fn disable_huge_pages() {
    if let Err(error) = disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot disable transparent huge pages");
    }
}

/// Returns the soft limit on open files.
pub fn open_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Returns the number of descriptors that a server with this number of workers needs in addition to files and
/// connections.
pub fn own_descriptors(workers: usize) -> usize {
    BASE_DESCRIPTORS + DESCRIPTORS_PER_WORKER * workers
}

/// Returns an error if the limit on open files does not permit this number of connections and load threads, in addition
/// to the files that are open already.
pub fn check_open_files(connections: usize, threads: usize) -> io::Result<()> {
    let limit = open_file_limit();
    let open_files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let needed = connections + DESCRIPTORS_PER_LOAD_THREAD * threads + LOAD_DESCRIPTORS + open_files;
    if needed <= limit {
        return Ok(());
    }
    Err(usage_error(format!(
        "cannot open {connections} connections: they need about {needed} file descriptors, and the limit is {limit} \
         (raise it with ulimit -Hn and -Sn or LimitNOFILE=, or use fewer connections)"
    )))
}

/// Returns a flag that the first SIGINT or SIGTERM sets; with a view on the terminal, also SIGHUP or SIGQUIT. If it is
/// already set, a signal restores the terminal and terminates the process immediately.
pub fn stop_flag(has_view: bool) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let signals = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
    let mut signals = Signals::new(if has_view { &signals[..] } else { &signals[..2] })?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if flag.swap(true, Ordering::Relaxed) {
                terminal::restore();
                low_level::exit(INTERRUPTED);
            }
        }
    })?;
    Ok(stop)
}

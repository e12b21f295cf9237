//! Resource limits of the process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open files to the hard limit, because each connection needs a file descriptor.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Err(error) = raised {
        tracing::debug!(%error, "cannot raise the soft limit on open files");
    }
}

//! Informs the operator if the document root was replaced, that is, if its path refers to a different directory than at
//! startup. In that case, the workers keep serving the old directory, and the sandbox denies access to the new one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::common::listening::{FileId, Listening, file_id};

const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The document root as opened at startup.
pub struct DirectoryWatch {
    path: PathBuf,
    opened: FileId,
    /// Result of the previous check; `None` if the path did not exist.
    last_seen: Mutex<Option<FileId>>,
}

/// Checks periodically, in a thread that exits with the process.
pub fn start(watch: Arc<DirectoryWatch>, listening: Arc<Listening>) {
    let spawned = thread::Builder::new().name("directory".into()).spawn(move || {
        while !listening.is_closed() {
            watch.check();
            thread::sleep(POLL_INTERVAL);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot watch document root for replacement");
    }
}

impl DirectoryWatch {
    pub fn new(path: &Path) -> io::Result<Self> {
        let opened = file_id(&fs::metadata(path)?);
        Ok(Self { path: path.to_owned(), opened, last_seen: Mutex::new(Some(opened)) })
    }

    /// Logs a message if the path refers to a different directory than it did at the previous check.
    pub fn check(&self) {
        let current = fs::metadata(&self.path).map(|metadata| file_id(&metadata));
        let last_seen = current.as_ref().ok().copied();
        let previous =
            std::mem::replace(&mut *self.last_seen.lock().unwrap_or_else(PoisonError::into_inner), last_seen);
        if last_seen == previous {
            return;
        }
        let path = self.path.display();
        match current {
            Ok(current) if current == self.opened => {
                tracing::info!(%path, "document root path refers to the served directory again")
            }
            Ok(_) => tracing::error!(
                %path,
                "document root was replaced; still serving the old directory (restart, or use --handover)"
            ),
            Err(error) => tracing::error!(
                %path, %error,
                "document root was removed; still serving the removed directory (recreate the path, then restart or \
                 use --handover)"
            ),
        }
    }
}

//! Whether the path of the served folder still leads to the folder that was opened: workers keep that one open, and the
//! sandbox lets them read no other. Who puts another in its place has to be told that it is not served.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::Service;

const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Device and number.
type FileId = (u64, u64);

/// The folder that was opened.
#[derive(Debug)]
pub struct DirectoryWatch {
    path: PathBuf,
    opened: FileId,
    /// What was there at the last look.
    last_seen: Mutex<Option<FileId>>,
}

/// Looks now and then, by a thread that ends with the process.
pub fn start(service: Arc<Service>) {
    let spawned = thread::Builder::new().name("folder".into()).spawn(move || {
        while !service.listening.is_closed() {
            service.directory_watch.check();
            thread::sleep(POLL_INTERVAL);
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "nobody looks whether the served folder is replaced");
    }
}

impl DirectoryWatch {
    /// Of the folder at this path now.
    pub fn new(path: &Path) -> io::Result<Self> {
        let opened = file_id(path)?;
        Ok(Self { path: path.to_owned(), opened, last_seen: Mutex::new(Some(opened)) })
    }

    /// Tells where the path leads to, if that has changed.
    pub fn check(&self) {
        let current = file_id(&self.path);
        let last_seen = current.as_ref().ok().copied();
        let previous =
            std::mem::replace(&mut *self.last_seen.lock().unwrap_or_else(PoisonError::into_inner), last_seen);
        if last_seen == previous {
            return;
        }
        let path = self.path.display();
        match current {
            Ok(current) if current == self.opened => {
                tracing::info!(%path, "the path leads to the served folder again")
            }
            Ok(_) => tracing::error!(
                %path,
                "another folder is there now, and the one before is served still: start again, or hand over (--handover)"
            ),
            Err(error) => tracing::error!(
                %path, %error,
                "the served folder is there no more: when it is, start again, or hand over (--handover)"
            ),
        }
    }
}

fn file_id(path: &Path) -> io::Result<FileId> {
    let current = fs::metadata(path)?;
    Ok((current.dev(), current.ino()))
}

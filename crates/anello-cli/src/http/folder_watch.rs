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

const LOOKS_EVERY: Duration = Duration::from_secs(5);

/// Device and number.
type Identity = (u64, u64);

/// The folder that was opened.
#[derive(Debug)]
pub struct FolderWatch {
    path: PathBuf,
    opened: Identity,
    /// What was there at the last look.
    seen: Mutex<Option<Identity>>,
}

/// Looks now and then, by a thread that ends with the process.
pub fn start(service: Arc<Service>) {
    let looking = thread::Builder::new().name("folder".into()).spawn(move || {
        while !service.listening.is_closed() {
            service.folder_watch.look();
            thread::sleep(LOOKS_EVERY);
        }
    });
    if let Err(error) = looking {
        tracing::warn!(%error, "nobody looks whether the served folder is replaced");
    }
}

impl FolderWatch {
    /// Of the folder at this path now.
    pub fn of(path: &Path) -> io::Result<Self> {
        let opened = identity(path)?;
        Ok(Self { path: path.to_owned(), opened, seen: Mutex::new(Some(opened)) })
    }

    /// Tells where the path leads to, if that has changed.
    pub fn look(&self) {
        let found = identity(&self.path);
        let seen = found.as_ref().ok().copied();
        let before = std::mem::replace(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner), seen);
        if seen == before {
            return;
        }
        let path = self.path.display();
        match found {
            Ok(found) if found == self.opened => {
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

fn identity(path: &Path) -> io::Result<Identity> {
    let found = fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

//! The table of the reads and writes of files that an event loop performs.

use std::io;

use super::event::{Event, EventKind, Events, FileId};
use crate::driver::{Key, Memory, Table};
use crate::executor::JoinHandle;
use crate::fs::Detached;

/// The reads and writes of a loop whose results have not been returned.
#[derive(Debug)]
pub(super) struct FileTable {
    entries: Table<FileEntry>,
}

#[derive(Debug)]
pub(super) struct FileEntry {
    pub token: usize,
    pub operation: Detached,
    pub progress: Progress,
    /// Set while an event of the file pool is to be reported.
    pub is_waiting: bool,
}

#[derive(Debug)]
pub(super) enum Progress {
    /// On the ring, under this key.
    Ring(Key),
    Pool(JoinHandle<(io::Result<usize>, Memory)>),
    Done(io::Result<usize>, Memory),
}

impl FileTable {
    pub fn new() -> Self {
        Self { entries: Table::new() }
    }

    pub fn insert(&mut self, entry: FileEntry) -> Key {
        self.entries.insert(entry)
    }

    pub fn get_mut(&mut self, id: FileId) -> Option<&mut FileEntry> {
        self.entries.get_mut(id.key)
    }

    pub fn remove(&mut self, id: FileId) -> Option<FileEntry> {
        self.entries.remove(id.key)
    }

    /// Adds the events of operations that the file pool has finished, unless they have been cancelled.
    #[cold]
    pub fn report(&mut self, finished: &[Key], events: &mut Events) {
        for key in finished {
            if let Some(entry) = self.entries.get_mut(*key)
                && std::mem::take(&mut entry.is_waiting)
            {
                events.data.push(Event::encode(entry.token, EventKind::File));
            }
        }
    }
}

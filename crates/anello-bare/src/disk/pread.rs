//! `pread`: one system call after another, on the calling thread.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::request::{Completion, Request, RequestQueue};

pub(super) struct Pread {
    file: File,
    queue: VecDeque<Request>,
}

impl Pread {
    pub(super) fn new(file: File) -> Pread {
        Pread { file, queue: VecDeque::new() }
    }
}

impl RequestQueue for Pread {
    fn start(&mut self, request: Request) -> io::Result<()> {
        self.queue.push_back(request);
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        completions.extend(self.queue.pop_front().map(|request| execute(&self.file, request)));
        Ok(())
    }
}

/// Calls `pread(2)` or `pwrite(2)`, and retries when a signal interrupts the call.
pub(super) fn execute(file: &File, Request { slot, writes, offset, mut block }: Request) -> Completion {
    loop {
        let result = if writes {
            file.write_at(block.bytes(), offset)
        } else {
            file.read_at(block.bytes_mut(), offset)
        };
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
            return Completion { slot, block, result };
        }
    }
}

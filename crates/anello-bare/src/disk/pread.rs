//! `pread`: one system call after another, on the calling thread.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::engine::{Ended, Request, Requests};

pub(super) struct Pread {
    file: File,
    waiting: VecDeque<Request>,
}

impl Pread {
    pub(super) fn new(file: File) -> Pread {
        Pread { file, waiting: VecDeque::new() }
    }
}

impl Requests for Pread {
    fn start(&mut self, request: Request) -> io::Result<()> {
        self.waiting.push_back(request);
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        ended.extend(self.waiting.pop_front().map(|request| perform(&self.file, request)));
        Ok(())
    }
}

/// `pread(2)` or `pwrite(2)`, again when a signal interrupts it.
pub(super) fn perform(file: &File, Request { slot, writes, offset, mut block }: Request) -> Ended {
    let result = loop {
        let result = if writes {
            file.write_at(block.bytes(), offset)
        } else {
            file.read_at(block.bytes_mut(), offset)
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result,
        }
    };
    Ended { slot, block, result }
}

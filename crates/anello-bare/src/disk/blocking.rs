//! `pread`: one system call after another, on the calling thread. `threads`: a thread pool that executes blocking
//! requests, as in applications whose event loop must not block on a read.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::request::{Completion, Request, RequestQueue};

/// Stack size of a pool thread, in bytes.
const STACK_BYTES: usize = 64 * 1024;

pub(super) struct Pread {
    pub(super) file: File,
    /// Holds at most one request, because the depth is always 1.
    pub(super) next: Option<Request>,
}

impl RequestQueue for Pread {
    fn start(&mut self, request: Request) -> io::Result<()> {
        self.next = Some(request);
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        completions.extend(self.next.take().map(|request| execute(&self.file, request)));
        Ok(())
    }
}

/// Calls `pread(2)` or `pwrite(2)`, and retries when a signal interrupts the call.
fn execute(file: &File, Request { slot, writes, offset, mut block }: Request) -> Completion {
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

pub(super) struct Pool {
    queue: Arc<Queue>,
    completions: Receiver<Completion>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    /// `None` makes one thread exit.
    requests: Mutex<VecDeque<Option<Request>>>,
    available: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Option<Request>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, request: Option<Request>) {
        self.lock().push_back(request);
        self.available.notify_one();
    }

    /// Sleeps until a request is queued. Returns `None` if the thread must exit.
    fn pop(&self) -> Option<Request> {
        let requests = self.available.wait_while(self.lock(), |requests| requests.is_empty());
        requests.unwrap_or_else(PoisonError::into_inner).pop_front().flatten()
    }
}

impl Pool {
    pub(super) fn new(file: File, count: usize) -> io::Result<Pool> {
        let (file, queue) = (Arc::new(file), Arc::<Queue>::default());
        let (sender, completions) = mpsc::channel();
        let mut pool = Pool { queue, completions, threads: Vec::new() };
        for _ in 0..count {
            let (file, queue, sender) = (file.clone(), pool.queue.clone(), sender.clone());
            let thread = thread::Builder::new().name("disk".into()).stack_size(STACK_BYTES);
            pool.threads.push(thread.spawn(move || {
                while let Some(request) = queue.pop() {
                    if sender.send(execute(&file, request)).is_err() {
                        return;
                    }
                }
            })?);
        }
        Ok(pool)
    }
}

impl RequestQueue for Pool {
    fn start(&mut self, request: Request) -> io::Result<()> {
        self.queue.push(Some(request));
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        completions.push(self.completions.recv().map_err(io::Error::other)?);
        completions.extend(self.completions.try_iter());
        Ok(())
    }
}

impl Drop for Pool {
    /// Lets the threads complete the queued requests, and joins them.
    fn drop(&mut self) {
        self.threads.iter().for_each(|_| self.queue.push(None));
        for thread in self.threads.drain(..) {
            // The thread's panic has already been reported.
            thread.join().unwrap_or_default();
        }
    }
}

//! `threads`: what a program does that must not block in a read: it hands requests to a pool of threads.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::engine::{Ended, Request, Requests};
use super::pread::perform;

/// Stack of one thread, bytes: it calls the kernel and little else.
const STACK_BYTES: usize = 64 * 1024;

pub(super) struct Pool {
    queue: Arc<Queue>,
    ended: Receiver<Ended>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Request>,
    closed: bool,
}

impl Pool {
    pub(super) fn new(file: File, count: usize) -> io::Result<Pool> {
        let (file, queue) = (Arc::new(file), Arc::<Queue>::default());
        let (sender, ended) = mpsc::channel();
        let mut pool = Pool { queue, ended, threads: Vec::new() };
        for _ in 0..count {
            let (file, queue, sender) = (file.clone(), pool.queue.clone(), sender.clone());
            let thread = thread::Builder::new().name("disk".into()).stack_size(STACK_BYTES);
            pool.threads.push(thread.spawn(move || {
                while let Some(request) = queue.next() {
                    if sender.send(perform(&file, request)).is_err() {
                        return;
                    }
                }
            })?);
        }
        Ok(pool)
    }
}

impl Queue {
    /// Sleeps until there is a request. `None`: there will be none.
    fn next(&self) -> Option<Request> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |jobs: &mut Jobs| jobs.waiting.is_empty() && !jobs.closed;
        let mut jobs = self.changed.wait_while(jobs, idle).unwrap_or_else(PoisonError::into_inner);
        jobs.waiting.pop_front()
    }
}

impl Requests for Pool {
    fn start(&mut self, request: Request) -> io::Result<()> {
        self.queue.jobs.lock().unwrap_or_else(PoisonError::into_inner).waiting.push_back(request);
        self.queue.changed.notify_one();
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        ended.push(self.ended.recv().map_err(io::Error::other)?);
        ended.extend(self.ended.try_iter());
        Ok(())
    }
}

impl Drop for Pool {
    /// Lets the threads do what they were given, and ends them.
    fn drop(&mut self) {
        self.queue.jobs.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            thread.join().unwrap_or_default();
        }
    }
}

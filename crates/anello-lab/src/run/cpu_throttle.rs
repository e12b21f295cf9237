//! Limits the CPU time of the servers so that the load generator is never the bottleneck.
//!
//! On loopback, a small request costs the load generator as much CPU time as the server, because both do the same work
//! in the kernel. If each has its own core, the faster side waits for the slower one, finds fewer requests or replies
//! per wake-up, and spends the saved time on more wake-ups: all servers that cost no more than the load generator seem
//! to cost the same. If the throttle uses a fifth of the server's core, requests are always queued, and the result
//! shows the cost of a busy server.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::sched_setaffinity;
use rustix::time::{ClockId, clock_gettime};

use crate::run::affinity::cpu_set;

/// Throttle period. The throttle uses its share of the CPU once per period.
const PERIOD: Duration = Duration::from_millis(1);

/// CPU throttle with one thread per core. The threads use CPU time while the throttle is active and sleep otherwise.
#[derive(Debug)]
pub(crate) struct CpuThrottle {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    pub(crate) cores: Vec<usize>,
}

#[derive(Debug, Default)]
struct Shared {
    /// CPU time to use per period, in nanoseconds. 0 disables the throttle.
    busy_ns: AtomicU64,
    stopped: AtomicBool,
    /// CPU time used by all threads so far, in nanoseconds.
    cpu_ns: AtomicU64,
}

impl CpuThrottle {
    /// Creates an inactive throttle. Fails if a thread cannot be pinned, because an unpinned thread could slow down the
    /// load generator.
    pub(crate) fn new(cores: &[usize]) -> io::Result<CpuThrottle> {
        let shared = Arc::new(Shared::default());
        let mut cpu_throttle = CpuThrottle { shared, threads: Vec::new(), cores: cores.to_vec() };
        let (pinned, results) = mpsc::channel();
        for &core in cores {
            let (shared, pinned) = (Arc::clone(&cpu_throttle.shared), pinned.clone());
            let thread = thread::Builder::new().name(format!("throttle-{core}"));
            cpu_throttle.threads.push(thread.spawn(move || {
                let result = sched_setaffinity(None, &cpu_set(&[core]))
                    .map_err(|error| io::Error::other(format!("cannot pin to core {core}: {error}")));
                let ready = result.is_ok();
                // The receiver has been dropped if another thread could not be pinned.
                if pinned.send(result).is_ok() && ready {
                    run_throttle_thread(&shared);
                }
            })?);
        }
        // The threads keep their senders, so the channel stays open. Receive exactly one result per thread.
        results.iter().take(cores.len()).collect::<io::Result<()>>()?;
        Ok(cpu_throttle)
    }

    /// Leaves this share (0 to 1) of the cores to the servers until [`release`](Self::release) is called.
    pub(crate) fn throttle(&self, share: f64) {
        let busy_ns = PERIOD.as_nanos() as f64 * (1.0 - share.clamp(0.0, 1.0));
        self.shared.busy_ns.store(busy_ns as u64, Ordering::Relaxed);
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }

    pub(crate) fn release(&self) {
        self.shared.busy_ns.store(0, Ordering::Relaxed);
    }

    /// Returns the CPU time used so far, in nanoseconds, excluding the current period.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.shared.cpu_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(mut self) -> u64 {
        self.join();
        self.cpu_ns()
    }

    fn join(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            thread.join().ok();
        }
    }
}

impl Drop for CpuThrottle {
    fn drop(&mut self) {
        self.join();
    }
}

fn run_throttle_thread(shared: &Shared) {
    let mut reported_ns = 0;
    let mut next = Instant::now();
    while !shared.stopped.load(Ordering::Relaxed) {
        let busy_ns = shared.busy_ns.load(Ordering::Relaxed);
        if busy_ns == 0 {
            thread::park();
            next = Instant::now();
            continue;
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_nanos(busy_ns) {
            std::hint::spin_loop();
        }
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let cpu_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        shared.cpu_ns.fetch_add(cpu_ns - reported_ns, Ordering::Relaxed);
        reported_ns = cpu_ns;
        // Do not compensate for periods missed while the machine was suspended.
        next = (next + PERIOD).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::cores::allowed_cores;

    #[test]
    fn uses_cpu_only_while_active() {
        let cpu_throttle = CpuThrottle::new(&allowed_cores()[..1]).unwrap();
        assert_eq!(cpu_throttle.cores, allowed_cores()[..1]);
        assert_eq!(cpu_throttle.cpu_ns(), 0);
        cpu_throttle.throttle(0.8);
        let deadline = Instant::now() + Duration::from_secs(60);
        let wait = |until: &dyn Fn() -> bool, what: &str| {
            while !until() {
                assert!(Instant::now() < deadline, "{what}");
                thread::sleep(Duration::from_millis(5));
            }
        };
        wait(&|| cpu_throttle.cpu_ns() > 1_000_000, "active throttle uses no CPU");
        cpu_throttle.release();
        let is_idle = || {
            let before_ns = cpu_throttle.cpu_ns();
            thread::sleep(Duration::from_millis(50));
            cpu_throttle.cpu_ns() == before_ns
        };
        wait(&is_idle, "released throttle still uses CPU");
    }
}

//! Takes a part of the servers' cores away, so that the load has the lead.
//!
//! On loopback a small request costs the load as much as the server: both do the same work in the kernel. If each has a
//! core, the one that needs less waits for the other, finds fewer requests (or replies) each time it looks, and spends
//! what it saved on looking more often: all servers that need no more than the load then seem to cost the same. With a
//! fifth of their core taken away, requests always wait, and a server shows what it costs when it is busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The brake takes its part out of every such time.
const PERIOD: Duration = Duration::from_millis(1);

/// A thread on each core that takes time when told to, and sleeps otherwise.
#[derive(Debug)]
pub(crate) struct CpuThrottle {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    cores: Vec<usize>,
}

#[derive(Debug, Default)]
struct Shared {
    /// What to take of every period, in nanoseconds; 0: nothing.
    busy_ns: AtomicU64,
    stopped: AtomicBool,
    /// CPU time of all threads so far.
    cpu_ns: AtomicU64,
}

impl CpuThrottle {
    /// A brake on these cores that does nothing yet.
    ///
    /// # Errors
    /// A thread could not be started, or not be pinned: on another core it would hold back the load.
    pub(crate) fn new(cores: &[usize]) -> std::io::Result<CpuThrottle> {
        let shared = Arc::new(Shared::default());
        let mut cpu_throttle = CpuThrottle { shared, threads: Vec::new(), cores: cores.to_vec() };
        let (pinned, results) = mpsc::channel();
        for &core in cores {
            let (shared, pinned) = (Arc::clone(&cpu_throttle.shared), pinned.clone());
            let thread = thread::Builder::new().name(format!("throttle-{core}"));
            cpu_throttle.threads.push(thread.spawn(move || {
                let result = pin(core);
                let ready = result.is_ok();
                // Nobody listens any more if another thread could not be pinned.
                if pinned.send(result).is_ok() && ready {
                    run_throttle_thread(&shared);
                }
            })?);
        }
        // The threads keep their ends: one answer from each.
        results.iter().take(cores.len()).collect::<std::io::Result<()>>()?;
        Ok(cpu_throttle)
    }

    /// Whether it is on exactly these cores.
    pub(crate) fn is_on_cores(&self, cores: &[usize]) -> bool {
        self.cores == cores
    }

    /// Leaves this part of the cores, of 1, until [`release`](Self::release).
    pub(crate) fn throttle(&self, share: f64) {
        let busy_ns = PERIOD.as_nanos() as f64 * (1.0 - share.clamp(0.0, 1.0));
        self.shared.busy_ns.store(busy_ns as u64, Ordering::Relaxed);
        self.threads.iter().for_each(|thread| thread.thread().unpark());
    }

    /// Takes no more, but for a period that has begun.
    pub(crate) fn release(&self) {
        self.shared.busy_ns.store(0, Ordering::Relaxed);
    }

    /// CPU time that it has used so far, in nanoseconds, but for a period that has begun.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.shared.cpu_ns.load(Ordering::Relaxed)
    }
}

impl CpuThrottle {
    /// Ends its threads: the CPU time that it has used in all.
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

/// Confines this thread to a core.
fn pin(core: usize) -> std::io::Result<()> {
    let mut core_set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(std::io::Error::other(format!("there is no core {core}")));
    }
    core_set.set(core);
    sched_setaffinity(None, &core_set)
        .map_err(|error| std::io::Error::other(format!("core {core} is refused: {error}")))
}

/// What a thread of the brake does.
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
        let began = Instant::now();
        while began.elapsed() < Duration::from_nanos(busy_ns) {
            std::hint::spin_loop();
        }
        let cpu_ns = thread_cpu_ns();
        shared.cpu_ns.fetch_add(cpu_ns - reported_ns, Ordering::Relaxed);
        reported_ns = cpu_ns;
        // A period that was missed, because the machine was away, is not made up for.
        next = (next + PERIOD).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::allowed_cores;

    #[test]
    fn it_takes_time_when_told_to_and_none_after() {
        let cpu_throttle = CpuThrottle::new(&allowed_cores()[..1]).unwrap();
        assert!(cpu_throttle.is_on_cores(&allowed_cores()[..1]) && !cpu_throttle.is_on_cores(&[]));
        assert_eq!(cpu_throttle.cpu_ns(), 0);
        cpu_throttle.throttle(0.8);
        let deadline = Instant::now() + Duration::from_secs(60);
        let wait = |until: &dyn Fn() -> bool, what: &str| {
            while !until() {
                assert!(Instant::now() < deadline, "{what}");
                thread::sleep(Duration::from_millis(5));
            }
        };
        wait(&|| cpu_throttle.cpu_ns() > 1_000_000, "it takes nothing");
        cpu_throttle.release();
        let is_at_rest = || {
            let before_ns = cpu_throttle.cpu_ns();
            thread::sleep(Duration::from_millis(50));
            cpu_throttle.cpu_ns() == before_ns
        };
        wait(&is_at_rest, "it goes on");
    }

    #[test]
    fn it_does_not_start_where_it_cannot_be_pinned() {
        assert!(CpuThrottle::new(&[allowed_cores()[0], CpuSet::MAX_CPU]).is_err());
    }
}

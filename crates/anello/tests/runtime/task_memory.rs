//! The memory of tasks has no gaps between tasks, and is returned to the operating system after a burst, even if the tasks
//! that remain are scattered.

use std::cell::RefCell;
use std::hint::black_box;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anello::time::sleep;
use anello::{Runtime, spawn, yield_now};

use crate::common::in_own_process;
use crate::common::usage::{assert_grown_less, usage};

const TASKS: usize = 40_000;

#[derive(Clone, Default)]
struct Entry {
    is_finished: bool,
    waker: Option<Waker>,
}

/// Waits until its entry is finished. Its task is as large as that of an echo connection.
struct Waiting {
    index: usize,
    entries: Rc<RefCell<Vec<Entry>>>,
    content: [u64; 8],
}

impl Future for Waiting {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        black_box(&self.content);
        let entry = &mut self.entries.borrow_mut()[self.index];
        if entry.is_finished {
            return Poll::Ready(());
        }
        entry.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[test]
#[cfg_attr(plain_memory, ignore = "the tool allocates every task separately")]
fn scattered_tasks_keep_few_pages() {
    in_own_process(|| {
        let seed = fastrand::u64(..);
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let entries = Rc::new(RefCell::new(vec![Entry::default(); TASKS]));
        Runtime::new().unwrap().block_on(async {
            let before = usage().resident_bytes;
            for index in 0..TASKS {
                spawn(Waiting { index, entries: Rc::clone(&entries), content: [7; 8] }).detach();
                if index % 64 == 0 {
                    yield_now().await;
                }
            }
            yield_now().await;
            let at_peak = usage().resident_bytes - before;
            assert_grown_less("all tasks", at_peak, TASKS * 232);
            for index in 0..TASKS {
                if random.u32(..20) != 0 {
                    let entry = &mut entries.borrow_mut()[index];
                    entry.is_finished = true;
                    entry.waker.take().unwrap().wake();
                }
            }
            // The memory is returned before the worker sleeps, once all tasks that were woken have finished.
            let (mut after, limit) = (at_peak, at_peak * 4 / 5);
            for _ in 0..10_000 {
                sleep(Duration::from_millis(1)).await;
                after = usage().resident_bytes.saturating_sub(before);
                if after < limit {
                    break;
                }
            }
            eprintln!("{} bytes per task, {} after the burst", at_peak / TASKS, after / TASKS);
            assert_grown_less("5 % of the tasks", after, limit);
        });
    });
}

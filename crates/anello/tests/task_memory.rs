//! The memory of tasks has no gaps between tasks, and is returned to the operating system after a burst, even if the tasks
//! that remain are scattered.

mod common;

use std::cell::RefCell;
use std::hint::black_box;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anello::time::sleep;
use anello::{Runtime, spawn, yield_now};
use common::child::{Child, assert_grown_less, usage};

const TASKS: usize = 40_000;

/// Waits until its flag is set. As large as the task of an echo connection.
struct Waiting {
    index: usize,
    shared: Rc<RefCell<Vec<(bool, Option<Waker>)>>>,
    content: [u64; 8],
}

impl Future for Waiting {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        black_box(&self.content);
        let (is_finished, waker) = &mut self.shared.borrow_mut()[self.index];
        if *is_finished {
            return Poll::Ready(());
        }
        *waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[test]
#[cfg_attr(plain_memory, ignore = "the tool allocates every task separately")]
fn scattered_tasks_keep_few_pages() {
    Child::default().run("scattered_tasks_keep_few_pages", || {
        let seed = fastrand::u64(..);
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let shared = Rc::new(RefCell::new(vec![(false, None); TASKS]));
        // Resident before the tasks are spawned.
        shared.borrow_mut().fill((true, None));
        shared.borrow_mut().fill((false, None));
        Runtime::new().unwrap().block_on(async {
            let before = usage().resident_bytes;
            for index in 0..TASKS {
                spawn(Waiting { index, shared: Rc::clone(&shared), content: [7; 8] }).detach();
                if index % 64 == 0 {
                    yield_now().await;
                }
            }
            yield_now().await;
            let at_peak = usage().resident_bytes - before;
            assert_grown_less("all tasks", at_peak, TASKS * 232);
            for index in 0..TASKS {
                if random.u32(..20) != 0 {
                    let waker = {
                        let entry = &mut shared.borrow_mut()[index];
                        entry.0 = true;
                        entry.1.take()
                    };
                    waker.unwrap().wake();
                }
            }
            // The memory is returned before the worker sleeps.
            sleep(Duration::from_millis(1)).await;
            let after = usage().resident_bytes.saturating_sub(before);
            eprintln!("{} bytes per task, {} after the burst", at_peak / TASKS, after / TASKS);
            assert_grown_less("5 % of the tasks", after, at_peak * 4 / 5);
        });
    });
}

//! The budget of the running task: how futures of this crate and of others consume it, and how tasks yield.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use super::context::{has_budget_or_yield, is_running, try_current, with_current};

/// Future returned by [`cooperative`].
///
/// ```
/// # anello::example! {
/// use anello::task::{Cooperative, cooperative};
///
/// let answer: Cooperative<_> = cooperative(std::future::ready(42));
/// assert_eq!(answer.await, 42);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct Cooperative<F>(F);

/// Returns a future that consumes one unit of the running task's budget when it completes.
///
/// While the budget is exhausted, the future is not polled, and the task yields. A task that awaits futures which are
/// always ready, such as those of another crate's channel, therefore cannot starve the worker's other tasks, sockets
/// and timers. Outside a runtime of this crate, the future is polled without a budget. Cancel-safe if the given future
/// is. See [`consume_budget`](crate::task::consume_budget) for the size of the budget.
///
/// Futures of this crate already consume budget. A future that waits in a queue, such as that of a lock, enters it only
/// when it is polled: to keep its place, await it directly, and then [`consume_budget`](crate::task::consume_budget).
///
/// ```
/// # anello::example! {
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// let is_running = Rc::new(Cell::new(true));
/// let stop = Rc::clone(&is_running);
/// anello::spawn(async move { stop.set(false) }).detach();
/// // Without `cooperative`, this loop would never end, because the other task would not run.
/// while is_running.get() {
///     anello::task::cooperative(std::future::ready(())).await;
/// }
/// # }
/// ```
pub const fn cooperative<F: Future>(future: F) -> Cooperative<F> {
    Cooperative(future)
}

/// Yields to the other tasks. The task is polled again after the driver and the timers have run. Outside a runtime of
/// this crate, the future wakes its task and completes at the next poll. Cancel-safe.
///
/// ```
/// # anello::example! {
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// let has_run = Rc::new(Cell::new(false));
/// let other = Rc::clone(&has_run);
/// anello::spawn(async move { other.set(true) }).detach();
/// assert!(!has_run.get());
/// anello::task::yield_now().await;
/// assert!(has_run.get());
/// # }
/// ```
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        match try_current() {
            Some(shared) => shared.yield_task(context),
            None => context.waker().wake_by_ref(),
        }
        Poll::Pending
    })
    .await;
}

/// Consumes one unit of the running task's budget. If the budget is exhausted, yields until the next turn of the
/// driver.
///
/// Each poll of a task has a budget of 128 units. An operation on a socket or timer costs one unit, plus one per 4 KiB
/// of data, and so does receiving from a channel of [`sync`](crate::sync). Locks and futures of other crates do not
/// consume budget: a task that receives from such a channel that is never empty would starve the sockets and timers of
/// its worker. Wrap these futures in [`cooperative`](crate::task::cooperative), or call this function after them, and in
/// long computations. Does nothing outside a runtime of this crate. Cancel-safe.
///
/// ```
/// # anello::example! {
/// let mut items = (0..10_000).collect::<std::collections::VecDeque<u32>>();
/// let mut sum = 0;
/// while let Some(item) = items.pop_front() {
///     anello::task::consume_budget().await;
///     sum += item;
/// }
/// assert_eq!(sum, 49_995_000);
/// # }
/// ```
pub async fn consume_budget() {
    poll_fn(|context| {
        if has_budget_or_yield(context) == Some(false) {
            return Poll::Pending;
        }
        with_current(|shared| shared.spend_budget(0));
        Poll::Ready(())
    })
    .await;
}

/// Runs a future without a budget: it is never forced to yield while its operations are ready.
///
/// Use this function for futures that must not be interrupted between ready operations. The worker's other tasks,
/// sockets and timers wait while the future is being polled. Cancel-safe if the given future is.
///
/// ```
/// # anello::example! {
/// let sum = anello::task::unconstrained(async {
///     let mut sum = 0;
///     for item in 0..1000 {
///         anello::task::consume_budget().await; // Never yields here.
///         sum += item;
///     }
///     sum
/// });
/// assert_eq!(sum.await, 499_500);
/// # }
/// ```
pub async fn unconstrained<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let budget = with_current(|shared| shared.turn.budget.replace(i64::MAX));
        let polled = future.as_mut().poll(context);
        with_current(|shared| budget.map(|budget| shared.turn.budget.set(budget)));
        polled
    })
    .await
}

/// Returns `true` if the running task has budget left. If not, its next operation yields.
///
/// Also returns `true` outside a runtime of this crate. See [`consume_budget`](crate::task::consume_budget) for the size
/// of the budget.
///
/// ```
/// # anello::example! {
/// use anello::task::{consume_budget, has_budget_remaining};
///
/// let mut units = 0;
/// while has_budget_remaining() {
///     consume_budget().await;
///     units += 1;
/// }
/// assert_eq!(units, 128);
/// # }
/// ```
#[must_use]
pub fn has_budget_remaining() -> bool {
    with_current(|shared| shared.turn.budget.get() > 0).unwrap_or(true)
}

/// Calls `poll` if the running task has budget left. Otherwise the task yields. If the result is ready, charges one
/// unit, plus one per 4 KiB of the number that `bytes` returns. Without a runtime on this thread, only calls `poll`.
#[inline]
pub(crate) fn poll_cooperatively<T>(
    context: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    bytes: impl FnOnce(&T) -> usize,
) -> Poll<T> {
    // The runtime is looked up again after the poll, because it is not borrowed while application code runs.
    if has_budget_or_yield(context) == Some(false) {
        return Poll::Pending;
    }
    let polled = poll(context);
    if let Poll::Ready(output) = &polled {
        let bytes = bytes(output);
        with_current(|shared| shared.spend_budget(bytes));
    }
    polled
}

/// Panics if a runtime is running on this thread, which a blocking call would stop.
#[track_caller]
pub(crate) fn assert_may_block(method: &str) {
    assert!(
        !is_running(),
        "cannot block in {method}: an anello runtime is running on this thread (await the asynchronous method, or \
         call it in spawn_blocking)"
    );
}

impl<F: Future> Future for Cooperative<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the inner future is pinned whenever the outer one is: `Cooperative` has no destructor of its own, is
        // `Unpin` only if the inner future is, and no function moves the inner future out of a pinned `Cooperative`.
        let future = unsafe { self.map_unchecked_mut(|cooperative| &mut cooperative.0) };
        poll_cooperatively(context, |context| future.poll(context), |_| 0)
    }
}

//! Tasks and timers.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anello::sync::Notify;
use anello::task::{self, JoinSet};
use anello::time::{self, Instant};
use anello::{Handle, spawn, spawn_blocking, yield_now};

use super::Support::{Everywhere, Memory, Threads};
use super::{Kind, Operation, alone, kind, unchecked};

const DELAY: Duration = Duration::from_micros(300);

anello::task_local! {
    static VALUE: u32;
}

/// Awaits a future that panics if its runtime has been dropped.
async fn or_dropped<T>(future: impl Future<Output = T>) {
    let mut future = pin!(future);
    let mut poll = |context: &mut Context<'_>| future.as_mut().poll(context).map(drop);
    poll_fn(|context| catch_unwind(AssertUnwindSafe(|| poll(context))).unwrap_or(Poll::Ready(()))).await;
}

pub fn kinds() -> Vec<Kind> {
    vec![
        kind("time::sleep", Everywhere, || alone(async || or_dropped(time::sleep(DELAY)).await)),
        kind("time::sleep_until", Memory, || {
            alone(async || or_dropped(time::sleep_until(Instant::now() + DELAY)).await)
        }),
        kind("time::timeout", Everywhere, || {
            alone(async || or_dropped(time::timeout(DELAY, std::future::pending::<()>())).await)
        }),
        kind("time::timeout_at", Memory, || {
            alone(async || {
                or_dropped(time::timeout_at(Instant::now() + DELAY, std::future::pending::<()>())).await
            })
        }),
        kind("Interval::tick", Everywhere, || {
            unchecked((time::interval(DELAY), ()), async |it| or_dropped(it.tick()).await, |()| {})
        }),
        kind("yield_now", Memory, || alone(async || yield_now().await)),
        kind("consume_budget", Memory, || {
            alone(async || {
                for _ in 0..1000 {
                    task::consume_budget().await;
                }
            })
        }),
        waiting("cooperative", async |it| task::cooperative(it.notified()).await),
        waiting("unconstrained", async |it| task::unconstrained(it.notified()).await),
        waiting("LocalKey::scope", async |it| VALUE.scope(1, it.notified()).await),
        kind("JoinHandle", Everywhere, || {
            let end = Arc::new(Notify::new());
            let ended = Arc::clone(&end).notified_owned();
            unchecked((spawn(ended), end), async |it| it.await, |end| end.notify_one())
        }),
        kind("JoinHandle::abort", Everywhere, || {
            let task = spawn(std::future::pending::<()>());
            let abort = task.abort_handle();
            unchecked((task, abort), async |it| it.await, |abort| abort.abort())
        }),
        set("JoinSet::join_next", async |it| it.join_next().await),
        set("JoinSet::join_next_with_id", async |it| it.join_next_with_id().await),
        set("JoinSet::shutdown", async |it| it.shutdown().await),
        kind("JoinSet::join_all", Everywhere, || {
            alone(async || or_dropped(JoinSet::from_iter([yield_now(), yield_now()]).join_all()).await)
        }),
        kind("Handle::spawn", Everywhere, || of_handle(async |it| it.spawn(async {}).await)),
        kind("Handle::spawn_with", Memory, || of_handle(async |it| it.spawn_with(yield_now).await)),
        kind("Handle::metrics", Memory, || of_handle(async |it| it.metrics().await)),
        kind("Handle::dump", Memory, || of_handle(async |it| it.dump().await)),
        kind("Handle::spawn_blocking", Threads, || of_handle(async |it| it.spawn_blocking(|| ()).await)),
        kind("spawn_blocking", Threads, || alone(async || spawn_blocking(|| ()).await)),
    ]
}

/// Returns an operation that contains a future.
fn waiting(name: &'static str, wait: impl AsyncFn(&mut Arc<Notify>) + Copy + Send + Sync + 'static) -> Kind {
    kind(name, Memory, move || {
        let notify = Arc::new(Notify::new());
        unchecked((Arc::clone(&notify), notify), wait, |notify| notify.notify_one())
    })
}

/// Returns an operation on a set of tasks, one of which is aborted.
fn set<R: 'static>(
    name: &'static str,
    join: impl AsyncFn(&mut JoinSet<()>) -> R + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let mut set = JoinSet::new();
        let aborts = [set.spawn(std::future::pending()), set.spawn(std::future::pending())];
        unchecked((set, aborts), join, |aborts| aborts[0].abort())
    })
}

fn of_handle<R: 'static>(perform: impl AsyncFn(&mut Handle) -> R + Copy + 'static) -> Operation {
    unchecked((Handle::current(), ()), perform, |()| {})
}

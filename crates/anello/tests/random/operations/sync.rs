//! Channels, locks and other synchronization.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use anello::spawn;
use anello::sync::{
    Barrier, CancellationToken, Mutex, Notify, OnceCell, OwnedMutexGuard, OwnedRwLockWriteGuard, RwLock,
    Semaphore, SetOnce, broadcast, local, mpsc, oneshot, watch,
};

use super::Support::{Everywhere, Memory};
use super::{Kind, kind, poll_once, unchecked};

pub fn kinds() -> Vec<Kind> {
    vec![
        kind("local::mpsc::Receiver::recv", Everywhere, || {
            let (sender, receiver) = local::mpsc::channel(1000);
            unchecked((receiver, sender), async |it| it.recv().await, |sender| sender.try_send(()))
        }),
        kind("local::mpsc::Receiver::recv_many", Memory, || {
            let (sender, receiver) = local::mpsc::channel(1000);
            let receive = async |it: &mut local::mpsc::Receiver<()>| it.recv_many(&mut Vec::new(), 5).await;
            unchecked((receiver, sender), receive, |sender| sender.try_send(()))
        }),
        kind("local::mpsc::Sender::send", Everywhere, || {
            let (sender, receiver) = local::mpsc::channel(1);
            sender.try_send(()).unwrap();
            unchecked((sender, receiver), async |it| it.send(()).await, |receiver| receiver.try_recv())
        }),
        kind("local::mpsc::Sender::closed", Memory, || {
            let (sender, receiver) = local::mpsc::channel::<()>(1);
            unchecked((sender, receiver), async |it| it.closed().await, |receiver| receiver.close())
        }),
        received("mpsc::Receiver::recv", async |it| it.recv().await),
        received("mpsc::Receiver::recv_many", async |it| it.recv_many(&mut Vec::new(), 5).await),
        kind("mpsc::UnboundedReceiver::recv", Memory, || {
            let (sender, receiver) = mpsc::unbounded_channel();
            unchecked((receiver, sender), async |it| it.recv().await, |sender| sender.send(()))
        }),
        kind("mpsc::UnboundedSender::closed", Memory, || {
            let (sender, receiver) = mpsc::unbounded_channel::<()>();
            unchecked((sender, receiver), async |it| it.closed().await, |receiver| receiver.close())
        }),
        sent("mpsc::Sender::send", async |it| it.send(()).await),
        sent("mpsc::Sender::send_timeout", async |it| it.send_timeout((), Duration::from_secs(9)).await),
        sent("mpsc::Sender::reserve", async |it| it.reserve().await.map(drop)),
        sent("mpsc::Sender::reserve_many", async |it| it.reserve_many(1).await.map(drop)),
        sent("mpsc::Sender::reserve_owned", async |it| it.clone().reserve_owned().await),
        kind("mpsc::Sender::closed", Memory, || {
            let (sender, receiver) = mpsc::channel::<()>(1);
            unchecked((sender, receiver), async |it| it.closed().await, |receiver| receiver.close())
        }),
        kind("oneshot::Receiver", Everywhere, || {
            let (sender, receiver) = oneshot::channel();
            unchecked(
                (receiver, Some(sender)),
                async |it| it.await,
                |sender| sender.take().map(|sender| sender.send(())),
            )
        }),
        kind("oneshot::Sender::closed", Memory, || {
            let (sender, receiver) = oneshot::channel::<()>();
            unchecked((sender, receiver), async |it| it.closed().await, |receiver| receiver.close())
        }),
        kind("watch::Receiver::changed", Everywhere, || {
            let (sender, receiver) = watch::channel(());
            unchecked((receiver, sender), async |it| it.clone().changed().await, |sender| sender.send(()))
        }),
        kind("watch::Receiver::wait_for", Memory, || {
            let (sender, receiver) = watch::channel(false);
            let wait = async |it: &mut watch::Receiver<bool>| it.wait_for(|value| *value).await.map(drop);
            unchecked((receiver, sender), wait, |sender| sender.send(true))
        }),
        kind("watch::Sender::closed", Memory, || {
            let (sender, receiver) = watch::channel(());
            unchecked((sender, Some(receiver)), async |it| it.closed().await, Option::take)
        }),
        kind("broadcast::Receiver::recv", Everywhere, || {
            let (sender, receiver) = broadcast::channel(1000);
            unchecked((receiver, sender), async |it| it.recv().await, |sender| sender.send(()))
        }),
        kind("broadcast::Sender::closed", Memory, || {
            let (sender, receiver) = broadcast::channel::<()>(1);
            unchecked((sender, Some(receiver)), async |it| it.closed().await, Option::take)
        }),
        notified("Notify::notified", async |it| it.notified().await),
        notified("Notify::notified_owned", async |it| Arc::clone(it).notified_owned().await),
        permits("Semaphore::acquire", async |it| it.acquire().await.map(drop)),
        permits("Semaphore::acquire_many", async |it| it.acquire_many(2).await.map(drop)),
        permits("Semaphore::acquire_owned", async |it| Arc::clone(it).acquire_owned().await),
        permits("Semaphore::acquire_many_owned", async |it| Arc::clone(it).acquire_many_owned(2).await),
        locked("Mutex::lock", async |it| drop(it.lock().await)),
        locked("Mutex::lock_owned", async |it| Arc::clone(it).lock_owned().await),
        write_locked("RwLock::read", async |it| drop(it.read().await)),
        write_locked("RwLock::read_owned", async |it| Arc::clone(it).read_owned().await),
        write_locked("RwLock::write", async |it| drop(it.write().await)),
        write_locked("RwLock::write_owned", async |it| Arc::clone(it).write_owned().await),
        kind("Barrier::wait", Memory, || {
            let token = CancellationToken::new();
            let wait = async |token: &mut CancellationToken| {
                // Each attempt needs its own barrier, because a dropped future has already been counted.
                let (barrier, token) = (Arc::new(Barrier::new(2)), token.clone());
                let other = Arc::clone(&barrier);
                let other = spawn(async move {
                    token.cancelled().await;
                    other.wait().await;
                });
                barrier.wait().await;
                drop(other);
            };
            unchecked((token.clone(), token), wait, |token| token.cancel())
        }),
        once_cell("OnceCell::get_or_init", async |it| {
            it.get_or_init(async || ()).await;
        }),
        once_cell("OnceCell::get_or_try_init", async |it| {
            it.get_or_try_init(async || Err::<(), _>(())).await.copied()
        }),
        kind("SetOnce::wait", Memory, || {
            let once = Arc::new(SetOnce::new());
            let wait = async |once: &mut Arc<SetOnce<()>>| {
                once.wait().await;
            };
            unchecked((Arc::clone(&once), once), wait, |once| once.set(()))
        }),
        cancelled("CancellationToken::cancelled", async |it| it.cancelled().await),
        cancelled("CancellationToken::cancelled_owned", async |it| it.clone().cancelled_owned().await),
        cancelled("CancellationToken::run_until_cancelled", async |it| {
            it.run_until_cancelled(pending::<()>()).await;
        }),
        cancelled("CancellationToken::run_until_cancelled_owned", async |it| {
            it.clone().run_until_cancelled_owned(pending::<()>()).await;
        }),
    ]
}

/// Returns an operation on a channel into which a value is sent.
fn received<R: 'static>(
    name: &'static str,
    receive: impl AsyncFn(&mut mpsc::Receiver<()>) -> R + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let (sender, receiver) = mpsc::channel(1000);
        unchecked((receiver, sender), receive, |sender| sender.try_send(()))
    })
}

/// Returns an operation on a channel that is full until a value is received.
fn sent<R: 'static>(
    name: &'static str,
    send: impl AsyncFn(&mut mpsc::Sender<()>) -> R + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let (sender, receiver) = mpsc::channel(1);
        sender.try_send(()).unwrap();
        unchecked((sender, receiver), send, |receiver| receiver.try_recv())
    })
}

fn notified(name: &'static str, wait: impl AsyncFn(&mut Arc<Notify>) + Copy + Send + Sync + 'static) -> Kind {
    kind(name, Everywhere, move || {
        let notify = Arc::new(Notify::new());
        unchecked((Arc::clone(&notify), notify), wait, |notify| notify.notify_one())
    })
}

fn permits<R: 'static>(
    name: &'static str,
    acquire: impl AsyncFn(&mut Arc<Semaphore>) -> R + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let semaphore = Arc::new(Semaphore::new(0));
        unchecked((Arc::clone(&semaphore), semaphore), acquire, |semaphore| semaphore.add_permits(2))
    })
}

/// Returns an operation on a mutex that is locked until its guard is dropped.
fn locked<R: 'static>(
    name: &'static str,
    lock: impl AsyncFn(&mut Arc<Mutex<()>>) -> R + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let mutex = Arc::new(Mutex::new(()));
        let guard = Arc::clone(&mutex).try_lock_owned().ok();
        unchecked((mutex, guard), lock, |guard: &mut Option<OwnedMutexGuard<()>>| guard.take())
    })
}

fn write_locked<R: 'static>(
    name: &'static str,
    lock: impl AsyncFn(&mut Arc<RwLock<()>>) -> R + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let mutex = Arc::new(RwLock::new(()));
        let guard = Arc::clone(&mutex).try_write_owned().ok();
        unchecked((mutex, guard), lock, |guard: &mut Option<OwnedRwLockWriteGuard<()>>| guard.take())
    })
}

/// Returns an operation on a cell that another future initializes until it is dropped.
fn once_cell<R: 'static>(
    name: &'static str,
    initialize: impl AsyncFn(&mut Arc<OnceCell<()>>) -> R + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Memory, move || {
        let cell = Arc::new(OnceCell::new());
        let other = Arc::clone(&cell);
        let mut other = Box::pin(async move {
            other.get_or_init(pending).await;
        });
        poll_once(other.as_mut());
        unchecked((cell, Some(other)), initialize, Option::take)
    })
}

fn cancelled(
    name: &'static str,
    wait: impl AsyncFn(&mut CancellationToken) + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let token = CancellationToken::new();
        unchecked((token.child_token(), token), wait, |token| token.cancel())
    })
}

//! Channels, locks and other synchronization.

use std::future::pending;
use std::sync::Arc;

use anello::sync::{CancellationToken, Mutex, broadcast, local, mpsc, oneshot, watch};

use super::Support::{Everywhere, Memory};
use super::{Kind, kind, unchecked};

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
        kind("oneshot::Receiver", Everywhere, || {
            let (sender, receiver) = oneshot::channel();
            unchecked(
                (receiver, Some(sender)),
                async |it| it.await,
                |sender| sender.take().map(|sender| sender.send(())),
            )
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
        kind("broadcast::Receiver::recv", Everywhere, || {
            let (sender, receiver) = broadcast::channel(1000);
            unchecked((receiver, sender), async |it| it.recv().await, |sender| sender.send(()))
        }),
        kind("Mutex::lock", Everywhere, || {
            let mutex = Arc::new(Mutex::new(()));
            let guard = Arc::clone(&mutex).try_lock_owned().ok();
            unchecked((mutex, guard), async |it| drop(it.lock().await), Option::take)
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

fn cancelled(
    name: &'static str,
    wait: impl AsyncFn(&mut CancellationToken) + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Everywhere, move || {
        let token = CancellationToken::new();
        unchecked((token.child_token(), token), wait, |token| token.cancel())
    })
}

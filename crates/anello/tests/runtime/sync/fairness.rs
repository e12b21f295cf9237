//! A task that has exhausted its budget takes its place in the queue of a lock or channel like any other task.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use anello::sync::{Mutex, RwLock, Semaphore, local, mpsc};
use anello::task::{consume_budget, has_budget_remaining};
use anello::{spawn, yield_now};

use super::drivers_and_simulators;
use crate::common::*;

/// Lets two tasks wait for what `prepare` returns, the first of them without budget, and then calls the other returned
/// function, which makes it available. They must get it in this order.
fn is_served_in_order<W, R>(prepare: impl Fn() -> (W, R) + Send + Sync + 'static)
where
    W: AsyncFn() + Clone + 'static,
    R: FnOnce(),
{
    on_each(drivers_and_simulators(), move |setup| {
        setup.run(async {
            let (wait, release) = prepare();
            let served = Rc::new(RefCell::new(Vec::new()));
            let tasks = ["without budget", "with budget"].map(|name| {
                let (wait, served) = (wait.clone(), Rc::clone(&served));
                spawn(async move {
                    while name == "without budget" && has_budget_remaining() {
                        consume_budget().await;
                    }
                    wait().await;
                    served.borrow_mut().push(name);
                })
            });
            yield_now().await;
            assert!(served.borrow().is_empty());
            release();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(*served.borrow(), ["without budget", "with budget"]);
        });
    });
}

#[test]
fn mutex_without_budget_is_locked_in_order() {
    is_served_in_order(|| {
        let mutex = Arc::new(Mutex::new(()));
        let guard = Arc::clone(&mutex).try_lock_owned().unwrap();
        (async move || drop(mutex.lock().await), || drop(guard))
    });
}

#[test]
fn rw_lock_without_budget_is_locked_in_order() {
    is_served_in_order(|| {
        let lock = Arc::new(RwLock::new(()));
        let guard = Arc::clone(&lock).try_read_owned().unwrap();
        (async move || drop(lock.write().await), || drop(guard))
    });
}

#[test]
fn semaphore_without_budget_is_acquired_in_order() {
    is_served_in_order(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&semaphore).try_acquire_owned().unwrap();
        (async move || drop(semaphore.acquire().await.unwrap()), || drop(permit))
    });
}

#[test]
fn mpsc_senders_without_budget_send_in_order() {
    is_served_in_order(|| {
        let (sender, mut receiver) = mpsc::channel(1);
        sender.try_send(()).unwrap();
        let receive = move || spawn(async move { while receiver.recv().await.is_some() {} }).detach();
        (async move || sender.send(()).await.unwrap(), receive)
    });
}

#[test]
fn local_mpsc_senders_without_budget_send_in_order() {
    is_served_in_order(|| {
        let (sender, mut receiver) = local::mpsc::channel(1);
        sender.try_send(()).unwrap();
        let receive = move || spawn(async move { while receiver.recv().await.is_some() {} }).detach();
        (async move || sender.send(()).await.unwrap(), receive)
    });
}

#[test]
fn local_mpsc_sender_without_budget_gets_free_slot() {
    on_each(drivers_and_simulators(), |setup| {
        setup.run(async {
            let (sender, mut receiver) = local::mpsc::channel(1);
            while has_budget_remaining() {
                consume_budget().await;
            }
            let mut send = Box::pin(sender.send(1));
            assert!(poll_at_most(1, send.as_mut()).await.is_none());
            // The slot is reserved, but the value has not been sent.
            assert_eq!(sender.capacity(), 0);
            assert!(receiver.try_recv().is_err());
            send.await.unwrap();
            assert_eq!(receiver.recv().await, Some(1));
        });
    });
}

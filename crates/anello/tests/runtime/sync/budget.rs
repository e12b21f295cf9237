//! A task whose channels and locks are always ready does not starve the sockets and timers of its worker.

use std::sync::Arc;
use std::time::Duration;

use anello::sync::{
    Barrier, CancellationToken, Mutex, Notify, OnceCell, RwLock, Semaphore, SetOnce, broadcast, local, mpsc,
    oneshot, watch,
};
use anello::time::sleep;

use super::drivers_and_simulators;
use crate::common::*;

/// Repeats a step, which never waits, in a task, while another task uses a socket and a timer. If the step consumed no
/// budget, the test would hang.
fn never_starves<S: AsyncFn(usize) + 'static>(make_step: impl Fn() -> S + Send + Sync + 'static) {
    on_each(drivers_and_simulators(), move |setup| {
        let step = make_step();
        setup.run(async move {
            let busy = anello::spawn(async move {
                for round in 0.. {
                    step(round).await;
                }
            });
            let (mut near, mut far) = pair().await.unwrap();
            near.send("ciao").await.unwrap();
            assert_eq!(&*far.recv().await.unwrap().unwrap(), b"ciao");
            // Short, because the simulated clock advances little while a task is ready.
            sleep(Duration::from_micros(50)).await;
            assert!(!busy.is_finished());
            busy.abort();
        });
    });
}

#[test]
fn mpsc_send_and_recv_never_starve_worker() {
    never_starves(|| {
        let (sender, receiver) = mpsc::channel(1);
        let receiver = tokio::sync::Mutex::new(receiver);
        async move |round| {
            sender.send(round).await.unwrap();
            assert_eq!(receiver.try_lock().unwrap().recv().await, Some(round));
        }
    });
}

#[test]
fn mpsc_reserve_alone_never_starves_worker() {
    never_starves(|| {
        let (sender, receiver) = mpsc::channel::<()>(1);
        async move |_| {
            assert!(!receiver.is_closed());
            drop(sender.reserve().await.unwrap());
        }
    });
}

#[test]
fn mpsc_recv_many_never_starves_worker() {
    never_starves(|| {
        let (sender, receiver) = mpsc::unbounded_channel();
        let receiver = tokio::sync::Mutex::new(receiver);
        async move |round| {
            sender.send(round).unwrap();
            assert_eq!(receiver.try_lock().unwrap().recv_many(&mut Vec::new(), 10).await, 1);
        }
    });
}

#[test]
fn oneshot_never_starves_worker() {
    never_starves(|| {
        async |round| {
            let (sender, receiver) = oneshot::channel();
            sender.send(round).unwrap();
            assert_eq!(receiver.await, Ok(round));
        }
    });
}

#[test]
fn watch_never_starves_worker() {
    never_starves(|| {
        let (sender, receiver) = watch::channel(0);
        let receiver = tokio::sync::Mutex::new(receiver);
        async move |round| {
            sender.send(round).unwrap();
            let mut receiver = receiver.try_lock().unwrap();
            match round % 2 {
                0 => receiver.changed().await.unwrap(),
                _ => drop(receiver.wait_for(|value| *value == round).await.unwrap()),
            }
        }
    });
}

#[test]
fn broadcast_never_starves_worker() {
    never_starves(|| {
        let (sender, receiver) = broadcast::channel(1);
        let receiver = tokio::sync::Mutex::new(receiver);
        async move |round| {
            sender.send(round).unwrap();
            assert_eq!(receiver.try_lock().unwrap().recv().await, Ok(round));
        }
    });
}

#[test]
fn notify_never_starves_worker() {
    never_starves(|| {
        let notify = Arc::new(Notify::new());
        async move |round| {
            notify.notify_one();
            match round % 2 {
                0 => notify.notified().await,
                _ => Arc::clone(&notify).notified_owned().await,
            }
        }
    });
}

#[test]
fn semaphore_never_starves_worker() {
    never_starves(|| {
        let semaphore = Arc::new(Semaphore::new(1));
        async move |round| match round % 2 {
            0 => drop(semaphore.acquire().await.unwrap()),
            _ => drop(Arc::clone(&semaphore).acquire_many_owned(1).await.unwrap()),
        }
    });
}

#[test]
fn locks_never_starve_worker() {
    never_starves(|| {
        let (mutex, lock) = (Arc::new(Mutex::new(0)), Arc::new(RwLock::new(0)));
        async move |round| match round % 4 {
            0 => *mutex.lock().await += 1,
            1 => *Arc::clone(&mutex).lock_owned().await += 1,
            2 => *lock.write().await += 1,
            _ => drop(Arc::clone(&lock).read_owned().await),
        }
    });
}

#[test]
fn barrier_and_cells_never_starve_worker() {
    never_starves(|| {
        let barrier = Barrier::new(1);
        let (cell, once) = (OnceCell::new(), SetOnce::new_with(Some(7)));
        async move |round| match round % 3 {
            0 => assert!(barrier.wait().await.is_leader()),
            1 => assert_eq!(cell.get_or_init(async || 7).await, &7),
            _ => assert_eq!(once.wait().await, &7),
        }
    });
}

#[test]
fn cancelled_token_never_starves_worker() {
    never_starves(|| {
        let token = CancellationToken::new();
        token.cancel();
        async move |_| token.cancelled().await
    });
}

#[test]
fn foreign_future_in_cooperative_never_starves_worker() {
    never_starves(|| async |_| anello::task::cooperative(std::future::ready(())).await);
}

#[test]
fn local_mpsc_never_starves_worker() {
    never_starves(|| {
        async |_| {
            let (sender, mut receiver) = local::mpsc::channel(2);
            sender.send(1).await.unwrap();
            sender.send(2).await.unwrap();
            assert_eq!(receiver.recv().await, Some(1));
            assert_eq!(receiver.recv_many(&mut Vec::new(), 3).await, 1);
        }
    });
}

#[test]
fn unconstrained_task_ignores_budget_of_channels() {
    on_each(drivers_and_simulators(), |setup| {
        setup.run(async {
            let (sender, mut receiver) = mpsc::unbounded_channel();
            for number in 0..1000 {
                sender.send(number).unwrap();
            }
            let receive_all = anello::task::unconstrained(async {
                for number in 0..1000 {
                    assert_eq!(receiver.recv().await, Some(number));
                }
            });
            assert!(poll_at_most(1, receive_all).await.is_some());
            // With a budget, the same loop yields.
            for number in 0..1000 {
                sender.send(number).unwrap();
            }
            let receive_all = async {
                for _ in 0..1000 {
                    receiver.recv().await.unwrap();
                }
            };
            assert!(poll_at_most(1, receive_all).await.is_none());
        });
    });
}

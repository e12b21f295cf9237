//! A task whose channels are always ready does not starve the sockets and timers of its worker.

use std::future::poll_fn;
use std::time::Duration;

use anello::sync::{CancellationToken, Mutex, broadcast, local, mpsc, watch};
use anello::task::consume_budget;
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
fn mpsc_recv_never_starves_worker() {
    never_starves(|| {
        let (sender, receiver) = mpsc::channel(1);
        let receiver = Mutex::new(receiver);
        async move |round| {
            sender.send(round).await.unwrap();
            let mut receiver = receiver.try_lock().unwrap();
            match round % 2 {
                0 => assert_eq!(receiver.recv().await, Some(round)),
                _ => assert_eq!(poll_fn(|context| receiver.poll_recv(context)).await, Some(round)),
            }
        }
    });
}

#[test]
fn mpsc_recv_many_never_starves_worker() {
    never_starves(|| {
        let (sender, receiver) = mpsc::unbounded_channel();
        let receiver = Mutex::new(receiver);
        async move |round| {
            sender.send(round).unwrap();
            let (mut receiver, mut values) = (receiver.try_lock().unwrap(), Vec::new());
            let received = match round % 3 {
                0 => receiver.recv_many(&mut values, 10).await,
                1 => poll_fn(|context| receiver.poll_recv_many(context, &mut values, 10)).await,
                _ => receiver.recv().await.into_iter().count(),
            };
            assert_eq!(received, 1);
        }
    });
}

#[test]
fn watch_never_starves_worker() {
    never_starves(|| {
        let (sender, receiver) = watch::channel(0);
        let receiver = Mutex::new(receiver);
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
        let receiver = Mutex::new(receiver);
        async move |round| {
            sender.send(round).unwrap();
            assert_eq!(receiver.try_lock().unwrap().recv().await, Ok(round));
        }
    });
}

#[test]
fn closed_of_senders_never_starves_worker() {
    never_starves(|| {
        let (values, events) = (watch::Sender::new(0), broadcast::Sender::<usize>::new(1));
        async move |round| match round % 2 {
            0 => values.closed().await,
            _ => events.closed().await,
        }
    });
}

#[test]
fn subscribed_receivers_never_starve_worker() {
    never_starves(|| {
        let (values, events) = (watch::Sender::new(0), broadcast::Sender::new(1));
        let receivers = Mutex::new((values.subscribe().clone(), events.subscribe().resubscribe()));
        async move |round| {
            let (value, event) = &mut *receivers.try_lock().unwrap();
            values.send(round + 1).unwrap();
            value.changed().await.unwrap();
            events.send(round).unwrap();
            assert_eq!(event.recv().await, Ok(round));
        }
    });
}

#[test]
fn lock_and_consume_budget_never_starve_worker() {
    never_starves(|| {
        let mutex = Mutex::new(0);
        async move |_| {
            *mutex.lock().await += 1;
            consume_budget().await;
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

//! Wake-ups between workers: two runtimes on two threads, each of which sleeps until the other wakes it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anello::sync::{
    Barrier, CancellationToken, Mutex, Notify, RwLock, Semaphore, SetOnce, broadcast, mpsc, oneshot, watch,
};

use crate::common::*;

/// Number of times each worker wakes the other.
const ROUNDS: usize = 100;

/// Runs each function on its own worker. A lost wake-up makes the test hang.
fn on_two_workers(setup: &Setup, one: impl AsyncFnOnce() + Send, other: impl AsyncFnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(|| setup.run(async { one().await }));
        setup.run(async { other().await });
    });
}

#[test]
fn fault_14_mpsc_wakes_other_worker() {
    on_every_driver(|setup| {
        let (requests, mut requested) = mpsc::channel(1);
        let (responses, mut responded) = mpsc::unbounded_channel();
        on_two_workers(
            setup,
            async move || {
                while let Some(number) = requested.recv().await {
                    responses.send(number).unwrap();
                }
            },
            async move || {
                for number in 0..ROUNDS {
                    requests.send(number).await.unwrap();
                    assert_eq!(responded.recv().await, Some(number));
                }
                drop(requests);
                assert_eq!(responded.recv().await, None);
            },
        );
    });
}

#[test]
fn fault_14_full_channel_wakes_sender_on_other_worker() {
    on_every_driver(|setup| {
        let (sender, mut receiver) = mpsc::channel(2);
        on_two_workers(
            setup,
            async move || {
                for number in 0..10 * ROUNDS {
                    sender.send(number).await.unwrap();
                }
            },
            async move || {
                for number in 0..10 * ROUNDS {
                    assert_eq!(receiver.recv().await, Some(number));
                }
                assert_eq!(receiver.recv().await, None);
            },
        );
    });
}

#[test]
fn fault_14_oneshot_wakes_other_worker() {
    on_every_driver(|setup| {
        let (requests, mut requested) = mpsc::unbounded_channel::<oneshot::Sender<usize>>();
        on_two_workers(
            setup,
            async move || {
                for number in 0..ROUNDS {
                    requested.recv().await.unwrap().send(number).unwrap();
                }
            },
            async move || {
                for number in 0..ROUNDS {
                    let (response, responded) = oneshot::channel();
                    requests.send(response).unwrap();
                    assert_eq!(responded.await, Ok(number));
                }
            },
        );
    });
}

#[test]
fn fault_14_watch_and_broadcast_wake_other_worker() {
    on_every_driver(|setup| {
        let (states, mut state) = watch::channel(0);
        let (events, mut event) = broadcast::channel(1);
        on_two_workers(
            setup,
            async move || {
                for number in 1..=ROUNDS {
                    state.wait_for(|value| *value == number).await.unwrap();
                    events.send(number).unwrap();
                }
                state.changed().await.unwrap_err();
            },
            async move || {
                for number in 1..=ROUNDS {
                    states.send(number).unwrap();
                    assert_eq!(event.recv().await, Ok(number));
                }
            },
        );
    });
}

#[test]
fn fault_14_notify_and_semaphore_wake_other_worker() {
    on_every_driver(|setup| {
        let shared = Arc::new((Notify::new(), Semaphore::new(0)));
        let other = Arc::clone(&shared);
        on_two_workers(
            setup,
            async move || {
                for _ in 0..ROUNDS {
                    other.0.notified().await;
                    other.1.add_permits(1);
                }
            },
            async move || {
                for _ in 0..ROUNDS {
                    shared.0.notify_one();
                    shared.1.acquire().await.unwrap().forget();
                }
            },
        );
    });
}

#[test]
fn fault_14_locks_and_barrier_wake_other_worker() {
    on_every_driver(|setup| {
        let shared = Arc::new((Mutex::new(0), RwLock::new(0), Barrier::new(2)));
        let work = |shared: Arc<(Mutex<usize>, RwLock<usize>, Barrier)>| {
            async move || {
                for round in 0..ROUNDS {
                    // Held while this worker runs other tasks, so that the other worker waits.
                    let mut count = shared.0.lock().await;
                    anello::yield_now().await;
                    *count += 1;
                    drop(count);
                    *shared.1.write().await += 1;
                    shared.2.wait().await;
                    assert_eq!(*shared.1.read().await, 2 * (round + 1));
                    shared.2.wait().await;
                }
                assert_eq!(*shared.0.lock().await, 2 * ROUNDS);
            }
        };
        on_two_workers(setup, work(Arc::clone(&shared)), work(shared));
    });
}

#[test]
fn fault_14_cancellation_token_wakes_other_worker() {
    on_every_driver(|setup| {
        let (token, cell) = (CancellationToken::new(), Arc::new(SetOnce::new()));
        let (child, other) = (token.child_token(), Arc::clone(&cell));
        on_two_workers(
            setup,
            async move || {
                other.set(()).unwrap();
                child.cancelled().await;
            },
            async move || {
                cell.wait().await;
                token.cancel();
            },
        );
    });
}

#[test]
fn blocking_thread_and_worker_exchange_values() {
    on_every_driver(|setup| {
        let (requests, mut requested) = mpsc::channel(1);
        let (responses, mut responded) = mpsc::channel(1);
        thread::scope(|scope| {
            scope.spawn(move || {
                while let Some(number) = requested.blocking_recv() {
                    responses.blocking_send(number).unwrap();
                }
            });
            setup.run(async move {
                for number in 0..ROUNDS {
                    requests.send(number).await.unwrap();
                    assert_eq!(responded.recv().await, Some(number));
                }
            });
        });
    });
}

/// Number of times that a token is passed on, and a channel for a receipt.
type Token = (usize, Option<oneshot::Sender<()>>);

/// Sends tokens between workers until one has been passed on `hops` times. In between, workers drop futures, keep their
/// thread busy, sleep or return immediately.
async fn pass_tokens(
    seed: u64,
    worker: usize,
    mut tokens: mpsc::Receiver<Token>,
    others: Vec<mpsc::Sender<Token>>,
    stop: CancellationToken,
) {
    let mut random = Rng::with_seed(seed ^ worker as u64);
    while !stop.is_cancelled() {
        while random.bool() {
            if let Some(Some(token)) = poll_at_most(1, tokens.recv()).await {
                others[worker].try_send(token).unwrap();
            }
        }
        let Some(Some((hops, receipt))) = stop.run_until_cancelled(tokens.recv()).await else { break };
        if let Some(receipt) = receipt {
            receipt.send(()).ok();
        }
        if hops == 0 {
            stop.cancel();
            break;
        }
        let (receipt, received) = oneshot::channel();
        let receipt = random.bool().then_some(receipt);
        let waits = receipt.is_some();
        if others[random.usize(..others.len())].send((hops - 1, receipt)).await.is_err() {
            // The other worker has ended.
            assert!(stop.is_cancelled());
            break;
        }
        match random.usize(..4) {
            0 => thread::yield_now(),
            1 => anello::time::sleep(Duration::from_micros(random.u64(..300))).await,
            2 if waits => anello::spawn(async move { received.await.ok() }).detach(),
            _ => {}
        }
    }
}

#[test]
fn fault_42_random_workers_lose_no_wake_up() {
    on_both_drivers(|setup| {
        for seed in 0..30 {
            eprintln!("seed {seed}");
            let stop = CancellationToken::new();
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel(4)).unzip();
            senders[0].try_send((200, None)).unwrap();
            senders[1].try_send((200, None)).unwrap();
            thread::scope(|scope| {
                for (worker, receiver) in receivers.into_iter().enumerate() {
                    let (senders, stop) = (senders.clone(), stop.clone());
                    scope.spawn(move || setup.run(pass_tokens(seed, worker, receiver, senders, stop)));
                }
            });
        }
    });
}

//! Futures that are dropped after a random number of polls lose no value.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use anello::sync::{local, mpsc};

use super::drivers_and_simulators;
use crate::common::*;

const SENDERS: u64 = 5;

/// Number of values that each sender sends or abandons.
const VALUES: u64 = 200;

/// Seeds per setup.
const SEEDS: u64 = 20;

/// Runs several senders and a receiver, whose futures are dropped after 1 to 3 polls. Each value whose `send` has
/// completed must be received exactly once and in the order of its sender; no other value may be received.
async fn run_program(
    seed: u64,
    send: impl AsyncFn(u64, usize) -> bool + Clone + 'static,
    mut receive: impl AsyncFnMut(usize) -> Option<Option<u64>>,
) {
    let accepted = Rc::new(RefCell::new(vec![Vec::new(); SENDERS as usize]));
    let running = Rc::new(Cell::new(SENDERS));
    for sender in 0..SENDERS {
        let (send, accepted, running) = (send.clone(), Rc::clone(&accepted), Rc::clone(&running));
        anello::spawn(async move {
            let mut random = Rng::with_seed(seed ^ sender);
            for number in 0..VALUES {
                let value = sender << 32 | number;
                if send(value, random.usize(1..4)).await {
                    accepted.borrow_mut()[sender as usize].push(value);
                }
                if random.bool() {
                    anello::yield_now().await;
                }
            }
            drop(send);
            running.set(running.get() - 1);
        })
        .detach();
    }
    drop(send);
    let mut random = Rng::with_seed(!seed);
    let mut received = vec![Vec::new(); SENDERS as usize];
    loop {
        match receive(random.usize(1..4)).await {
            Some(Some(value)) => received[(value >> 32) as usize].push(value),
            Some(None) => break,
            None => anello::yield_now().await,
        }
    }
    assert_eq!(running.get(), 0);
    assert_eq!(received, *accepted.borrow(), "seed {seed}");
}

fn on_each_seed(run: impl AsyncFn(u64) + Send + Sync + 'static) {
    on_each(drivers_and_simulators(), move |setup| {
        for seed in 0..SEEDS {
            setup.run(run(seed));
        }
    });
}

#[test]
fn fault_10_dropped_mpsc_futures_lose_no_value() {
    on_each_seed(async |seed| {
        let (sender, mut receiver) = mpsc::channel(1 + (seed % 3) as usize);
        let send = async move |value, polls| {
            poll_at_most(polls, sender.send(value)).await.is_some_and(|sent| sent.is_ok())
        };
        run_program(seed, send, async |polls| poll_at_most(polls, receiver.recv()).await).await;
    });
}

#[test]
fn fault_10_dropped_local_mpsc_futures_lose_no_value() {
    on_each_seed(async |seed| {
        let (sender, mut receiver) = local::mpsc::channel(1 + (seed % 3) as usize);
        let send = async move |value, polls| {
            poll_at_most(polls, sender.send(value)).await.is_some_and(|sent| sent.is_ok())
        };
        run_program(seed, send, async |polls| poll_at_most(polls, receiver.recv()).await).await;
    });
}

//! Channels, locks and cancellation tokens: budget, fairness, wake-ups between workers, cancelled futures.

mod budget;
mod cancellation;
mod cancelled_futures;
mod fairness;
mod local;
mod workers;

use std::panic::{AssertUnwindSafe, catch_unwind};

use anello::Runtime;
use anello::sync::{CancellationToken, Mutex, broadcast, mpsc, watch};

use crate::common::*;

/// Returns the two Linux drivers and the simulated kernels with their default options.
fn drivers_and_simulators() -> Vec<Setup> {
    both_drivers_and_sim()
}

#[test]
fn blocking_recv_within_runtime_panics() {
    let panics = |name: &str, call: &mut dyn FnMut()| {
        let panic = catch_unwind(AssertUnwindSafe(call)).expect_err(name);
        let message = panic.downcast::<String>().unwrap();
        assert!(message.contains(name) && message.contains("spawn_blocking"), "{message}");
    };
    Runtime::new().unwrap().block_on(async {
        let (_sender, mut receiver) = mpsc::channel::<()>(1);
        panics("blocking_recv", &mut || receiver.blocking_recv().unwrap());
        panics("blocking_recv_many", &mut || assert_eq!(receiver.blocking_recv_many(&mut vec![], 1), 0));
        let (_sender, mut receiver) = mpsc::unbounded_channel::<()>();
        panics("blocking_recv", &mut || receiver.blocking_recv().unwrap());
        let (_sender, mut receiver) = broadcast::channel::<()>(1);
        panics("blocking_recv", &mut || receiver.blocking_recv().unwrap());
    });
    // Outside of a runtime, the same calls block.
    let (sender, mut receiver) = mpsc::channel(1);
    sender.blocking_send(1).unwrap();
    drop(sender);
    assert_eq!((receiver.blocking_recv(), receiver.blocking_recv()), (Some(1), None));
}

#[test]
fn futures_are_send_if_values_are() {
    fn assert_send<T: Send>(value: T) -> T {
        value
    }
    let (_sender, mut receiver) = mpsc::channel::<u8>(1);
    drop(assert_send(receiver.recv()));
    drop(assert_send(assert_send(broadcast::channel::<u8>(1)).1.recv()));
    drop(assert_send(assert_send(watch::channel(1)).1.changed()));
    let token = assert_send(CancellationToken::new());
    drop(assert_send(token.run_until_cancelled(async {})));
}

/// Libraries that expect tokio's types get them: most are the same types, and the others are converted without loss.
#[test]
fn channels_are_those_of_tokio() {
    async fn echo(mut requests: tokio::sync::mpsc::Receiver<u8>, responses: tokio::sync::mpsc::Sender<u8>) {
        while let Some(request) = requests.recv().await {
            responses.send(request).await.unwrap();
        }
    }
    Runtime::new().unwrap().block_on(async {
        let (requests, receiver) = mpsc::channel(1);
        let (sender, mut responses) = mpsc::channel(1);
        anello::spawn(echo(receiver.into(), sender)).detach();
        requests.send(1).await.unwrap();
        drop(requests);
        assert_eq!((responses.recv().await, responses.recv().await), (Some(1), None));

        let (sender, receiver) = tokio::sync::watch::channel(1);
        let mut receiver = watch::Receiver::from(receiver);
        watch::Sender::from(sender).send(2).unwrap();
        receiver.changed().await.unwrap();
        assert_eq!(*receiver.borrow_and_update(), 2);

        let (sender, receiver) = broadcast::channel(1);
        let sender: tokio::sync::broadcast::Sender<_> = sender.into();
        sender.send(3).unwrap();
        assert_eq!((sender.len(), broadcast::Receiver::from(sender.subscribe()).len()), (1, 0));
        assert_eq!(tokio::sync::broadcast::Receiver::from(receiver).recv().await, Ok(3));
    });
}

#[test]
fn fault_17_panic_releases_locks_and_channels() {
    on_each(drivers_and_simulators(), |setup| {
        setup.run(async {
            let mutex = std::rc::Rc::new(Mutex::new(1));
            let (sender, mut receiver) = mpsc::channel::<()>(1);
            let locked = std::rc::Rc::clone(&mutex);
            let panicking = anello::spawn(async move {
                let mut guard = locked.lock().await;
                *guard = 2;
                anello::yield_now().await;
                sender.try_send(()).unwrap();
                panic!("deliberate");
            });
            anello::yield_now().await;
            // Waits for the lock while the other task holds it.
            assert_eq!(*mutex.lock().await, 2);
            assert_eq!((receiver.recv().await, receiver.recv().await), (Some(()), None));
            assert!(panicking.await.unwrap_err().is_panic());
        });
    });
}

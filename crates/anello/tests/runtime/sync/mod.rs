//! Channels, locks and cancellation tokens: budget, wake-ups between workers, cancelled futures.

mod budget;
mod cancellation;
mod cancelled_futures;
mod local;
mod workers;

use std::panic::{AssertUnwindSafe, catch_unwind};

use anello::Runtime;
use anello::sync::{Mutex, RwLock, Semaphore, mpsc, oneshot};

use crate::common::*;

/// Returns the two Linux drivers and the simulated kernels with their default options.
fn drivers_and_simulators() -> Vec<Setup> {
    both_drivers_and_sim()
}

#[test]
fn blocking_method_within_runtime_panics() {
    let panics = |name: &str, call: &mut dyn FnMut()| {
        let panic = catch_unwind(AssertUnwindSafe(call)).expect_err(name);
        let message = panic.downcast::<String>().unwrap();
        assert!(message.contains(name) && message.contains("spawn_blocking"), "{message}");
    };
    Runtime::new().unwrap().block_on(async {
        let (sender, mut receiver) = mpsc::channel::<()>(1);
        panics("blocking_send", &mut || sender.blocking_send(()).unwrap());
        panics("blocking_recv", &mut || receiver.blocking_recv().unwrap());
        panics("blocking_recv", &mut || drop(oneshot::channel::<()>().1.blocking_recv()));
        panics("blocking_lock", &mut || drop(Mutex::new(()).blocking_lock()));
        panics("blocking_write", &mut || drop(RwLock::new(()).blocking_write()));
        panics("blocking_acquire", &mut || drop(Semaphore::new(1).blocking_acquire()));
    });
    // Outside of a runtime, the same calls block.
    let (sender, mut receiver) = mpsc::channel(1);
    sender.blocking_send(1).unwrap();
    drop(sender);
    assert_eq!((receiver.blocking_recv(), receiver.blocking_recv()), (Some(1), None));
    assert_eq!(*Mutex::new(1).blocking_lock(), 1);
}

#[test]
fn futures_are_send_if_values_are() {
    fn assert_send<T: Send>(value: T) -> T {
        value
    }
    let (sender, mut receiver) = mpsc::channel::<u8>(1);
    drop(assert_send(sender.send(1)));
    drop(assert_send(receiver.recv()));
    drop(assert_send(Mutex::new(1).lock()));
    drop(assert_send(oneshot::channel::<u8>().1));
    drop(assert_send(anello::sync::Notify::new().notified()));
    let token = assert_send(anello::sync::CancellationToken::new());
    drop(assert_send(token.run_until_cancelled(async {})));
    static LOCK: Mutex<u8> = Mutex::const_new(1);
    assert_eq!(*LOCK.try_lock().unwrap(), 1);
    let unsized_value: std::sync::Arc<Mutex<[u8]>> = std::sync::Arc::new(Mutex::new([1, 2]));
    assert_eq!(unsized_value.try_lock_owned().unwrap().len(), 2);
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

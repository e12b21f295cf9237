//! Channel between tasks of one worker.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use anello::sync::local::mpsc::error::{TryRecvError, TrySendError};
use anello::sync::local::mpsc::{self, Receiver, Sender};

use super::drivers_and_simulators;
use crate::common::*;

#[test]
fn waiting_senders_get_places_in_order() {
    on_each(drivers_and_simulators(), |setup| {
        setup.run(async {
            let (sender, mut receiver) = mpsc::channel(2);
            for number in 0..10 {
                let sender = sender.clone();
                anello::spawn(async move { sender.send(number).await.unwrap() }).detach();
            }
            anello::yield_now().await;
            assert_eq!((receiver.len(), sender.capacity(), sender.strong_count()), (2, 0, 9));
            // A slot that becomes free belongs to a waiting sender.
            assert_eq!(receiver.try_recv(), Ok(0));
            assert!(matches!(sender.try_send(100), Err(TrySendError::Full(100))));
            for number in 1..10 {
                assert_eq!(receiver.recv().await, Some(number));
            }
            sender.try_send(10).unwrap();
            assert_eq!(receiver.try_recv(), Ok(10));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            drop(sender);
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
            assert_eq!(receiver.recv().await, None);
        });
    });
}

#[test]
fn dropped_sender_passes_place_on() {
    on_each(drivers_and_simulators(), |setup| {
        setup.run(async {
            let (sender, mut receiver) = mpsc::channel(1);
            sender.try_send(0).unwrap();
            let mut first = Box::pin(sender.send(1));
            assert!(poll_at_most(1, first.as_mut()).await.is_none());
            let second = anello::spawn({
                let sender = sender.clone();
                async move { sender.send(2).await }
            });
            anello::yield_now().await;
            // The slot is granted to the first sender, which is dropped without using it.
            assert_eq!(receiver.recv().await, Some(0));
            drop(first);
            second.await.unwrap().unwrap();
            assert_eq!(receiver.recv().await, Some(2));
        });
    });
}

#[test]
fn closed_channel_returns_queued_values_and_wakes_senders() {
    on_each(drivers_and_simulators(), |setup| {
        setup.run(async {
            let (sender, mut receiver) = mpsc::channel(1);
            sender.send(0).await.unwrap();
            let tasks = [0, 1].map(|_| {
                let sender = sender.clone();
                anello::spawn(async move { sender.send(1).await })
            });
            let closed = anello::spawn({
                let sender = sender.clone();
                async move { sender.closed().await }
            });
            anello::yield_now().await;
            receiver.close();
            closed.await.unwrap();
            for task in tasks {
                assert_eq!(task.await.unwrap().unwrap_err().0, 1);
            }
            assert!(sender.is_closed() && receiver.is_closed());
            assert!(matches!(sender.try_send(2), Err(TrySendError::Closed(2))));
            assert_eq!(sender.send_now(2).unwrap_err().0, 2);
            assert_eq!((receiver.recv().await, receiver.recv().await), (Some(0), None));
        });
    });
}

#[test]
fn weak_sender_does_not_keep_channel_open() {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let weak = sender.downgrade();
    weak.upgrade().unwrap().send_now(1).unwrap();
    assert!(weak.upgrade().unwrap().same_channel(&sender));
    drop(sender);
    assert!(weak.clone().upgrade().is_none());
    assert_eq!(receiver.try_recv(), Ok(1));
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
}

/// Value whose destructor uses the channel that contains it.
struct Reentrant(Sender<Reentrant>);

impl Drop for Reentrant {
    fn drop(&mut self) {
        // Each of these calls borrows the state of the channel.
        drop(self.0.clone());
        assert_eq!((self.0.is_closed(), self.0.capacity()), (true, 1));
    }
}

#[test]
fn destructor_of_value_can_use_channel() {
    let (sender, receiver) = mpsc::channel(1);
    sender.try_send(Reentrant(sender.clone())).ok();
    drop(receiver);
    assert!(sender.is_closed());
}

#[test]
fn waker_can_use_channel() {
    thread_local! {
        static RECEIVED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        static RECEIVER: RefCell<Option<Receiver<u8>>> = const { RefCell::new(None) };
    }
    struct ReceiveOnWake;
    impl Wake for ReceiveOnWake {
        fn wake(self: Arc<Self>) {
            RECEIVER.with_borrow_mut(|receiver| {
                while let Ok(value) = receiver.as_mut().unwrap().try_recv() {
                    RECEIVED.with_borrow_mut(|received| received.push(value));
                }
            });
        }
    }
    let (sender, mut receiver) = mpsc::channel(1);
    let waker = Waker::from(Arc::new(ReceiveOnWake));
    assert!(receiver.poll_recv(&mut Context::from_waker(&waker)).is_pending());
    RECEIVER.set(Some(receiver));
    sender.try_send(1).unwrap();
    assert_eq!(RECEIVED.take(), [1]);
    let mut receiver = RECEIVER.take().unwrap();
    assert!(matches!(receiver.poll_recv(&mut Context::from_waker(&waker)), Poll::Pending));
}

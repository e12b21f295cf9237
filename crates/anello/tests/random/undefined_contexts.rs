//! Stress tests for the unsafe code of contexts, like those in `undefined.rs`: wakers that leave and drop the current
//! runtime while it is being used. Run by Miri and AddressSanitizer.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use anello::net::{TcpListener, TcpStream};
use anello::sync::mpsc;
use anello::{Runtime, task, yield_now};

use crate::common::{ANY_PORT, Setup, TURNS, both_drivers, on_each, simulated_drivers};

type Held = Pin<Box<dyn Future<Output = ()>>>;

thread_local! {
    /// A future that owns a runtime and has entered it.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

fn is_held() -> bool {
    HELD.with(|held| held.borrow().is_some())
}

/// A waker that leaves the runtime and drops it when it is called.
struct DropHeld;

impl Wake for DropHeld {
    fn wake(self: Arc<Self>) {
        drop(HELD.with(RefCell::take));
    }
}

/// Enters a new runtime, which is left and dropped when the returned waker is called. Polls a future in it.
fn hold<F: Future + 'static>(setup: &Setup, use_runtime: impl FnOnce() -> F + 'static) -> Waker {
    let runtime: Runtime = setup.runtime();
    let mut held: Held = Box::pin(async move {
        let _entered = runtime.enter();
        let mut future = Box::pin(use_runtime());
        poll_fn(|context| future.as_mut().poll(context)).await;
        pending::<()>().await;
    });
    let waker = Waker::from(Arc::new(DropHeld));
    assert!(held.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    HELD.set(Some(held));
    waker
}

fn on_all(test: impl Fn(&Setup) + Send + Sync + 'static) {
    if cfg!(miri) {
        simulated_drivers().iter().for_each(test);
    } else {
        on_each(both_drivers().into_iter().chain(simulated_drivers()).collect(), test);
    }
}

#[test]
fn fault_15_waker_drops_runtime_in_which_a_future_yields() {
    on_all(|setup| {
        let waker = hold(setup, pending::<()>);
        let mut yielding = pin!(yield_now());
        assert!(yielding.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(!is_held());
        assert!(yielding.poll(&mut Context::from_waker(Waker::noop())).is_ready());
    });
}

#[test]
fn fault_15_waker_drops_runtime_whose_budget_is_exhausted() {
    on_all(|setup| {
        for uses_channel in [false, true] {
            let waker = hold(setup, pending::<()>);
            let mut context = Context::from_waker(&waker);
            let mut receiver = mpsc::channel::<()>(1).1;
            let mut poll = || match uses_channel {
                true => receiver.poll_recv(&mut context).map(drop),
                false => pin!(task::consume_budget()).poll(&mut context),
            };
            while poll().is_ready() && is_held() {}
            assert!(!is_held());
            // Without a runtime, there is no budget.
            assert_eq!(poll(), Poll::Ready(()));
        }
    });
}

#[test]
fn fault_15_waker_drops_runtime_that_is_being_flushed() {
    on_all(|setup| {
        let other = setup.runtime().handle();
        hold(setup, || {
            let listener = TcpListener::bind(ANY_PORT).unwrap();
            async move { TcpStream::connect(listener.local_addr().unwrap()).await }
        });
        for _ in 0..TURNS {
            // Flushes the current runtime, whose completions call the waker. Only io_uring has any.
            other.block_on(async {});
            if !is_held() {
                return;
            }
        }
        assert!(!setup.is_uring(), "the connection was not established");
        drop(HELD.with(RefCell::take));
    });
}

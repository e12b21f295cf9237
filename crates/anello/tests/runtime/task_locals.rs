//! Task-local values: scopes, destructors, panics, and threads that exit.

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::thread;

use anello::task::{AccessError, JoinSet};
use anello::{spawn, task_local, yield_now};

use crate::common::{on_each, on_every_driver_and_sim, poll_at_most, simulated_drivers};

task_local! {
    static NUMBER: u32;
    /// A value with a destructor.
    pub static GUARD: Rc<Guard>;
    static NAME: String
}

task_local!();

/// Records in its destructor whether `NUMBER` is set.
pub struct Guard {
    dropped: Rc<RefCell<Vec<Option<u32>>>>,
    panics: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.dropped.borrow_mut().push(NUMBER.try_get().ok());
        if self.panics {
            panic!("deliberate, in a destructor");
        }
    }
}

#[test]
fn each_task_has_its_own_value() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let mut set = JoinSet::new();
            for number in 0..20 {
                set.spawn(NUMBER.scope(number, async move {
                    for _ in 0..number % 5 {
                        assert_eq!(NUMBER.get(), number);
                        yield_now().await;
                    }
                    // A spawned task does not inherit values.
                    assert!(spawn(async { NUMBER.try_get() }).await.unwrap().is_err());
                    NUMBER.with(|value| *value)
                }));
            }
            assert!(NUMBER.try_with(|_| ()).is_err());
            let mut outputs = set.join_all().await;
            outputs.sort_unstable();
            assert!(outputs.into_iter().eq(0..20));
            let error: AccessError = NAME.try_get().unwrap_err();
            assert!(error.to_string().contains("not set"), "{error}");
            assert!(catch_unwind(|| NUMBER.get()).is_err());
        });
    });
}

#[test]
fn scopes_nest_and_end() {
    let nested = NAME.sync_scope("outer".to_owned(), || {
        let inner = NAME.sync_scope("inner".to_owned(), || NAME.get());
        (inner, NAME.get())
    });
    assert_eq!(nested, ("inner".to_owned(), "outer".to_owned()));
    let panicked = catch_unwind(|| NAME.sync_scope("lost".to_owned(), || panic!("deliberate")));
    assert!(panicked.is_err() && NAME.try_get().is_err(), "the scope ends with a panic");
    // The value is borrowed, so a scope cannot be entered. Afterwards it is intact.
    NAME.sync_scope("kept".to_owned(), || {
        let entered = catch_unwind(|| NAME.with(|_| NAME.sync_scope("new".to_owned(), || ())));
        assert!(entered.is_err());
        assert_eq!(NAME.with(|name| NAME.with(|again| (name == again, name.len()))), (true, 4));
    });
    assert!(NAME.try_get().is_err());
}

#[test]
fn value_is_returned_after_completion() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            let mut scope = Box::pin(NAME.scope("value".to_owned(), yield_now()));
            assert!(poll_at_most(1, scope.as_mut()).await.is_none());
            scope.as_mut().await;
            assert!(
                catch_unwind(AssertUnwindSafe(|| {
                    scope.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
                }))
                .is_err(),
                "polled after completion"
            );
            assert_eq!(scope.as_mut().take_value().as_deref(), Some("value"));
            assert_eq!(scope.as_mut().take_value(), None);
            // An early end of the scope takes the value from the future.
            let mut scope =
                Box::pin(NAME.scope("early".to_owned(), poll_fn(|_| Poll::Ready(NAME.try_get()))));
            assert_eq!(scope.as_mut().take_value().as_deref(), Some("early"));
            assert!(scope.await.is_err());
        });
    });
}

/// The future is dropped within its scope, whenever it is dropped.
#[test]
fn destructors_of_future_see_value() {
    on_every_driver_and_sim(|setup| {
        let dropped = Rc::new(RefCell::new(Vec::new()));
        let guard = || Guard { dropped: Rc::clone(&dropped), panics: false };
        let waiting = |number, turns: usize| {
            let guard = guard();
            NUMBER.scope(number, async move {
                let _guard = guard;
                for _ in 0..turns {
                    yield_now().await;
                }
            })
        };
        let runtime = setup.runtime();
        runtime.block_on(async {
            waiting(1, 2).await;
            spawn(waiting(2, 2)).await.unwrap();
            drop(waiting(3, 0));
            assert!(poll_at_most(1, Box::pin(waiting(4, 5))).await.is_none());
            let task = spawn(waiting(5, usize::MAX));
            yield_now().await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            assert_eq!(*dropped.borrow(), [1, 2, 3, 4, 5].map(Some));
            // The value itself is dropped outside.
            GUARD.scope(Rc::new(guard()), async {}).await;
            spawn(waiting(6, usize::MAX)).detach();
            yield_now().await;
        });
        drop(runtime);
        assert_eq!(dropped.borrow()[5..], [None, Some(6)]);
    });
}

#[test]
fn fault_17_panic_in_destructor_of_value_is_contained() {
    on_every_driver_and_sim(|setup| {
        let dropped = Rc::new(RefCell::new(Vec::new()));
        let value = || Rc::new(Guard { dropped: Rc::clone(&dropped), panics: true });
        let runtime = setup.runtime();
        runtime.block_on(async {
            // The future completes, and then the value's destructor panics.
            let error = spawn(GUARD.scope(value(), async { 5 })).await.unwrap_err();
            assert!(error.is_panic(), "{error}");
            let task = spawn(GUARD.scope(value(), pending::<()>()));
            yield_now().await;
            task.abort();
            assert!(task.await.unwrap_err().is_panic());
            // The destructor of the future panics within the scope. The scope ends nevertheless.
            let guard = Guard { dropped: Rc::clone(&dropped), panics: true };
            let scope = Box::pin(NUMBER.scope(7, async move {
                let _guard = guard;
                pending::<()>().await;
            }));
            assert!(catch_unwind(AssertUnwindSafe(|| drop(scope))).is_err());
            assert!(NUMBER.try_get().is_err());
            assert_eq!(*dropped.borrow(), [None, None, Some(7)]);
            assert_eq!(spawn(NUMBER.scope(8, async { NUMBER.get() })).await.unwrap(), 8);
            // Dropped with the runtime.
            spawn(GUARD.scope(value(), pending::<()>())).detach();
            yield_now().await;
        });
        drop(runtime);
        assert_eq!(dropped.borrow().len(), 4);
    });
}

/// A scope that is dropped by the destructor of another thread-local variable, while the thread exits.
#[test]
fn scope_dropped_during_thread_exit_drops_its_future() {
    struct Kept(RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>);

    thread_local! {
        static KEPT: Kept = const { Kept(RefCell::new(None)) };
    }

    struct Report(std::sync::mpsc::Sender<Option<u32>>);

    impl Drop for Report {
        fn drop(&mut self) {
            self.0.send(NUMBER.try_get().ok()).unwrap();
        }
    }

    for is_used_before in [false, true] {
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::spawn(move || {
            if is_used_before {
                NUMBER.sync_scope(1, || ());
            }
            KEPT.with(|kept| {
                let report = Report(sender);
                let scope = NUMBER.scope(9, async move {
                    let _report = report;
                    pending::<()>().await;
                });
                *kept.0.borrow_mut() = Some(Box::pin(scope));
            });
        })
        .join()
        .unwrap();
        let seen = receiver.recv().expect("the future was dropped");
        assert!(matches!(seen, None | Some(9)), "{seen:?}");
    }
}

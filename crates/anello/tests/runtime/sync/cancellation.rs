//! Cancellation tokens: trees, guards and cancelled futures.

use std::future::pending;
use std::rc::Rc;

use anello::sync::CancellationToken;

use super::drivers_and_simulators;
use crate::common::*;

#[test]
fn cancel_reaches_descendants_but_not_ancestors() {
    on_each(drivers_and_simulators(), |setup| {
        setup.run(async {
            let root = CancellationToken::new();
            let (left, right) = (root.child_token(), root.child_token());
            let grandchild = left.child_token();
            // The middle of the tree has no handle any more.
            let deep = right.child_token().child_token().child_token();
            let waiting = [root.clone(), left.clone(), right.clone(), grandchild.clone(), deep.clone()]
                .map(|token| anello::spawn(token.cancelled_owned()));
            anello::yield_now().await;
            left.cancel();
            left.cancel();
            assert!(left.is_cancelled() && grandchild.is_cancelled() && left.child_token().is_cancelled());
            assert!(!root.is_cancelled() && !right.is_cancelled() && !deep.is_cancelled());
            root.cancel();
            assert!(right.is_cancelled() && deep.is_cancelled() && root.child_token().is_cancelled());
            for task in waiting {
                task.await.unwrap();
            }
        });
    });
}

#[test]
fn guard_cancels_when_dropped_unless_disarmed() {
    let token = CancellationToken::new();
    token.clone().drop_guard().disarm();
    token.drop_guard_ref().disarm();
    assert!(!token.is_cancelled());
    drop(token.child_token().drop_guard());
    assert!(!token.is_cancelled());
    let child = token.child_token();
    drop(child.drop_guard_ref());
    assert!(child.is_cancelled() && !token.is_cancelled());
    drop(token.clone().drop_guard());
    assert!(token.is_cancelled());
}

#[test]
fn run_until_cancelled_drops_future() {
    on_each(drivers_and_simulators(), |setup| {
        setup.run(async {
            let token = CancellationToken::new();
            assert_eq!(token.run_until_cancelled(async { 1 }).await, Some(1));
            let owner = Rc::new(());
            let owned = Rc::clone(&owner);
            let task = anello::spawn(token.clone().run_until_cancelled_owned(async move {
                pending::<()>().await;
                drop(owned);
            }));
            anello::yield_now().await;
            assert_eq!(Rc::strong_count(&owner), 2);
            token.cancel();
            assert_eq!(task.await.unwrap(), None);
            assert_eq!(Rc::strong_count(&owner), 1);
            let unpolled = token.run_until_cancelled(async { unreachable!("polled after cancellation") });
            assert_eq!(unpolled.await, None::<()>);
        });
    });
}

#[test]
fn fault_10_dropped_waits_and_children_leave_nothing_behind() {
    on_each(drivers_and_simulators(), |setup| {
        setup.run(async {
            let token = CancellationToken::new();
            for _ in 0..10_000 {
                let child = token.child_token();
                assert!(poll_at_most(1, token.cancelled()).await.is_none());
                assert!(poll_at_most(1, child.cancelled()).await.is_none());
            }
            // The memory of dropped children is released, which `Weak` pointers in the parent would prevent.
            let child = token.child_token();
            token.cancel();
            child.cancelled().await;
        });
    });
}

#[test]
fn long_chain_of_tokens_is_dropped_without_recursion() {
    let root = CancellationToken::new();
    let mut last = root.child_token();
    for _ in 0..200_000 {
        last = last.child_token();
    }
    root.cancel();
    assert!(last.is_cancelled());
    drop(root);
    drop(last);
}

//! Races between two steps of a member, and cleanup after cancellation.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::Runtime;
use crate::net::TcpListener;

fn group(members: usize) -> ListenerGroup<TcpListener> {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    ListenerGroup::new(vec![socket], members)
}

#[test]
fn member_paused_while_opening_has_not_applied_state() {
    let group = group(1);
    Runtime::new().expect("a runtime").block_on(async {
        let member = group.join(0);
        let applied_state = || group.group.lock().slots[0].applied_state;
        // At this point, the member has read that the group is open.
        group.pause();
        member.open().expect("a listener");
        assert_eq!((applied_state(), member.listeners.borrow().len()), (None, 0));
        let mut accepting = pin!(member.accept());
        let accepted = poll_fn(|context| Poll::Ready(accepting.as_mut().poll(context))).await;
        assert!(accepted.is_pending());
        assert_eq!(applied_state(), Some(GroupState::Paused));
    });
}

#[test]
fn cancelled_closed_future_removes_waker() {
    let group = group(1);
    let mut context = Context::from_waker(Waker::noop());
    let waker_count = || group.group.lock().close_wakers.len();
    let mut closed = pin!(group.closed());
    for _ in 0..100 {
        // A future has only one registered waker, however often it is polled.
        assert!(closed.as_mut().poll(&mut context).is_pending());
        assert!(pin!(group.closed()).poll(&mut context).is_pending());
    }
    assert_eq!(waker_count(), 1);
    group.close(PendingConnections::Leave);
    assert_eq!(waker_count(), 0);
    assert!(closed.as_mut().poll(&mut context).is_ready());
}

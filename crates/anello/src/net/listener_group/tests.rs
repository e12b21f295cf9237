//! What happens between two steps of a member, and what is left behind.

use std::pin::pin;

use super::*;
use crate::Runtime;

fn group(members: usize) -> ListenerGroup<TcpListener> {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    ListenerGroup::new(vec![socket], members)
}

#[test]
fn a_member_that_is_told_to_pause_while_it_opens_has_not_settled() {
    let group = group(1);
    Runtime::new().expect("a runtime").block_on(async {
        let member = group.join(0);
        let settled = || group.group.lock().slots[0].settled;
        // It has read that the group is open.
        group.pause();
        member.open().expect("a listener");
        assert_eq!((settled(), member.listeners.borrow().len()), (None, 0));
        let mut accepting = pin!(member.accept());
        let accepted = poll_fn(|context| Poll::Ready(accepting.as_mut().poll(context))).await;
        assert!(accepted.is_pending());
        assert_eq!(settled(), Some(GroupState::Paused));
    });
}

#[test]
fn who_does_not_wait_for_the_close_any_more_leaves_nothing() {
    let group = group(1);
    let mut context = Context::from_waker(Waker::noop());
    let waiting = || group.group.lock().close_wakers.len();
    let mut waits = pin!(group.closed());
    for _ in 0..100 {
        // Polled twice, it is still one.
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert!(pin!(group.closed()).poll(&mut context).is_pending());
    }
    assert_eq!(waiting(), 1);
    group.close(PendingConnections::Leave);
    assert_eq!(waiting(), 0);
    assert!(waits.as_mut().poll(&mut context).is_ready());
}

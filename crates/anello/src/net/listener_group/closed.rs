//! Future that waits for a group to be closed.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::state::{Group, GroupState};

pub(super) struct Closed<'a> {
    group: &'a Group,
    /// ID under which the group stores this future's waker.
    number: Option<u64>,
}

impl<'a> Closed<'a> {
    pub fn new(group: &'a Group) -> Self {
        Self { group, number: None }
    }
}

impl Future for Closed<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let mut state = self.group.lock();
        if matches!(state.group_state, GroupState::Closed(_)) {
            return Poll::Ready(());
        }
        let (number, replaced) = state.await_close(self.number, waker);
        drop(state);
        self.number = Some(number);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let waker = self.number.and_then(|number| self.group.lock().close_wakers.remove(&number));
        // A waker must not be dropped while the group is locked.
        drop(waker);
    }
}

//! Wakers of an event loop: each contains an event as an integer, and waking it adds the event to the list of the running
//! turn. Such wakers need no memory, so storing one costs nothing.

use std::cell::RefCell;
use std::mem::{ManuallyDrop, take};
use std::ptr;
use std::task::{RawWaker, RawWakerVTable, Waker};

use super::queue::WakeQueue;

thread_local! {
    /// Events of the turn that is running on this thread, or `None` outside of a turn. Without a destructor, it exists until
    /// the end of the thread, so that event loops in other thread-local values can be dropped, and run before that.
    static EVENTS: ManuallyDrop<RefCell<Option<Vec<usize>>>> = const { ManuallyDrop::new(RefCell::new(None)) };
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, add_event, add_event, ignore);

fn clone(event: *const ()) -> RawWaker {
    RawWaker::new(event, &VTABLE)
}

fn add_event(event: *const ()) {
    EVENTS.with(|events| events.borrow_mut().as_mut().map(|events| events.push(event.addr())));
}

fn ignore(_event: *const ()) {}

/// Returns a waker for an event. It is not dropped, because that would be an indirect call without an effect.
#[inline(always)]
pub(crate) fn event_waker(event: usize) -> ManuallyDrop<Waker> {
    let raw = RawWaker::new(ptr::without_provenance(event), &VTABLE);
    // SAFETY: the functions of the vtable use the data only as an integer, and access only a list of the calling thread,
    // so they can be called at any time and on any thread.
    ManuallyDrop::new(unsafe { Waker::from_raw(raw) })
}

/// Returns a queue that calls the wakers of events while the driver is borrowed.
pub(crate) fn event_queue() -> WakeQueue {
    WakeQueue::new(&VTABLE, || {
        EVENTS.with(|events| events.borrow().as_ref().is_some_and(|events| !events.is_empty()))
    })
}

/// Runs `turn` and adds the events for which it calls wakers to `events`.
#[inline]
pub(crate) fn collect_events<T>(events: &mut Vec<usize>, turn: impl FnOnce() -> T) -> T {
    // The destructor of a sent buffer can run a turn of another event loop.
    let outer = EVENTS.with(|list| list.replace(Some(take(events))));
    let output = turn();
    *events = EVENTS.with(|list| list.replace(outer)).unwrap_or_default();
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakers_report_their_events_to_the_running_turn() {
        let (mut outer, mut inner) = (vec![1], Vec::new());
        let kept = Waker::clone(&event_waker(3));
        collect_events(&mut outer, || {
            event_waker(2).wake_by_ref();
            collect_events(&mut inner, || Waker::clone(&event_waker(9)).wake());
            kept.wake_by_ref();
        });
        assert_eq!((outer, inner), (vec![1, 2, 3], vec![9]));
        assert!(kept.will_wake(&event_waker(3)) && !kept.will_wake(&event_waker(4)));
    }

    #[test]
    fn waker_on_another_thread_reports_to_no_turn() {
        let mut events = Vec::new();
        collect_events(&mut events, || {
            let waker = Waker::clone(&event_waker(1));
            std::thread::spawn(move || waker.wake()).join().unwrap();
        });
        assert!(events.is_empty());
    }

    #[test]
    fn events_of_the_running_turn_are_work() {
        let queue = event_queue();
        collect_events(&mut Vec::new(), || {
            assert!(!queue.has_work());
            event_waker(1).wake_by_ref();
            assert!(queue.has_work());
        });
    }
}

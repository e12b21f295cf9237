//! Wake-ups: of the tasks that wait for a socket, of event loops, and of drivers by other threads and hosts.

pub(super) mod event_waker;
pub(super) mod notifier;
pub(super) mod queue;
pub(super) mod signal_count;
pub(super) mod waker_set;
pub(super) mod woken_hosts;

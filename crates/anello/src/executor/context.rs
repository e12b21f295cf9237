//! The runtime of the current thread, and what its tasks share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use async_task::Runnable;

use super::mailbox::{Mailbox, Ring};
use super::task::{JoinHandle, Supervised};
use crate::driver::table::Table;
use crate::driver::{Driver, Key, Notifier};
use crate::time::wheel::Wheel;

/// What a task may do between two polls before it has to let others run: operations, each counted once and once more
/// for every 4 KiB.
const BUDGET_PER_POLL: u32 = 128;

/// The parts of a runtime that its sockets, timers and tasks use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub driver: RefCell<Driver>,
    pub timers: RefCell<Wheel<Waker>>,
    /// Tasks ready to run.
    pub(super) ready: RefCell<VecDeque<Runnable>>,
    pub(super) inbox: Arc<Inbox>,
    /// Wakers of the tasks that were polled and are not done: waking them all is how they are found for dropping.
    tasks: RefCell<Table<Waker>>,
    budget: Cell<u32>,
}

/// The part that other threads reach.
#[derive(Debug)]
pub(crate) struct Inbox {
    mailbox: Mailbox<Runnable>,
    notifier: Notifier,
}

thread_local! {
    static CURRENT: Cell<Option<NonNull<Shared>>> = const { Cell::new(None) };
}

/// Calls `use_it` with the runtime that runs on this thread, if one does.
#[inline]
pub(crate) fn with_current<T>(use_it: impl FnOnce(&Shared) -> T) -> Option<T> {
    // SAFETY: the pointer is set by `Entered`, which keeps its `Rc` alive and takes the pointer back when dropped, on
    // this thread; so it is valid whenever it can be read here.
    CURRENT.get().map(|shared| use_it(unsafe { shared.as_ref() }))
}

/// The runtime that runs on this thread.
///
/// # Panics
/// When there is none.
pub(crate) fn current() -> Rc<Shared> {
    let Some(shared) = CURRENT.get() else {
        panic!("no runtime runs on this thread: call this inside Runtime::block_on or a spawned task")
    };
    // SAFETY: the pointer came from an `Rc` that `Entered` still holds (see `with_current`); the count is raised for
    // the new one.
    unsafe {
        Rc::increment_strong_count(shared.as_ptr());
        Rc::from_raw(shared.as_ptr())
    }
}

/// Makes a runtime the current one of this thread until dropped.
pub(super) struct Entered {
    before: Option<NonNull<Shared>>,
    shared: Rc<Shared>,
}

impl Entered {
    pub fn new(shared: &Rc<Shared>) -> Self {
        let shared = Rc::clone(shared);
        let pointer = NonNull::new(Rc::as_ptr(&shared).cast_mut());
        Self { before: CURRENT.replace(pointer), shared }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        debug_assert_eq!(CURRENT.get().map(|shared| shared.as_ptr().cast_const()), Some(Rc::as_ptr(&self.shared)));
        CURRENT.set(self.before);
    }
}

/// Whether a runtime is running on this thread.
pub(super) fn is_entered() -> bool {
    CURRENT.get().is_some()
}

/// A polled task's place in the list of its runtime.
pub(super) struct Membership {
    shared: Rc<Shared>,
    key: Key,
}

/// Enters the task of that waker into the list of the current runtime.
pub(super) fn join(waker: &Waker) -> Option<Membership> {
    if !is_entered() {
        return None;
    }
    let shared = current();
    let key = shared.tasks.borrow_mut().insert(waker.clone());
    Some(Membership { shared, key })
}

impl Drop for Membership {
    fn drop(&mut self) {
        let waker = self.shared.tasks.borrow_mut().remove(self.key);
        drop(waker);
    }
}

impl Shared {
    pub fn new(driver: Driver) -> std::io::Result<Rc<Self>> {
        let notifier = driver.notifier()?;
        let timers = Wheel::new(driver.now_ns());
        Ok(Rc::new(Self {
            driver: RefCell::new(driver),
            timers: RefCell::new(timers),
            ready: RefCell::new(VecDeque::new()),
            inbox: Arc::new(Inbox { mailbox: Mailbox::new(), notifier }),
            tasks: RefCell::new(Table::new()),
            budget: Cell::new(BUDGET_PER_POLL),
        }))
    }

    pub fn now_ns(&self) -> u64 {
        self.driver.borrow().now_ns()
    }

    #[inline]
    pub(super) fn renew_budget(&self) {
        self.budget.set(BUDGET_PER_POLL);
    }

    /// Whether the running task may do more before it lets others run; if not, it is woken again at once.
    #[inline]
    pub fn may_proceed(&self, context: &Context<'_>) -> bool {
        if self.budget.get() == 0 {
            context.waker().wake_by_ref();
            return false;
        }
        true
    }

    /// Counts an operation on `bytes` bytes against the running task.
    #[inline]
    pub fn spend(&self, bytes: usize) {
        let cost = 1 + (bytes >> 12) as u32;
        self.budget.set(self.budget.get().saturating_sub(cost));
    }

    /// Spawns a future that stays on this thread.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let inbox = Arc::clone(&self.inbox);
        // SAFETY: the future is neither `Send` nor need it be: runnables are only run and dropped by this thread. The
        // schedule function puts them into `ready`, which never leaves the thread, or into the mailbox, which this
        // thread empties; before the runtime goes, all tasks are woken and dropped here, after which no runnable of
        // theirs can come to be. The future and the schedule function are 'static.
        let (runnable, task) =
            unsafe { async_task::spawn_unchecked(Supervised::new(future), move |runnable| inbox.schedule(runnable)) };
        runnable.schedule();
        JoinHandle::new(task.fallible())
    }

    /// All tasks that were polled and are not done become ready.
    pub(super) fn wake_all(&self) -> bool {
        let keys = self.tasks.borrow().keys();
        let wakers: Vec<_> = keys.iter().filter_map(|key| self.tasks.borrow().get(*key).cloned()).collect();
        let any = !wakers.is_empty();
        wakers.into_iter().for_each(Waker::wake);
        any
    }
}

impl Inbox {
    /// Makes a task ready: directly on its own thread, through the mailbox from any other.
    #[inline]
    pub fn schedule(self: &Arc<Self>, runnable: Runnable) {
        let mut runnable = Some(runnable);
        with_current(|shared| {
            if Arc::ptr_eq(&shared.inbox, self)
                && let Some(runnable) = runnable.take()
            {
                shared.ready.borrow_mut().push_back(runnable);
            }
        });
        if let Some(runnable) = runnable {
            self.send(runnable);
        }
    }

    fn send(&self, runnable: Runnable) {
        match self.mailbox.push(runnable) {
            Ok(ring) => self.end_sleep(ring),
            // The runtime is gone. Only a task that may be dropped anywhere can still be here (see `Shared::spawn`).
            Err(runnable) => drop(runnable),
        }
    }

    /// Rings without a task.
    pub fn ring(&self) {
        self.end_sleep(self.mailbox.ring());
    }

    fn end_sleep(&self, ring: Ring) {
        if ring == Ring::Awake {
            return;
        }
        let sent = with_current(|shared| match shared.driver.try_borrow_mut() {
            Ok(mut driver) => driver.send_wake(&self.notifier),
            Err(_) => false,
        });
        if sent != Some(true) {
            self.notifier.notify();
        }
    }

    /// Spawns a future that may move between threads.
    pub fn spawn<F>(self: &Arc<Self>, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let inbox = Arc::clone(self);
        // SAFETY: future and output are `Send` and 'static, the schedule function is `Send`, `Sync` and 'static;
        // `Supervised` adds a membership, which is made, used and dropped by the worker: a task whose future was
        // polled is dropped there before its runtime goes.
        let (runnable, task) =
            unsafe { async_task::spawn_unchecked(Supervised::new(future), move |runnable| inbox.schedule(runnable)) };
        runnable.schedule();
        JoinHandle::new(task.fallible())
    }

    #[inline]
    pub(super) fn mailbox(&self) -> &Mailbox<Runnable> {
        &self.mailbox
    }
}

/// Lets the other tasks run once.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

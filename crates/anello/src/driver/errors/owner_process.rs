//! Objects that a child process of `fork(2)` must not use: rings and threads. The kernel maps no ring in the child, and
//! the child has only the thread that called `fork`.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Number of forks between the first process that used this library and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called in the child.
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which an object was created. Recognizes the children of the C library's `fork`, also where
/// `getpid(2)` would be too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerProcess(u32);

impl OwnerProcess {
    pub fn current() -> Self {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the function has the required type, and only increments a static integer. If there is no memory
            // to register it, forks are not recognized.
            #[cfg(not(miri))]
            unsafe {
                libc::pthread_atfork(None, None, Some(count_fork))
            };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns `false` in a child process.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// Panics in a child process (invariant 22).
    #[inline(always)]
    pub fn check(self) {
        if !self.is_current() {
            panic_in_child();
        }
    }
}

#[cold]
#[inline(never)]
fn panic_in_child() -> ! {
    panic!(
        "cannot use a runtime or an event loop in a forked child process (create one in the child, or call exec)"
    )
}

/// A static value of which each process has its own. The child of a fork creates a new one, and leaks that of its
/// parent, because another thread may have held a lock of it.
pub(crate) struct PerProcess<T: 'static> {
    current: AtomicPtr<Owned<T>>,
    new: fn() -> T,
}

struct Owned<T> {
    process: OwnerProcess,
    value: T,
}

impl<T> PerProcess<T> {
    pub const fn new(new: fn() -> T) -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()), new }
    }

    pub fn get(&'static self) -> &'static T {
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: the pointer is null or from `Box::into_raw`, and nothing frees the memory of a value that was stored.
        match unsafe { current.as_ref() } {
            Some(owned) if owned.process.is_current() => &owned.value,
            _ => self.create(current),
        }
    }

    #[cold]
    fn create(&'static self, replaced: *mut Owned<T>) -> &'static T {
        let created = Box::new(Owned { process: OwnerProcess::current(), value: (self.new)() });
        let created = Box::into_raw(created);
        let stored = self.current.compare_exchange(replaced, created, Ordering::AcqRel, Ordering::Acquire);
        if stored.is_err() {
            // SAFETY: from `Box::into_raw`, and not stored. Another thread was faster.
            drop(unsafe { Box::from_raw(created) });
            return self.get();
        }
        // SAFETY: stored, and therefore never freed.
        unsafe { &(*created).value }
    }
}

//! Values that belong to a task, and are accessible to everything that the task calls.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::mem::swap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

/// Declares task-local keys of the type [`LocalKey`](crate::task::LocalKey), in the syntax of `thread_local!` without
/// initial values.
///
/// ```
/// use anello::task_local;
///
/// task_local! {
///     /// Id of the request that the task is serving.
///     pub static REQUEST_ID: u64;
///     static USER: String;
/// }
///
/// # anello::example! {
/// let task = anello::spawn(REQUEST_ID.scope(17, async {
///     anello::yield_now().await;
///     REQUEST_ID.get()
/// }));
/// assert_eq!(task.await.ok(), Some(17));
/// assert!(USER.try_with(|user| user.len()).is_err(), "no value outside of a scope");
/// # }
/// ```
#[macro_export]
macro_rules! task_local {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty);* $(;)?) => {
        $(
            $(#[$attribute])*
            $visibility static $name: $crate::task::LocalKey<$type> = {
                ::std::thread_local! {
                    static VALUE: ::std::cell::RefCell<::std::option::Option<$type>> =
                        const { ::std::cell::RefCell::new(::std::option::Option::None) };
                }
                $crate::task::LocalKey::__new(&VALUE)
            };
        )*
    };
}

/// A key for a value that belongs to a task. Keys are declared by [`task_local!`](crate::task_local).
///
/// Unlike a thread-local variable, it has no initial value: [`scope`](Self::scope) sets the value for a future, and
/// [`sync_scope`](Self::sync_scope) for a closure. Spawned tasks do not inherit values.
///
/// ```
/// anello::task_local! {
///     static REQUEST_ID: u64;
/// }
///
/// fn log(message: &str) -> String {
///     format!("request {}: {message}", REQUEST_ID.get())
/// }
///
/// # anello::example! {
/// let line = REQUEST_ID.scope(17, async { log("accepted") }).await;
/// assert_eq!(line, "request 17: accepted");
/// # }
/// ```
pub struct LocalKey<T: 'static> {
    /// The value of the future that is being polled, or `None` outside of its polls.
    current: &'static thread::LocalKey<RefCell<Option<T>>>,
}

impl<T: 'static> LocalKey<T> {
    #[doc(hidden)]
    pub const fn __new(current: &'static thread::LocalKey<RefCell<Option<T>>>) -> Self {
        Self { current }
    }

    /// Sets the value for all polls of a future, and for its destructor. Scopes can be nested.
    ///
    /// # Panics
    /// The returned future panics if it is polled in the closure of [`with`](Self::with) of the same key.
    ///
    /// ```
    /// anello::task_local! {
    ///     static NAME: &'static str;
    /// }
    ///
    /// # anello::example! {
    /// NAME.scope("outer", async {
    ///     NAME.scope("inner", async { assert_eq!(NAME.get(), "inner") }).await;
    ///     assert_eq!(NAME.get(), "outer");
    /// })
    /// .await;
    /// # }
    /// ```
    pub fn scope<F: Future>(&'static self, value: T, future: F) -> TaskLocalFuture<T, F> {
        TaskLocalFuture { future: Some(future), key: self, value: Some(value) }
    }

    /// Sets the value while a closure runs.
    ///
    /// # Panics
    /// Panics if it is called in the closure of [`with`](Self::with) of the same key.
    ///
    /// ```
    /// anello::task_local! {
    ///     static NUMBER: u32;
    /// }
    ///
    /// assert_eq!(NUMBER.sync_scope(41, || NUMBER.get() + 1), 42);
    /// ```
    #[track_caller]
    pub fn sync_scope<R>(&'static self, value: T, action: impl FnOnce() -> R) -> R {
        let mut value = Some(value);
        self.with_value(&mut value, action)
    }

    /// Exchanges `value` with the current one, calls `action`, and exchanges them again, even if `action` panics.
    #[track_caller]
    fn with_value<R>(&'static self, value: &mut Option<T>, action: impl FnOnce() -> R) -> R {
        match self.exchange(value) {
            Ok(()) => {}
            Err(Inaccessible::Borrowed) => {
                panic!("cannot enter a task-local scope: the value is borrowed (leave `with` first)")
            }
            Err(Inaccessible::Destroyed) => panic!("cannot enter a task-local scope: the thread is exiting"),
        }
        let _restore = RestoreOnDrop(self, value);
        action()
    }

    fn exchange(&'static self, value: &mut Option<T>) -> Result<(), Inaccessible> {
        let exchanged = self.current.try_with(|current| match current.try_borrow_mut() {
            Ok(mut current) => {
                swap(&mut *current, value);
                Ok(())
            }
            Err(_) => Err(Inaccessible::Borrowed),
        });
        exchanged.unwrap_or(Err(Inaccessible::Destroyed))
    }

    /// Calls a closure with the current value.
    ///
    /// ```
    /// anello::task_local! {
    ///     static USER: String;
    /// }
    ///
    /// let length = USER.sync_scope("anna".to_owned(), || USER.with(|user| user.len()));
    /// assert_eq!(length, 4);
    /// ```
    ///
    /// # Panics
    /// Panics outside of a scope of this key. [`try_with`](Self::try_with) returns an error instead.
    #[track_caller]
    pub fn with<R>(&'static self, action: impl FnOnce(&T) -> R) -> R {
        match self.try_with(action) {
            Ok(result) => result,
            Err(error) => panic!("{error}"),
        }
    }

    /// Calls a closure with the current value.
    ///
    /// ```
    /// anello::task_local! {
    ///     static USER: String;
    /// }
    ///
    /// assert!(USER.try_with(|user| user.len()).is_err());
    /// assert_eq!(USER.sync_scope("anna".to_owned(), || USER.try_with(|user| user.len())), Ok(4));
    /// ```
    ///
    /// # Errors
    /// Returns an error outside of a scope of this key.
    pub fn try_with<R>(&'static self, action: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        let result = self.current.try_with(|current| match current.try_borrow() {
            Ok(current) => current.as_ref().map(action),
            // Only `exchange` borrows the value exclusively, and it runs no application code.
            Err(_) => None,
        });
        result.ok().flatten().ok_or(AccessError(()))
    }

    /// Returns a copy of the current value.
    ///
    /// ```
    /// anello::task_local! {
    ///     static REQUEST_ID: u64;
    /// }
    ///
    /// assert_eq!(REQUEST_ID.sync_scope(17, || REQUEST_ID.get()), 17);
    /// ```
    ///
    /// # Panics
    /// Panics outside of a scope of this key.
    #[track_caller]
    pub fn get(&'static self) -> T
    where
        T: Clone,
    {
        self.with(T::clone)
    }

    /// Returns a copy of the current value.
    ///
    /// ```
    /// anello::task_local! {
    ///     static REQUEST_ID: u64;
    /// }
    ///
    /// assert!(REQUEST_ID.try_get().is_err());
    /// assert_eq!(REQUEST_ID.sync_scope(17, || REQUEST_ID.try_get()), Ok(17));
    /// ```
    ///
    /// # Errors
    /// Returns an error outside of a scope of this key.
    pub fn try_get(&'static self) -> Result<T, AccessError>
    where
        T: Clone,
    {
        self.try_with(T::clone)
    }
}

impl<T: 'static> fmt::Debug for LocalKey<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LocalKey").finish_non_exhaustive()
    }
}

/// Exchanges the value of a future with the current one again, even if the future panics.
struct RestoreOnDrop<'a, T: 'static>(&'static LocalKey<T>, &'a mut Option<T>);

impl<T> Drop for RestoreOnDrop<'_, T> {
    fn drop(&mut self) {
        // Cannot fail: no borrow outlives the closure of `with`, and the variable was accessible before.
        self.0.exchange(self.1).ok();
    }
}

enum Inaccessible {
    Borrowed,
    Destroyed,
}

/// Error returned by [`LocalKey::try_with`] outside of a scope.
///
/// ```
/// use anello::task::AccessError;
///
/// anello::task_local! {
///     static REQUEST_ID: u64;
/// }
///
/// let error: AccessError = REQUEST_ID.try_get().unwrap_err();
/// assert!(error.to_string().starts_with("task-local value not set"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessError(());

impl fmt::Display for AccessError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("task-local value not set (call within LocalKey::scope or sync_scope)")
    }
}

impl std::error::Error for AccessError {}

/// Future returned by [`LocalKey::scope`].
///
/// ```
/// use anello::task::TaskLocalFuture;
///
/// anello::task_local! {
///     static REQUEST_ID: u64;
/// }
///
/// # anello::example! {
/// let future: TaskLocalFuture<u64, _> = REQUEST_ID.scope(17, async { REQUEST_ID.get() });
/// assert_eq!(anello::spawn(future).await?, 17);
/// # }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct TaskLocalFuture<T: 'static, F> {
    /// `None` once the future has completed.
    future: Option<F>,
    key: &'static LocalKey<T>,
    /// The value between polls.
    value: Option<T>,
}

/// Only the future is pinned.
impl<T: 'static, F: Unpin> Unpin for TaskLocalFuture<T, F> {}

impl<T: 'static, F> TaskLocalFuture<T, F> {
    /// Returns the value and ends the scope, or `None` if it has been taken before. Used after the future has completed.
    ///
    /// ```
    /// anello::task_local! {
    ///     static NAME: String;
    /// }
    ///
    /// # anello::example! {
    /// let mut scope = std::pin::pin!(NAME.scope("name".to_owned(), async {}));
    /// scope.as_mut().await;
    /// assert_eq!(scope.as_mut().take_value().as_deref(), Some("name"));
    /// # }
    /// ```
    pub fn take_value(self: Pin<&mut Self>) -> Option<T> {
        self.parts().2.take()
    }

    fn parts(self: Pin<&mut Self>) -> (Pin<&mut Option<F>>, &'static LocalKey<T>, &mut Option<T>) {
        // SAFETY: `future` is structurally pinned: it is never moved out and is only dropped in place, by `set(None)`,
        // also in `drop`, and the type is `Unpin` only if the future is. The other fields are not pinned.
        unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), this.key, &mut this.value)
        }
    }
}

impl<T: 'static, F: Future> Future for TaskLocalFuture<T, F> {
    type Output = F::Output;

    #[track_caller]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let (mut future, key, value) = self.parts();
        let polled = key.with_value(value, || {
            let polled = future.as_mut().as_pin_mut()?.poll(context);
            if polled.is_ready() {
                // Within the scope, because the destructor can access the value.
                future.set(None);
            }
            Some(polled)
        });
        match polled {
            Some(polled) => polled,
            None => panic!("task-local scope polled after completion"),
        }
    }
}

impl<T: 'static, F> Drop for TaskLocalFuture<T, F> {
    fn drop(&mut self) {
        if self.future.is_none() {
            return;
        }
        // SAFETY: the value is not moved after this, because it is being dropped.
        let (mut future, key, value) = unsafe { Pin::new_unchecked(self) }.parts();
        let exchanged = key.exchange(value);
        // Without access to the key, the future is dropped outside of the scope, with the fields.
        if exchanged.is_ok() {
            let _restore = RestoreOnDrop(key, value);
            future.set(None);
        }
    }
}

impl<T: 'static + fmt::Debug, F> fmt::Debug for TaskLocalFuture<T, F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TaskLocalFuture").field("value", &self.value).finish_non_exhaustive()
    }
}

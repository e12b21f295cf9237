//! Cancellation tokens: requests to stop that are passed to a tree of tasks.

use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use crate::driver::{Key, Packed, Table, WakerSet};
use crate::executor::cooperative;

/// Request to stop, which any number of tasks can wait for. Clones refer to the same request.
///
/// A child token is cancelled with its parent, but not the other way round. Tokens can be used on any thread. Dropping
/// tokens does not cancel them, unless a [`DropGuard`] exists.
///
/// ```
/// # anello::example! {
/// use anello::sync::CancellationToken;
/// use anello::time::sleep;
///
/// let stop = CancellationToken::new();
/// let connection = stop.child_token();
/// let task = anello::spawn(async move {
///     connection.run_until_cancelled(sleep(std::time::Duration::MAX)).await
/// });
/// stop.cancel();
/// assert_eq!(task.await.expect("the task does not panic"), None);
/// # }
/// ```
#[derive(Clone)]
pub struct CancellationToken {
    node: Arc<Node>,
}

/// Token of a tree. A node keeps its ancestors alive, but not its descendants.
struct Node {
    state: Mutex<State>,
    /// The tasks that wait for this token.
    waiting: WakerSet,
    /// Parent and the key of this node in its table of children. `None` if the node had no parent, or one that was
    /// already cancelled.
    parent: Option<(Arc<Node>, Key)>,
}

struct State {
    is_cancelled: bool,
    children: Table<Weak<Node>, Packed>,
}

impl Node {
    fn new(is_cancelled: bool) -> Arc<Self> {
        Arc::new(Self::unshared(is_cancelled, None))
    }

    fn unshared(is_cancelled: bool, parent: Option<(Arc<Self>, Key)>) -> Self {
        let state = State { is_cancelled, children: Table::new() };
        Self { state: Mutex::new(state), waiting: WakerSet::default(), parent }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No application code runs while the lock is held, so a panic cannot poison it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn cancelled(&self) {
        let mut place = self.waiting.place();
        poll_fn(|context| {
            // Before the state is read, so that a cancellation in between is not missed.
            place.enter(context.waker());
            if self.lock().is_cancelled { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for Node {
    /// Removes the node from its parent. Iterative, so that a long chain of nodes does not overflow the stack.
    fn drop(&mut self) {
        let mut link = self.parent.take();
        while let Some((parent, key)) = link {
            parent.lock().children.remove(key);
            link = Arc::into_inner(parent).and_then(|mut parent| parent.parent.take());
        }
    }
}

impl CancellationToken {
    /// Creates a token that is not cancelled.
    ///
    /// ```
    /// let stop = anello::sync::CancellationToken::new();
    /// assert!(!stop.is_cancelled());
    /// ```
    pub fn new() -> Self {
        Self { node: Node::new(false) }
    }

    /// Creates a token that is cancelled with this one. If this one is already cancelled, so is the new one.
    ///
    /// ```
    /// let server = anello::sync::CancellationToken::new();
    /// let (one, other) = (server.child_token(), server.child_token());
    /// one.cancel();
    /// assert!(!server.is_cancelled() && !other.is_cancelled());
    /// server.cancel();
    /// assert!(other.is_cancelled());
    /// ```
    #[must_use]
    pub fn child_token(&self) -> Self {
        let mut state = self.node.lock();
        if state.is_cancelled {
            return Self { node: Node::new(true) };
        }
        let node = Arc::new_cyclic(|child| {
            let key = state.children.insert(Weak::clone(child));
            Node::unshared(false, Some((Arc::clone(&self.node), key)))
        });
        Self { node }
    }

    /// Cancels this token and its descendants, and wakes all tasks that wait for them.
    ///
    /// ```
    /// # anello::example! {
    /// let stop = anello::sync::CancellationToken::new();
    /// let task = anello::spawn(stop.clone().cancelled_owned());
    /// stop.cancel();
    /// task.await?;
    /// assert!(stop.is_cancelled());
    /// # }
    /// ```
    pub fn cancel(&self) {
        let mut cancelled = vec![Arc::clone(&self.node)];
        let mut next = 0;
        while let Some(node) = cancelled.get(next) {
            let mut state = node.lock();
            let was_cancelled = mem::replace(&mut state.is_cancelled, true);
            let children = mem::replace(&mut state.children, Table::new());
            drop(state);
            if was_cancelled {
                cancelled.swap_remove(next);
            } else {
                next += 1;
            }
            cancelled.extend(children.values().filter_map(Weak::upgrade));
        }
        // Wakers can run arbitrary code. They are called last, when the whole tree is in its new state.
        for node in cancelled {
            node.waiting.wake_all();
        }
    }

    /// Returns whether the token is cancelled.
    ///
    /// ```
    /// let stop = anello::sync::CancellationToken::new();
    /// let clone = stop.clone();
    /// stop.cancel();
    /// assert!(clone.is_cancelled());
    /// ```
    pub fn is_cancelled(&self) -> bool {
        self.node.lock().is_cancelled
    }

    /// Waits until the token is cancelled. Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// let stop = anello::sync::CancellationToken::new();
    /// let guard = stop.clone().drop_guard();
    /// anello::spawn(async move { drop(guard) }).detach();
    /// stop.cancelled().await;
    /// assert!(stop.is_cancelled());
    /// # }
    /// ```
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + '_ {
        cooperative(self.node.cancelled())
    }

    /// Waits until the token is cancelled, with a future that owns the token. Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// let stop = anello::sync::CancellationToken::new();
    /// // The future has no lifetime, so it can be spawned.
    /// let task = anello::spawn(stop.child_token().cancelled_owned());
    /// stop.cancel();
    /// task.await?;
    /// # }
    /// ```
    pub fn cancelled_owned(self) -> impl Future<Output = ()> + Send + 'static {
        cooperative(async move { self.node.cancelled().await })
    }

    /// Runs a future until it completes or the token is cancelled, in which case the future is dropped. Returns `None`
    /// if the token is cancelled first; if it is already cancelled, the future is not polled. Cancel-safe if the given
    /// future is.
    ///
    /// ```
    /// # anello::example! {
    /// use std::future::{pending, ready};
    ///
    /// let stop = anello::sync::CancellationToken::new();
    /// assert_eq!(stop.run_until_cancelled(ready(1)).await, Some(1));
    /// stop.cancel();
    /// assert_eq!(stop.run_until_cancelled(pending::<u32>()).await, None);
    /// # }
    /// ```
    pub async fn run_until_cancelled<F: Future>(&self, future: F) -> Option<F::Output> {
        let (mut place, mut future) = (self.node.waiting.place(), pin!(future));
        poll_fn(|context| {
            if self.is_cancelled() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            place.enter(context.waker());
            // A cancellation since the first check found no waker.
            if self.is_cancelled() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// Runs a future like [`run_until_cancelled`](Self::run_until_cancelled), and owns the token.
    ///
    /// ```
    /// # anello::example! {
    /// let stop = anello::sync::CancellationToken::new();
    /// let connection = std::future::pending::<u32>();
    /// // The future has no lifetime, so it can be spawned.
    /// let task = anello::spawn(stop.child_token().run_until_cancelled_owned(connection));
    /// stop.cancel();
    /// assert_eq!(task.await?, None);
    /// # }
    /// ```
    pub async fn run_until_cancelled_owned<F: Future>(self, future: F) -> Option<F::Output> {
        self.run_until_cancelled(future).await
    }

    /// Returns a guard that cancels the token when it is dropped.
    ///
    /// ```
    /// # anello::example! {
    /// let stop = anello::sync::CancellationToken::new();
    /// let guard = stop.clone().drop_guard();
    /// let task = anello::spawn(async move {
    ///     let _guard = guard;
    ///     panic!("cancels the other tasks");
    /// });
    /// assert!(task.await.is_err());
    /// assert!(stop.is_cancelled());
    /// # }
    /// ```
    #[must_use]
    pub fn drop_guard(self) -> DropGuard {
        DropGuard { token: Some(self) }
    }

    /// Returns a guard that borrows the token, and cancels it when it is dropped.
    ///
    /// ```
    /// let stop = anello::sync::CancellationToken::new();
    /// {
    ///     let _guard = stop.drop_guard_ref();
    ///     assert!(!stop.is_cancelled());
    /// }
    /// assert!(stop.is_cancelled());
    /// ```
    #[must_use]
    pub fn drop_guard_ref(&self) -> DropGuardRef<'_> {
        DropGuardRef { token: Some(self) }
    }
}

impl Default for CancellationToken {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CancellationToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CancellationToken").field("is_cancelled", &self.is_cancelled()).finish()
    }
}

/// Guard returned by [`CancellationToken::drop_guard`]: cancels the token when it is dropped.
///
/// ```
/// use anello::sync::{CancellationToken, DropGuard};
///
/// struct Client {
///     stop: CancellationToken,
///     _stop_on_drop: DropGuard,
/// }
///
/// let stop = CancellationToken::new();
/// let client = Client { stop: stop.clone(), _stop_on_drop: stop.clone().drop_guard() };
/// assert!(!client.stop.is_cancelled());
/// drop(client);
/// assert!(stop.is_cancelled());
/// ```
#[derive(Debug)]
pub struct DropGuard {
    token: Option<CancellationToken>,
}

impl DropGuard {
    /// Returns the token, which is then not cancelled by this guard.
    ///
    /// ```
    /// let guard = anello::sync::CancellationToken::new().drop_guard();
    /// let stop = guard.disarm();
    /// assert!(!stop.is_cancelled());
    /// ```
    #[expect(
        clippy::missing_panics_doc,
        reason = "the token is present until the guard is used up or dropped"
    )]
    pub fn disarm(mut self) -> CancellationToken {
        self.token.take().expect("an armed guard has a token")
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        self.token.iter().for_each(CancellationToken::cancel);
    }
}

/// Guard returned by [`CancellationToken::drop_guard_ref`]: cancels the token when it is dropped.
///
/// ```
/// let stop = anello::sync::CancellationToken::new();
/// let guard = stop.drop_guard_ref();
/// assert!(!stop.is_cancelled());
/// drop(guard);
/// assert!(stop.is_cancelled());
/// ```
#[derive(Debug)]
pub struct DropGuardRef<'a> {
    token: Option<&'a CancellationToken>,
}

impl<'a> DropGuardRef<'a> {
    /// Returns the token, which is then not cancelled by this guard.
    ///
    /// ```
    /// let stop = anello::sync::CancellationToken::new();
    /// let guard = stop.drop_guard_ref();
    /// guard.disarm();
    /// assert!(!stop.is_cancelled());
    /// ```
    #[expect(
        clippy::missing_panics_doc,
        reason = "the token is present until the guard is used up or dropped"
    )]
    pub fn disarm(mut self) -> &'a CancellationToken {
        self.token.take().expect("an armed guard has a token")
    }
}

impl Drop for DropGuardRef<'_> {
    fn drop(&mut self) {
        self.token.iter().for_each(|token| token.cancel());
    }
}

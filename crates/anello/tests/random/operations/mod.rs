//! Operations of every kind that wait for an event, for tests of what can happen to a waiting future: it is dropped,
//! leaked, moved to another runtime, or polled with a waker that misbehaves.
//!
//! Methods that wait in the same code as a listed one have no entry of their own:
//! - the methods of `ReadHalf`, `WriteHalf` and `UnixStream` that `TcpStream` has, too,
//! - methods `poll_*` that the asynchronous method of the same name calls,
//! - functions of `fs` that perform one call on the file pool, and methods of `File` that call listed ones,
//! - `Stdout`, `Stderr` and `ChildStderr`, which are pipes like `pipe::Sender` and `ChildStdout`,
//! - `time::advance`, which is a sleep on the simulated driver,
//! - implementations of the traits in `io` and in other crates, which call the methods `poll_*`,
//! - tokio's own types in `sync`, of which `oneshot::Receiver` and `Mutex` stand for all.
//!
//! `shutdown` of streams and `flush` of in-memory streams complete at the first poll. The methods of `event_loop` do not
//! wait for single operations.

#![allow(dead_code, reason = "each suite uses only a part of this module")]
#![allow(clippy::await_holding_refcell_ref, reason = "only one future at a time uses the object")]

mod fs;
mod io;
mod net;
mod process;
mod sync;
mod task;
mod tests;

use std::cell::RefCell;
use std::future::Future;
use std::io::Result;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use anello::sync::Notify;
use anello::task::unconstrained;
use anello::{DriverKind, JoinHandle, spawn};

use crate::common::Setup;

type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

pub type Waiting = LocalFuture<Result<()>>;

/// An operation that waits for an event.
pub struct Operation {
    start: Box<dyn Fn() -> Waiting>,
    complete: Box<dyn Fn()>,
}

impl Operation {
    /// Returns a future that performs the operation. If it has been dropped before it completed, this method can be
    /// called again. At most one future may exist at a time.
    pub fn start(&self) -> Waiting {
        (self.start)()
    }

    /// Causes the event for which the operation waits. Has no effect if the runtime has been dropped.
    pub fn complete(&self) {
        (self.complete)();
    }
}

/// Drivers that support an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// On all drivers, and its effects on a simulated kernel depend only on the seed.
    Everywhere,
    /// Like `Everywhere`, but does not depend on the options of the driver, and is tested only with the default ones.
    Memory,
    /// Like `Memory`, but with the help of other threads.
    Threads,
    /// On all drivers, on the ring of io_uring if its options permit, otherwise with the help of other threads.
    Ring,
    /// On Linux.
    Linux,
    /// On Linux, without code that depends on the options of the driver.
    Processes,
}

#[derive(Clone)]
pub struct Kind {
    pub name: &'static str,
    pub support: Support,
    /// Whether a pending future may need a current runtime when it is polled.
    pub needs_runtime: bool,
    /// Whether a lossy network can prevent the operation from completing.
    pub uses_network: bool,
    make: Arc<dyn Fn() -> LocalFuture<Operation> + Send + Sync>,
}

impl Kind {
    /// Returns a new operation. The future must be awaited on a running runtime.
    pub fn make(&self) -> LocalFuture<Operation> {
        (self.make)()
    }

    fn needing_runtime(self) -> Self {
        Self { needs_runtime: true, ..self }
    }
}

/// Returns the kinds of operations that a setup supports.
pub fn kinds(setup: &Setup) -> Vec<Kind> {
    let is_simulated = matches!(setup.kind, DriverKind::Sim(_));
    let has_default_options = ["uring", "epoll"].contains(&setup.name);
    let is_supported = |kind: &Kind| match kind.support {
        Support::Everywhere | Support::Ring => true,
        Support::Memory | Support::Threads => is_simulated || has_default_options,
        Support::Linux => !is_simulated,
        Support::Processes => has_default_options,
    };
    let mut all = net::kinds();
    all.iter_mut().for_each(|kind| kind.uses_network = true);
    all.extend(
        [io::kinds(), fs::kinds(), process::kinds(), sync::kinds(), task::kinds()].into_iter().flatten(),
    );
    all.retain(is_supported);
    all
}

/// Returns a kind whose operations are created by a function.
fn kind(name: &'static str, support: Support, make: impl Fn() -> Operation + Send + Sync + 'static) -> Kind {
    let make = move || -> LocalFuture<Operation> { Box::pin(std::future::ready(make())) };
    Kind { name, support, needs_runtime: false, uses_network: false, make: Arc::new(make) }
}

/// Returns a kind whose operations are created by a future.
fn async_kind(
    name: &'static str,
    support: Support,
    make: impl AsyncFn() -> Operation + Copy + Send + Sync + 'static,
) -> Kind {
    let make = move || -> LocalFuture<Operation> { Box::pin(async move { make().await }) };
    Kind { name, support, needs_runtime: false, uses_network: false, make: Arc::new(make) }
}

/// Returns an operation that uses the first object, and whose event is caused with the second one.
fn checked<A: 'static, B: 'static, R, T>(
    (object, remote): (A, B),
    perform: impl AsyncFn(&mut A) -> Result<R> + Copy + 'static,
    complete: impl Fn(&mut B) -> T + 'static,
) -> Operation {
    let (object, remote) = (Rc::new(RefCell::new(object)), RefCell::new(remote));
    let start = move || -> Waiting {
        let object = Rc::clone(&object);
        Box::pin(async move { perform(&mut *object.borrow_mut()).await.map(drop) })
    };
    let complete = move || {
        // Fails if the runtime has been dropped.
        let _ = complete(&mut *remote.borrow_mut());
    };
    Operation { start: Box::new(start), complete: Box::new(complete) }
}

/// Returns an operation whose result is ignored. It can be an error if the runtime has been dropped.
fn unchecked<A: 'static, B: 'static, R, T>(
    objects: (A, B),
    perform: impl AsyncFn(&mut A) -> R + Copy + 'static,
    complete: impl Fn(&mut B) -> T + 'static,
) -> Operation {
    let perform = async move |object: &mut A| {
        perform(object).await;
        Ok(())
    };
    checked(objects, perform, complete)
}

/// Returns an operation that completes without further help.
fn alone<R>(perform: impl AsyncFn() -> R + Copy + 'static) -> Operation {
    unchecked(((), ()), async move |()| perform().await, |()| {})
}

/// Polls a future once, even if the budget of the running task is exhausted.
fn poll_once<F: Future>(future: F) {
    drop(pin!(unconstrained(future)).as_mut().poll(&mut Context::from_waker(Waker::noop())));
}

/// Task that acts after an event. Dropping the peer aborts it.
struct Peer {
    event: Rc<Notify>,
    task: JoinHandle<()>,
}

impl Peer {
    fn new<F: Future<Output = ()> + 'static>(act: impl FnOnce(Rc<Notify>) -> F) -> Self {
        let event = Rc::new(Notify::new());
        Self { task: spawn(act(Rc::clone(&event))), event }
    }

    fn act(&mut self) {
        self.event.notify_one();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

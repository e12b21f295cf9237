//! Tasks of a random program that perform operations of every kind: sockets, files, pipes, children, signals, timers,
//! sets of tasks, channels and locks. `common/operations` lists the operations. Each one completes after its event,
//! whatever happened to the futures that waited for it before.

use std::rc::Rc;
use std::task::{Context, Waker};

use anello::{spawn, yield_now};

use super::Survivor;
use super::actors::{Attempt, attempt, do_side_activity};
use super::hostile::{leave_victim, will_exit};
use super::model::{Leaked, World};
use crate::common::{Rng, Setup, poll_at_most};
use crate::operations::{Kind, Operation, Support, kinds};

/// Returns the kinds of operations that the programs of a setup use. A lossy network loses datagrams and connections,
/// and the memory of other threads is not accounted for on simulated kernels.
pub fn usable_kinds(setup: &Setup, is_lossy: bool) -> Vec<Kind> {
    let is_simulated = matches!(setup.kind, anello::DriverKind::Sim(_));
    let may_be_lost = |kind: &Kind| is_lossy && kind.uses_network;
    let uses_threads = |kind: &Kind| is_simulated && matches!(kind.support, Support::Threads | Support::Ring);
    // Child processes would outlive a process that exits.
    let outlives = |kind: &Kind| will_exit() && kind.support == Support::Processes;
    let is_usable = |kind: &Kind| !may_be_lost(kind) && !uses_threads(kind) && !outlives(kind);
    kinds(setup).into_iter().filter(is_usable).collect()
}

/// Starts a few tasks, and adds them to the objects that may outlive the runtime.
pub fn start(world: &Rc<World>, kinds: &[Kind], random: &mut Rng) {
    for _ in 0..1 + random.usize(..4) {
        let kind = kinds[random.usize(..kinds.len())].clone();
        let task = spawn(repeat(kind, Rc::clone(world), Rng::with_seed(random.u64(..))));
        world.survivors.borrow_mut().push(Survivor::Task(task));
    }
}

/// Performs operations of one kind, which are dropped or completed at random.
async fn repeat(kind: Kind, world: Rc<World>, mut random: Rng) {
    let mut operation = Rc::new(kind.make().await);
    for _ in 0..random.usize(..5) {
        do_side_activity(&world, &mut random).await;
        match random.usize(..3) {
            0 => operation.complete(),
            1 => complete_later(&operation, &mut random),
            _ => {
                if poll_at_most(1, operation.start()).await.is_some() {
                    operation = Rc::new(kind.make().await);
                }
                continue;
            }
        }
        match attempt(operation.start(), &world, &mut random).await {
            Attempt::Done(result) => {
                result.unwrap_or_else(|error| panic!("{}: {error}", kind.name));
                world.note(kind.name, 1);
                let completed = std::mem::replace(&mut operation, Rc::new(kind.make().await));
                leave(completed, &kind, &world, &mut random).await;
            }
            Attempt::Dropped => {
                world.note(kind.name, 0);
                if world.forgets {
                    // A leaked future still uses the object.
                    world.leaked.set(Leaked::Everything);
                    operation.complete();
                    operation = Rc::new(kind.make().await);
                }
            }
        }
    }
    complete_later(&operation, &mut random);
    operation.start().await.unwrap_or_else(|error| panic!("{}: {error}", kind.name));
    world.note(kind.name, 2);
}

/// Causes the event of the operation in another task, which has no effect if it comes too late.
fn complete_later(operation: &Rc<Operation>, random: &mut Rng) {
    let (operation, delay) = (Rc::clone(operation), random.usize(..4));
    spawn(async move {
        for _ in 0..delay {
            yield_now().await;
        }
        operation.complete();
    })
    .detach();
}

/// Leaves the completed operation, or a new pending one, to hostile code or beyond the end of the runtime.
async fn leave(completed: Rc<Operation>, kind: &Kind, world: &World, random: &mut Rng) {
    match random.usize(..6) {
        0 => leave_victim(kind.make().await.start()),
        1 => leave_victim(completed),
        2 if world.ends_early && !kind.needs_runtime => {
            let operation = kind.make().await;
            let mut waiting = operation.start();
            // An operation that has not been started may need the runtime.
            if waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                return;
            }
            world.survivors.borrow_mut().push(Survivor::Future(Box::pin(async move {
                let _operation = operation;
                waiting.await.ok();
            })));
        }
        _ => {}
    }
}

//! Application code that misbehaves when the runtime calls it: wakers, byte owners and a `tracing` subscriber that panic,
//! or that drop streams, handles and runtimes on this thread.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::task::{Wake, Waker};

use anello::time::{self, sleep};
use bytes::Bytes;
use tracing::Event;

use crate::common::{OnEvent, Rng};
use crate::deliberate::panic_deliberately;

thread_local! {
    /// Objects that hostile code on this thread drops when it is called.
    static VICTIMS: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

thread_local! {
    /// Whether a runtime is running on this thread. Hostile code may also be called outside a runtime.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Calls `run`, and records that a runtime is running on this thread during the call.
pub fn while_running<T>(run: impl FnOnce() -> T) -> T {
    RUNS.set(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    RUNS.set(false);
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Records that no runtime is running any more.
pub fn stop_running() {
    RUNS.set(false);
}

/// Stores an object that hostile code may drop later.
pub fn leave_victim(victim: impl Any) {
    VICTIMS.with(|victims| victims.borrow_mut().push(Box::new(victim)));
}

/// Returns the objects that hostile code has not dropped.
pub fn take_victims() -> Vec<Box<dyn Any>> {
    VICTIMS.take()
}

pub fn drop_victims() {
    // One at a time: dropping an object may call hostile code again.
    while let Some(victim) = VICTIMS.with(|victims| victims.borrow_mut().pop()) {
        drop(victim);
    }
}

thread_local! {
    /// Chooses what the subscriber does in the events of this thread, and whether it may panic.
    static EVENTS: Cell<Option<(Rng, bool)>> = const { Cell::new(None) };
}

fn misbehave(event: &Event<'_>) {
    if event.metadata().target().starts_with("anello")
        && let Some((mut random, panics)) = EVENTS.take()
    {
        let action = HostileAction::random(&mut random, panics);
        EVENTS.set(Some((random, panics)));
        action.perform();
    }
}

/// Lets the subscriber misbehave in the events of this thread, or stops it.
pub fn set_hostile_events(hostile: Option<(Rng, bool)>) {
    static INSTALLED: Once = Once::new();
    if hostile.is_some() {
        INSTALLED.call_once(|| {
            tracing::subscriber::set_global_default(OnEvent(misbehave)).expect("the only subscriber");
        });
    }
    EVENTS.set(hostile);
}

/// Exit code of a process that hostile code has ended.
pub const EXIT_CODE: i32 = 42;

/// Number of actions until hostile code ends the process, or 0 if it does not.
static ACTIONS_LEFT: AtomicUsize = AtomicUsize::new(0);

/// Lets hostile code end the process with its action of this number.
pub fn exit_in_action(number: usize) {
    ACTIONS_LEFT.store(number, Ordering::SeqCst);
}

/// Returns whether hostile code will end the process.
pub fn will_exit() -> bool {
    ACTIONS_LEFT.load(Ordering::SeqCst) > 0
}

#[derive(Clone, Copy, Debug)]
enum HostileAction {
    Nothing,
    Panic,
    DropVictim,
    Spawn,
    ReadClock,
}

impl HostileAction {
    fn random(random: &mut Rng, panics: bool) -> Self {
        match random.usize(..6) {
            0 | 1 if panics => Self::Panic,
            2 => Self::DropVictim,
            3 => Self::Spawn,
            4 => Self::ReadClock,
            _ => Self::Nothing,
        }
    }

    fn perform(self) {
        let count_down = |left: usize| left.checked_sub(1);
        if ACTIONS_LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count_down) == Ok(1) {
            // The destructors of thread-local values find no runtime.
            stop_running();
            std::process::exit(EXIT_CODE);
        }
        match self {
            Self::Nothing => {}
            Self::Panic => panic_deliberately(),
            Self::DropVictim => {
                let victim = VICTIMS.try_with(|victims| victims.try_borrow_mut().ok()?.pop());
                drop(victim);
            }
            // Hostile code may be called when no runtime is running.
            Self::Spawn if RUNS.get() => anello::spawn(async {}).detach(),
            Self::ReadClock if RUNS.get() => {
                drop(sleep(time::monotonic_now()));
            }
            Self::Spawn | Self::ReadClock => {}
        }
    }
}

/// Creates hostile objects and counts the live ones.
#[derive(Clone, Default)]
pub struct Hostility {
    alive: Arc<AtomicUsize>,
    /// Whether the objects may also panic.
    pub panics: bool,
}

impl Hostility {
    pub fn new(panics: bool) -> Self {
        Self { panics, ..Self::default() }
    }

    pub fn alive(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }

    fn token(&self) -> Token {
        self.alive.fetch_add(1, Ordering::SeqCst);
        Token(Arc::clone(&self.alive))
    }

    /// Returns a waker that misbehaves when it is called or dropped.
    pub fn waker(&self, random: &mut Rng) -> Waker {
        Waker::from(Arc::new(HostileWaker {
            on_wake: HostileAction::random(random, self.panics),
            on_drop: HostileAction::random(random, self.panics),
            _token: self.token(),
        }))
    }

    /// Returns bytes whose owner misbehaves when it is dropped.
    pub fn bytes(&self, random: &mut Rng, bytes: Vec<u8>) -> Bytes {
        let on_drop = HostileAction::random(random, self.panics);
        Bytes::from_owner(HostileOwner { bytes, on_drop, _token: self.token() })
    }

    /// Returns a value that misbehaves when it is dropped.
    pub fn guard(&self, random: &mut Rng) -> impl Any + Send + use<> {
        HostileOwner {
            bytes: Vec::new(),
            on_drop: HostileAction::random(random, self.panics),
            _token: self.token(),
        }
    }
}

struct Token(Arc<AtomicUsize>);

impl Drop for Token {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct HostileWaker {
    on_wake: HostileAction,
    on_drop: HostileAction,
    _token: Token,
}

impl Wake for HostileWaker {
    fn wake(self: Arc<Self>) {
        self.on_wake.perform();
    }
}

impl Drop for HostileWaker {
    fn drop(&mut self) {
        self.on_drop.perform();
    }
}

struct HostileOwner {
    bytes: Vec<u8>,
    on_drop: HostileAction,
    _token: Token,
}

impl AsRef<[u8]> for HostileOwner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for HostileOwner {
    fn drop(&mut self) {
        // If the kernel is still reading the memory, the peer receives these values.
        self.bytes.fill(0xee);
        self.on_drop.perform();
    }
}

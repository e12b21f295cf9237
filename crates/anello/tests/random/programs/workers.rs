//! Random wake-ups between workers: tokens are passed between runtimes on different threads. Immediately after waking
//! another worker, a task may keep its thread busy, return, or panic.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Poll, Waker};
use std::thread;

use crate::common::{Rng, Setup};
use crate::deliberate::{Deliberate, panic_deliberately};

const WORKERS: usize = 3;

/// Number of tokens in circulation.
const TOKENS: usize = 2;

/// Number of times a token is passed on.
const HOPS: u64 = 40;

/// State shared by the workers.
#[derive(Default)]
struct Tokens {
    inboxes: [Mutex<Inbox>; WORKERS],
    /// Number of tokens that each worker has taken.
    taken: [AtomicU64; WORKERS],
    /// Held by the single worker that keeps its thread busy. Two busy workers could deadlock.
    busy: Mutex<()>,
}

#[derive(Default)]
struct Inbox {
    tokens: VecDeque<Token>,
    waker: Option<Waker>,
    is_closed: bool,
}

struct Token {
    hops_left: u64,
}

impl Tokens {
    fn inbox(&self, worker: usize) -> MutexGuard<'_, Inbox> {
        self.inboxes[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, worker: usize, token: Token) {
        let mut inbox = self.inbox(worker);
        inbox.tokens.push_back(token);
        // The waker stays registered: every sender's wake-up must reach the task, even if another sender has already
        // woken the task.
        let waker = inbox.waker.clone();
        drop(inbox);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Waits for the next token. Returns `None` when the program is over.
    async fn take(&self, worker: usize) -> Option<Token> {
        poll_fn(|context| {
            let mut inbox = self.inbox(worker);
            if let Some(token) = inbox.tokens.pop_front() {
                self.taken[worker].fetch_add(1, Ordering::SeqCst);
                return Poll::Ready(Some(token));
            }
            if inbox.is_closed {
                return Poll::Ready(None);
            }
            inbox.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn close(&self) {
        for worker in 0..WORKERS {
            let mut inbox = self.inbox(worker);
            inbox.is_closed = true;
            let waker = inbox.waker.take();
            drop(inbox);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

/// Runs the program for a seed. A lost wake-up makes it hang.
pub fn run(seed: u64, setup: &Setup) {
    let tokens = Tokens::default();
    let (ended, ends) = mpsc::channel();
    // A thread without a runtime passes tokens to workers, for which another worker may already have queued a wake-up.
    let (requests, requested) = mpsc::channel::<usize>();
    thread::scope(|scope| {
        let (tokens, mut random) = (&tokens, Rng::with_seed(seed));
        scope.spawn(move || {
            requested.into_iter().for_each(|worker| tokens.push(worker, Token { hops_left: 0 }))
        });
        for worker in 0..WORKERS {
            let (random, ended, requests) = (Rng::with_seed(random.u64(..)), ended.clone(), requests.clone());
            scope.spawn(move || work(worker, setup, tokens, random, &requests, &ended));
        }
        drop(requests);
        for number in 0..TOKENS {
            tokens.push(number % WORKERS, Token { hops_left: HOPS });
        }
        for _ in 0..TOKENS {
            ends.recv().expect("workers exit after the tokens arrive");
        }
        tokens.close();
    });
}

/// Passes tokens on until the program is over, on a runtime that is entered again after each return and panic.
fn work(
    worker: usize,
    setup: &Setup,
    tokens: &Tokens,
    mut random: Rng,
    requests: &mpsc::Sender<usize>,
    ended: &mpsc::Sender<()>,
) {
    let runtime = setup.runtime();
    let mut is_over = false;
    while !is_over {
        let run = AssertUnwindSafe(|| {
            is_over = runtime.block_on(pass_on(worker, tokens, &mut random, requests, ended));
        });
        if let Err(payload) = catch_unwind(run)
            && !payload.is::<Deliberate>()
        {
            std::panic::resume_unwind(payload);
        }
        if random.usize(..2) == 0 {
            wait_for_taken(worker, tokens, &mut random, None);
        }
    }
}

/// Passes tokens on. Returns `true` when the program is over, and `false` if the worker should enter its runtime
/// again.
async fn pass_on(
    worker: usize,
    tokens: &Tokens,
    random: &mut Rng,
    requests: &mpsc::Sender<usize>,
    ended: &mpsc::Sender<()>,
) -> bool {
    while let Some(Token { hops_left }) = tokens.take(worker).await {
        if hops_left == 1 {
            ended.send(()).expect("program waits for the tokens");
        }
        if hops_left < 2 {
            continue;
        }
        let next = (worker + 1 + random.usize(..WORKERS - 1)) % WORKERS;
        match random.usize(..8) {
            0 => {
                tokens.push(next, Token { hops_left: hops_left - 1 });
                wait_for_taken(worker, tokens, random, Some((next, requests)));
            }
            1 => {
                tokens.push(next, Token { hops_left: hops_left - 1 });
                return false;
            }
            2 => {
                tokens.push(next, Token { hops_left: hops_left - 1 });
                panic_deliberately();
            }
            _ => tokens.push(next, Token { hops_left: hops_left - 1 }),
        }
    }
    true
}

/// Keeps the thread busy until another worker has taken a token. If this runs inside a task, a thread without a runtime
/// passes a token to the other worker. That thread's wake-up must not wait for the one queued by this task.
fn wait_for_taken(
    worker: usize,
    tokens: &Tokens,
    random: &mut Rng,
    other: Option<(usize, &mpsc::Sender<usize>)>,
) {
    let Ok(_busy) = tokens.busy.try_lock() else { return };
    let other_worker = other.map_or((worker + 1 + random.usize(..WORKERS - 1)) % WORKERS, |(other, _)| other);
    let taken_before = tokens.taken[other_worker].load(Ordering::SeqCst);
    match other {
        Some((other, requests)) => requests.send(other).expect("a token thread"),
        None => tokens.push(other_worker, Token { hops_left: 0 }),
    }
    while tokens.taken[other_worker].load(Ordering::SeqCst) == taken_before
        && !tokens.inbox(other_worker).is_closed
    {
        thread::yield_now();
    }
}

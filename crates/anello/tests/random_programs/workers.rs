//! Random wake-ups among workers: tokens travel between runtimes of different threads, whose tasks keep their threads
//! busy, return, or panic right after they have woken another worker.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Poll, Waker};
use std::thread;

use super::hostile::{Deliberate, panic_deliberately};
use crate::common::{Random, Setup};

const WORKERS: usize = 3;

/// Tokens that travel at the same time.
const TOKENS: usize = 2;

/// How often a token is passed on.
const HOPS: u64 = 40;

/// What the workers share.
#[derive(Default)]
struct Tokens {
    inboxes: [Mutex<Inbox>; WORKERS],
    /// Tokens that each worker has taken.
    taken: [AtomicU64; WORKERS],
    /// Held by the one worker that keeps its thread busy: two could wait for each other.
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

    fn give(&self, worker: usize, token: Token) {
        let mut inbox = self.inbox(worker);
        inbox.tokens.push_back(token);
        // Left for others: the wake-up of each must reach the task, whoever woke it before.
        let waker = inbox.waker.clone();
        drop(inbox);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Waits for the next token; `None` when the program is over.
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

/// Runs the program of a seed, which hangs when a wake-up is lost.
pub fn run(seed: u64, setup: &Setup) {
    let tokens = Tokens::default();
    let (ended, ends) = mpsc::channel();
    // A thread without a runtime, which gives tokens to workers whose wake-up may be queued by another worker.
    let (ask, asked) = mpsc::channel::<usize>();
    thread::scope(|scope| {
        let (tokens, mut random) = (&tokens, Random::new(seed));
        scope.spawn(move || asked.into_iter().for_each(|worker| tokens.give(worker, Token { hops_left: 0 })));
        for worker in 0..WORKERS {
            let (random, ended, ask) = (Random::new(random.next()), ended.clone(), ask.clone());
            scope.spawn(move || work(worker, setup, tokens, random, &ask, &ended));
        }
        drop(ask);
        for number in 0..TOKENS {
            tokens.give(number % WORKERS, Token { hops_left: HOPS });
        }
        for _ in 0..TOKENS {
            ends.recv().expect("the workers live until the tokens have arrived");
        }
        tokens.close();
    });
}

/// Passes tokens on until the program is over, on a runtime that is entered again after each return and panic.
fn work(
    worker: usize,
    setup: &Setup,
    tokens: &Tokens,
    mut random: Random,
    ask: &mpsc::Sender<usize>,
    ended: &mpsc::Sender<()>,
) {
    let runtime = setup.runtime();
    let mut is_over = false;
    while !is_over {
        let run = AssertUnwindSafe(|| {
            is_over = runtime.block_on(pass_on(worker, tokens, &mut random, ask, ended));
        });
        if let Err(payload) = catch_unwind(run)
            && !payload.is::<Deliberate>()
        {
            std::panic::resume_unwind(payload);
        }
        if random.below(2) == 0 {
            wait_for_taken(worker, tokens, &mut random, None);
        }
    }
}

/// Whether the program is over; otherwise the worker is to enter its runtime again.
async fn pass_on(
    worker: usize,
    tokens: &Tokens,
    random: &mut Random,
    ask: &mpsc::Sender<usize>,
    ended: &mpsc::Sender<()>,
) -> bool {
    while let Some(Token { hops_left }) = tokens.take(worker).await {
        if hops_left == 1 {
            ended.send(()).expect("the program waits for the tokens");
        }
        if hops_left < 2 {
            continue;
        }
        let next = (worker + 1 + random.below(WORKERS - 1)) % WORKERS;
        match random.below(8) {
            0 => {
                tokens.give(next, Token { hops_left: hops_left - 1 });
                wait_for_taken(worker, tokens, random, Some((next, ask)));
            }
            1 => {
                tokens.give(next, Token { hops_left: hops_left - 1 });
                return false;
            }
            2 => {
                tokens.give(next, Token { hops_left: hops_left - 1 });
                panic_deliberately();
            }
            _ => tokens.give(next, Token { hops_left: hops_left - 1 }),
        }
    }
    true
}

/// Keeps the thread busy until another worker has taken a token. Inside a task, a thread without a runtime gives that worker
/// a token, whose wake-up must not wait for the one that this task has queued.
fn wait_for_taken(
    worker: usize,
    tokens: &Tokens,
    random: &mut Random,
    other: Option<(usize, &mpsc::Sender<usize>)>,
) {
    let Ok(_busy) = tokens.busy.try_lock() else { return };
    let other_worker = other.map_or((worker + 1 + random.below(WORKERS - 1)) % WORKERS, |(other, _)| other);
    let before = tokens.taken[other_worker].load(Ordering::SeqCst);
    match other {
        Some((other, ask)) => ask.send(other).expect("the thread listens"),
        None => tokens.give(other_worker, Token { hops_left: 0 }),
    }
    while tokens.taken[other_worker].load(Ordering::SeqCst) == before && !tokens.inbox(other_worker).is_closed
    {
        thread::yield_now();
    }
}

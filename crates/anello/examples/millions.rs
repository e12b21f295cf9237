//! Creates many timers, tasks or channels, uses or cancels all of them, and prints the memory of each.
//!
//! ```text
//! cargo run --release -p anello --example millions OPERATION COUNT
//! ```
//!
//! Operations: timers-fire, timers-cancel, tasks-run, tasks-abort, channels-send, channels-drop. Under valgrind's
//! callgrind, the difference between two counts is the number of instructions per object.

use std::error::Error;
use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anello::sync::mpsc;
use anello::time::{Sleep, sleep};
use anello::{Runtime, spawn, yield_now};

/// Time within which all timers fire.
const TIMERS_MS: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: millions OPERATION COUNT";
    let (operation, count) = (arguments.next().ok_or(usage)?, arguments.next().ok_or(usage)?.parse()?);
    Runtime::new()?.block_on(async {
        let before = resident_bytes()?;
        let live = match &*operation {
            "timers-fire" => timers(count, true).await,
            "timers-cancel" => timers(count, false).await,
            "tasks-run" => tasks(count, true).await,
            "tasks-abort" => tasks(count, false).await,
            "channels-send" => channels(count, true).await,
            "channels-drop" => channels(count, false).await,
            _ => return Err(usage.into()),
        }?;
        println!("{operation} {count}: {} bytes each", live.saturating_sub(before) / count.max(1));
        Ok(())
    })
}

/// Returns the resident memory of the process.
fn resident_bytes() -> io::Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("no VmRSS in /proc/self/status"))
}

/// Starts timers, then waits for all or drops them. Returns the resident memory while all are active.
async fn timers(count: usize, waits: bool) -> io::Result<usize> {
    let mut context = Context::from_waker(Waker::noop());
    let mut timers: Vec<Sleep> = Vec::with_capacity(count);
    for index in 0..count {
        let mut timer = sleep(Duration::from_millis((1 + index % TIMERS_MS) as u64));
        assert!(Pin::new(&mut timer).poll(&mut context).is_pending());
        timers.push(timer);
    }
    let live = resident_bytes()?;
    if waits {
        sleep(Duration::from_millis(TIMERS_MS as u64 + 1)).await;
        assert!(timers.iter_mut().all(|timer| Pin::new(timer).poll(&mut context) == Poll::Ready(())));
    }
    Ok(live)
}

/// Spawns tasks, then lets all complete or aborts them. Returns the resident memory while all are alive.
async fn tasks(count: usize, completes: bool) -> io::Result<usize> {
    let handles: Vec<_> = (0..count)
        .map(|index| {
            spawn(async move {
                if !completes {
                    pending::<()>().await;
                }
                yield_now().await;
                index
            })
        })
        .collect();
    // A turn polls a limited number of tasks.
    for _ in 0..count / 100 {
        yield_now().await;
    }
    let live = resident_bytes()?;
    for (index, handle) in handles.into_iter().enumerate() {
        if !completes {
            handle.abort();
        }
        assert_eq!(handle.await.ok(), completes.then_some(index));
    }
    Ok(live)
}

/// Creates channels, then sends and receives a message on all or drops them. Returns the resident memory while all exist.
async fn channels(count: usize, sends: bool) -> io::Result<usize> {
    let mut channels: Vec<_> = (0..count).map(|_| mpsc::channel(1)).collect();
    let live = resident_bytes()?;
    if sends {
        for (index, (sender, receiver)) in channels.iter_mut().enumerate() {
            assert!(sender.send(index).await.is_ok());
            assert_eq!(receiver.recv().await, Some(index));
        }
    }
    Ok(live)
}

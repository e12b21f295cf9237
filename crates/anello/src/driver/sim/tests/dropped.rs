//! Tests of dropped completions: the affected connections fail, but no task waits indefinitely.
//!
//! While the runtime polls a test, the test itself calls the driver's `turn` method.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use std::{io, iter};

use super::super::sockets::SimNetwork;
use crate::Runtime;
use crate::driver::backend::Backend;
use crate::driver::counters::DriverMetrics;
use crate::driver::kernel::Kernel;
use crate::driver::kernel::op::Wait;
use crate::driver::settings::kind::DriverKind;
use crate::driver::settings::options::{DriverOptions, ZeroCopy};
use crate::driver::settings::sim_options::{SimFaults, SimOptions};
use crate::driver::wake::queue::WakeQueue;
use crate::executor::current;
use crate::net::{TcpListener, TcpStream};

/// Runs a test for `count` seeds, or for the number of seeds given by `ANELLO_SEEDS`. Returns the number of runs and
/// the outputs.
pub(super) fn for_seeds<T>(count: u64, test: impl Fn(u64) -> T) -> (usize, Vec<T>) {
    let requested = std::env::var("ANELLO_SEEDS").ok().and_then(|count| count.parse().ok());
    // Under Miri, each step is about a thousand times slower.
    let runs = requested.unwrap_or(if cfg!(miri) { count.div_ceil(100) } else { count });
    let outputs = (0..runs).map(|seed| {
        let _case = PrintOnPanic(seed);
        test(seed)
    });
    (runs as usize, outputs.collect())
}

struct PrintOnPanic(u64);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}

/// Runs a test on a new runtime, and shuts the driver down. Returns the output and the driver's counters.
fn run<T>(sim: SimOptions, options: DriverOptions, test: impl Future<Output = T>) -> (T, DriverMetrics) {
    let runtime = Runtime::builder().driver(DriverKind::Sim(sim)).options(options).build().unwrap();
    runtime.block_on(async {
        let output = test.await;
        let shared = current();
        let mut driver = shared.driver.borrow_mut();
        driver.shut_down(Duration::from_secs(10), &mut WakeQueue::default()).unwrap();
        assert_eq!(driver.metrics().sockets, 0, "sockets left in the driver");
        (output, driver.metrics())
    })
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap())
}

fn network() -> SimNetwork {
    match &*current().driver.borrow().backend {
        Backend::SimCompletion(machine) => machine.kernel.sockets().clone(),
        _ => unreachable!("the tests run on this kernel"),
    }
}

fn set_faults(set: impl FnOnce(&mut SimFaults)) {
    set(&mut network().lock().faults);
}

fn set_dropped(per_mille: u16) {
    set_faults(|faults| faults.dropped_completions = per_mille);
}

fn turn() {
    turn_for(Wait::None);
}

fn turn_for(wait: Wait) {
    let mut wakes = WakeQueue::default();
    current().driver.borrow_mut().turn(wait, &mut wakes).unwrap();
    wakes.call();
}

fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Drops the completion of a connect. The driver then cannot determine which of the operations in flight have ended.
fn drop_completion() {
    set_dropped(900);
    loop {
        let mut connecting = pin!(TcpStream::connect("127.0.0.1:9"));
        assert!(poll_once(connecting.as_mut()).is_pending());
        turn();
        if poll_once(connecting).is_pending() {
            break;
        }
    }
    set_dropped(0);
}

#[test]
fn fault_09_dropped_send_completion_resets_connection() {
    let (runs, errors) = for_seeds(50, |seed| {
        let sim = SimOptions::new(seed).socket_buffer_bytes(64);
        let test = async {
            let (mut near, mut far) = pair().await;
            // More bytes than the buffers can hold: the send is short, and only its completion reports that.
            near.send(vec![7; 100]).await.unwrap();
            set_dropped(900);
            turn();
            set_dropped(0);
            let flush_error = {
                let (mut flushed, mut received) = (pin!(near.flush()), pin!(far.recv()));
                poll_fn(|context| match flushed.as_mut().poll(context) {
                    Poll::Ready(result) => Poll::Ready(result.err()),
                    Poll::Pending => received.as_mut().poll(context).map(|_| None),
                })
                .await?
            };
            let receive_error = near.recv().await.err();
            drop(near);
            let peer_error = loop {
                match far.recv().await {
                    Ok(Some(_)) => {}
                    ended => break ended.err(),
                }
            };
            Some([Some(flush_error), receive_error, peer_error].map(|error| error.map(|error| error.kind())))
        };
        run(sim, DriverOptions::default(), test).0
    });
    let aborted = Some(io::ErrorKind::ConnectionAborted);
    let expected = [aborted, aborted, Some(io::ErrorKind::ConnectionReset)];
    let errors: Vec<_> = errors.into_iter().flatten().collect();
    assert!(errors.iter().all(|errors| *errors == expected), "{errors:?}");
    assert!(errors.len() > runs / 2, "completions dropped for only {} of {runs} sends", errors.len());
}

/// The notification of a zero-copy send is read in the turn in which the completion with its result is dropped.
#[test]
#[cfg_attr(
    plain_memory,
    ignore = "the tool would report memory that the driver leaks when completions are missing"
)]
fn fault_09_zero_copy_send_without_result_is_not_repeated() {
    let (runs, aborted) = for_seeds(200, |seed| {
        let zero_copy = ZeroCopy::Always { threshold_bytes: 16 };
        let mut options = DriverOptions { zero_copy, ..DriverOptions::default() };
        options.testing.disabled_features.buffer_ring = true;
        let test = async {
            let (mut near, mut far) = pair().await;
            assert!(poll_once(far.recv()).is_pending());
            turn();
            near.send(vec![7; 100]).await.unwrap();
            set_faults(|faults| {
                (faults.dropped_completions, faults.completion_overflows, faults.max_delay_ns) =
                    (500, 900, 1);
            });
            turn();
            // A repeated send would run before its cancellation is submitted.
            set_faults(|faults| (faults.dropped_completions, faults.partial_submissions) = (0, 900));
            let flushed = near.flush().await;
            drop(near);
            let mut received = 0;
            while let Ok(Some(chunk)) = far.recv().await {
                received += chunk.len();
            }
            assert!(received <= 100, "{received} bytes received");
            flushed.is_err()
        };
        run(SimOptions::new(seed), options, test).0
    });
    let aborted = aborted.into_iter().filter(|is_aborted| *is_aborted).count();
    assert!(aborted > runs / 4, "{aborted} of {runs} connections were aborted");
}

/// The peer starts reading late. The bytes that it reads before an error are a prefix of the sent bytes, without gaps.
/// It reads EOF only after all of the bytes.
#[test]
fn fault_09_dropped_completions_cause_no_gap_and_no_early_eof() {
    let (runs, whole) = for_seeds(400, |seed| {
        // The last ten bytes are sent while completions are dropped. If the write half has already been shut down, the
        // send is rejected instead.
        let sent: Vec<u8> = (0..200).chain(iter::repeat_n(3, 10)).collect();
        let test = async {
            let (mut near, mut far) = pair().await;
            // Arm the receives before any bytes arrive.
            assert!(poll_once(near.recv()).is_pending() && poll_once(far.recv()).is_pending());
            for chunk in sent[..200].chunks(50) {
                near.send(chunk.to_vec()).await.unwrap();
                near.flush().await.unwrap();
            }
            // In some runs, all bytes and EOF arrive before completions are dropped.
            let turns = seed % 20;
            if turns > 5 {
                near.shutdown().await.unwrap();
            }
            for _ in 0..turns {
                turn_for(Wait::For(100_000));
            }
            // These sends are in flight while completions are dropped.
            far.send(vec![2; 10]).await.ok();
            near.send(vec![3; 10]).await.ok();
            set_dropped(500);
            for _ in 0..3 {
                turn_for(Wait::For(100_000));
            }
            set_dropped(0);
            turn();
            drop(near);
            let mut received = Vec::new();
            loop {
                match far.recv().await {
                    Ok(Some(chunk)) => received.extend_from_slice(&chunk),
                    ended => break (received, ended.is_ok()),
                }
            }
        };
        let sim = SimOptions::new(seed).socket_buffer_bytes(256);
        let ((received, has_eof), _) = run(sim, DriverOptions::default(), test);
        assert!(sent.starts_with(&received), "{received:?}");
        assert!(!has_eof || received.len() >= 200, "EOF after {} bytes", received.len());
        has_eof
    });
    let whole = whole.into_iter().filter(|has_eof| *has_eof).count();
    assert!(0 < whole && whole < runs, "{whole} of {runs} runs reached EOF");
}

/// Runs a test in which an operation whose completion may have been dropped is armed again before its cancellation is
/// submitted. If the cancellation then finds no operation, the newly armed one may still be in flight. The test returns
/// whether the operation was armed again.
fn assert_rearmed_operation_is_cancelled(options: &DriverOptions, test: impl AsyncFn() -> bool) {
    let (runs, rearmed) = for_seeds(100, |seed| {
        let (is_rearmed, metrics) = run(SimOptions::new(seed), options.clone(), test());
        assert_eq!(metrics.late_completions, 0, "a slot was released too early");
        is_rearmed
    });
    let rearmed = rearmed.into_iter().filter(|is_rearmed| *is_rearmed).count();
    assert!(rearmed > runs / 2, "{rearmed} of {runs} operations were armed again");
}

#[test]
fn fault_09_accept_armed_after_dropped_completion_is_in_flight_until_cancelled() {
    let mut options = DriverOptions::default();
    options.testing.disabled_features.multishot_accept = true;
    assert_rearmed_operation_is_cancelled(&options, async || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(poll_once(listener.accept()).is_pending());
        turn();
        drop_completion();
        // Connect without the driver, because the kernel consumes only the first submission, which cancels the earlier
        // connect.
        let (network, address) = (network(), listener.local_addr().unwrap());
        let client = network.lock().open_stream("0.0.0.0:0".parse().unwrap());
        network.lock().connect(client, address).unwrap();
        set_faults(|faults| faults.partial_submissions = 900);
        turn();
        let accepted = poll_once(listener.accept());
        assert!(accepted.is_pending() || poll_once(listener.accept()).is_pending());
        drop(listener);
        network.lock().close(client);
        accepted.is_ready()
    });
}

/// The operation is the readability poll of a direct stream.
#[test]
fn fault_09_poll_armed_after_dropped_completion_is_in_flight_until_cancelled() {
    let mut options = DriverOptions { direct_send_threshold_bytes: 1, ..DriverOptions::default() };
    options.testing.disabled_features.buffer_ring = true;
    assert_rearmed_operation_is_cancelled(&options, async || {
        let (mut near, mut far) = pair().await;
        assert!(poll_once(near.recv()).is_pending() && poll_once(far.recv()).is_pending());
        turn();
        drop_completion();
        // Send with a system call, because the kernel consumes only the first submission, which cancels the other poll.
        near.send(vec![7; 10]).await.unwrap();
        set_faults(|faults| (faults.partial_submissions, faults.multishot_terminations) = (900, 900));
        turn();
        let Poll::Ready(chunk) = poll_once(far.recv()) else { return false };
        assert_eq!(chunk.unwrap().as_deref(), Some(&[7; 10][..]));
        assert!(poll_once(far.recv()).is_pending());
        true
    });
}

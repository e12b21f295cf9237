//! Signals: delivery to every listener, default actions, signals that cannot be caught, and the simulator.

use std::io::ErrorKind;
use std::thread;

use anello::signal::{SignalKind, Signals, ctrl_c, signal};
use rustix::process::Signal;

use crate::common::{
    OwnProcess, both_drivers, in_own_process, on_both_drivers, on_each, on_every_driver, poll_at_most,
    simulated_drivers,
};

/// Runs in a child process, because signals affect the whole process.
#[test]
fn signals_end_wait() {
    in_own_process(|| {
        on_every_driver(|setup| {
            setup.run(async {
                let mut signals = Signals::new([SignalKind::hangup()]).unwrap();
                assert!(crate::common::poll_at_most(1, signals.recv()).await.is_none());
                for _ in 0..20 {
                    let thread = thread::spawn(|| kill_self(Signal::HUP));
                    assert_eq!(signals.recv().await.unwrap(), SignalKind::hangup());
                    thread.join().unwrap();
                }
                // Sends two different signals, which the kernel does not merge, before any task waits for them.
                let mut both = Signals::new([SignalKind::hangup(), SignalKind::interrupt()]).unwrap();
                for signal in [Signal::HUP, Signal::INT] {
                    kill_self(signal);
                }
                let mut caught = [both.recv().await.unwrap(), both.recv().await.unwrap()];
                caught.sort_unstable();
                assert_eq!(caught, [SignalKind::hangup(), SignalKind::interrupt()]);
                assert!(crate::common::poll_at_most(1, both.recv()).await.is_none());
                signals.recv().await.unwrap();
            });
        });
    });
}

/// Environment variable with the name of the child's driver.
const DRIVER: &str = "ANELLO_TEST_DRIVER";

fn kill_self(signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::getpid(), signal).unwrap();
}

#[test]
fn signal_kills_process_after_last_signals_handle_is_dropped() {
    on_both_drivers(move |setup| {
        OwnProcess::default().variable(DRIVER, setup.name).run_killed_by(libc::SIGTERM, || {
            let setup = both_drivers()
                .into_iter()
                .find(|setup| std::env::var(DRIVER).is_ok_and(|name| name == setup.name));
            setup.unwrap().run(async {
                for _ in 0..2 {
                    let mut first = Signals::new([SignalKind::terminate(), SignalKind::interrupt()]).unwrap();
                    let mut second =
                        Signals::new([SignalKind::interrupt(), SignalKind::terminate()]).unwrap();
                    kill_self(Signal::TERM);
                    assert_eq!(first.recv().await.unwrap(), SignalKind::terminate());
                    assert_eq!(second.recv().await.unwrap(), SignalKind::terminate());
                    drop(first);
                    // The other handle still catches the signal.
                    kill_self(Signal::TERM);
                    assert_eq!(second.recv().await.unwrap(), SignalKind::terminate());
                    drop(second);
                }
                kill_self(Signal::TERM);
                // Another thread may have received the signal.
                thread::sleep(crate::common::hang_timeout());
            });
        });
    });
}

#[test]
fn ignored_signal_is_ignored_again_after_signals_handle_is_dropped() {
    OwnProcess::with_hang_up_ignored().run(|| {
        on_both_drivers(|setup| {
            setup.run(async {
                let mut signals = Signals::new([SignalKind::hangup()]).unwrap();
                kill_self(Signal::HUP);
                assert_eq!(signals.recv().await.unwrap(), SignalKind::hangup());
                drop(signals);
                kill_self(Signal::HUP);
                // The previous signal has been delivered by the time this one is caught.
                let mut signals = Signals::new([SignalKind::interrupt()]).unwrap();
                kill_self(Signal::INT);
                assert_eq!(signals.recv().await.unwrap(), SignalKind::interrupt());
            });
        });
    });
}

/// Runs in a child process, because signals affect the whole process.
#[test]
fn one_signal_wakes_every_listener_once() {
    in_own_process(|| {
        on_every_driver(|setup| {
            setup.run(async {
                let mut one = signal(SignalKind::user_defined1()).unwrap();
                let mut other = signal(SignalKind::user_defined1()).unwrap();
                assert!(poll_at_most(1, one.recv()).await.is_none());
                kill_self(Signal::USR1);
                assert_eq!(one.recv().await, Some(()));
                assert_eq!(other.recv().await, Some(()));
                assert!(poll_at_most(1, one.recv()).await.is_none());
                drop(one);
                kill_self(Signal::USR1);
                assert_eq!(other.recv().await, Some(()));
            });
        });
    });
}

#[test]
fn listener_is_closed_after_runtime_is_dropped() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            let runtime = setup.runtime();
            let mut listener = runtime.block_on(async { signal(SignalKind::user_defined1()).unwrap() });
            drop(runtime);
            setup.run(async { assert_eq!(listener.recv().await, None) });
        });
    });
}

#[test]
fn ctrl_c_returns_for_every_interrupt() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            setup.run(async {
                // Keeps the signal caught between the calls.
                let mut interrupts = signal(SignalKind::interrupt()).unwrap();
                for _ in 0..3 {
                    let waiting = anello::spawn(ctrl_c());
                    // The signal is caught at the first poll.
                    anello::yield_now().await;
                    kill_self(Signal::INT);
                    waiting.await.unwrap().unwrap();
                    interrupts.recv().await.unwrap();
                }
            });
        });
    });
}

#[test]
fn signal_that_cannot_be_caught_is_rejected() {
    on_both_drivers(|setup| {
        setup.run(async {
            for number in [libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV] {
                let error = signal(SignalKind::from_raw(number)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                assert!(error.to_string().starts_with("cannot catch SIG"), "{error}");
            }
            for number in [0, -1, 65, i32::MAX, i32::MIN] {
                let error = signal(SignalKind::from_raw(number)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{number}: {error}");
            }
        });
    });
}

#[test]
fn signal_is_unsupported_on_simulator_without_hosts() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            let error = Signals::new([SignalKind::terminate()]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(
                error.to_string().contains("use sim::Simulation, or the uring or epoll driver"),
                "{error}"
            );
        });
    });
}

/// Fault 11: listeners that are dropped leave no descriptors behind.
#[test]
fn fault_11_dropped_listeners_leave_no_descriptors() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            setup.run(async {
                let create = async || {
                    for _ in 0..100 {
                        let mut listener = signal(SignalKind::user_defined2()).unwrap();
                        assert!(poll_at_most(1, listener.recv()).await.is_none());
                    }
                    for _ in 0..crate::common::TURNS {
                        anello::yield_now().await;
                    }
                };
                create().await;
                let before = crate::common::usage::usage().descriptors;
                create().await;
                assert_eq!(crate::common::usage::usage().descriptors, before);
            });
        });
    });
}

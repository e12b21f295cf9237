//! Signals of simulated hosts.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use anello::signal::{SignalKind, Signals, ctrl_c, signal};
use anello::sim::{SimModel, Simulation};
use anello::spawn;
use anello::time::{Instant, sleep, timeout};

const MODELS: [SimModel; 2] = [SimModel::Completion, SimModel::Readiness];

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn every_listener_on_host_receives_every_signal() {
    for model in MODELS {
        let mut sim = Simulation::builder().model(model).build();
        let (events, log) = (Rc::new(RefCell::new(Vec::new())), |events: &Rc<_>| Rc::clone(events));
        for name in ["a", "b"] {
            let events = log(&events);
            sim.host(name, move || {
                let events = log(&events);
                async move {
                    let mut signals = Signals::new([SignalKind::terminate(), SignalKind::hangup()])?;
                    let mut hangups = signal(SignalKind::hangup())?;
                    let own = log(&events);
                    spawn(async move {
                        // The signals that arrive while no task waits are not lost.
                        sleep(seconds(10)).await;
                        while hangups.recv().await.is_some() {
                            own.borrow_mut().push(format!("{name}: second {}", SignalKind::hangup()));
                        }
                    })
                    .detach();
                    loop {
                        let received = signals.recv().await?;
                        events.borrow_mut().push(format!("{name}: {received}"));
                    }
                }
            });
        }
        let control = sim.control();
        sim.client("client", async move {
            control.signal("a", SignalKind::hangup());
            sleep(seconds(1)).await;
            control.signal("a", SignalKind::hangup());
            control.signal("b", SignalKind::terminate());
            sleep(seconds(20)).await;
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}"));
        let events = events.take();
        let count = |event: &str| events.iter().filter(|other| *other == event).count();
        assert_eq!((count("a: SIGHUP"), count("a: second SIGHUP")), (2, 2), "{events:?}");
        assert_eq!((count("b: SIGTERM"), events.len()), (1, 5), "{events:?}");
    }
}

#[test]
fn signal_without_listener_performs_default_action() {
    let mut sim = Simulation::builder().build();
    sim.host("server", || async {
        // The listener is dropped after one second.
        timeout(seconds(1), ctrl_c()).await.ok();
        std::future::pending().await
    });
    let control = sim.control();
    sim.client("client", async move {
        let start = Instant::now();
        sleep(seconds(1) / 2).await;
        control.signal("server", SignalKind::interrupt());
        sleep(seconds(2)).await;
        assert!(control.is_running("server"), "the listener has received the signal");
        for ignored in [SignalKind::child(), SignalKind::window_change(), SignalKind::pipe()] {
            control.signal("server", ignored);
        }
        sleep(seconds(1)).await;
        assert!(control.is_running("server"));
        control.signal("server", SignalKind::interrupt());
        sleep(seconds(1)).await;
        assert!(!control.is_running("server"), "the signal terminates the program");
        // Has no effect.
        control.signal("server", SignalKind::interrupt());
        control.restart("server");
        sleep(seconds(2)).await;
        assert!(control.is_running("server"));
        control.signal("server", SignalKind::from_raw(libc::SIGKILL));
        sleep(seconds(1)).await;
        assert!(!control.is_running("server"));
        assert_eq!(start.elapsed().as_secs(), 7);
        Ok(())
    });
    sim.run().unwrap_or_else(|error| panic!("{error}\n{}", sim.trace()));
}

/// A listener can be moved to another host, because all hosts share a thread.
#[test]
fn listeners_of_crashed_host_end() {
    for model in MODELS {
        let mut sim = Simulation::builder().model(model).build();
        let (moved, listeners) = (Rc::new(RefCell::new(Vec::new())), |moved: &Rc<_>| Rc::clone(moved));
        let moving = listeners(&moved);
        sim.host("server", move || {
            let moved = listeners(&moving);
            async move {
                moved.borrow_mut().push((
                    signal(SignalKind::hangup())?,
                    Signals::new([SignalKind::hangup(), SignalKind::terminate()])?,
                ));
                std::future::pending().await
            }
        });
        let control = sim.control();
        sim.client("client", async move {
            sleep(seconds(1)).await;
            let (mut hangups, mut signals) = moved.take().pop().expect("the server has started");
            let waiting = spawn(async move { (hangups.recv().await, hangups) });
            let waiting_for_several = spawn(async move { (signals.recv().await, signals) });
            sleep(seconds(1)).await;
            assert!(!waiting.is_finished() && !waiting_for_several.is_finished());
            control.crash("server");
            let (received, mut hangups) = waiting.await.expect("the task does not panic");
            assert_eq!(received, None);
            let (received, _signals) = waiting_for_several.await.expect("the task does not panic");
            assert_eq!(received.expect_err("the runtime has ended").kind(), io::ErrorKind::NotConnected);
            // The listener does not receive the signals of the next start.
            control.restart("server");
            sleep(seconds(1)).await;
            control.signal("server", SignalKind::hangup());
            sleep(seconds(1)).await;
            assert!(control.is_running("server"), "the new listener has received the signal");
            assert_eq!(hangups.recv().await, None);
            Ok(())
        });
        sim.run().unwrap_or_else(|error| panic!("{model:?}: {error}"));
    }
}

/// Signals of the process and of hosts are independent.
#[test]
fn signal_of_process_does_not_reach_host() {
    let mut sim = Simulation::builder().build();
    sim.client("client", async {
        let mut signals = signal(SignalKind::window_change())?;
        signal_hook::low_level::raise(libc::SIGWINCH)?;
        assert!(timeout(seconds(1), signals.recv()).await.is_err());
        Ok::<_, io::Error>(())
    });
    sim.run().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
#[should_panic(expected = "cannot send SIGSTOP")]
fn process_cannot_be_stopped() {
    let mut sim = Simulation::builder().build();
    sim.host("server", async || Ok(()));
    sim.signal("server", SignalKind::from_raw(libc::SIGSTOP));
}

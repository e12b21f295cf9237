//! Tests of dropped completions: the affected connections fail, and no task waits indefinitely.

use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::task::Poll;

use super::super::super::options::DriverOptions;
use super::super::super::wake::WakeQueue;
use super::super::{SimFaults, SimModel, SimOptions};
use super::streams::{options, run_echo};
use super::{Backend, Wait, World, for_seeds, scaled};

fn set_dropped(world: &World, per_mille: u16) {
    if let Backend::SimCompletion(machine) = &*world.driver.borrow().backend {
        machine.kernel.network().faults.dropped_completions = per_mille;
    }
}

fn turn(world: &World) {
    turn_for(world, Wait::None);
}

fn turn_for(world: &World, wait: Wait) {
    let mut wakes = WakeQueue::default();
    world.driver.borrow_mut().turn(wait, &mut wakes).unwrap();
    wakes.call();
}

#[test]
fn fault_09_dropped_send_completion_resets_connection() {
    let mut dropped = 0;
    let runs = scaled(50);
    for_seeds(50, SimModel::Completion, |seed| {
        let options = SimOptions::new(seed).socket_buffer_bytes(64);
        let world = World::new(&options, &DriverOptions::default());
        let (listener, address) = world.listen();
        let opening = world.clone();
        let (near, far) = world.run_one(async move { opening.connect_pair(&listener, address).await });
        // More bytes than the buffers can hold: the send is short, and only its completion reports that.
        let near = Rc::new(near);
        let sender = Rc::clone(&near);
        world.run_one(async move { sender.send(vec![7; 100]).await.unwrap() });
        set_dropped(&world, 900);
        turn(&world);
        set_dropped(&world, 0);
        let errors = world.run_one(async move {
            let (mut flushed, mut received) = (Box::pin(near.flush()), Box::pin(far.receive()));
            let first = poll_fn(|context| match flushed.as_mut().poll(context) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => received.as_mut().poll(context).map(|_| None),
            })
            .await;
            drop((flushed, received));
            let Some(Err(flush_error)) = first else { return None };
            let receive_error = near.receive().await.err();
            drop(near);
            let peer_error = loop {
                match far.receive().await {
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            Some([Some(flush_error), receive_error, peer_error])
        });
        if let Some(errors) = errors {
            dropped += 1;
            let aborted = Some(io::ErrorKind::ConnectionAborted);
            let expected = [aborted, aborted, Some(io::ErrorKind::ConnectionReset)];
            assert_eq!(errors.map(|error| error.map(|error| error.kind())), expected);
        }
        world.shut_down().unwrap();
    });
    assert!(dropped > runs / 2, "completions dropped for only {dropped} of {runs} sends");
}

#[test]
#[cfg_attr(
    plain_memory,
    ignore = "the tool would report memory that the driver leaks when completions are missing"
)]
fn fault_09_dropped_completions_lose_no_bytes_without_an_error() {
    let (mut whole, mut broken) = (0, 0);
    for_seeds(400, SimModel::Completion, |seed| {
        let faults = SimFaults {
            dropped_completions: [2, 10, 50][seed as usize / 3 % 3],
            ..SimFaults::lossless([0, 50, 300][seed as usize % 3])
        };
        let options = options(seed, SimModel::Completion, faults);
        let (world, clients) = run_echo(&options, 20 * 1024, false);
        for client in clients {
            let received = client.received.borrow();
            assert!(client.sent.starts_with(&received), "echoed bytes differ");
            if client.whole.get() {
                whole += 1;
                assert!(client.sent.len() == received.len(), "bytes are missing without an error");
            } else {
                broken += 1;
            }
        }
        world.shut_down().unwrap();
    });
    assert!(whole > 0 && broken > 0, "{whole} whole, {broken} broken");
}

/// The peer reads late. The bytes that it reads before an error are a prefix of the sent bytes, without a gap. It reads
/// EOF only after all bytes.
#[test]
fn fault_09_dropped_completions_cause_no_gap_and_no_early_eof() {
    let (mut whole, mut broken) = (0, 0);
    for_seeds(400, SimModel::Completion, |seed| {
        let options = SimOptions::new(seed).socket_buffer_bytes(256);
        let world = World::new(&options, &DriverOptions::default());
        let (listener, address) = world.listen();
        // Ten more bytes are sent while completions are dropped, or rejected after the write half has been shut down.
        let sent: Vec<u8> = (0..200).collect();
        let (opening, bytes) = (world.clone(), sent.clone());
        let (bytes, received_eof) = world.run_one(async move {
            let (near, far) = opening.connect_pair(&listener, address).await;
            // Arms the receives before any bytes arrive.
            for stream in [&near, &far] {
                let mut receiving = Box::pin(stream.receive());
                poll_fn(|context| {
                    assert!(receiving.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
            }
            for chunk in bytes.chunks(50) {
                near.send(chunk.to_vec()).await.unwrap();
                near.flush().await.unwrap();
            }
            // In some runs, all bytes and EOF arrive before completions are dropped.
            let turns = seed % 20;
            if turns > 5 {
                near.finish().await.unwrap();
            }
            for _ in 0..turns {
                turn_for(&opening, Wait::For(100_000));
            }
            // In flight while completions are dropped.
            far.send(vec![2; 10]).await.ok();
            near.send(vec![3; 10]).await.ok();
            set_dropped(&opening, 500);
            for _ in 0..3 {
                turn_for(&opening, Wait::For(100_000));
            }
            set_dropped(&opening, 0);
            turn(&opening);
            drop(near);
            let mut received = Vec::new();
            while let Ok(chunk) = far.receive().await {
                let Some(chunk) = chunk else { return (received, true) };
                received.extend_from_slice(&chunk);
            }
            (received, false)
        });
        let all = [&sent[..], &[3; 10]].concat();
        assert!(all.starts_with(&bytes), "{bytes:?}");
        assert!(!received_eof || bytes.len() >= sent.len(), "EOF after {} bytes", bytes.len());
        match received_eof {
            true => whole += 1,
            false => broken += 1,
        }
        world.shut_down().unwrap();
    });
    assert!(whole > 0 && broken > 0, "{whole} whole, {broken} broken");
}

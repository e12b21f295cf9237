//! Tests of dropped completions: the affected connections fail, and no task waits indefinitely.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use super::super::super::options::DriverOptions;
use super::super::super::wake::WakeQueue;
use super::super::{SimFaults, SimModel, SimOptions};
use super::streams::{options, run_echo};
use super::{Backend, Stream, Wait, World, scaled};

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
    for seed in 0..runs {
        let options = SimOptions::new(seed).socket_buffer_bytes(64);
        let world = World::new(&options, &DriverOptions::default());
        let (listener, address) = world.listen();
        let pair = Rc::new(RefCell::new(Vec::<Stream>::new()));
        let (opened, opening) = (Rc::clone(&pair), world.clone());
        let open = async move {
            let near = opening.connect(address).await.unwrap();
            let far = listener.accept().await;
            opened.borrow_mut().extend([near, far]);
        };
        world.run(vec![Box::pin(open)]).unwrap();
        let far = pair.borrow_mut().pop().unwrap();
        let near = pair.borrow_mut().pop().unwrap();
        // More bytes than the buffers can hold: the send is short, and only its completion reports that.
        let (near, sending) = (Rc::new(near), Rc::new(Cell::new(false)));
        let (sender, is_sent) = (Rc::clone(&near), Rc::clone(&sending));
        let send = async move {
            sender.send(vec![7; 100]).await.unwrap();
            is_sent.set(true);
        };
        world.run(vec![Box::pin(send)]).unwrap();
        assert!(sending.get());
        set_dropped(&world, 900);
        turn(&world);
        set_dropped(&world, 0);
        let results = Rc::new(RefCell::new(Vec::<io::Result<usize>>::new()));
        let (outcomes, peer) = (Rc::clone(&results), Rc::new(far));
        let close = async move {
            let flushed = near.flush();
            let received = peer.receive();
            let (mut flushed, mut received) = (Box::pin(flushed), Box::pin(received));
            let first = std::future::poll_fn(|context| match flushed.as_mut().poll(context) {
                std::task::Poll::Ready(result) => std::task::Poll::Ready(Some(result)),
                std::task::Poll::Pending => received.as_mut().poll(context).map(|_| None),
            })
            .await;
            drop((flushed, received));
            if let Some(Err(error)) = first {
                outcomes.borrow_mut().push(Err(error));
                let received = near.receive().await.map(|chunk| chunk.map_or(0, |chunk| chunk.len()));
                outcomes.borrow_mut().push(received);
                drop(near);
                let last = loop {
                    match peer.receive().await {
                        Ok(Some(_)) => {}
                        Ok(None) => break Ok(0),
                        Err(error) => break Err(error),
                    }
                };
                outcomes.borrow_mut().push(last);
            } else {
                drop(near);
            }
        };
        world.run(vec![Box::pin(close)]).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let errors: Vec<_> =
            results.borrow().iter().map(|result| result.as_ref().err().map(io::Error::kind)).collect();
        if !errors.is_empty() {
            dropped += 1;
            let aborted = Some(io::ErrorKind::ConnectionAborted);
            let expected = [aborted, aborted, Some(io::ErrorKind::ConnectionReset)];
            assert_eq!(errors, expected, "seed {seed}");
        }
        world.shut_down().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(dropped > runs / 2, "{dropped} of {runs} sends lost their completion");
}

#[test]
#[cfg_attr(
    plain_memory,
    ignore = "the tool would report memory that the driver leaks when completions are missing"
)]
fn fault_09_dropped_completions_lose_no_bytes_without_an_error() {
    let (mut whole, mut broken) = (0, 0);
    for seed in 0..scaled(400) {
        let mut faults = SimFaults::lossless([0, 50, 300][seed as usize % 3]);
        faults.dropped_completions = [2, 10, 50][seed as usize / 3 % 3];
        let options = options(seed, SimModel::Completion, faults);
        let (world, clients) = run_echo(&options, scaled(20 * 1024) as usize, false)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for client in clients {
            let received = client.received.borrow();
            assert!(client.sent.starts_with(&received), "seed {seed}: other bytes came back");
            if client.whole.get() {
                whole += 1;
                assert!(
                    client.sent.len() == received.len(),
                    "seed {seed}: bytes are missing without an error"
                );
            } else {
                broken += 1;
            }
        }
        world.shut_down().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(whole > 0 && broken > 0, "{whole} whole, {broken} broken");
}

/// The peer reads late. The bytes that it reads before an error are a prefix of the sent bytes, without a gap. It reads
/// EOF only after all bytes.
#[test]
fn fault_09_dropped_completions_cause_no_gap_and_no_early_eof() {
    let (mut whole, mut broken) = (0, 0);
    for seed in 0..scaled(400) {
        let options = SimOptions::new(seed).socket_buffer_bytes(256);
        let world = World::new(&options, &DriverOptions::default());
        let (listener, address) = world.listen();
        // Ten more bytes are sent while completions are dropped, or rejected after the write half has been shut down.
        let sent: Vec<u8> = (0..200).collect();
        let received = Rc::new(RefCell::new((Vec::new(), false)));
        let (opening, bytes, sink) = (world.clone(), sent.clone(), Rc::clone(&received));
        let test = async move {
            let near = opening.connect(address).await.unwrap();
            let far = listener.accept().await;
            // Arms the receives before any bytes arrive.
            for stream in [&near, &far] {
                let mut receiving = Box::pin(stream.receive());
                std::future::poll_fn(|context| {
                    assert!(receiving.as_mut().poll(context).is_pending());
                    std::task::Poll::Ready(())
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
            while let Ok(chunk) = far.receive().await {
                match chunk {
                    Some(chunk) => sink.borrow_mut().0.extend_from_slice(&chunk),
                    None => {
                        sink.borrow_mut().1 = true;
                        break;
                    }
                }
            }
        };
        world.run(vec![Box::pin(test)]).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let (bytes, received_eof) = received.take();
        let all = [&sent[..], &[3; 10]].concat();
        assert!(all.starts_with(&bytes), "seed {seed}: {bytes:?}");
        assert!(!received_eof || bytes.len() >= sent.len(), "seed {seed}: EOF after {} bytes", bytes.len());
        match received_eof {
            true => whole += 1,
            false => broken += 1,
        }
        world.shut_down().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(whole > 0 && broken > 0, "{whole} whole, {broken} broken");
}

//! Tests of dropped completions: the affected connections fail, but no task waits indefinitely.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::super::super::buffer::Chunk;
use super::super::super::completion_kernel::CompletionKernel;
use super::super::super::options::{DriverOptions, ZeroCopy};
use super::super::super::wake::WakeQueue;
use super::super::{SimFaults, SimModel, SimOptions};
use super::streams::{options, run_echo};
use super::{Backend, Stream, Wait, World, for_requested_seeds, for_seeds, scaled};

fn set_dropped(world: &World, per_mille: u16) {
    set_faults(world, |faults| faults.dropped_completions = per_mille);
}

fn set_faults(world: &World, set: impl FnOnce(&mut SimFaults)) {
    if let Backend::SimCompletion(machine) = &*world.driver.borrow().backend {
        set(&mut machine.kernel.network().faults);
    }
}

/// Drops the completion of a connect, so that every operation in flight is in doubt.
fn drop_completion(world: &World) {
    let unused = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
    set_dropped(world, 900);
    loop {
        let key = world.driver.borrow_mut().connect(unused, None).unwrap();
        turn(world);
        let connected = world.driver.borrow_mut().poll_connect(key, Waker::noop());
        world.driver.borrow_mut().release(key);
        if connected.is_pending() {
            break;
        }
    }
    set_dropped(world, 0);
}

/// Polls a receive once.
fn poll_receive(stream: &Stream) -> Poll<Option<Chunk>> {
    let mut chunk = None;
    let polled = stream.world.driver.borrow_mut().poll_receive(stream.key, &mut chunk, Waker::noop());
    polled.map(|received| received.map(|()| chunk).unwrap())
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

/// The notification of a zero-copy send is read in the turn in which the completion with its result is dropped.
#[test]
#[cfg_attr(
    plain_memory,
    ignore = "the tool would report memory that the driver leaks when completions are missing"
)]
fn fault_09_zero_copy_send_without_result_is_not_repeated() {
    let mut aborted = 0;
    let runs = scaled(200);
    for_seeds(200, SimModel::Completion, |seed| {
        let zero_copy = ZeroCopy::Always { threshold_bytes: 16 };
        let mut options = DriverOptions { zero_copy, ..DriverOptions::default() };
        options.disabled_features.buffer_ring = true;
        let world = World::new(&SimOptions::new(seed), &options);
        let (listener, address) = world.listen();
        let opening = world.clone();
        let (near, far) = world.run_one(async move { opening.connect_pair(&listener, address).await });
        assert!(poll_receive(&far).is_pending());
        turn(&world);
        let near = world.run_one(async move {
            near.send(vec![7; 100]).await.unwrap();
            near
        });
        set_faults(&world, |faults| {
            (faults.dropped_completions, faults.completion_overflows, faults.max_delay_ns) = (500, 900, 1);
        });
        turn(&world);
        // A repeated send would run before its cancellation is submitted.
        set_faults(&world, |faults| {
            (faults.dropped_completions, faults.partial_submissions) = (0, 900);
        });
        let (received, flushed) = world.run_one(async move {
            let flushed = near.flush().await;
            drop(near);
            let mut received = 0;
            while let Ok(Some(chunk)) = far.receive().await {
                received += chunk.len();
            }
            (received, flushed)
        });
        assert!(received <= 100, "{received} bytes received");
        aborted += u64::from(flushed.is_err());
        world.shut_down().unwrap();
    });
    assert!(aborted > runs / 4, "{aborted} of {runs} connections were aborted");
}

#[test]
#[cfg_attr(
    plain_memory,
    ignore = "the tool would report memory that the driver leaks when completions are missing"
)]
fn fault_09_dropped_completions_lose_no_bytes_without_an_error() {
    let (mut whole, mut broken) = (0, 0);
    for_requested_seeds(400, SimModel::Completion, |seed| {
        let faults = SimFaults {
            dropped_completions: [2, 10, 50][seed as usize / 3 % 3],
            ..SimFaults::lossless([0, 50, 300][seed as usize % 3])
        };
        let late_completions = if seed % 2 == 0 { 0 } else { faults.late_completions };
        let faults = SimFaults { late_completions, ..faults };
        let options = options(seed, SimModel::Completion, faults);
        let (world, clients) = run_echo(&options, 20 * 1024, seed % 4 == 0);
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
        let metrics = world.shut_down().unwrap();
        assert!(late_completions > 0 || metrics.late_completions == 0, "a slot was released too early");
    });
    assert!(whole > 0 && broken > 0, "{whole} whole, {broken} broken");
}

/// The peer starts reading late. The bytes that it reads before an error are a prefix of the sent bytes, without gaps.
/// It reads EOF only after all of the bytes.
#[test]
fn fault_09_dropped_completions_cause_no_gap_and_no_early_eof() {
    let (mut whole, mut broken) = (0, 0);
    for_requested_seeds(400, SimModel::Completion, |seed| {
        let options = SimOptions::new(seed).socket_buffer_bytes(256);
        let world = World::new(&options, &DriverOptions::default());
        let (listener, address) = world.listen();
        // Ten more bytes are sent while completions are dropped, or rejected after the write half has been shut down.
        let sent: Vec<u8> = (0..200).collect();
        let (opening, bytes) = (world.clone(), sent.clone());
        let (bytes, received_eof) = world.run_one(async move {
            let (near, far) = opening.connect_pair(&listener, address).await;
            // Arm the receives before any bytes arrive.
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

/// The cancellation of an accept in doubt is submitted after that accept has ended and the next one has been armed. If
/// the cancellation finds no operation, that does not mean that the next accept has ended.
#[test]
fn fault_09_accept_armed_after_dropped_completion_is_in_flight_until_cancelled() {
    let mut rearmed = 0;
    let runs = scaled(100);
    for_seeds(100, SimModel::Completion, |seed| {
        let mut options = DriverOptions::default();
        options.disabled_features.multishot_accept = true;
        let world = World::new(&SimOptions::new(seed), &options);
        let (listener, address) = world.listen();
        let poll_accept = || world.driver.borrow_mut().poll_accept(listener.key, Waker::noop());
        assert!(poll_accept().is_pending());
        turn(&world);
        drop_completion(&world);
        // Connect without the driver, because the kernel consumes only the first submission: the cancellation of the
        // connect.
        let network = || match &*world.driver.borrow().backend {
            Backend::SimCompletion(machine) => machine.kernel.sockets().clone(),
            _ => unreachable!("the test requests this model"),
        };
        let client = network().lock().open_stream(None);
        network().lock().connect(client, address).unwrap();
        set_faults(&world, |faults| faults.partial_submissions = 900);
        turn(&world);
        if let Poll::Ready(accepted) = poll_accept() {
            rearmed += 1;
            assert!(poll_accept().is_pending());
            world.driver.borrow_mut().release(accepted.unwrap());
        }
        drop(listener);
        network().lock().close(client);
        assert_eq!(world.shut_down().unwrap().late_completions, 0, "a slot was released too early");
    });
    assert!(rearmed > runs / 2, "{rearmed} of {runs} accepts were armed again");
}

/// The same for the readability poll of a direct stream.
#[test]
fn fault_09_poll_armed_after_dropped_completion_is_in_flight_until_cancelled() {
    let mut rearmed = 0;
    let runs = scaled(100);
    for_seeds(100, SimModel::Completion, |seed| {
        let mut options = DriverOptions { direct_send_threshold_bytes: 1, ..DriverOptions::default() };
        options.disabled_features.buffer_ring = true;
        let world = World::new(&SimOptions::new(seed), &options);
        let (listener, address) = world.listen();
        let opening = world.clone();
        let (near, far) = world.run_one(async move { opening.connect_pair(&listener, address).await });
        assert!(poll_receive(&near).is_pending() && poll_receive(&far).is_pending());
        turn(&world);
        drop_completion(&world);
        // Send with a system call, because the kernel consumes only the first submission: the cancellation of the other
        // poll.
        let near = world.run_one(async move {
            near.send(vec![7; 10]).await.unwrap();
            near
        });
        set_faults(&world, |faults| {
            (faults.partial_submissions, faults.multishot_terminations) = (900, 900);
        });
        turn(&world);
        if let Poll::Ready(chunk) = poll_receive(&far) {
            rearmed += 1;
            assert_eq!(chunk.as_deref(), Some(&[7; 10][..]));
            assert!(poll_receive(&far).is_pending());
        }
        drop((near, far));
        assert_eq!(world.shut_down().unwrap().late_completions, 0, "a slot was released too early");
    });
    assert!(rearmed > runs / 2, "{rearmed} of {runs} polls were armed again");
}

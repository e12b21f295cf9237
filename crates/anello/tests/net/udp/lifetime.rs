//! Dropped futures, sockets and runtimes.

use super::*;

#[test]
fn fault_10_dropped_receives_lose_no_datagram() {
    const COUNT: u32 = 2_000;
    on_every_driver_and_sim(|setup| {
        let seed = fastrand::u64(..);
        eprintln!("{}: seed {seed}", setup.name);
        setup.run(async {
            let mut random = Rng::with_seed(seed);
            let (sender, receiver) = connected_pair().await;
            let (mut next, mut batch) = (0, RecvBatch::new(8, 4));
            let (mut sent, mut buffer) = (0_u32, [0; 4]);
            while next < COUNT {
                while sent < COUNT && sent < next + 20 && random.bool() {
                    let polls = random.usize(..3);
                    if poll_at_most(polls, sender.send(&sent.to_be_bytes())).await.is_some() {
                        sent += 1;
                    }
                }
                yield_now().await;
                if sent == next {
                    // A receive would wait forever.
                    continue;
                }
                let polls = random.usize(..3);
                match random.u8(..3) {
                    0 => {
                        if let Some(received) = poll_at_most(polls, receiver.recv_batch(&mut batch)).await {
                            received.unwrap();
                            for datagram in batch.iter() {
                                assert_eq!(datagram.payload(), next.to_be_bytes());
                                next += 1;
                            }
                        }
                    }
                    1 => {
                        if let Some(received) = poll_at_most(polls, receiver.recv(&mut buffer)).await {
                            assert_eq!((received.unwrap(), buffer), (4, next.to_be_bytes()));
                            next += 1;
                        }
                    }
                    _ => {
                        poll_at_most(polls, receiver.readable()).await;
                    }
                }
            }
        });
    });
}

/// A dropped future that was to be woken next does not prevent others from being woken.
#[test]
fn fault_10_dropped_waiter_does_not_stop_others() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (sender, receiver) = connected_pair().await;
            for round in 0..50 {
                let (mut one, mut other) = ([0; 4], [0; 4]);
                let mut first = Box::pin(receiver.recv(&mut one));
                let mut second = Box::pin(receiver.recv(&mut other));
                poll_fn(|context| {
                    assert!(first.as_mut().poll(context).is_pending());
                    assert!(second.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                sender.send(b"ping").await.unwrap();
                if round % 2 == 0 {
                    yield_now().await;
                }
                drop(first);
                assert_eq!(second.await.unwrap(), 4);
            }
        });
    });
}

/// A task that never stops receiving yields to others.
#[test]
fn busy_socket_does_not_starve_other_tasks() {
    on_every_driver_and_sim(|setup| {
        setup.run(async {
            let (one, other) = connected_pair().await;
            let is_done = Rc::new(Cell::new(false));
            let done = Rc::clone(&is_done);
            let other_task = spawn(async move {
                for _ in 0..5 {
                    yield_now().await;
                }
                done.set(true);
            });
            let mut rounds = 0;
            while !is_done.get() {
                one.send(b"x").await.unwrap();
                other.recv(&mut [0; 4]).await.unwrap();
                rounds += 1;
                assert!(rounds < 100_000, "the other task never runs");
            }
            other_task.await.unwrap();
        });
    });
}

#[test]
fn socket_outlives_runtime() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        let (socket, peer) = runtime.block_on(async {
            let (one, other) = connected_pair().await;
            assert!(poll_at_most(1, one.recv(&mut [0; 4])).await.is_none());
            (one, other)
        });
        drop(runtime);
        setup.run(async {
            let error = socket.recv(&mut [0; 4]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotConnected);
            assert!(socket.readable().await.is_err());
            assert!(socket.send(b"x").await.is_err());
            assert!(peer.local_addr().is_ok());
        });
        drop((socket, peer));
    });
}

#[test]
fn waiting_task_is_dropped_with_its_socket() {
    on_every_driver_and_sim(|setup| {
        let runtime = setup.runtime();
        runtime.block_on(async {
            for _ in 0..20 {
                let socket = bind();
                let port = address(&socket);
                let task = spawn(async move { socket.recv(&mut [0; 4]).await });
                yield_now().await;
                task.abort();
                assert!(task.await.is_err());
                // The address is free again. The kernel's submission thread can need any number of turns for this, and
                // another test can use the port meanwhile, so that only the watchdog ends the wait.
                while UdpSocket::bind(port).is_err() {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        });
    });
}

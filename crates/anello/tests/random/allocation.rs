//! In the steady state, requests, deadlines and wake-ups do not allocate, and a detached task keeps no memory for its
//! result.

use std::time::Duration;

use crate::common::echo;
use anello::net::{SendBuf, TcpStream};
use anello::time::timeout;
use anello::{spawn, yield_now};

use crate::allocator::{allocations, live_bytes};
use crate::common::{all_drivers, both_drivers, on_each, pair};

static MESSAGE: [u8; 64 * 1024] = [42; 64 * 1024];

/// Sends one request and reads its response.
async fn request(client: &mut TcpStream, size: usize) {
    client.send(&MESSAGE[..size]).await.unwrap();
    let mut count = 0;
    while count < size {
        count += client.recv().await.unwrap().unwrap().len();
    }
    assert_eq!(count, size);
}

/// Returns the number of allocations on this thread during `rounds` rounds, after the same number of warm-up rounds.
async fn allocations_of(rounds: usize, mut round: impl AsyncFnMut()) -> u64 {
    for _ in 0..rounds {
        round().await;
    }
    let before = allocations();
    for _ in 0..rounds {
        round().await;
    }
    allocations() - before
}

#[test]
fn no_allocation_per_request() {
    let mut setups = all_drivers();
    // With minimal queues, every request takes the overload paths, which allocate.
    setups.retain(|setup| !setup.name.contains("small"));
    on_each(setups, |setup| {
        setup.run(async {
            for size in [1, 64, 4096, 5000, 16_384, 20_000] {
                let (mut client, mut server) = pair().await.unwrap();
                let echoing = spawn(async move { echo(&mut server).await });
                let allocations = allocations_of(500, async || request(&mut client, size).await).await;
                assert_eq!(allocations, 0, "{}: 500 requests of {size} bytes", setup.name);
                drop(client);
                echoing.await.unwrap().unwrap();
            }
        });
    });
}

#[test]
fn no_allocation_per_message_in_spare_vector() {
    let mut setups = all_drivers();
    setups.retain(|setup| !setup.name.contains("small"));
    on_each(setups, |setup| {
        setup.run(async {
            for size in [1, 200, 4096] {
                let (mut client, mut server) = pair().await.unwrap();
                let replying = spawn(async move {
                    while let Some(request) = server.recv().await? {
                        let mut message = SendBuf::spare_vec();
                        message.extend_from_slice(&request);
                        server.send(message).await?;
                    }
                    Ok::<_, std::io::Error>(())
                });
                let allocations = allocations_of(500, async || request(&mut client, size).await).await;
                assert_eq!(allocations, 0, "{}: 500 messages of {size} bytes", setup.name);
                drop(client);
                replying.await.unwrap().unwrap();
            }
        });
    });
}

#[test]
fn no_allocation_per_copying_request() {
    on_each(both_drivers(), |setup| {
        setup.run(async {
            for size in [64, 3000, 16_000] {
                let (mut client, mut server) = pair().await.unwrap();
                let echoing = spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = server.read(&mut buffer).await {
                        server.write_all(&buffer[..count]).await.unwrap();
                    }
                });
                let mut response = [0; 16_000];
                let allocations = allocations_of(500, async || {
                    client.write_all(&MESSAGE[..size]).await.unwrap();
                    client.flush().await.unwrap();
                    client.read_exact(&mut response[..size]).await.unwrap();
                })
                .await;
                // Bytes queued behind other bytes are held in memory that may be newly allocated.
                assert!(allocations <= 500, "{}: {allocations} for 500 requests of {size} bytes", setup.name);
                if size == 64 {
                    assert_eq!(allocations, 0, "{}", setup.name);
                }
                drop(client);
                echoing.await.unwrap();
            }
        });
    });
}

#[test]
fn no_allocation_per_deadline_or_wake_up() {
    on_each(both_drivers(), |setup| {
        setup.run(async {
            let (mut client, mut server) = pair().await.unwrap();
            let echoing = spawn(async move { echo(&mut server).await });
            let allocations = allocations_of(300, async || {
                timeout(Duration::from_secs(100), request(&mut client, 100)).await.unwrap();
                timeout(Duration::from_micros(1), std::future::pending::<()>()).await.unwrap_err();
                yield_now().await;
            })
            .await;
            assert_eq!(allocations, 0, "{}", setup.name);
            drop(client);
            echoing.await.unwrap().unwrap();
        });
    });
}

/// The executor has two lists of ready tasks, which it swaps every turn. A task that wakes another task uses one of
/// them, depending on the parity of the turn number. Capacity must already be allocated for both lists.
#[test]
fn no_allocation_when_task_first_wakes_another_task() {
    on_each(all_drivers(), |setup| {
        setup.run(async {
            let first = spawn(async {
                let before = allocations();
                yield_now().await;
                allocations() - before
            });
            assert_eq!(first.await.unwrap(), 0, "{}", setup.name);
        });
    });
}

/// A server has a detached task for each connection.
#[test]
fn detached_task_keeps_no_memory_for_its_result() {
    const RESULT_BYTES: isize = 64 * 1024;
    async fn waiting() -> [u8; RESULT_BYTES as usize] {
        std::future::pending::<()>().await;
        [0; RESULT_BYTES as usize]
    }
    on_each(all_drivers(), |setup| {
        setup.run(async {
            let before = live_bytes();
            let joined = spawn(waiting());
            yield_now().await;
            let with_result = live_bytes() - before;
            assert!(with_result >= RESULT_BYTES, "{}: {with_result} bytes", setup.name);
            spawn(waiting()).detach();
            yield_now().await;
            let detached = live_bytes() - before - with_result;
            assert!(detached < RESULT_BYTES, "{}: {detached} bytes", setup.name);
            drop(joined);
        });
    });
}

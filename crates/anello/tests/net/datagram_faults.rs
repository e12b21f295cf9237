//! Faults of datagram sockets: descriptors after cancelled waits, and lost, duplicated and reordered datagrams on the
//! simulated kernels.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use anello::net::{OutgoingDatagram, RecvBatch, UdpSocket, UnixDatagram};
use anello::sim::{SimFaults, SimModel, SimOptions};
use anello::time::timeout;
use anello::{DriverKind, spawn, yield_now};

use crate::common::{ANY_PORT, Rng, Setup, TURNS, in_own_process, on_every_driver, poll_at_most, seeds};

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Drops and converts sockets while tasks wait for them.
async fn drop_waiting_sockets(rounds: usize) {
    for _ in 0..rounds {
        let (one, other) = UnixDatagram::pair().unwrap();
        let socket = Rc::new(UdpSocket::bind(ANY_PORT).unwrap());
        let expired = timeout(Duration::ZERO, async { one.recv(&mut [0; 4]).await }).await;
        assert!(expired.is_err());
        let shared = Rc::clone(&socket);
        let waiting = spawn(async move { shared.recv(&mut [0; 4]).await });
        let other_waiting = spawn(async move { other.readable().await });
        yield_now().await;
        waiting.abort();
        drop(socket);
        other_waiting.abort();
        yield_now().await;
        let converted = UdpSocket::bind(ANY_PORT).unwrap();
        assert!(poll_at_most(1, converted.recv(&mut [0; 4])).await.is_none());
        drop(converted.into_std().unwrap());
    }
}

#[test]
fn fault_11_descriptors_of_dropped_sockets_are_closed() {
    in_own_process(|| {
        on_every_driver(|setup| {
            let runtime = setup.runtime();
            runtime.block_on(drop_waiting_sockets(1));
            let before = open_descriptors();
            runtime.block_on(async {
                drop_waiting_sockets(50).await;
                // Sockets whose polls were in flight are closed by later turns.
                let mut turns = 0;
                while open_descriptors() > before {
                    turns += 1;
                    assert!(turns < TURNS, "{} descriptors stay open", open_descriptors() - before);
                    yield_now().await;
                }
            });
        })
    });
}

/// Sends numbered datagrams through a simulated network, and returns how often each one arrived, and in which order.
fn run_lossy(setup: &Setup, seed: u64, count: u32) -> Vec<u32> {
    setup.run(async {
        let mut random = Rng::with_seed(seed);
        let server = UdpSocket::bind(ANY_PORT).unwrap();
        server.set_recv_buffer_size(1 << 20).unwrap();
        let client = UdpSocket::bind(ANY_PORT).unwrap();
        let address = server.local_addr().unwrap();
        let is_connected = random.bool();
        if is_connected {
            client.connect(address).await.unwrap();
        }
        let send_seed = random.u64(..);
        let sender = spawn(async move {
            let mut random = Rng::with_seed(send_seed);
            let payloads: Vec<_> = (0..count).map(u32::to_be_bytes).collect();
            let mut next = 0;
            while next < payloads.len() {
                let end = (next + random.usize(1..8)).min(payloads.len());
                let to = |payload| match is_connected {
                    true => OutgoingDatagram::to_peer(payload),
                    false => OutgoingDatagram::new(payload, address),
                };
                let sent = match random.u8(..3) {
                    0 => {
                        let batch: Vec<_> = payloads[next..end].iter().map(|it| to(&it[..])).collect();
                        client.send_batch(&batch).await.unwrap()
                    }
                    1 => {
                        let joined = payloads[next..end].concat();
                        client.send_message(&to(&joined).with_segment_size(4)).await.unwrap();
                        end - next
                    }
                    _ => {
                        client.send_to(&payloads[next], address).await.unwrap();
                        1
                    }
                };
                next += sent;
                if random.u8(..4) == 0 {
                    yield_now().await;
                }
            }
        });
        let (mut received, mut batch) = (Vec::new(), RecvBatch::new(random.usize(1..16), 4));
        // Datagrams are delayed by at most 0.1 ms, so none arrives after a silence of 1 s.
        let silence = Duration::from_secs(1);
        while let Ok(result) = timeout(silence, server.recv_batch(&mut batch)).await {
            result.unwrap();
            for datagram in batch.iter() {
                assert_eq!(datagram.info().segment_size, None);
                received.push(u32::from_be_bytes(datagram.payload().try_into().unwrap()));
            }
        }
        sender.await.unwrap();
        received
    })
}

fn simulator(seed: u64, faults: SimFaults) -> Setup {
    let model = if seed.is_multiple_of(2) { SimModel::Completion } else { SimModel::Readiness };
    Setup::new("sim", DriverKind::Sim(SimOptions::new(seed).model(model).faults(faults)), |_| {})
}

#[test]
fn fault_42_lossless_network_delivers_each_datagram_once_in_order() {
    for seed in seeds(60) {
        let rate = [0, 5, 50, 300][seed as usize / 2 % 4];
        let setup = simulator(seed, SimFaults::lossless(rate));
        let received = run_lossy(&setup, seed, 300);
        assert!(received.iter().copied().eq(0..300), "seed {seed}: {received:?}");
    }
}

#[test]
fn fault_42_lossy_network_loses_duplicates_and_reorders_datagrams() {
    let (mut lost, mut duplicated, mut reordered) = (0, 0, 0);
    for seed in seeds(60) {
        let rate = [20, 100, 300][seed as usize / 2 % 3];
        let mut faults = SimFaults::all(rate);
        // The sender is sometimes connected, and would receive errors.
        faults.refused_connects = 0;
        let setup = simulator(seed, faults);
        let received = run_lossy(&setup, seed, 300);
        let mut counts = BTreeMap::<u32, usize>::new();
        for number in &received {
            *counts.entry(*number).or_default() += 1;
        }
        assert!(counts.keys().all(|number| *number < 300), "seed {seed}: no datagram is invented");
        assert!(counts.values().all(|count| *count <= 2), "seed {seed}: {counts:?}");
        lost += 300 - counts.len();
        duplicated += counts.values().filter(|count| **count == 2).count();
        reordered += usize::from(!received.is_sorted());
        assert_eq!(received, run_lossy(&setup, seed, 300), "seed {seed} replays");
    }
    assert!(lost > 0 && duplicated > 0 && reordered > 0, "{lost} {duplicated} {reordered}");
}

#[test]
fn fault_42_each_datagram_fault_has_its_own_rate() {
    let none = SimFaults::none();
    let with = |change: fn(&mut SimFaults)| {
        let mut faults = none.clone();
        change(&mut faults);
        run_lossy(&simulator(1, faults), 1, 1000)
    };
    let lossy = with(|faults| faults.datagram_losses = 100);
    assert!(lossy.is_sorted() && (800..1000).contains(&lossy.len()), "{}", lossy.len());
    let duplicating = with(|faults| faults.datagram_duplicates = 100);
    assert!(duplicating.is_sorted() && (1001..1200).contains(&duplicating.len()), "{}", duplicating.len());
    let mut delaying = with(|faults| faults.datagram_delays = 100);
    assert!(!delaying.is_sorted());
    delaying.sort_unstable();
    assert!(delaying.iter().copied().eq(0..1000));
}

#[test]
fn full_receive_queue_discards_new_datagrams() {
    let setup = simulator(0, SimFaults::none());
    setup.run(async {
        let server = UdpSocket::bind(ANY_PORT).unwrap();
        server.set_recv_buffer_size(5_000).unwrap();
        let client = UdpSocket::bind(ANY_PORT).unwrap();
        for number in 0..100_u8 {
            client.send_to(&[number; 1000], server.local_addr().unwrap()).await.unwrap();
        }
        let mut buffer = [0; 1000];
        let mut received = Vec::new();
        while server.try_recv(&mut buffer).is_ok() {
            received.push(buffer[0]);
        }
        assert_eq!(received, [0, 1, 2, 3, 4, 5, 6]);
    });
}

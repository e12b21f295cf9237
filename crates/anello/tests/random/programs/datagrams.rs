//! Tasks of a random program that exchange datagrams. Each datagram contains its number. Unless the simulated network
//! loses datagrams, each one arrives once and in order.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use anello::net::{Ecn, OutgoingDatagram, RecvBatch, UdpSocket};
use anello::time::timeout;
use anello::{spawn, yield_now};

use super::Survivor;
use super::actors::{Attempt, attempt, do_side_activity};
use super::hostile::leave_victim;
use super::model::World;
use crate::common::{ANY_PORT, Rng};

/// Number of datagrams that fit into the receiver's queue on every kernel.
const MAX_IN_FLIGHT: u64 = 24;

/// Size of datagrams that are sent as parts of one payload.
const SEGMENT_BYTES: usize = 16;

/// Longer than any datagram is delayed by the simulated network.
pub const SILENCE: Duration = Duration::from_millis(5);

/// Datagrams sent from one socket to another.
#[derive(Default)]
pub struct Exchange {
    pub accepted: Cell<u64>,
    /// Number of the next datagram, if none is lost.
    received: Cell<u64>,
    pub is_sender_gone: Cell<bool>,
    pub is_receiver_gone: Cell<bool>,
    pub is_lossy: bool,
}

impl Exchange {
    pub fn new(is_lossy: bool) -> Rc<Self> {
        Rc::new(Self { is_lossy, ..Self::default() })
    }

    /// Returns the number of datagrams that have been accepted and not received, if none is lost.
    pub fn in_flight(&self) -> u64 {
        self.accepted.get() - self.received.get()
    }

    /// Returns whether another datagram can be sent without overflowing the receiver's queue.
    pub fn has_room(&self) -> bool {
        self.is_lossy || self.in_flight() < MAX_IN_FLIGHT
    }
}

/// Sets a flag when a task ends, for whatever reason.
struct SetOnDrop<F: Fn(&Exchange) -> &Cell<bool>>(Rc<Exchange>, F);

impl<F: Fn(&Exchange) -> &Cell<bool>> Drop for SetOnDrop<F> {
    fn drop(&mut self) {
        self.1(&self.0).set(true);
    }
}

/// Starts a sender and a receiver, and adds their tasks to the objects that may outlive the runtime.
pub async fn start(world: &Rc<World>, random: &mut Rng, is_lossy: bool) {
    let exchange = Exchange::new(is_lossy);
    let sender = UdpSocket::bind(ANY_PORT).unwrap();
    let receiver = UdpSocket::bind(ANY_PORT).unwrap();
    receiver.set_gro(random.bool()).unwrap();
    receiver.set_recv_ecn(random.bool()).unwrap();
    sender.connect(receiver.local_addr().unwrap()).await.unwrap();
    let gone = SetOnDrop(Rc::clone(&exchange), |exchange: &Exchange| &exchange.is_sender_gone);
    let (shared, state, seed) = (Rc::clone(world), Rc::clone(&exchange), random.u64(..));
    let sending = spawn(async move {
        let _gone = gone;
        send_all(sender, &state, &shared, Rng::with_seed(seed)).await;
    });
    let gone = SetOnDrop(Rc::clone(&exchange), |exchange: &Exchange| &exchange.is_receiver_gone);
    let (shared, seed) = (Rc::clone(world), random.u64(..));
    let receiving = spawn(async move {
        let _gone = gone;
        receive_all(receiver, &exchange, &shared, Rng::with_seed(seed)).await;
    });
    world.survivors.borrow_mut().extend([Survivor::Task(sending), Survivor::Task(receiving)]);
}

async fn send_all(socket: UdpSocket, exchange: &Exchange, world: &Rc<World>, mut random: Rng) {
    let to = socket.peer_addr().unwrap();
    for _ in 0..random.usize(..40) {
        do_side_activity(world, &mut random).await;
        while !exchange.has_room() {
            if exchange.is_receiver_gone.get() {
                return;
            }
            yield_now().await;
        }
        let numbers = exchange.accepted.get()..exchange.accepted.get() + 1 + random.u64(..6);
        let payloads: Vec<_> = numbers.map(|number| payload(number, SEGMENT_BYTES)).collect();
        let first = payload(exchange.accepted.get(), 8 + random.usize(..1400));
        let sent = match random.usize(..5) {
            0 => attempt(socket.send(&first), world, &mut random).await.map(|_| 1),
            1 => attempt(socket.send_to(&first, to), world, &mut random).await.map(|_| 1),
            2 => {
                let datagram = OutgoingDatagram::to_peer(&first).with_ecn(Ecn::Ect0);
                attempt(socket.send_message(&datagram), world, &mut random).await.map(|()| 1)
            }
            3 => {
                let batch: Vec<_> = payloads.iter().map(|it| OutgoingDatagram::to_peer(it)).collect();
                attempt(socket.send_batch(&batch), world, &mut random).await.map(|sent| sent as u64)
            }
            _ => {
                let joined = payloads.concat();
                let datagram = OutgoingDatagram::to_peer(&joined).with_segment_size(SEGMENT_BYTES as u16);
                let count = payloads.len() as u64;
                attempt(socket.send_message(&datagram), world, &mut random).await.map(|()| count)
            }
        };
        match sent {
            Attempt::Done(Ok(count)) => {
                exchange.accepted.set(exchange.accepted.get() + count);
                world.note("sent datagrams", count);
            }
            Attempt::Done(Err(error)) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
                assert!(exchange.is_receiver_gone.get(), "refused although the receiver is bound");
            }
            Attempt::Dropped => {}
        }
    }
    if random.usize(..4) == 0 {
        leave_victim(socket);
    }
}

async fn receive_all(socket: UdpSocket, exchange: &Exchange, world: &Rc<World>, mut random: Rng) {
    let (mut batch, mut buffer) = (RecvBatch::new(random.usize(1..8), 65_535), vec![0; 65_535]);
    let limit = if random.usize(..5) == 0 { random.usize(..10) } else { usize::MAX };
    for _ in 0..limit {
        do_side_activity(world, &mut random).await;
        let way = random.usize(..4);
        let receive = async {
            match way {
                0 => socket
                    .recv_message(&mut buffer)
                    .await
                    .map(|info| check_all(exchange, info.segments(&buffer))),
                1 => socket.recv_batch(&mut batch).await.map(|_| {
                    batch.iter().for_each(|datagram| check_all(exchange, datagram.segments()));
                }),
                2 => {
                    socket.readable().await?;
                    match socket.try_recv_batch(&mut batch) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                        received => received.map(|_| {
                            batch.iter().for_each(|datagram| check_all(exchange, datagram.segments()));
                        }),
                    }
                }
                _ => {
                    let (_, source) = socket.peek_from(&mut buffer).await?;
                    let info = socket.recv_message(&mut buffer).await?;
                    assert!(exchange.is_lossy || info.source == source);
                    check_all(exchange, info.segments(&buffer));
                    Ok(())
                }
            }
        };
        match attempt(timeout(SILENCE, receive), world, &mut random).await {
            Attempt::Done(Ok(received)) => {
                received.unwrap();
                world.note("received datagrams", exchange.received.get());
            }
            Attempt::Done(Err(_)) if exchange.is_sender_gone.get() => {
                let (received, accepted) = (exchange.received.get(), exchange.accepted.get());
                if exchange.is_lossy || received == accepted {
                    break;
                }
                assert!(received < accepted, "{received} datagrams arrived, but only {accepted} were sent");
            }
            Attempt::Done(Err(_)) | Attempt::Dropped => {}
        }
    }
    if random.usize(..4) == 0 {
        leave_victim(socket);
    }
}

pub fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(bytes, number as u8);
    payload
}

pub fn check_all<'a>(exchange: &Exchange, datagrams: impl Iterator<Item = &'a [u8]>) {
    for datagram in datagrams {
        let (number, filler) = datagram.split_first_chunk::<8>().expect("a whole datagram");
        let number = u64::from_be_bytes(*number);
        assert!(filler.iter().all(|byte| *byte == number as u8), "datagram {number} is damaged");
        if exchange.is_lossy {
            exchange.received.set(exchange.received.get() + 1);
        } else {
            assert_eq!(number, exchange.received.get(), "a datagram was lost or arrived twice");
            exchange.received.set(number + 1);
        }
    }
}

//! Tests of readiness sources on the simulated kernels, with faults.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use super::super::socket::SimSocket;
use super::super::sockets::SimNetwork;
use super::dropped::for_seeds;
use crate::Runtime;
use crate::driver::Driver;
use crate::driver::backend::Backend;
use crate::driver::kernel::Kernel;
use crate::driver::kernel::op::Wait;
use crate::driver::settings::kind::DriverKind;
use crate::driver::settings::options::DriverOptions;
use crate::driver::settings::sim_options::{SimFaults, SimModel, SimOptions};
use crate::driver::sockets::{End, Sockets};
use crate::driver::source::interest::{Direction, Interest};
use crate::driver::wake::queue::WakeQueue;
use crate::executor::current;
use crate::readiness::Registration;
use crate::spawn;

/// Makes a call on the simulated network of the running runtime.
fn with_network<T>(call: impl FnOnce(&mut SimNetwork) -> T) -> T {
    let shared = current();
    let mut driver = shared.driver.borrow_mut();
    match &mut *driver.backend {
        Backend::SimCompletion(machine) => call(machine.kernel.sockets_mut()),
        Backend::SimReadiness(machine) => call(machine.kernel.sockets_mut()),
        _ => unreachable!("the driver is simulated"),
    }
}

/// A socket that is used only through its readiness.
struct Source {
    registration: Registration,
    socket: Rc<SimSocket>,
}

impl Source {
    fn new(socket: SimSocket) -> Self {
        let (shared, socket) = (current(), Rc::new(socket));
        let interest = Interest::READABLE | Interest::WRITABLE;
        let key = match &mut *shared.driver.borrow_mut().backend {
            Backend::SimCompletion(machine) => machine.register(Rc::clone(&socket), interest),
            Backend::SimReadiness(machine) => machine.register(Rc::clone(&socket), interest),
            _ => unreachable!("the driver is simulated"),
        };
        Self { registration: Registration::from_key(shared, key.unwrap()), socket }
    }

    async fn call<T>(
        &self,
        direction: Direction,
        call: impl Fn(&mut SimNetwork, &SimSocket) -> io::Result<T>,
    ) -> io::Result<T> {
        self.registration.io(direction, || with_network(|network| call(network, &self.socket))).await
    }

    async fn pair() -> (Self, Self) {
        let listener = Self::new(with_network(|network| listen(network, 8)));
        let address = with_network(|network| network.address(&listener.socket, End::Local)).unwrap();
        let address = address.as_socket().unwrap();
        let near = with_network(|network| {
            let near = network.open_stream(address, None).unwrap();
            network.connect(&near, address).ok();
            near
        });
        let near = Self::new(near);
        let far = listener.call(Direction::Read, |network, socket| network.accept(socket)).await.unwrap();
        near.registration.ready(Interest::WRITABLE).await.unwrap();
        (near, Self::new(far))
    }

    async fn send(&self, bytes: &[u8]) {
        let sent = Cell::new(0);
        while sent.get() < bytes.len() {
            let rest = &bytes[sent.get()..];
            let count =
                self.call(Direction::Write, |network, socket| network.send(socket, rest)).await.unwrap();
            sent.set(sent.get() + count);
        }
        self.call(Direction::Write, |network, socket| network.shutdown(socket, Shutdown::Write))
            .await
            .unwrap();
    }

    async fn receive_all(&self) -> Vec<u8> {
        let mut received = Vec::new();
        loop {
            let receive = |network: &mut SimNetwork, socket: &SimSocket| {
                let mut buffer = vec![0; 100];
                let count = network.receive(socket, &mut buffer)?;
                buffer.truncate(count);
                Ok(buffer)
            };
            let bytes = self.call(Direction::Read, receive).await.unwrap();
            if bytes.is_empty() {
                return received;
            }
            received.extend(bytes);
        }
    }
}

/// Checks that a driver that has been shut down holds no source.
fn is_empty(driver: &Driver) -> bool {
    match &*driver.backend {
        Backend::SimCompletion(machine) => machine.is_quiescent(),
        Backend::SimReadiness(machine) => machine.source_count() == 0,
        _ => unreachable!("the driver is simulated"),
    }
}

/// Returns a listening socket with a free port.
fn listen(network: &mut SimNetwork, backlog: u32) -> SimSocket {
    let listener = network.open(false).unwrap();
    network.bind(&listener, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    network.start_listening(&listener, backlog).unwrap();
    listener
}

#[test]
fn fault_42_sources_transfer_all_bytes_under_faults() {
    let message: Vec<u8> = (0..5_000_u32).map(|number| (number * 7) as u8).collect();
    let (runs, _) = for_seeds(200, |seed| {
        let model = if seed % 2 == 0 { SimModel::Completion } else { SimModel::Readiness };
        let mut faults = SimFaults::lossless([0, 50, 300][seed as usize % 3]);
        faults.descriptor_exhaustion = 0;
        faults.dropped_completions = if seed % 5 == 0 { 100 } else { 0 };
        let options = SimOptions::new(seed).model(model).faults(faults).socket_buffer_bytes(512);
        let runtime = Runtime::builder().driver(DriverKind::Sim(options)).build().unwrap();
        runtime.block_on(async {
            let (near, far) = Source::pair().await;
            let (near, far) = (Rc::new(near), Rc::new(far));
            let tasks: Vec<_> = [&near, &far]
                .into_iter()
                .map(|end| {
                    let (sender, receiver, message) = (Rc::clone(end), Rc::clone(end), message.clone());
                    let sent = spawn(async move { sender.send(&message).await });
                    (sent, spawn(async move { receiver.receive_all().await }))
                })
                .collect();
            for (sent, received) in tasks {
                sent.await.unwrap();
                assert!(received.await.unwrap() == message, "bytes were lost");
            }
            // A source that is released while a task waits, and one that is never released.
            let (idle, _peer) = Source::pair().await;
            let waiting = idle.registration.ready(Interest::READABLE);
            // A spurious event may end the wait.
            crate::time::timeout(Duration::from_millis(1), waiting).await.ok();
            drop(idle);
            let kept = Source::pair().await;
            let shared = current();
            let mut wakes = WakeQueue::default();
            shared.driver.borrow_mut().shut_down(Duration::ZERO, &mut wakes).unwrap();
            wakes.call();
            assert!(is_empty(&shared.driver.borrow()), "sources left in the driver");
            assert!(kept.0.registration.ready(Interest::READABLE).await.is_err());
        });
    });
    eprintln!("{runs} seeds");
}

#[test]
fn fault_12_late_completion_of_released_source_is_counted() {
    let faults = SimFaults { late_completions: 900, ..SimFaults::none() };
    let kind = DriverKind::Sim(SimOptions::new(1).faults(faults));
    let runtime = Runtime::builder().driver(kind).build().unwrap();
    runtime.block_on(async {
        for _ in 0..50 {
            let (near, far) = Source::pair().await;
            let is_pending = |source: &Source| {
                let mut driver = source.registration.shared().driver.borrow_mut();
                let key = source.registration.key();
                driver.poll_ready(key, Direction::Read, Waker::noop(), None).is_pending()
            };
            assert!(is_pending(&far));
            drop((near, far));
            crate::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(runtime.metrics().driver.late_completions > 0);
}

#[test]
fn fault_13_terminated_polls_of_sources_are_armed_again() {
    let faults = SimFaults { multishot_terminations: 900, ..SimFaults::none() };
    let kind = DriverKind::Sim(SimOptions::new(1).faults(faults).socket_buffer_bytes(64));
    let runtime = Runtime::builder().driver(kind).build().unwrap();
    runtime.block_on(async {
        let (near, far) = Source::pair().await;
        let receiving = spawn(async move { far.receive_all().await });
        for number in 0..50 {
            // The receiver waits again before each part.
            crate::time::sleep(Duration::from_millis(1)).await;
            near.call(Direction::Write, |network, socket| network.send(socket, &[number])).await.unwrap();
        }
        near.send(&[]).await;
        assert_eq!(receiving.await.unwrap(), (0..50).collect::<Vec<u8>>());
    });
}

#[test]
fn hung_up_source_that_waits_for_room_does_not_spin() {
    // A poll for writing reports the hangup of a full socket each time it is armed.
    let kind = DriverKind::Sim(SimOptions::new(1).socket_buffer_bytes(64));
    let mut driver = Driver::new(&kind, &DriverOptions::default()).unwrap();
    let Backend::SimCompletion(machine) = &mut *driver.backend else { unreachable!() };
    let network = machine.kernel.sockets_mut();
    let listener = listen(network, 1);
    let address = network.address(&listener, End::Local).unwrap().as_socket().unwrap();
    let near = network.open_stream(address, None).unwrap();
    network.connect(&near, address).unwrap();
    let far = network.accept(&listener).unwrap();
    network.send(&near, &[0; 64]).unwrap();
    network.lock().set_error(near.id(), libc::EHOSTUNREACH);
    let near = Rc::new(near);
    let key = machine.register(Rc::clone(&near), Interest::WRITABLE).unwrap();
    let mut wakes = WakeQueue::default();
    let mut rounds = 0;
    for _ in 0..100 {
        while let std::task::Poll::Ready(event) =
            driver.poll_ready(key, Direction::Write, Waker::noop(), None).map(Result::unwrap)
        {
            rounds += 1;
            driver.clear_ready(key, Direction::Write, crate::driver::Clear::All, event.tick);
        }
        driver.turn(Wait::For(1_000), &mut wakes).unwrap();
    }
    assert!((1..=2).contains(&rounds), "{rounds} wake-ups");
    drop((far, listener));
    driver.deregister(key);
}

//! Tests of accepting and connecting.

use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Poll, Waker};

use super::options;
use crate::driver::kernel::Kernel;
use crate::driver::kernel::op::{Completion, Wait};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::memory::key::Key;
use crate::driver::proactor::Proactor;
use crate::driver::settings::options::DriverOptions;
use crate::driver::settings::sim_options::SimOptions;
use crate::driver::sim::{SimCompletion, SimNetwork, SimSocket};
use crate::driver::sockets::{End, Family, Sockets};
use crate::driver::wake::queue::WakeQueue;

/// A proactor with a listener.
struct Listening {
    proactor: Proactor<SimCompletion>,
    key: Key,
    address: SocketAddr,
    clients: Vec<SimSocket>,
}

impl Listening {
    fn new(options: &DriverOptions) -> Self {
        let sim = SimOptions::new(1);
        let mut kernel = SimCompletion::new(SimNetwork::new(&sim), &sim, options);
        let network = kernel.sockets_mut();
        let listener = network.open(false).unwrap();
        network.bind(&listener, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        network.start_listening(&listener, 1000).unwrap();
        let address = network.address(&listener, End::Local).unwrap().as_socket().unwrap();
        let mut proactor = Proactor::new(kernel, options);
        let key = proactor.attach_listener(listener, Family::Internet).unwrap();
        Self { proactor, key, address, clients: Vec::new() }
    }

    fn poll(&mut self) -> Poll<Result<(), Option<i32>>> {
        let polled = self.proactor.poll_accepted(self.key, Waker::noop());
        polled.map(|accepted| accepted.map(drop).map_err(|error| error.raw_os_error()))
    }

    fn connect(&mut self, count: usize) {
        let network = self.proactor.kernel.sockets_mut();
        for _ in 0..count {
            let client = network.open_stream(self.address, None).unwrap();
            network.connect(&client, self.address).unwrap();
            self.clients.push(client);
        }
        (0..3).for_each(|_| self.proactor.turn(Wait::None, &mut WakeQueue::default()).unwrap());
    }

    /// Returns whether an accept is armed, whether it is being cancelled, and the number of accepted connections.
    fn state(&self) -> (bool, bool, usize) {
        let listener = self.proactor.listeners.get(self.key).unwrap();
        (listener.armed, listener.cancelling, listener.queue.len())
    }
}

#[test]
fn connections_are_accepted_ahead_unless_the_listener_is_shared() {
    for (accepts_ahead, is_shared) in [(true, false), (true, true), (false, false)] {
        let mut listening = Listening::new(&options());
        listening.proactor.set_accept_ahead(listening.key, true);
        listening.proactor.set_accept_ahead(listening.key, accepts_ahead);
        assert_eq!(listening.state(), (false, false, 0), "nothing to cancel");
        if is_shared {
            listening.proactor.share_listener(listening.key);
        }
        assert!(listening.poll().is_pending());
        listening.connect(3);
        let is_multishot = accepts_ahead && !is_shared;
        assert_eq!(listening.state(), (is_multishot, false, if is_multishot { 3 } else { 1 }));
        listening.proactor.set_accept_ahead(listening.key, accepts_ahead);
        assert!(!listening.state().1, "not changed");
        listening.proactor.set_accept_ahead(listening.key, false);
        assert_eq!(listening.state().1, is_multishot);
        assert_eq!(listening.poll(), Poll::Ready(Ok(())));
    }
}

#[test]
fn full_queue_stops_accepting() {
    let mut listening = Listening::new(&DriverOptions { max_accept_queue: 2, ..options() });
    assert!(listening.poll().is_pending());
    listening.connect(1);
    assert_eq!(listening.state(), (true, false, 1));
    listening.connect(1);
    assert_eq!(listening.state(), (false, false, 2));
    listening.connect(1);
    assert_eq!(listening.state(), (false, false, 2));
    assert_eq!((listening.poll(), listening.poll()), (Poll::Ready(Ok(())), Poll::Ready(Ok(()))));
    assert!(listening.poll().is_pending() && listening.state().0);
    listening.proactor.release_all(&mut WakeQueue::default());
    assert!(listening.proactor.listener(listening.key).is_none());
}

#[test]
fn accept_fails_only_if_further_ones_would() {
    for (errno, is_returned) in [
        (libc::EMFILE, true),
        (libc::ECONNABORTED, false),
        (libc::EPROTO, false),
        (libc::ECANCELED, false),
        (libc::EAGAIN, false),
    ] {
        let mut listening = Listening::new(&options());
        assert!(listening.poll().is_pending());
        let token = Token::new(Kind::Accept, listening.key);
        let completion = Completion { token, result: -errno, flags: 0 };
        listening.proactor.dispatch(&completion, &mut WakeQueue::default());
        let expected = if is_returned { Poll::Ready(Err(Some(errno))) } else { Poll::Pending };
        assert_eq!(listening.poll(), expected, "{errno}");
    }
}

#[test]
fn stream_takes_no_bytes_until_it_is_connected() {
    let mut listening = Listening::new(&options());
    let key = listening.proactor.connect(listening.address, None).unwrap();
    let is_connected = |listening: &Listening| listening.proactor.streams.get(key).unwrap().is_connected();
    assert!(!is_connected(&listening));
    listening.connect(0);
    assert!(is_connected(&listening));
}

//! Tests that inspect or control the simulated kernels. `tests/sim/simulator.rs` and `tests/sim/swarm` test what
//! applications can observe.

mod completion;
mod dropped;
mod source;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::network::Network;
use super::sockets::SimNetwork;
use crate::driver::Driver;
use crate::driver::kernel::op::Wait;
use crate::driver::settings::kind::DriverKind;
use crate::driver::settings::options::DriverOptions;
use crate::driver::settings::sim_options::{SimModel, SimOptions};
use crate::driver::sockets::{End, Sockets};
use crate::driver::wake::queue::WakeQueue;

#[test]
fn wait_with_deadline_takes_given_time() {
    for model in [SimModel::Completion, SimModel::Readiness] {
        let kind = DriverKind::Sim(SimOptions::new(1).model(model));
        let mut driver = Driver::new(&kind, &DriverOptions::default()).unwrap();
        let before_ns = driver.now_ns();
        driver.turn(Wait::For(3_600_000_000_000), &mut WakeQueue::default()).unwrap();
        let late = Duration::from_nanos(driver.now_ns() - before_ns) - Duration::from_secs(3600);
        assert!(late < Duration::from_micros(10), "{model:?}: {late:?} late");
    }
}

#[test]
fn full_buffer_returns_eagain_until_a_third_is_free() {
    let mut network = SimNetwork::new(&SimOptions::new(1).socket_buffer_bytes(9));
    let listener = network.open(false).unwrap();
    network.bind(&listener, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    network.start_listening(&listener, 0).unwrap();
    let address = network.address(&listener, End::Local).unwrap().as_socket().unwrap();
    let near = network.open_stream(address, None).unwrap();
    network.connect(&near, address).unwrap();
    let far = network.accept(&listener).unwrap();
    assert_eq!(network.send(&near, b"0123456789").unwrap(), 9);
    assert_eq!(network.send(&near, b"x").unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    let events = |network: &SimNetwork| network.lock().endpoint(near.id()).events;
    let before = events(&network);
    assert_eq!(network.receive(&far, &mut [0; 2]).unwrap(), 2);
    assert_eq!(events(&network), before, "no wake-up below a third");
    assert_eq!(network.receive(&far, &mut [0; 2]).unwrap(), 2);
    assert_eq!(events(&network), before + 1);
    assert_eq!(network.send(&near, b"abcdef").unwrap(), 4);
}

#[test]
fn fault_matches_given_rate() {
    let mut network = Network::new(&SimOptions::new(1));
    for (per_mille, expected) in [(0, 0..1), (100, 9_000..11_000), (1000, 89_000..91_000)] {
        let hits = (0..100_000).filter(|_| network.fault(per_mille)).count();
        assert!(expected.contains(&hits), "{hits} of 100000 at {per_mille} per mille");
    }
}

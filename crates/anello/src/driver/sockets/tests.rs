//! What only sockets of Linux have: a mode that all descriptors of one share.

use std::sync::mpsc;
use std::thread;

use super::*;

/// Enough for two threads to meet in every place of what they do.
const ROUNDS: usize = 20_000;

fn listener() -> OwnedFd {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    listener.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 0)))).expect("a port");
    listener.listen(16).expect("listens");
    listener.into()
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no such sockets")]
fn fault_04_nobody_waits_at_a_socket_whose_mode_others_change() {
    let listener = listener();
    let (ended, ends) = mpsc::channel();
    let work: [fn(&mut OsSockets, OwnedFd); 3] = [
        |sockets, listener| assert_eq!(sockets.refuse(&listener), 0),
        |sockets, listener| drop(sockets.import(listener).expect("a listener")),
        |_, listener| {
            let accepted = try_accept(&listener).expect_err("nobody has connected");
            assert_eq!(accepted.kind(), io::ErrorKind::WouldBlock);
        },
    ];
    for work in work.into_iter().cycle().take(4) {
        let (ended, listener) = (ended.clone(), listener.try_clone().expect("a descriptor"));
        thread::spawn(move || {
            // As on io_uring.
            let mut sockets = OsSockets::new(false);
            for _ in 0..ROUNDS {
                work(&mut sockets, listener.try_clone().expect("a descriptor"));
            }
            ended.send(()).expect("heard");
        });
    }
    for _ in 0..4 {
        // It takes less than a second, or some where the processor is emulated; who waits for a client waits for ever.
        ends.recv_timeout(Duration::from_secs(120)).expect("all end");
    }
}

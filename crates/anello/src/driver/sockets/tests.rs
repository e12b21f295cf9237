//! Tests of the blocking mode, which all descriptors of a Linux socket share.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;

/// High enough for the threads to interleave at every step.
const ROUNDS: usize = 20_000;

fn listener() -> OwnedFd {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("create socket");
    listener.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 0)))).expect("bind to a free port");
    listener.listen(16).expect("listen");
    listener.into()
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not support these sockets")]
fn fault_04_accept_never_waits_when_other_threads_change_socket_mode() {
    let listener = listener();
    let (done, finished) = mpsc::channel();
    let work: [fn(&mut OsSockets, OwnedFd); 3] = [
        |sockets, listener| assert_eq!(sockets.reject_pending(&listener), 0),
        |sockets, listener| drop(sockets.import(listener.into()).expect("import listener")),
        |_, listener| {
            let accepted = try_accept(&listener.into()).expect_err("no client has connected");
            assert_eq!(accepted.kind(), io::ErrorKind::WouldBlock);
        },
    ];
    for work in work.into_iter().cycle().take(4) {
        let (done, listener) = (done.clone(), listener.try_clone().expect("duplicate descriptor"));
        thread::spawn(move || {
            // Blocking sockets, as on io_uring.
            let mut sockets = OsSockets::new(false);
            for _ in 0..ROUNDS {
                work(&mut sockets, listener.try_clone().expect("duplicate descriptor"));
            }
            done.send(()).expect("receiver exists");
        });
    }
    for _ in 0..4 {
        // This takes less than a second, or a few seconds on an emulated CPU. An accept that blocked would never
        // return.
        finished.recv_timeout(Duration::from_secs(120)).expect("every thread finishes");
    }
}

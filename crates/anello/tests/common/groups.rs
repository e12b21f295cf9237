//! Clients and members for the listener group tests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};

use anello::DriverKind;
use anello::net::{GroupListener, GroupMember, echo};

use super::{Setup, both_drivers, fallback_setups, hang_timeout};

pub fn available() -> Vec<Setup> {
    let mut setups = both_drivers();
    setups.extend(fallback_setups().into_iter().map(|(_, _, setup)| setup).filter(|setup| {
        ["uring without multishot accept", "uring without DEFER_TASKRUN"].contains(&setup.name)
    }));
    setups.retain(|setup| match setup.builder().build() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("{}: skipped: {error}", setup.name);
            false
        }
    });
    assert!(setups.iter().any(|setup| setup.kind == DriverKind::Epoll));
    setups
}

pub fn listener() -> (StdListener, SocketAddr) {
    let listener = StdListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("valid address");
    (listener, address)
}

/// Returns a client that has sent the message to be echoed.
pub fn client(address: SocketAddr) -> StdStream {
    let mut client = StdStream::connect(address).expect("a connection");
    client.set_read_timeout(Some(hang_timeout())).expect("a timeout");
    client.write_all(b"ciao").expect("send succeeds");
    client
}

pub fn assert_echoed(mut client: impl Read) {
    let mut response = [0; 4];
    client.read_exact(&mut response).expect("a response");
    assert_eq!(&response, b"ciao");
}

pub async fn serve<L: GroupListener>(member: GroupMember<L>) {
    while let Some(stream) = member.accept().await.expect("a connection") {
        anello::spawn(async move {
            echo(stream).await.ok();
        })
        .detach();
    }
}

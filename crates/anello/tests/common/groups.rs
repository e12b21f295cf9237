//! Clients and members of the tests of listener groups.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};

use anello::DriverKind;
use anello::net::{GroupListener, GroupMember, echo};

use super::{Setup, both_drivers, hangs_after, ladder};

pub fn available() -> Vec<Setup> {
    let mut setups = both_drivers();
    setups.extend(ladder().into_iter().map(|(_, _, setup)| setup).filter(|setup| {
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
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// A client that has sent what it wants back.
pub fn client(address: SocketAddr) -> StdStream {
    let mut client = StdStream::connect(address).expect("connects");
    client.set_read_timeout(Some(hangs_after())).expect("a timeout");
    client.write_all(b"ciao").expect("sends");
    client
}

pub fn is_echoed(mut client: impl Read) {
    let mut answer = [0; 4];
    client.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"ciao");
}

pub async fn serve<L: GroupListener>(member: GroupMember<L>) {
    while let Some(stream) = member.accept().await.expect("accepts") {
        anello::spawn(async move {
            echo(stream).await.ok();
        })
        .detach();
    }
}

//! Clients and members for the listener group tests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};

use crate::common::echo;
use anello::server::{GroupListener, GroupMember};

use crate::common::hang_timeout;

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
    while let Some(mut stream) = member.accept().await.expect("a connection") {
        anello::spawn(async move {
            echo(&mut stream).await.ok();
        })
        .detach();
    }
}

//! A TCP proxy on all cores: `tcp_proxy ADDRESS TARGET` forwards connections to the host and port `TARGET`.
//!
//! Bytes move from one connection to the other in the buffers into which the kernel has received them. When one side
//! shuts down its write direction, the other side is shut down as well, and the opposite direction stays open. When one
//! side resets its connection, the other side is reset.

#![forbid(unsafe_code)]

use std::io;
use std::rc::Rc;
use std::time::Duration;

use anello::Workers;
use anello::io::copy_bidirectional;
use anello::net::{TcpListener, TcpStream};
use anello::server::ListenerGroup;
use anello::time::timeout;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, target] = arguments.as_slice() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "usage: tcp_proxy ADDRESS TARGET"));
    };
    let address = address.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let group = ListenerGroup::<TcpListener>::bind(address, Workers::builder().worker_count()?)?;
    println!("listening on {}", group.sockets()?[0].local_addr()?);
    let target = target.clone();
    let workers = Workers::builder().start(move |worker| {
        let (group, target): (_, Rc<str>) = (group.clone(), target.as_str().into());
        async move {
            let member = group.join(worker.index);
            while let Some(client) = member.accept().await? {
                let target = Rc::clone(&target);
                anello::spawn(async move {
                    if let Err(error) = forward(client, &target).await {
                        eprintln!("connection failed: {error}");
                    }
                })
                .detach();
            }
            Ok::<(), io::Error>(())
        }
    })?;
    workers.join()?.into_iter().collect()
}

async fn forward(mut client: TcpStream, target: &str) -> io::Result<()> {
    let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await;
    let mut server = connected.map_err(|_| io::ErrorKind::TimedOut)??;
    copy_bidirectional(&mut client, &mut server).await.map(drop).inspect_err(|_| {
        // After an EOF, a peer would take what was forwarded for everything.
        client.abort();
        server.abort();
    })
}

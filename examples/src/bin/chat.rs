//! A chat server on all cores: `chat [ADDRESS]`, by default on `127.0.0.1:7777`. Connect with `nc` or `telnet`.
//!
//! The first line from a client is its name. Each further line is sent to all other clients, whichever worker serves
//! them, through a broadcast channel. Connections live long, so each one goes to the worker with the fewest
//! ([`Distribution::LeastLoaded`]).

#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anello::Workers;
use anello::io::BufReader;
use anello::net::{OwnedWriteHalf, TcpListener, TcpStream};
use anello::server::{Distribution, ListenerGroup};
use anello::sync::broadcast::error::RecvError;
use anello::sync::broadcast::{Receiver, Sender};

/// Number of messages that a client can be behind before it misses some.
const MAX_BACKLOG: usize = 256;

const MAX_LINE_BYTES: usize = 1024;

#[derive(Clone)]
struct Message {
    /// The client that does not receive the message.
    sender: Option<u64>,
    text: Arc<str>,
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7777".to_owned());
    let address = address.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let group = ListenerGroup::<TcpListener>::bind(address, Workers::builder().worker_count()?)?;
    group.set_distribution(Distribution::LeastLoaded);
    println!("listening on {}", group.sockets()?[0].local_addr()?);
    let room = Sender::new(MAX_BACKLOG);
    let workers = Workers::builder().start(move |worker| {
        let (group, room) = (group.clone(), room.clone());
        async move {
            let member = group.join(worker.index);
            while let Some(stream) = member.accept().await? {
                let room = room.clone();
                anello::spawn(async move {
                    if let Err(error) = serve(stream, room).await {
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

async fn serve(mut stream: TcpStream, room: Sender<Message>) -> io::Result<()> {
    static NEXT_ID: AtomicU64 = AtomicU64::new(0);
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    stream.send("Your name? ").await?;
    let (reader, writer) = stream.into_split();
    let mut lines = BufReader::new(reader).max_line_bytes(MAX_LINE_BYTES).lines();
    let Some(name) = lines.next_line().await? else { return Ok(()) };
    // Subscribe before announcing the name, so that no later message is missed.
    let forwarding = anello::spawn(forward(room.subscribe(), writer, id));
    let send = |sender, text: String| {
        // Fails only if no client is connected.
        room.send(Message { sender, text: text.into() }).ok();
    };
    send(None, format!("* {name} has joined\n"));
    let result = async {
        while let Some(line) = lines.next_line().await? {
            send(Some(id), format!("{name}: {line}\n"));
        }
        Ok(())
    };
    let result = result.await;
    send(None, format!("* {name} has left\n"));
    forwarding.abort();
    result
}

/// Sends the messages of all other clients to a client, until the connection fails.
async fn forward(
    mut messages: Receiver<Message>,
    mut writer: OwnedWriteHalf<TcpStream>,
    id: u64,
) -> io::Result<()> {
    loop {
        match messages.recv().await {
            Ok(message) if message.sender == Some(id) => {}
            Ok(message) => writer.write_all(message.text.as_bytes()).await?,
            // The client reads more slowly than the others write.
            Err(RecvError::Lagged(count)) => {
                writer.write_all(format!("* you have missed {count} messages\n").as_bytes()).await?;
            }
            Err(RecvError::Closed) => return Ok(()),
        }
    }
}

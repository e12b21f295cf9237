//! Measures how many messages a simulation transfers per second of real time.
//!
//! usage: `cargo run --release --example simulation_speed [PAIRS]`
//!
//! Each pair consists of a client and an echo server. The client sends 32 messages of 64 bytes, and waits until all of
//! them have come back. Each message counts once per direction.

use std::time::{Duration, Instant};

use anello::net::{TcpListener, TcpStream, UdpSocket};
use anello::sim::{LinkOptions, SimModel, Simulation};

const MESSAGE_BYTES: usize = 64;
const BATCH: usize = 32;
const MESSAGES_IN_TOTAL: usize = 1_000_000;

async fn tcp_server() -> std::io::Result<()> {
    let mut stream = TcpListener::bind("0.0.0.0:7")?.accept().await?;
    while let Some(chunk) = stream.recv().await? {
        stream.send(chunk).await?;
    }
    Ok(())
}

async fn tcp_client(server: String, batch: usize, batches: usize) -> std::io::Result<()> {
    let mut stream = TcpStream::connect((server, 7)).await?;
    for _ in 0..batches {
        for _ in 0..batch {
            stream.write_all(&[7; MESSAGE_BYTES]).await?;
        }
        let mut missing = batch * MESSAGE_BYTES;
        while missing > 0 {
            let chunk = stream.recv().await?.ok_or(std::io::ErrorKind::UnexpectedEof)?;
            missing -= chunk.len();
        }
    }
    Ok(())
}

async fn udp_server() -> std::io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:7")?;
    let mut buffer = [0; MESSAGE_BYTES];
    loop {
        let (count, from) = socket.recv_from(&mut buffer).await?;
        socket.send_to(&buffer[..count], from).await?;
    }
}

async fn udp_client(server: String, batch: usize, batches: usize) -> std::io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((server, 7)).await?;
    let mut buffer = [0; MESSAGE_BYTES];
    for _ in 0..batches {
        for _ in 0..batch {
            socket.send(&[7; MESSAGE_BYTES]).await?;
        }
        for _ in 0..batch {
            socket.recv(&mut buffer).await?;
        }
    }
    Ok(())
}

fn measure(model: SimModel, is_udp: bool, batch: usize, pairs: usize) {
    let link = LinkOptions::default().latency(Duration::from_millis(1)..=Duration::from_millis(1));
    let mut sim = Simulation::builder().model(model).link(link).build();
    let batches = MESSAGES_IN_TOTAL / pairs / batch / 2;
    for pair in 0..pairs {
        let server = format!("server{pair}");
        if is_udp {
            sim.host(&server, udp_server);
            sim.client(&format!("client{pair}"), udp_client(server, batch, batches));
        } else {
            sim.host(&server, tcp_server);
            sim.client(&format!("client{pair}"), tcp_client(server, batch, batches));
        }
    }
    let start = Instant::now();
    sim.run().unwrap_or_else(|error| panic!("{error}"));
    let seconds = start.elapsed().as_secs_f64();
    let protocol = if is_udp { "UDP" } else { "TCP" };
    let rate = (batches * batch * pairs * 2) as f64 / seconds / 1e6;
    println!(
        "{model:?}, {protocol}, {pairs} pairs, {batch} messages in flight: {rate:.2} million messages/s"
    );
}

fn main() {
    let pairs = std::env::args().nth(1).and_then(|pairs| pairs.parse().ok()).unwrap_or(8);
    for model in [SimModel::Completion, SimModel::Readiness] {
        for is_udp in [false, true] {
            for batch in [1, BATCH] {
                measure(model, is_udp, batch, pairs);
            }
        }
    }
}

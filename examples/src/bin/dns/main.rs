//! An authoritative DNS server over UDP: `dns ADDRESS NAME=IP...`, for example `dns 127.0.0.1:5353 www.test=192.0.2.1`.
//!
//! A name can have several addresses. The server receives all queries that have arrived with one system call, and sends
//! all responses with another.

#![forbid(unsafe_code)]

mod message;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use anello::net::{RecvBatch, UdpSocket};

/// Maximum number of queries per system call, and of bytes per query.
const MAX_QUERIES: usize = 32;
const MAX_QUERY_BYTES: usize = 512;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:5353".to_owned());
    let records = parse_records(arguments)?;
    anello::Runtime::new()?.block_on(async {
        let socket = UdpSocket::bind_host(address.as_str()).await?;
        println!("listening on {}", socket.local_addr()?);
        serve(&socket, &records).await
    })
}

type Records = HashMap<String, Vec<IpAddr>>;

fn parse_records(arguments: impl Iterator<Item = String>) -> io::Result<Records> {
    let mut records = Records::new();
    for argument in arguments {
        let parsed = argument.split_once('=').and_then(|(name, address)| Some((name, address.parse().ok()?)));
        let Some((name, address)) = parsed else {
            let text = format!("invalid record {argument:?} (expected NAME=IP)");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        records.entry(name.trim_end_matches('.').to_ascii_lowercase()).or_default().push(address);
    }
    Ok(records)
}

async fn serve(socket: &UdpSocket, records: &Records) -> io::Result<()> {
    let mut queries = RecvBatch::new(MAX_QUERIES, MAX_QUERY_BYTES);
    let mut responses = vec![Vec::new(); MAX_QUERIES];
    loop {
        socket.recv_batch(&mut queries).await?;
        let mut outgoing = Vec::with_capacity(MAX_QUERIES);
        for (query, response) in queries.iter().zip(&mut responses) {
            let find = |name: &str| records.get(name).cloned();
            if message::respond(query.payload(), find, response) {
                outgoing.push(query.reply(response));
            }
        }
        let mut sent = 0;
        while sent < outgoing.len() {
            match socket.send_batch(&outgoing[sent..]).await {
                Ok(count) => sent += count,
                // One client cannot be reached. The others get their responses.
                Err(error) => {
                    eprintln!("response not sent: {error}");
                    sent += 1;
                }
            }
        }
    }
}

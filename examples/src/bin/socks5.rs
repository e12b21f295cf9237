//! A SOCKS5 proxy (RFC 1928): `socks5 [ADDRESS]`, by default on `127.0.0.1:1080`. Supports the command CONNECT, without
//! authentication.

#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anello::io::copy_bidirectional;
use anello::net::{TcpListener, TcpStream};
use anello::time::timeout;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const TYPE_IPV4: u8 = 1;
const TYPE_NAME: u8 = 3;
const TYPE_IPV6: u8 = 4;

/// Time limit for the handshake and the connection to the target.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Result of a request, with the number that the protocol assigns to it.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Reply {
    Succeeded = 0,
    GeneralFailure = 1,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    CommandUnsupported = 7,
    AddressUnsupported = 8,
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:1080".to_owned());
    anello::Runtime::new()?.block_on(async {
        let listener = TcpListener::bind_host(address.as_str()).await?;
        println!("listening on {}", listener.local_addr()?);
        loop {
            let client = listener.accept().await?;
            anello::spawn(async move {
                if let Err(error) = serve(client).await {
                    eprintln!("connection failed: {error}");
                }
            })
            .detach();
        }
    })
}

async fn serve(mut client: TcpStream) -> io::Result<()> {
    let connected = timeout(HANDSHAKE_TIMEOUT, accept_request(&mut client)).await;
    let mut server = connected.map_err(|_| io::ErrorKind::TimedOut)??;
    // Bytes that the client has sent after its request are still in the stream.
    copy_bidirectional(&mut client, &mut server).await.map(drop).inspect_err(|_| {
        // After an EOF, a peer would take what was forwarded for everything.
        client.abort();
        server.abort();
    })
}

/// Executes the handshake, and returns the connection to the requested target.
async fn accept_request(client: &mut TcpStream) -> io::Result<TcpStream> {
    let [version, method_count] = read(client).await?;
    let mut methods = vec![0; usize::from(method_count)];
    client.read_exact(&mut methods).await?;
    if version != VERSION || !methods.contains(&NO_AUTHENTICATION) {
        client.send(vec![VERSION, NO_ACCEPTABLE_METHOD]).await?;
        client.flush().await?;
        return Err(invalid("client does not offer SOCKS 5 without authentication"));
    }
    client.send(vec![VERSION, NO_AUTHENTICATION]).await?;
    let [_version, command, _reserved, address_type] = read(client).await?;
    let target = match address_type {
        TYPE_IPV4 => IpAddr::from(Ipv4Addr::from(read::<4>(client).await?)).to_string(),
        TYPE_IPV6 => format!("[{}]", Ipv6Addr::from(read::<16>(client).await?)),
        TYPE_NAME => {
            let [length] = read(client).await?;
            let mut name = vec![0; usize::from(length)];
            client.read_exact(&mut name).await?;
            String::from_utf8(name).map_err(|_| invalid("name of the target is not UTF-8"))?
        }
        _ => return reject(client, Reply::AddressUnsupported, invalid("unknown type of address")).await,
    };
    let port = u16::from_be_bytes(read(client).await?);
    if command != CONNECT {
        return reject(client, Reply::CommandUnsupported, invalid("unsupported command")).await;
    }
    match TcpStream::connect(format!("{target}:{port}")).await {
        Ok(server) => {
            reply(client, Reply::Succeeded, server.local_addr()?).await?;
            Ok(server)
        }
        Err(error) => reject(client, reply_for(&error), error).await,
    }
}

async fn read<const LENGTH: usize>(client: &mut TcpStream) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn reply_for(error: &io::Error) -> Reply {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Reply::ConnectionRefused,
        io::ErrorKind::HostUnreachable => Reply::HostUnreachable,
        io::ErrorKind::NetworkUnreachable => Reply::NetworkUnreachable,
        _ => Reply::GeneralFailure,
    }
}

async fn reject<T>(client: &mut TcpStream, result: Reply, error: io::Error) -> io::Result<T> {
    reply(client, result, SocketAddr::from(([0; 4], 0))).await?;
    client.flush().await?;
    Err(error)
}

/// Sends the result and the local address of the connection to the target.
async fn reply(client: &mut TcpStream, result: Reply, local: SocketAddr) -> io::Result<()> {
    let mut message = vec![VERSION, result as u8, 0];
    match local.ip() {
        IpAddr::V4(address) => {
            message.push(TYPE_IPV4);
            message.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            message.push(TYPE_IPV6);
            message.extend_from_slice(&address.octets());
        }
    }
    message.extend_from_slice(&local.port().to_be_bytes());
    client.send(message).await
}

//! An HTTP/3 server and client: h3 and quinn.
//!
//! Usage: `http3 server ADDRESS CERTIFICATE_FILE KEY_FILE` or `http3 client ADDRESS CA_FILE PATH`
//!
//! The server returns as many bytes as the number in the path. The client requests a path, and prints the status and
//! the number of bytes.

use std::error::Error;
use std::future::poll_fn;
use std::net::UdpSocket;
use std::sync::Arc;

use anello_ecosystem::quic::QuinnRuntime;
use bytes::{Buf, Bytes};
use http::{Request, Response, StatusCode};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Endpoint, EndpointConfig, Incoming, ServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    anello::Runtime::new()?.block_on(run())
}

async fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", address, certificate, key] => serve(address, certificate, key).await,
        ["client", address, authority, path] => get(address, authority, path).await,
        _ => Err("expected server ADDRESS CERTIFICATE_FILE KEY_FILE, or client ADDRESS CA_FILE PATH".into()),
    }
}

fn endpoint(address: &str, server: Option<ServerConfig>) -> Result<Endpoint> {
    let socket = UdpSocket::bind(address)?;
    Ok(Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(QuinnRuntime))?)
}

async fn serve(address: &str, certificate: &str, key: &str) -> Result<()> {
    let certificate = CertificateDer::from_pem_file(certificate)?;
    let mut tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::from_pem_file(key)?)?;
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    let endpoint = endpoint(address, Some(config))?;
    println!("listening on {}", endpoint.local_addr()?);
    while let Some(incoming) = endpoint.accept().await {
        anello::spawn(async move {
            if let Err(error) = respond(incoming).await {
                eprintln!("connection failed: {error}");
            }
        })
        .detach();
    }
    Ok(())
}

async fn respond(incoming: Incoming) -> Result<()> {
    let mut connection = h3::server::Connection::new(h3_quinn::Connection::new(incoming.await?)).await?;
    loop {
        let resolver = match connection.accept().await {
            Ok(Some(resolver)) => resolver,
            Ok(None) => return Ok(()),
            Err(error) if error.is_h3_no_error() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let (request, mut stream) = resolver.resolve_request().await?;
        let (status, body) = match request.uri().path()[1..].parse() {
            Ok(bytes) => (StatusCode::OK, vec![b'x'; bytes]),
            Err(_) => (StatusCode::NOT_FOUND, Vec::new()),
        };
        stream.send_response(Response::builder().status(status).body(())?).await?;
        stream.send_data(Bytes::from(body)).await?;
        stream.finish().await?;
    }
}

async fn get(address: &str, authority: &str, path: &str) -> Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let mut tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let mut endpoint = endpoint("127.0.0.1:0", None)?;
    endpoint.set_default_client_config(ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)));
    let connection = endpoint.connect(address.parse()?, "localhost")?.await?;
    let (mut driver, mut sender) = h3::client::new(h3_quinn::Connection::new(connection)).await?;
    let driver = anello::spawn(async move { poll_fn(|context| driver.poll_close(context)).await });

    let request = Request::get(format!("https://localhost/{path}")).body(())?;
    let mut stream = sender.send_request(request).await?;
    stream.finish().await?;
    let response = stream.recv_response().await?;
    let mut bytes = 0;
    while let Some(chunk) = stream.recv_data().await? {
        bytes += chunk.remaining();
    }
    println!("{} {bytes}", response.status());
    drop((stream, sender));
    println!("closed without error: {}", driver.await?.is_h3_no_error());
    endpoint.wait_idle().await;
    Ok(())
}

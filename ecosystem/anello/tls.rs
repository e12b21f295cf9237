//! A TLS server and client: futures-rustls.
//!
//! Usage: `tls server ADDRESS CERTIFICATE_FILE KEY_FILE` or `tls client ADDRESS CA_FILE`
//!
//! The server returns each line in upper case. The client sends its standard input and prints the response.

use std::error::Error;
use std::io::{Read, Write};
use std::sync::Arc;

use anello::net::{TcpListener, TcpStream};
use futures_rustls::{TlsAcceptor, TlsConnector};
use futures_util::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    anello::Runtime::new()?.block_on(run())
}

async fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", address, certificate, key] => serve(address, certificate, key).await,
        ["client", address, authority] => send(address, authority).await,
        _ => Err("expected server ADDRESS CERTIFICATE_FILE KEY_FILE, or client ADDRESS CA_FILE".into()),
    }
}

async fn serve(address: &str, certificate: &str, key: &str) -> Result<()> {
    let certificate = CertificateDer::from_pem_file(certificate)?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivateKeyDer::from_pem_file(key)?)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let stream = listener.accept().await?;
        let acceptor = acceptor.clone();
        anello::spawn(async move {
            if let Err(error) = respond(acceptor, stream).await {
                eprintln!("connection failed: {error}");
            }
        })
        .detach();
    }
}

async fn respond(acceptor: TlsAcceptor, stream: TcpStream) -> Result<()> {
    let (reader, mut writer) = acceptor.accept(stream).await?.split();
    let mut reader = BufReader::new(reader);
    let mut line = String::new();
    while reader.read_line(&mut line).await? > 0 {
        writer.write_all(line.to_uppercase().as_bytes()).await?;
        writer.flush().await?;
        line.clear();
    }
    writer.close().await?;
    Ok(())
}

async fn send(address: &str, authority: &str) -> Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await?;
    let mut stream = connector.connect("localhost".try_into()?, stream).await?;
    let (mut input, mut response) = (Vec::new(), Vec::new());
    std::io::stdin().read_to_end(&mut input)?;
    stream.write_all(&input).await?;
    stream.flush().await?;
    while response.len() < input.len() {
        let mut buffer = [0; 16_384];
        match stream.read(&mut buffer).await? {
            0 => break,
            count => response.extend_from_slice(&buffer[..count]),
        }
    }
    stream.close().await?;
    Ok(std::io::stdout().write_all(&response)?)
}

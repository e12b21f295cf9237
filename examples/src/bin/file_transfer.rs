//! Transfers files over TCP:
//!
//! - `file_transfer serve ADDRESS DIRECTORY` serves the files in a directory.
//! - `file_transfer get ADDRESS NAME FILE` fetches one of them and checks it.
//!
//! The client sends the name and a newline. The server sends the length (8 bytes, big-endian), the content and its SHA-256
//! digest, and closes the connection. It passes the content from the page cache to the socket (`sendfile(2)`), and
//! computes the digest on a thread of the blocking pool meanwhile.

#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anello::fs::File;
use anello::io::BufReader;
use anello::net::{TcpListener, TcpStream};
use sha2::{Digest, Sha256};

const MAX_NAME_BYTES: usize = 255;
const DIGEST_BYTES: usize = 32;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = anello::Runtime::new()?;
    match arguments[..] {
        ["serve", address, directory] => runtime.block_on(serve(address, directory.into())),
        ["get", address, name, file] => runtime.block_on(async {
            let bytes = get(address, name, file.as_ref()).await?;
            println!("{bytes} bytes received, digest correct");
            Ok(())
        }),
        _ => {
            Err(invalid("usage: file_transfer serve ADDRESS DIRECTORY | file_transfer get ADDRESS NAME FILE"))
        }
    }
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message.into())
}

async fn serve(address: &str, directory: PathBuf) -> io::Result<()> {
    let listener = TcpListener::bind_host(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let directory: Rc<Path> = directory.into();
    loop {
        let stream = listener.accept().await?;
        let directory = Rc::clone(&directory);
        anello::spawn(async move {
            if let Err(error) = send_requested_file(stream, &directory).await {
                eprintln!("transfer failed: {error}");
            }
        })
        .detach();
    }
}

async fn send_requested_file(stream: TcpStream, directory: &Path) -> io::Result<()> {
    let mut lines = BufReader::new(stream).max_line_bytes(MAX_NAME_BYTES).lines();
    let name = lines.next_line().await?.unwrap_or_default();
    let mut stream = lines.into_inner().into_inner();
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return Err(invalid(format!("not the name of a file in the directory: {name:?}")));
    }
    let file = File::open(directory.join(&name)).await?;
    let metadata = file.metadata().await?;
    if !metadata.is_file() {
        return Err(invalid(format!("not a regular file: {name:?}")));
    }
    let length = metadata.len();
    stream.set_nodelay(true)?;
    let copy = file.try_clone().await?.into_std().await?;
    let digest = anello::spawn_blocking(move || digest_of(copy, length));
    stream.write_more(&length.to_be_bytes()).await?;
    if stream.send_file(&file, 0, length).await? < length {
        // The client detects that the content is incomplete.
        stream.abort();
        return Err(invalid(format!("truncated during the transfer: {name:?}")));
    }
    let digest = digest.await.map_err(io::Error::other)??;
    stream.write_all(&digest).await?;
    stream.flush().await
}

fn digest_of(file: std::fs::File, length: u64) -> io::Result<[u8; DIGEST_BYTES]> {
    let mut digest = Sha256::new();
    io::copy(&mut io::Read::take(file, length), &mut digest)?;
    Ok(digest.finalize().into())
}

/// Fetches a file, and returns its length. The file has its final name only once it is complete and correct.
async fn get(address: &str, name: &str, target: &Path) -> io::Result<u64> {
    let partial = target.with_extension("partial");
    let result = receive_file(address, name, &partial).await;
    match &result {
        Ok(_) => anello::fs::rename(&partial, target).await?,
        // The file does not exist if it could not be created.
        Err(_) => _ = anello::fs::remove_file(&partial).await,
    }
    result
}

async fn receive_file(address: &str, name: &str, target: &Path) -> io::Result<u64> {
    let mut stream = TcpStream::connect(address).await?;
    stream.send(format!("{name}\n").into_bytes()).await?;
    let mut length = [0; 8];
    stream.read_exact(&mut length).await?;
    let length = u64::from_be_bytes(length);
    let file = File::create(target).await?;
    let (mut received, mut computed) = (0, Sha256::new());
    let mut expected = Vec::new();
    while let Some(chunk) = stream.recv().await? {
        let (content, rest) =
            chunk.split_at(chunk.len().min(usize::try_from(length - received).unwrap_or(usize::MAX)));
        file.write_all_at(content, received).await?;
        computed.update(content);
        received += content.len() as u64;
        expected.extend_from_slice(&rest[..rest.len().min(DIGEST_BYTES - expected.len())]);
    }
    if received < length || expected.len() < DIGEST_BYTES {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if expected != computed.finalize()[..] {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "digest differs"));
    }
    Ok(length)
}

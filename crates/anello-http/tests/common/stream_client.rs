//! A client's connection that is plain or under TLS, and reads as slowly as is wished.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anello::net::TcpStream;
use anello::time::sleep;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// How much a client that reads slowly takes.
pub const BYTES_PER_SECOND: usize = 64 * 1024;

/// A client's connection, under TLS or not.
pub struct ByteStreamClient {
    pub stream: TcpStream,
    tls: Option<ClientConnection>,
    ciphertext: Vec<u8>,
}

impl ByteStreamClient {
    pub async fn connect(address: SocketAddr, config: Option<&Arc<ClientConfig>>) -> Self {
        let name = ServerName::try_from("localhost").expect("a name");
        let tls = config.map(|config| ClientConnection::new(Arc::clone(config), name).expect("a client"));
        Self { stream: TcpStream::connect(address).await.expect("connects"), tls, ciphertext: Vec::new() }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        let Some(tls) = &mut self.tls else { return self.stream.write_all(bytes).await.expect("sends") };
        tls.writer().write_all(bytes).expect("taken");
        self.flush().await;
    }

    async fn flush(&mut self) {
        let mut ciphertext = Vec::new();
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.wants_write()) {
            tls.write_tls(&mut ciphertext).expect("written");
        }
        self.stream.write_all(&ciphertext).await.expect("sends");
    }

    /// What comes next, some thousand bytes of it; nothing at an orderly end.
    pub async fn receive(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        loop {
            let Some(tls) = &mut self.tls else {
                let count = self.stream.read(&mut bytes).await.expect("bytes");
                return bytes[..count].to_vec();
            };
            match tls.reader().read(&mut bytes) {
                Ok(count) => return bytes[..count].to_vec(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            if self.ciphertext.is_empty() {
                let count = self.stream.read(&mut bytes).await.expect("bytes");
                self.ciphertext.extend_from_slice(&bytes[..count]);
            }
            let taken = tls.read_tls(&mut &self.ciphertext[..]).expect("read");
            self.ciphertext.drain(..taken);
            tls.process_new_packets().expect("TLS");
            self.flush().await;
        }
    }

    /// Reads steadily until so many bytes `#` have come; what else came.
    pub async fn read_slowly(&mut self, whole_bytes: usize, progress: &Cell<usize>) -> Vec<u8> {
        let mut rest = Vec::new();
        while progress.get() < whole_bytes {
            let bytes = self.receive().await;
            assert!(!bytes.is_empty(), "ended after {} of {whole_bytes} bytes", progress.get());
            sleep(Duration::from_secs(1) * bytes.len() as u32 / BYTES_PER_SECOND as u32).await;
            progress.set(progress.get() + bytes.iter().filter(|byte| **byte == b'#').count());
            rest.extend(bytes.into_iter().filter(|byte| *byte != b'#'));
        }
        rest
    }
}

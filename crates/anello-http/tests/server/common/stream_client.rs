//! A client connection, with or without TLS, that can read slowly.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anello::net::TcpStream;
use anello::time::sleep;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// Rate of [`ByteStreamClient::read_slowly`].
pub const BYTES_PER_SECOND: usize = 64 * 1024;

/// A client connection with or without TLS.
pub struct ByteStreamClient {
    pub stream: TcpStream,
    tls: Option<ClientConnection>,
    ciphertext: Vec<u8>,
}

impl ByteStreamClient {
    pub async fn connect(address: SocketAddr, config: Option<&Arc<ClientConfig>>) -> Self {
        let name = ServerName::try_from("localhost").expect("valid server name");
        let tls = config.map(|config| ClientConnection::new(Arc::clone(config), name).expect("TLS client"));
        Self { stream: TcpStream::connect(address).await.expect("connect"), tls, ciphertext: Vec::new() }
    }

    /// Sends bytes before the TLS handshake.
    pub async fn send_before_tls(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("send");
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        let Some(tls) = &mut self.tls else { return self.stream.write_all(bytes).await.expect("send") };
        tls.writer().write_all(bytes).expect("buffer plaintext");
        self.flush().await;
    }

    async fn flush(&mut self) {
        let mut ciphertext = Vec::new();
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.wants_write()) {
            tls.write_tls(&mut ciphertext).expect("write to a vector");
        }
        self.stream.write_all(&ciphertext).await.expect("send");
    }

    /// Receives until the TLS handshake is complete, and sends the data that was buffered before.
    pub async fn complete_handshake(&mut self) {
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.is_handshaking()) {
            let mut bytes = vec![0; 4096];
            let count = self.stream.read(&mut bytes).await.expect("receive");
            let mut received = &bytes[..count];
            while !received.is_empty() {
                tls.read_tls(&mut received).expect("read from a slice");
                tls.process_new_packets().expect("valid TLS records");
            }
            self.flush().await;
        }
    }

    /// Sends close_notify on a connection with TLS, whose socket stays open. Otherwise, shuts down the write half.
    pub async fn end_writing(&mut self) {
        let Some(tls) = &mut self.tls else { return self.stream.shutdown().await.expect("shut down") };
        tls.send_close_notify();
        self.flush().await;
    }

    /// Sends bytes and close_notify at once.
    pub async fn send_and_end(&mut self, bytes: &[u8]) {
        let tls = self.tls.as_mut().expect("a connection with TLS");
        tls.writer().write_all(bytes).expect("buffer plaintext");
        self.end_writing().await;
    }

    /// Receives up to EOF.
    pub async fn receive_all(&mut self) -> Vec<u8> {
        let mut received = Vec::new();
        loop {
            let bytes = self.receive().await;
            if bytes.is_empty() {
                return received;
            }
            received.extend(bytes);
        }
    }

    /// Receives up to 4096 bytes. Returns an empty vector at EOF.
    pub async fn receive(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        loop {
            let Some(tls) = &mut self.tls else {
                let count = self.stream.read(&mut bytes).await.expect("receive");
                return bytes[..count].to_vec();
            };
            match tls.reader().read(&mut bytes) {
                Ok(count) => return bytes[..count].to_vec(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            if self.ciphertext.is_empty() {
                let count = self.stream.read(&mut bytes).await.expect("receive");
                self.ciphertext.extend_from_slice(&bytes[..count]);
            }
            let consumed = tls.read_tls(&mut &self.ciphertext[..]).expect("read from a slice");
            self.ciphertext.drain(..consumed);
            tls.process_new_packets().expect("valid TLS records");
            self.flush().await;
        }
    }

    /// Reads at [`BYTES_PER_SECOND`] until `expected_bytes` bytes with the value `#` have been received. Counts them in
    /// `progress` and returns all other bytes.
    pub async fn read_slowly(&mut self, expected_bytes: usize, progress: &Cell<usize>) -> Vec<u8> {
        let mut rest = Vec::new();
        while progress.get() < expected_bytes {
            let bytes = self.receive().await;
            assert!(!bytes.is_empty(), "EOF after {} of {expected_bytes} bytes", progress.get());
            sleep(Duration::from_secs(1) * bytes.len() as u32 / BYTES_PER_SECOND as u32).await;
            // Without optimization, comparing whole slices is much faster than counting bytes.
            if bytes == vec![b'#'; bytes.len()] {
                progress.set(progress.get() + bytes.len());
                continue;
            }
            progress.set(progress.get() + bytes.iter().filter(|byte| **byte == b'#').count());
            rest.extend(bytes.into_iter().filter(|byte| *byte != b'#'));
        }
        rest
    }
}

//! Rustls sessions over streams.

use std::io::{self, BufRead, IoSlice, Write};
use std::ops::{Deref, DerefMut};
use std::task::Poll;

use rustls::{ConnectionCommon, Error};

/// A TLS session without a transport, for a client (`rustls::ClientConnection`) or a server
/// (`rustls::ServerConnection`). It dereferences to the rustls connection.
///
/// The caller passes received ciphertext to [`decrypt`](Self::decrypt), plaintext to [`encrypt`](Self::encrypt), and
/// then the pending records to its stream with [`poll_flush`](Self::poll_flush).
#[derive(Debug)]
pub struct TlsSession<C> {
    connection: C,
    is_peer_closed: bool,
}

impl<C, D> TlsSession<C>
where
    C: DerefMut<Target = ConnectionCommon<D>>,
{
    /// Creates a session.
    pub fn new(mut connection: C) -> Self {
        // No limit is needed: records are passed to the stream immediately, and the stream limits what it accepts.
        connection.set_buffer_limit(None);
        Self { connection, is_peer_closed: false }
    }

    /// Passes pending records to `write`, several at a time. `write` returns how many bytes the stream has accepted, as
    /// [`TcpStream::write_vectored`](crate::net::TcpStream::write_vectored) does.
    ///
    /// # Errors
    /// Returns the error of `write`.
    pub fn poll_flush(
        &mut self,
        write: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        let mut writer = PollWriter(write);
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut writer) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Encrypts all of `bytes`.
    ///
    /// # Errors
    /// Returns the error reported by rustls.
    pub fn encrypt(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.writer().write_all(bytes)
    }

    /// Decrypts a prefix of `ciphertext`, which must not be empty, and appends the data to `plaintext`. Returns the
    /// number of bytes consumed. Call this method again with the rest until all bytes are consumed.
    ///
    /// # Errors
    /// Returns an error if the peer violates the protocol. Data that preceded the error has been appended. The next
    /// flush sends an alert to the peer.
    pub fn decrypt(&mut self, mut ciphertext: &[u8], plaintext: &mut Vec<u8>) -> Result<usize, Error> {
        let consumed = self.connection.read_tls(&mut ciphertext);
        let consumed = consumed.map_err(|error| Error::General(error.to_string()))?;
        let state = self.connection.process_new_packets();
        let mut reader = self.connection.reader();
        // `Err` means that no more data is available yet.
        while let Ok(data) = reader.fill_buf() {
            if data.is_empty() {
                self.is_peer_closed = true;
                break;
            }
            plaintext.extend_from_slice(data);
            let length = data.len();
            reader.consume(length);
        }
        state.map(|_| consumed)
    }

    /// Returns `true` if the peer has sent `close_notify`. By then, all of its data has been decrypted.
    pub fn is_peer_closed(&self) -> bool {
        self.is_peer_closed
    }

    /// Queues `close_notify`. Further calls have no effect.
    pub fn close(&mut self) {
        self.connection.send_close_notify();
    }
}

impl<C> Deref for TlsSession<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.connection
    }
}

/// Adapts a vectored write for rustls: a pending write returns `WouldBlock`.
struct PollWriter<F>(F);

impl<F: FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>> Write for PollWriter<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self.0)(slices) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

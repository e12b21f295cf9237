//! Rustls sessions over streams.

use std::io::{self, BufRead, IoSlice, Write};
use std::ops::{Deref, DerefMut};
use std::task::Poll;

use rustls::{ConnectionCommon, Error};

/// Start of the examples: a self-signed certificate, the configurations of a client and a server, and a function that
/// passes the pending records of one session to another and returns the decrypted data.
macro_rules! setup {
    () => {
        "# use std::error::Error;\n\
         # use std::ops::DerefMut;\n\
         # use std::sync::Arc;\n\
         # use std::task::Poll;\n\
         # use anello::compat::TlsSession;\n\
         # use rustls::pki_types::PrivatePkcs8KeyDer;\n\
         # use rustls::{ClientConfig, ClientConnection, ConnectionCommon, ServerConfig, ServerConnection};\n\
         # let key = rcgen::generate_simple_self_signed([\"localhost\".to_owned()])?;\n\
         # let (certificate, private) = (key.cert.der(), PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()));\n\
         # let mut roots = rustls::RootCertStore::empty();\n\
         # roots.add(certificate.clone())?;\n\
         # let provider = Arc::new(rustls::crypto::ring::default_provider());\n\
         # let server = ServerConfig::builder_with_provider(provider.clone());\n\
         # let server = server.with_safe_default_protocol_versions()?.with_no_client_auth();\n\
         # let server_config = Arc::new(server.with_single_cert(vec![certificate.clone()], private.into())?);\n\
         # let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;\n\
         # let client_config = Arc::new(client.with_root_certificates(roots).with_no_client_auth());\n\
         # type Decrypted = Result<Vec<u8>, Box<dyn Error>>;\n\
         # fn transfer<A, B, D, E>(from: &mut TlsSession<A>, to: &mut TlsSession<B>) -> Decrypted\n\
         # where\n\
         #     A: DerefMut<Target = ConnectionCommon<D>>,\n\
         #     B: DerefMut<Target = ConnectionCommon<E>>,\n\
         # {\n\
         #     let (mut records, mut plaintext, mut consumed) = (Vec::new(), Vec::new(), 0);\n\
         #     let flushed = from.poll_flush(|slices| {\n\
         #         let before = records.len();\n\
         #         slices.iter().for_each(|slice| records.extend_from_slice(slice));\n\
         #         Poll::Ready(Ok(records.len() - before))\n\
         #     });\n\
         #     assert!(flushed.is_ready());\n\
         #     while consumed < records.len() {\n\
         #         consumed += to.decrypt(&records[consumed..], &mut plaintext)?;\n\
         #     }\n\
         #     Ok(plaintext)\n\
         # }\n\
         let mut client = TlsSession::new(ClientConnection::new(client_config, \"localhost\".try_into()?)?);\n\
         let mut server = TlsSession::new(ServerConnection::new(server_config)?);\n\
         # while client.is_handshaking() || server.is_handshaking() {\n\
         #     transfer(&mut client, &mut server)?;\n\
         #     transfer(&mut server, &mut client)?;\n\
         # }"
    };
}

/// A TLS session without a transport, for a client (`rustls::ClientConnection`) or a server
/// (`rustls::ServerConnection`). It dereferences to the rustls connection.
///
/// The caller passes received ciphertext to [`decrypt`](Self::decrypt), plaintext to [`encrypt`](Self::encrypt), and
/// then the pending records to its stream with [`poll_flush`](Self::poll_flush).
///
/// ```
#[doc = setup!()]
/// // After the handshake. `transfer` passes the records of one session to the other, as sockets do.
/// client.encrypt(b"ciao")?;
/// assert_eq!(transfer(&mut client, &mut server)?, b"ciao");
/// # Ok::<(), Box<dyn Error>>(())
/// ```
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
    ///
    /// ```
    #[doc = setup!()]
    /// assert!(client.alpn_protocol().is_none(), "the methods of the rustls connection are available");
    /// # assert!(!server.is_peer_closed());
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
    pub fn new(mut connection: C) -> Self {
        // No limit is needed: records are passed to the stream immediately, and the stream limits what it accepts.
        connection.set_buffer_limit(None);
        Self { connection, is_peer_closed: false }
    }

    /// Passes pending records to `write`, several at a time. `write` returns how many bytes the stream has accepted, as
    /// [`TcpStream::write_vectored`](crate::net::TcpStream::write_vectored) does.
    ///
    /// ```
    #[doc = setup!()]
    /// client.encrypt(b"ciao")?;
    /// let mut sent = 0;
    /// let flushed = client.poll_flush(|records| {
    ///     let count = records.iter().map(|record| record.len()).sum::<usize>();
    ///     sent += count;
    ///     Poll::Ready(Ok(count))
    /// });
    /// assert!(matches!(flushed, Poll::Ready(Ok(()))));
    /// assert!(sent > b"ciao".len());
    /// # assert!(!server.is_peer_closed());
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
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
    /// ```
    #[doc = setup!()]
    /// server.encrypt(b"pong")?;
    /// assert!(server.wants_write(), "the records wait for `poll_flush`");
    /// assert_eq!(transfer(&mut server, &mut client)?, b"pong");
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error reported by rustls.
    pub fn encrypt(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.writer().write_all(bytes)
    }

    /// Decrypts a prefix of `ciphertext`, which must not be empty, and appends the data to `plaintext`. Returns the
    /// number of bytes consumed. Call this method again with the rest until all bytes are consumed.
    ///
    /// ```
    #[doc = setup!()]
    /// client.encrypt(b"ciao")?;
    /// let mut received = Vec::new();
    /// assert!(client.poll_flush(|records| {
    ///     let before = received.len();
    ///     records.iter().for_each(|record| received.extend_from_slice(record));
    ///     Poll::Ready(Ok(received.len() - before))
    /// }).is_ready());
    /// let (mut consumed, mut plaintext) = (0, Vec::new());
    /// while consumed < received.len() {
    ///     consumed += server.decrypt(&received[consumed..], &mut plaintext)?;
    /// }
    /// assert_eq!(plaintext, b"ciao");
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
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
    ///
    /// ```
    #[doc = setup!()]
    /// client.close();
    /// assert!(!server.is_peer_closed());
    /// transfer(&mut client, &mut server)?;
    /// assert!(server.is_peer_closed());
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
    pub fn is_peer_closed(&self) -> bool {
        self.is_peer_closed
    }

    /// Queues `close_notify`. Further calls have no effect.
    ///
    /// ```
    #[doc = setup!()]
    /// client.encrypt(b"ciao")?;
    /// client.close();
    /// assert_eq!(transfer(&mut client, &mut server)?, b"ciao");
    /// assert!(server.is_peer_closed());
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
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

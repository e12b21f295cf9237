//! TLS, implemented with rustls on top of the plaintext sockets.
//!
//! ```text
//!   received ciphertext ──► session ──► plaintext ──► Input
//!   Output ──► plaintext ──► session ──► ciphertext ──► socket send queue
//! ```
//!
//! The handshake is part of the first receive operation, so the header timeout applies to it.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::path::Path;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, Wake, Waker, ready};

use anello::compat::TlsSession;
use anello::fs::File;
use anello::net::{ByteStream, Chunk, OwnedReadHalf, OwnedWriteHalf, SendBuf};
use anello::{log_event, wake_all};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use super::timer::{CancelReason, PeerSession};
use crate::message::COPIED_BODY_BYTES;
use crate::transport::{PollSender, Receiver, Sender};

/// Amount of plaintext that is encrypted, or read from a file, at a time. A chunk of this size yields several records,
/// which are sent together. No more is encrypted until the kernel has accepted them, so that a client that does not
/// read occupies little memory.
const ENCRYPT_CHUNK_BYTES: usize = 64 * 1024;

/// Plaintext that is received before the connection requests it, to find a close_notify behind it. The last records exceed
/// this by less than 18 KiB, the size of the buffer from which rustls decrypts.
const MAX_READ_AHEAD_BYTES: usize = 64 * 1024;

thread_local! {
    /// Buffer for file data, shared by all connections. A connection does not hold it while waiting for its client.
    static FILE_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Server certificate and key for TLS 1.2 and 1.3, with ALPN `http/1.1` and `http/1.0`, and `h2` (HTTP/2) if the server
/// has it enabled.
///
/// Clones share one configuration and one session cache, also across threads. [`replace`](Self::replace) affects all of
/// them.
///
/// ```
#[doc = certificate!()]
/// let config = TlsConfig::from_pem_files(&path.join("cert.pem"), &path.join("key.pem"))?;
/// // Each worker has a server with a clone.
/// let workers = anello::Workers::builder().unpinned_workers(2).start(move |_| {
///     let server = Server::builder().tls(config.clone()).build();
///     async move { server.connections() }
/// })?;
/// assert_eq!(workers.join()?, [0, 0]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TlsConfig(Arc<RwLock<Configs>>);

#[derive(Clone, Debug)]
struct Configs {
    http1: Arc<ServerConfig>,
    /// Also offers HTTP/2.
    #[cfg(feature = "http2")]
    http2: Arc<ServerConfig>,
}

impl TlsConfig {
    /// Reads a certificate chain and the private key of its first certificate from PEM files.
    ///
    /// ```
    #[doc = certificate!()]
    /// assert!(TlsConfig::from_pem_files(&path.join("cert.pem"), &path.join("key.pem")).is_ok());
    /// let error = TlsConfig::from_pem_files(&path.join("key.pem"), &path.join("key.pem")).unwrap_err();
    /// assert!(error.to_string().ends_with("no certificates found (expected a PEM chain)"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns `InvalidData` if a file cannot be read or contains no certificate or key, or if the key does not match
    /// the certificate.
    pub fn from_pem_files(certificates: &Path, key: &Path) -> io::Result<Self> {
        let file_error = |path: &Path, problem: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {problem}", path.display()))
        };
        let chain: Vec<_> = CertificateDer::pem_file_iter(certificates)
            .and_then(Iterator::collect)
            .map_err(|error| file_error(certificates, format!("cannot read PEM certificates: {error}")))?;
        if chain.is_empty() {
            return Err(file_error(certificates, "no certificates found (expected a PEM chain)".to_owned()));
        }
        let private_key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| file_error(key, format!("cannot read a PEM private key: {error}")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private_key))
            .map_err(|error| {
                file_error(key, format!("private key does not match {}: {error}", certificates.display()))
            })?;
        Ok(Self::new(config))
    }

    /// Creates a configuration from a rustls `ServerConfig`. Replaces its ALPN protocols with the supported ones.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    ///
    #[doc = certificate!()]
    /// let certificate = CertificateDer::from_pem_file(path.join("cert.pem")).map_err(Error::other)?;
    /// let key = PrivateKeyDer::from_pem_file(path.join("key.pem")).map_err(Error::other)?;
    /// let builder = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    /// let builder = builder.with_safe_default_protocol_versions().map_err(Error::other)?;
    /// let config = builder.with_no_client_auth().with_single_cert(vec![certificate], key);
    /// let server = Server::builder().tls(TlsConfig::new(config.map_err(Error::other)?)).build();
    /// # assert_eq!(server.connections(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(mut config: ServerConfig) -> Self {
        // Some HTTP/1.0 clients offer only `http/1.0` and would otherwise be rejected.
        config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
        let configs = Configs {
            #[cfg(feature = "http2")]
            http2: {
                let mut config = config.clone();
                config.alpn_protocols.insert(0, b"h2".to_vec());
                Arc::new(config)
            },
            http1: Arc::new(config),
        };
        Self(Arc::new(RwLock::new(configs)))
    }

    /// Replaces the configuration, for example with a new certificate. Applies to new connections of all servers that
    /// have a clone of this configuration.
    ///
    /// ```
    #[doc = certificate!()]
    /// let config = TlsConfig::from_pem_files(&path.join("cert.pem"), &path.join("key.pem"))?;
    /// let server = Server::builder().tls(config.clone()).build();
    /// // Later, when the certificate has been renewed:
    /// config.replace(&TlsConfig::from_pem_files(&path.join("cert.pem"), &path.join("key.pem"))?);
    /// # assert_eq!(server.connections(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn replace(&self, other: &Self) {
        let replacement = other.configs();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = replacement;
    }

    fn configs(&self) -> Configs {
        // A poisoned lock still holds a valid value, because the value is replaced in one step.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the configuration for a new connection.
    fn current(&self, offers_http2: bool) -> Arc<ServerConfig> {
        let configs = self.configs();
        #[cfg(feature = "http2")]
        if offers_http2 {
            return configs.http2;
        }
        debug_assert!(!offers_http2);
        configs.http1
    }
}

pub(super) struct Session<S: ByteStream> {
    tls: TlsSession<ServerConnection>,
    reader: OwnedReadHalf<S>,
    /// Received ciphertext that the session has not consumed.
    ciphertext: Option<Chunk>,
    /// Plaintext that the connection has not received.
    read_ahead: Vec<u8>,
    writer: OwnedWriteHalf<S>,
    /// Set from a poll for plaintext that is pending until the next one.
    receive_waker: Option<Waker>,
    /// Set while the sending task is waiting for buffer space or a flush.
    send_waker: Option<Waker>,
}

/// Returns `true` if the first bytes of a connection are those of a client that does not use TLS: the method of a request
/// starts with a letter, and a TLS record with its type, which is a control character.
pub(super) fn is_plaintext(received: &[u8]) -> bool {
    received.first().is_some_and(u8::is_ascii_alphabetic)
}

/// `received` are the first bytes of the client, if any have been received.
pub(super) fn split<S: ByteStream>(
    stream: S,
    received: Option<Chunk>,
    config: &TlsConfig,
    offers_http2: bool,
) -> io::Result<(TlsReceiver<S>, TlsSender<S>)> {
    let tls = ServerConnection::new(config.current(offers_http2)).map_err(io::Error::other)?;
    let (reader, writer) = stream.into_split();
    let tls = TlsSession::new(tls);
    let (read_ahead, receive_waker, send_waker) = (Vec::new(), None, None);
    let session =
        Session { tls, reader, ciphertext: received, read_ahead, writer, receive_waker, send_waker };
    let session = Rc::new(RefCell::new(session));
    Ok((TlsReceiver { session: Rc::clone(&session) }, TlsSender { session, unflushed_bytes: 0 }))
}

impl<S: ByteStream> Session<S> {
    /// Polls for the next plaintext. Returns `None` after close_notify and at EOF.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        loop {
            if self.tls.is_peer_closed() {
                return Poll::Ready(Ok(None));
            }
            // Send handshake messages. A pending send does not prevent receiving.
            if let Poll::Ready(Err(error)) = self.poll_flush_for_receiver(context) {
                return Poll::Ready(Err(error));
            }
            let Some(chunk) = &mut self.ciphertext else {
                self.ciphertext = ready!(pin!(self.reader.recv()).poll(context))?;
                if self.ciphertext.is_none() {
                    // Without close_notify, the EOF may have been forged by an attacker, but a truncated request is
                    // detected from its framing.
                    return Poll::Ready(Ok(None));
                }
                continue;
            };
            let mut plaintext = Vec::new();
            match self.tls.decrypt(chunk, &mut plaintext) {
                Ok(count) => chunk.advance(count),
                Err(error) => {
                    // The alert reports the reason to the client.
                    let result = self.poll_flush_for_receiver(context);
                    log_event!(DEBUG, ?result, %error, "TLS connection rejected");
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
            }
            if chunk.is_empty() {
                self.ciphertext = None;
            }
            if !plaintext.is_empty() {
                return Poll::Ready(Ok(Some(plaintext)));
            }
        }
    }

    /// Returns `true` after close_notify.
    fn receive_ahead(&mut self) -> io::Result<bool> {
        let mut context = Context::from_waker(Waker::noop());
        while self.read_ahead.len() < MAX_READ_AHEAD_BYTES {
            let Poll::Ready(Some(mut plaintext)) = self.poll_receive(&mut context)? else { break };
            self.read_ahead.append(&mut plaintext);
        }
        // EOF without close_notify can also be that of a read half which the server has shut down.
        Ok(self.tls.is_peer_closed())
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let writer = &mut self.writer;
        // Cancel-safe: the future keeps no state between polls.
        self.tls.poll_flush(|slices| pin!(writer.write_vectored(slices)).poll(context))
    }

    /// Like [`poll_flush`](Self::poll_flush), but for the receive side, which may belong to another task. The socket
    /// stores only one waker for sending, so a waiting sender must be woken as well.
    fn poll_flush_for_receiver(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.tls.wants_write() {
            return Poll::Ready(Ok(()));
        }
        let Some(send_waker) = self.send_waker.take() else { return self.poll_flush(context) };
        let flush_result = if send_waker.will_wake(context.waker()) {
            self.poll_flush(context)
        } else {
            let both = Waker::from(Arc::new(WakeBoth(send_waker.clone(), context.waker().clone())));
            self.poll_flush(&mut Context::from_waker(&both))
        };
        match flush_result {
            Poll::Pending => self.send_waker = Some(send_waker),
            Poll::Ready(_) => wake_all([send_waker]),
        }
        flush_result
    }

    fn poll_flush_for_sender(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush_result = self.poll_flush(context);
        self.update_send_waker(flush_result, context)
    }

    fn update_send_waker<T>(&mut self, poll_result: Poll<T>, context: &Context<'_>) -> Poll<T> {
        match &self.send_waker {
            _ if poll_result.is_ready() => self.send_waker = None,
            Some(registered) if registered.will_wake(context.waker()) => {}
            _ => self.send_waker = Some(context.waker().clone()),
        }
        poll_result
    }
}

struct WakeBoth(Waker, Waker);

impl Wake for WakeBoth {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        wake_all([self.0.clone(), self.1.clone()]);
    }
}

pub(super) struct TlsReceiver<S: ByteStream> {
    session: Rc<RefCell<Session<S>>>,
}

impl<S: ByteStream> TlsReceiver<S> {
    /// Returns the session, which the timer checks for a close_notify.
    pub fn peer_session(&self) -> Weak<dyn PeerSession> {
        Rc::<RefCell<Session<S>>>::downgrade(&self.session)
    }
}

impl<S: ByteStream> Receiver for TlsReceiver<S> {
    type Chunk = Vec<u8>;

    #[cfg(feature = "http2")]
    fn has_negotiated_http2(&self) -> Option<bool> {
        Some(self.session.borrow().tls.alpn_protocol() == Some(b"h2"))
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        let mut session = self.session.borrow_mut();
        if !session.read_ahead.is_empty() {
            return Poll::Ready(Ok(Some(mem::take(&mut session.read_ahead))));
        }
        let polled = session.poll_receive(context);
        let waker = polled.is_pending().then(|| context.waker().clone());
        let replaced = mem::replace(&mut session.receive_waker, waker);
        // Dropped after the borrow, because the drop of a waker can run arbitrary code.
        drop(session);
        drop(replaced);
        polled
    }
}

impl<S: ByteStream> PeerSession for RefCell<Session<S>> {
    fn receive_ahead(&self) -> Option<CancelReason> {
        // A waker that the session calls can run arbitrary code, including this function.
        let mut session = self.try_borrow_mut().ok()?;
        let result = session.receive_ahead();
        // The socket stores only one waker for receiving, which has been replaced.
        let waiting = session.receive_waker.take();
        drop(session);
        wake_all(waiting);
        match result {
            Ok(is_closed) => is_closed.then_some(CancelReason::ClientGone),
            Err(error) => {
                log_event!(DEBUG, %error, "cannot receive while a handler or response body is pending");
                Some(CancelReason::ReceiveFailed)
            }
        }
    }
}

pub(super) struct TlsSender<S: ByteStream> {
    session: Rc<RefCell<Session<S>>>,
    /// Number of plaintext bytes encrypted since the kernel was last known to have accepted everything.
    unflushed_bytes: usize,
}

impl<S: ByteStream> TlsSender<S> {
    /// Waits until at least half of [`ENCRYPT_CHUNK_BYTES`] can be encrypted.
    async fn wait_writable(&mut self) -> io::Result<()> {
        if self.unflushed_bytes > ENCRYPT_CHUNK_BYTES / 2 {
            poll_fn(|context| self.poll_flush(context)).await?;
        }
        poll_fn(|context| self.poll_drive(context)).await
    }
}

impl<S: ByteStream> PollSender for TlsSender<S> {
    fn poll_write(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Only an empty queue is filled without splitting `bytes` into more records than necessary.
        if self.unflushed_bytes + bytes.len() > ENCRYPT_CHUNK_BYTES {
            let flush_result = self.poll_flush(context)?;
            if flush_result.is_pending() && self.unflushed_bytes >= ENCRYPT_CHUNK_BYTES {
                return Poll::Pending;
            }
        }
        let mut session = self.session.borrow_mut();
        ready!(session.poll_flush_for_sender(context))?;
        let count = bytes.len().min(ENCRYPT_CHUNK_BYTES - self.unflushed_bytes);
        session.tls.encrypt(&bytes[..count])?;
        self.unflushed_bytes += count;
        if let Poll::Ready(Err(error)) = session.poll_flush_for_sender(context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut session = self.session.borrow_mut();
        ready!(session.poll_flush_for_sender(context))?;
        let flush_result = pin!(session.writer.flush()).poll(context);
        if flush_result.is_ready() {
            self.unflushed_bytes = 0;
        }
        session.update_send_waker(flush_result, context)
    }

    fn poll_drive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.session.borrow_mut().poll_flush_for_sender(context)
    }

    fn poll_close_notify(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut session = self.session.borrow_mut();
        session.tls.close();
        session.poll_flush_for_sender(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_close_notify(context))?;
        // The send timeout applies until the kernel has accepted everything.
        ready!(self.poll_flush(context))?;
        pin!(self.session.borrow_mut().writer.shutdown()).poll(context)
    }
}

impl<S: ByteStream> Sender for TlsSender<S> {
    const MAX_COPIED_BYTES: usize = COPIED_BODY_BYTES;

    async fn send(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        self.write_all(buffer).await
    }

    async fn send_vectored(&mut self, buffers: Vec<SendBuf>) -> io::Result<()> {
        for buffer in buffers {
            self.write_all(&buffer).await?;
        }
        Ok(())
    }

    async fn send_file(
        &mut self,
        file: &File,
        offset: u64,
        length: u64,
        mut on_progress: impl FnMut(u64),
    ) -> io::Result<u64> {
        let mut sent = 0;
        while sent < length {
            self.wait_writable().await?;
            // The read also consumes budget. If it had to yield, this task would hold the shared buffer in the meantime.
            anello::task::consume_budget().await;
            let available = ENCRYPT_CHUNK_BYTES - self.unflushed_bytes;
            let read_bytes = (length - sent).min(available as u64) as usize;
            let mut buffer = FILE_BUFFER.try_with(Cell::take).unwrap_or_default();
            buffer.resize(read_bytes.max(buffer.len()), 0);
            let count = file.read_at(&mut buffer[..read_bytes], offset + sent).await?;
            if count == 0 {
                break;
            }
            self.write_all(&buffer[..count]).await?;
            // The destructor of another thread-local value can run a server after the buffer has been freed.
            FILE_BUFFER.try_with(|spare| spare.set(buffer)).ok();
            sent += count as u64;
            on_progress(count as u64);
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anello::net::UnixStream;
    use anello::sim::SimOptions;
    use anello::time::sleep;
    use anello::{DriverKind, Runtime, spawn};
    use anello_test::PanicsOnWake;

    use super::*;

    /// The configuration of a server with a self-signed certificate.
    fn config() -> TlsConfig {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("certificate");
        let key = certified.signing_key.serialize_der().try_into().expect("key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("protocol versions").with_no_client_auth();
        TlsConfig::new(
            builder.with_single_cert(vec![certified.cert.der().clone()], key).expect("matching key"),
        )
    }

    /// The noop waker of the timer replaces that of the task in the socket.
    #[test]
    fn waiting_task_is_woken_after_timer_has_received_ahead() {
        let runtime = Runtime::builder().driver(DriverKind::Sim(SimOptions::default())).build();
        runtime.expect("a runtime").block_on(async {
            let (server, mut client) = UnixStream::pair().expect("a pair of streams");
            let (mut receiver, _sender) = split(server, None, &config(), false).expect("a session");
            let session = receiver.peer_session().upgrade().expect("a session");
            let receiving = spawn(async move { poll_fn(|context| receiver.poll_receive(context)).await });
            sleep(Duration::from_secs(1)).await;
            assert_eq!(session.receive_ahead(), None);
            sleep(Duration::from_secs(1)).await;
            client.write_all(b"not a TLS record").await.expect("send");
            assert!(receiving.await.expect("no panic").is_err());
        });
    }

    #[test]
    fn panicking_waker_of_one_side_does_not_affect_the_other() {
        let wakers = [(); 2].map(|()| Arc::new(PanicsOnWake::default()));
        let [one, other] = wakers.clone().map(Waker::from);
        Waker::from(Arc::new(WakeBoth(one, other))).wake();
        assert_eq!(wakers.map(|waker| waker.calls()), [1, 1]);
    }
}

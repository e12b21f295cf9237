//! Buffers for several received datagrams.

use std::fmt;
use std::net::SocketAddr;
use std::slice::Chunks;

use super::info::{DatagramInfo, OutgoingDatagram};
use super::messages::{MAX_BATCH_DATAGRAMS, RecvMessages};

/// Reusable buffers for the datagrams that one call to [`UdpSocket::recv_batch`](crate::net::UdpSocket::recv_batch)
/// receives, and the datagrams received by the last call.
///
/// ```
/// # anello::example! {
/// use anello::net::{RecvBatch, UdpSocket};
///
/// let socket = UdpSocket::bind("127.0.0.1:0")?;
/// let peer = UdpSocket::bind("127.0.0.1:0")?;
/// peer.send_to(b"uno", socket.local_addr()?).await?;
/// peer.send_to(b"due", socket.local_addr()?).await?;
/// let mut batch = RecvBatch::new(32, 1500);
/// let mut received = Vec::new();
/// while received.len() < 2 {
///     socket.recv_batch(&mut batch).await?;
///     received.extend(batch.iter().map(|datagram| datagram.payload().to_vec()));
/// }
/// assert_eq!(received, [b"uno", b"due"]);
/// # }
/// ```
pub struct RecvBatch {
    /// Bytes of all datagrams; each occupies `datagram_bytes`.
    bytes: Box<[u8]>,
    datagram_bytes: usize,
    max_datagrams: usize,
    infos: Vec<DatagramInfo>,
    messages: RecvMessages,
}

impl RecvBatch {
    /// Maximum number of datagrams in a batch.
    ///
    /// ```
    /// # use anello::net::RecvBatch;
    /// let batch = RecvBatch::new(usize::MAX, 100);
    /// assert_eq!(batch.max_datagrams(), RecvBatch::MAX_DATAGRAMS);
    /// ```
    pub const MAX_DATAGRAMS: usize = MAX_BATCH_DATAGRAMS;

    /// Creates buffers for up to `max_datagrams` datagrams of up to `datagram_bytes` bytes each. Longer datagrams are
    /// truncated. Values outside of 1 to [`MAX_DATAGRAMS`](Self::MAX_DATAGRAMS) are clamped.
    ///
    /// The buffers are not touched before datagrams arrive, so that the memory of unused ones costs only address space.
    /// On a socket with [GRO](crate::net::UdpSocket::set_gro), use 65,535 bytes.
    ///
    /// ```
    /// # use anello::net::RecvBatch;
    /// let batch = RecvBatch::new(32, 1500);
    /// assert_eq!((batch.max_datagrams(), batch.datagram_bytes()), (32, 1500));
    /// assert!(batch.is_empty());
    /// ```
    pub fn new(max_datagrams: usize, datagram_bytes: usize) -> Self {
        let max_datagrams = max_datagrams.clamp(1, Self::MAX_DATAGRAMS);
        let datagram_bytes = datagram_bytes.max(1);
        Self {
            bytes: vec![0; max_datagrams.saturating_mul(datagram_bytes)].into_boxed_slice(),
            datagram_bytes,
            max_datagrams,
            infos: Vec::with_capacity(max_datagrams),
            messages: RecvMessages::default(),
        }
    }

    /// Returns the number of buffers that hold received data. On a socket with
    /// [GRO](crate::net::UdpSocket::set_gro), one buffer can hold several datagrams.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{RecvBatch, UdpSocket};
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut batch = RecvBatch::new(32, 1500);
    /// socket.recv_batch(&mut batch).await?;
    /// assert_eq!(batch.len(), 1);
    /// # }
    /// ```
    #[inline]
    pub fn len(&self) -> usize {
        self.infos.len()
    }

    /// Returns `true` if nothing has been received.
    ///
    /// ```
    /// # use anello::net::RecvBatch;
    /// assert!(RecvBatch::new(32, 1500).is_empty());
    /// ```
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.infos.is_empty()
    }

    /// Returns the maximum number of datagrams in this batch.
    ///
    /// ```
    /// # use anello::net::RecvBatch;
    /// assert_eq!(RecvBatch::new(32, 1500).max_datagrams(), 32);
    /// assert_eq!(RecvBatch::new(0, 1500).max_datagrams(), 1);
    /// ```
    #[inline]
    pub fn max_datagrams(&self) -> usize {
        self.max_datagrams
    }

    /// Returns the size of each buffer in bytes.
    ///
    /// ```
    /// # use anello::net::RecvBatch;
    /// assert_eq!(RecvBatch::new(32, 1500).datagram_bytes(), 1500);
    /// ```
    #[inline]
    pub fn datagram_bytes(&self) -> usize {
        self.datagram_bytes
    }

    /// Returns a received datagram, or `None` if fewer were received.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{RecvBatch, UdpSocket};
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut batch = RecvBatch::new(32, 1500);
    /// socket.recv_batch(&mut batch).await?;
    /// assert_eq!(batch.get(0).map(|datagram| datagram.payload()), Some(&b"ciao"[..]));
    /// assert!(batch.get(1).is_none());
    /// # }
    /// ```
    #[inline]
    pub fn get(&self, index: usize) -> Option<ReceivedDatagram<'_>> {
        self.infos.get(index).map(|info| self.datagram(index, info))
    }

    #[inline]
    fn datagram<'a>(&'a self, index: usize, info: &'a DatagramInfo) -> ReceivedDatagram<'a> {
        let start = index * self.datagram_bytes;
        ReceivedDatagram { payload: &self.bytes[start..start + info.bytes], info }
    }

    /// Returns the received datagrams, in the order in which they arrived.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{RecvBatch, UdpSocket};
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut batch = RecvBatch::new(32, 1500);
    /// socket.recv_batch(&mut batch).await?;
    /// for datagram in batch.iter() {
    ///     assert_eq!((datagram.payload(), datagram.source()), (&b"ciao"[..], socket.local_addr()?));
    /// }
    /// # }
    /// ```
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ReceivedDatagram<'_>> {
        self.infos.iter().enumerate().map(|(index, info)| self.datagram(index, info))
    }

    /// Removes the received datagrams.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{RecvBatch, UdpSocket};
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// let mut batch = RecvBatch::new(32, 1500);
    /// socket.recv_batch(&mut batch).await?;
    /// batch.clear();
    /// assert_eq!((batch.len(), batch.max_datagrams()), (0, 32));
    /// # }
    /// ```
    #[inline]
    pub fn clear(&mut self) {
        self.infos.clear();
    }

    /// Returns the number of received bytes.
    #[inline]
    pub(crate) fn received_bytes(&self) -> usize {
        self.infos.iter().map(|info| info.bytes).sum()
    }

    /// Returns the bytes of all buffers, which never move, the metadata of the received datagrams, and message headers.
    #[inline]
    pub(in crate::driver) fn parts_mut(&mut self) -> (&mut [u8], &mut Vec<DatagramInfo>, &mut RecvMessages) {
        (&mut self.bytes, &mut self.infos, &mut self.messages)
    }
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RecvBatch")
            .field("max_datagrams", &self.max_datagrams)
            .field("datagram_bytes", &self.datagram_bytes)
            .field("received", &self.infos)
            .finish()
    }
}

/// Datagram in a [`RecvBatch`].
///
/// ```
/// # anello::example! {
/// use anello::net::{ReceivedDatagram, RecvBatch, UdpSocket};
///
/// /// Returns whether the datagram is a request.
/// fn is_request(datagram: &ReceivedDatagram<'_>) -> bool {
///     datagram.payload() == b"ciao" && !datagram.info().is_truncated
/// }
/// let socket = UdpSocket::bind("127.0.0.1:0")?;
/// socket.send_to(b"ciao", socket.local_addr()?).await?;
/// let mut batch = RecvBatch::new(32, 1500);
/// socket.recv_batch(&mut batch).await?;
/// assert_eq!(batch.iter().filter(is_request).count(), 1);
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct ReceivedDatagram<'a> {
    payload: &'a [u8],
    info: &'a DatagramInfo,
}

impl<'a> ReceivedDatagram<'a> {
    /// Returns the received bytes: one datagram, or several that the kernel has merged.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{RecvBatch, UdpSocket};
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut batch = RecvBatch::new(32, 1500);
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// socket.recv_batch(&mut batch).await?;
    /// assert_eq!(batch.get(0).expect("a datagram").payload(), b"ciao");
    /// # }
    /// ```
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the address of the sender.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{RecvBatch, UdpSocket};
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut batch = RecvBatch::new(32, 1500);
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// socket.recv_batch(&mut batch).await?;
    /// assert_eq!(batch.get(0).expect("a datagram").source(), socket.local_addr()?);
    /// # }
    /// ```
    #[inline]
    pub fn source(&self) -> SocketAddr {
        self.info.source
    }

    /// Returns the metadata.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{RecvBatch, UdpSocket};
    /// # let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// # let mut batch = RecvBatch::new(32, 2);
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// socket.recv_batch(&mut batch).await?;
    /// let info = batch.get(0).expect("a datagram").info();
    /// assert!(info.bytes == 2 && info.is_truncated);
    /// # }
    /// ```
    #[inline]
    pub fn info(&self) -> &'a DatagramInfo {
        self.info
    }

    /// Splits the received bytes into the datagrams that the sender has sent; see [`DatagramInfo::segments`].
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::net::{RecvBatch, UdpSocket};
    /// # let mut batch = RecvBatch::new(8, 65_535);
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// socket.set_gro(true)?;
    /// socket.send_to(b"ciao", socket.local_addr()?).await?;
    /// socket.recv_batch(&mut batch).await?;
    /// assert!(batch.iter().flat_map(|datagram| datagram.segments()).eq([b"ciao"]));
    /// # }
    /// ```
    #[inline]
    pub fn segments(&self) -> Chunks<'a, u8> {
        self.info.segments(self.payload)
    }

    /// Returns a datagram for the sender of this one. If the socket reports the destination of received datagrams, the
    /// response is sent from that address, or from the address of the interface if the datagram was sent to a multicast
    /// or broadcast address.
    ///
    /// ```
    /// # anello::example! {
    /// use anello::net::{RecvBatch, UdpSocket};
    ///
    /// // Responds from 127.0.0.2 to a request that was sent to 127.0.0.2.
    /// let server = UdpSocket::bind("0.0.0.0:0")?;
    /// server.set_pktinfo(true)?;
    /// let client = UdpSocket::bind("127.0.0.1:0")?;
    /// client.connect(("127.0.0.2", server.local_addr()?.port())).await?;
    /// client.send(b"ciao").await?;
    /// let mut batch = RecvBatch::new(32, 1500);
    /// server.recv_batch(&mut batch).await?;
    /// let responses: Vec<_> = batch.iter().map(|datagram| datagram.reply(datagram.payload())).collect();
    /// assert_eq!(server.send_batch(&responses).await?, 1);
    /// assert_eq!(client.recv(&mut [0; 16]).await?, 4);
    /// # }
    /// ```
    #[inline]
    pub fn reply<'b>(&self, payload: &'b [u8]) -> OutgoingDatagram<'b> {
        OutgoingDatagram {
            source: self.info.reply_source,
            ..OutgoingDatagram::new(payload, self.info.source)
        }
    }
}

impl fmt::Debug for ReceivedDatagram<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(formatter)
    }
}

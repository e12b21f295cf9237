//! QUIC of the crate `quinn` on anello's UDP sockets, with segmentation and receive offload (GSO and GRO).

use std::fmt;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use anello::compat::HyperTimer;
use anello::net::{DatagramInfo, Ecn, MtuDiscovery, OutgoingDatagram, UdpSocket};
use hyper::rt::{Sleep, Timer};
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, UdpPoller};
use send_wrapper::SendWrapper;

/// Number of datagrams in one send or receive, the limit of the kernel (`UDP_MAX_SEGMENTS` before Linux 6.9).
const MAX_SEGMENTS: usize = 64;

/// Runs the tasks, timers and sockets of quinn on the anello runtime of the calling thread.
///
/// Pass it to `quinn::Endpoint::new`. The endpoint and its connections can be used only on this thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuinnRuntime;

impl Runtime for QuinnRuntime {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(QuinnTimer(HyperTimer.sleep_until(deadline)))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        anello::spawn(future).detach();
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = UdpSocket::from_std(socket)?;
        socket.set_gro(true)?;
        socket.set_pktinfo(true)?;
        socket.set_recv_ecn(true)?;
        socket.set_mtu_discovery(MtuDiscovery::Probe)?;
        Ok(Arc::new(QuinnSocket(SendWrapper::new(socket))))
    }

    fn now(&self) -> Instant {
        HyperTimer.now()
    }
}

struct QuinnTimer(Pin<Box<dyn Sleep>>);

impl fmt::Debug for QuinnTimer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("QuinnTimer").finish_non_exhaustive()
    }
}

impl AsyncTimer for QuinnTimer {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        HyperTimer.reset(&mut self.0, deadline);
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

#[derive(Debug)]
struct QuinnSocket(SendWrapper<UdpSocket>);

impl AsyncUdpSocket for QuinnSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(QuinnPoller { socket: self, writable: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut datagram = OutgoingDatagram::new(transmit.contents, transmit.destination);
        if let Some(ecn) = transmit.ecn {
            datagram = datagram.with_ecn(Ecn::from_bits(ecn as u8));
        }
        if let Some(bytes) = transmit.segment_size.and_then(|bytes| u16::try_from(bytes).ok()) {
            datagram = datagram.with_segment_size(bytes);
        }
        if let Some(source) = transmit.src_ip {
            datagram = datagram.with_source(source);
        }
        match self.0.try_send_message(&datagram) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(error),
            // A datagram that is lost, or too large for the path, is not the end of a connection.
            _ => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metadata: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_recv_ready(context))?;
            let mut count = 0;
            for (buffer, meta) in buffers.iter_mut().zip(metadata.iter_mut()) {
                match self.0.try_recv_message(buffer) {
                    Ok(info) => *meta = receive_metadata(&info),
                    Err(error) if error.kind() == ErrorKind::WouldBlock || count > 0 => break,
                    Err(error) => return Poll::Ready(Err(error)),
                }
                count += 1;
            }
            if count > 0 {
                return Poll::Ready(Ok(count));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        MAX_SEGMENTS
    }

    fn max_receive_segments(&self) -> usize {
        MAX_SEGMENTS
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

fn receive_metadata(info: &DatagramInfo) -> RecvMeta {
    RecvMeta {
        addr: info.source,
        len: info.bytes,
        stride: info.segment_size.unwrap_or(info.bytes),
        ecn: info.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn.bits())),
        dst_ip: info.destination,
    }
}

type Writable = SendWrapper<Pin<Box<dyn Future<Output = io::Result<()>>>>>;

/// Waits for space in the send buffer. Each connection has its own, because `poll_send_ready` serves only one task.
struct QuinnPoller {
    socket: Arc<QuinnSocket>,
    writable: Option<Writable>,
}

impl fmt::Debug for QuinnPoller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("QuinnPoller").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl UdpPoller for QuinnPoller {
    fn poll_writable(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poller = self.get_mut();
        let socket = &poller.socket;
        let writable = poller.writable.get_or_insert_with(|| {
            let socket = Arc::clone(socket);
            SendWrapper::new(Box::pin(async move { socket.0.writable().await }))
        });
        let result = ready!(writable.as_mut().poll(context));
        poller.writable = None;
        Poll::Ready(result)
    }
}

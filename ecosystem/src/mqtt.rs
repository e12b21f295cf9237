//! An event loop for the MQTT client of the crate `rumqttc`, in place of its own, which requires the tokio runtime.

use std::time::Duration;

use anello::time::{Instant, sleep_until};
use futures_util::{SinkExt, StreamExt};
use rumqttc::{
    AsyncClient, Codec, Connect, ConnectReturnCode, ConnectionError, Event, MqttOptions, MqttState, Packet,
    PingReq, Request, StateError,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::Framed;

/// The connection of a client. Call [`poll`](Self::poll) in a loop.
pub struct EventLoop<S> {
    framed: Framed<S, Codec>,
    state: MqttState,
    max_inflight: u16,
    requests: flume::Receiver<Request>,
    keep_alive: Duration,
    next_ping: Instant,
}

/// Connects to a broker over a stream. `capacity` is the number of requests that the client can queue.
///
/// The options of the transport and the socket are not used.
///
/// # Errors
/// Returns an error if the stream fails, or if the broker rejects the client.
pub async fn connect<S>(
    options: &MqttOptions,
    stream: S,
    capacity: usize,
) -> Result<(AsyncClient, EventLoop<S>), ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let max_bytes = options.max_packet_size();
    let codec = Codec { max_incoming_size: max_bytes, max_outgoing_size: max_bytes };
    let mut framed = Framed::new(stream, codec);
    let mut connect = Connect::new(options.client_id());
    connect.keep_alive = u16::try_from(options.keep_alive().as_secs()).unwrap_or(u16::MAX);
    connect.clean_session = options.clean_session();
    connect.last_will = options.last_will();
    connect.login = options.credentials();
    framed.send(Packet::Connect(connect)).await.map_err(StateError::from)?;
    match framed.next().await.ok_or(StateError::ConnectionAborted)?.map_err(StateError::from)? {
        Packet::ConnAck(reply) if reply.code == ConnectReturnCode::Success => {}
        Packet::ConnAck(reply) => return Err(ConnectionError::ConnectionRefused(reply.code)),
        packet => return Err(ConnectionError::NotConnAck(packet)),
    }
    let (sender, requests) = flume::bounded(capacity);
    let events = EventLoop {
        framed,
        state: MqttState::new(options.inflight(), options.manual_acks()),
        max_inflight: options.inflight(),
        requests,
        keep_alive: options.keep_alive(),
        next_ping: Instant::now() + options.keep_alive(),
    };
    Ok((AsyncClient::from_senders(sender), events))
}

impl<S: AsyncRead + AsyncWrite + Unpin> EventLoop<S> {
    /// Exchanges packets with the broker until there is an event.
    ///
    /// # Errors
    /// Returns an error if the stream fails, if the broker violates the protocol or does not respond to a ping, or if
    /// all clients have been dropped. The connection cannot be used any more.
    ///
    /// # Cancel safety
    /// Not cancel-safe: a packet may have been sent in part.
    pub async fn poll(&mut self) -> Result<Event, ConnectionError> {
        loop {
            if let Some(event) = self.state.events.pop_front() {
                return Ok(event);
            }
            let can_send = self.state.inflight() < self.max_inflight && self.state.collision.is_none();
            let outgoing = tokio::select! {
                packet = self.framed.next() => {
                    let packet = packet.ok_or(StateError::ConnectionAborted)?.map_err(StateError::from)?;
                    self.state.handle_incoming_packet(packet)?
                }
                request = self.requests.recv_async(), if can_send => {
                    self.state.handle_outgoing_packet(request.map_err(|_| ConnectionError::RequestsDone)?)?
                }
                () = sleep_until(self.next_ping), if !self.keep_alive.is_zero() => {
                    self.next_ping = Instant::now() + self.keep_alive;
                    self.state.handle_outgoing_packet(Request::PingReq(PingReq))?
                }
            };
            if let Some(packet) = outgoing {
                self.framed.send(packet).await.map_err(StateError::from)?;
            }
        }
    }
}

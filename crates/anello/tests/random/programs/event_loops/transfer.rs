//! Transfers of bytes and datagrams, whose order and content are checked.

use super::*;

impl Program<'_> {
    pub(super) fn send(&mut self, endpoint: &mut Endpoint, token: usize) -> io::Result<()> {
        let id = endpoint.id;
        // Bytes are also accepted before the stream is connected.
        if endpoint.is_connecting && (endpoint.sends_left == 0 || self.random.usize(..4) != 0) {
            let connected = self.event_loop.poll_connect(id);
            let connected = self.record(Some(id.into()), token, EventKind::Connect, connected).transpose()?;
            endpoint.is_connecting = connected.is_none();
            return Ok(());
        }
        let (connection, side) = endpoint.side.as_ref().expect("a stream whose number is known");
        if *side == 0 && !endpoint.header.is_empty() {
            let sent = self.event_loop.write(id, &endpoint.header);
            let count = self.record(Some(id.into()), token, EventKind::Send, sent).transpose()?;
            endpoint.header.drain(..count.unwrap_or(0));
            return Ok(());
        }
        let outgoing = &connection.directions[*side];
        if endpoint.sends_left == 0 {
            outgoing.end();
            endpoint.is_shut = true;
            return self.event_loop.shutdown_write(id);
        }
        let max_length = [10, 5000, 40_000][self.random.usize(..3)];
        let length = 1 + self.random.usize(..max_length);
        let bytes = outgoing.next_bytes(length);
        let polled = match self.random.usize(..6) {
            0 => self.event_loop.send(id, &mut Some(bytes.into())).map_ok(|()| length),
            1 => {
                let mut buffer = Some(self.hostility.bytes(&mut self.random, bytes).into());
                let polled = self.event_loop.send(id, &mut buffer).map_ok(|()| length);
                drop_hostile(buffer);
                polled
            }
            2 => {
                let (one, other) = bytes.split_at(self.random.usize(..length));
                let other = self.hostility.bytes(&mut self.random, other.to_vec());
                let mut buffers = vec![one.to_vec().into(), other.into()];
                let polled = self.event_loop.send_vectored(id, &mut buffers).map_ok(|()| length);
                drop_hostile(buffers);
                polled
            }
            3 => self.event_loop.write(id, &bytes),
            4 => {
                let file = tempfile::tempfile().unwrap();
                file.write_all_at(&bytes, 7).unwrap();
                self.event_loop.send_file(id, &file, 7, length)
            }
            _ => self.event_loop.flush(id).map_ok(|()| 0),
        };
        if let Some(count) = self.record(Some(id.into()), token, EventKind::Send, polled).transpose()? {
            outgoing.accept(count);
            endpoint.sends_left -= 1;
            self.trace.push(("accepted", count as u64));
        }
        Ok(())
    }

    pub(super) fn receive(&mut self, endpoint: &mut Endpoint, token: usize) -> io::Result<()> {
        let id = endpoint.id;
        let max_length = if endpoint.side.is_none() { HEADER_BYTES - endpoint.header.len() } else { 20_000 };
        let mut buffer = vec![0; 1 + self.random.usize(..max_length)];
        let way = if endpoint.side.is_none() { 0 } else { self.random.usize(..4) };
        let polled = match way {
            0 => self.event_loop.read(id, &mut buffer),
            1 => self.event_loop.peek(id, &mut buffer),
            _ => self.event_loop.recv(id).map_ok(|chunk| {
                buffer = chunk.as_deref().unwrap_or_default().to_vec();
                match self.random.usize(..20) {
                    0 => self.kept.extend(chunk),
                    1 => leave_victim(chunk),
                    _ => {}
                }
                buffer.len()
            }),
        };
        let received = self.record(Some(id.into()), token, EventKind::Receive, polled).transpose()?;
        let Some(count) = received else { return Ok(()) };
        let bytes = &buffer[..count];
        endpoint.has_eof = count == 0;
        self.trace.push(("received", count as u64));
        let Some((connection, side)) = &endpoint.side else {
            endpoint.header.extend(bytes);
            if let Ok(number) = endpoint.header[..].try_into() {
                let number = u64::from_ne_bytes(number) as usize;
                endpoint.side = Some((Rc::clone(&self.connections[number]), 1));
            }
            return Ok(());
        };
        let incoming = &connection.directions[1 - side];
        match (count, way) {
            (0, _) => incoming.check_end(connection.may_break.get()),
            (_, 1) => incoming.check_peeked(bytes),
            _ => incoming.receive(bytes),
        }
        Ok(())
    }

    pub(super) fn send_datagrams(&mut self, id: UdpId, to: SocketAddr, exchange: &Exchange) {
        let first = exchange.accepted.get();
        let numbers = first..first + 1 + self.random.u64(..6);
        let payloads: Vec<_> = numbers.map(|it| payload(it, 8 + self.random.usize(..1400))).collect();
        let sent = if self.random.bool() {
            self.event_loop.send_to(id, &payloads[0], to).map_ok(|_| 1)
        } else {
            let batch: Vec<_> = payloads.iter().map(|it| OutgoingDatagram::new(it, to)).collect();
            self.event_loop.send_batch(id, &batch)
        };
        if let Some(sent) = self.record(Some(id.into()), id.token(), EventKind::Writable, sent) {
            exchange.accepted.set(first + sent.unwrap() as u64);
        }
    }

    /// Receives datagrams. Returns whether there were any.
    pub(super) fn receive_datagrams(&mut self, id: UdpId, exchange: &Exchange) -> bool {
        let received = if self.random.bool() {
            let mut buffer = [0; 2000];
            let received = self.event_loop.recv_from(id, &mut buffer);
            received.map_ok(|(count, _)| check_all(exchange, [&buffer[..count]].into_iter()))
        } else {
            let mut batch = RecvBatch::new(1 + self.random.usize(..8), 2000);
            let received = self.event_loop.recv_batch(id, &mut batch);
            received.map_ok(|_| batch.iter().for_each(|it| check_all(exchange, it.segments())))
        };
        self.record(Some(id.into()), id.token(), EventKind::Readable, received).transpose().unwrap().is_some()
    }
}

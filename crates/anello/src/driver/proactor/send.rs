//! Sending. At most one operation is in flight per stream, for the front of its queue.

use std::io::{self, IoSlice};
use std::task::{Poll, Waker, ready};

use super::stream::Sending;
use super::{MAX_SEND_BYTES, Proactor, ZeroCopySend};
use crate::driver::errors::log::log_event;
use crate::driver::kernel::CompletionKernel;
use crate::driver::kernel::op::{Completion, Op, SendMode};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::memory::buffer::CLASS_BYTES;
use crate::driver::memory::io_slice_cursor::IoSliceCursor;
use crate::driver::memory::key::Key;
use crate::driver::sockets::{Family, FileRange, Sockets, gone};
use crate::driver::stream::send_queue::{Queued, SendBuf};
use crate::driver::stream::send_side::WriteSide;
use crate::driver::wake::queue::{PollIo, WakeQueue};

impl<K: CompletionKernel> Proactor<K> {
    /// Accepts a buffer for sending if the queue has room. In that case, takes the value of `outgoing`.
    #[inline(always)]
    pub fn poll_send(&mut self, key: Key, outgoing: &mut Option<SendBuf>, waker: &Waker) -> PollIo<()> {
        // Fast path for nearly all messages: the send is queued for the next turn, which also confirms it.
        if let Some(stream) = self.streams.get_mut(key)
            && stream.sending == Sending::Idle
            && stream.sends.error.is_none()
            && stream.sends.write_side == WriteSide::Open
            && let Some((data, length_bytes)) = stream.sends.queue.start(outgoing, self.inline_send_bytes)
        {
            let token = Token::new(Kind::Send, key);
            let submission_index = self.kernel.push_inline_send(token, &stream.socket, data, length_bytes);
            stream.sending = Sending::Inline(submission_index);
            self.unconfirmed_sends.push((key.index, submission_index));
            return Poll::Ready(Ok(()));
        }
        self.poll_send_slow(key, outgoing, waker)
    }

    #[inline(never)]
    fn poll_send_slow(&mut self, key: Key, outgoing: &mut Option<SendBuf>, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        stream.sends.check()?;
        stream.sends.check_open()?;
        if stream.sends.queue.queued_bytes() >= self.limits.max_send_queue_bytes {
            stream.sends.waker.wait(waker);
            self.confirm_without_sleeping |= stream.is_unconfirmed();
            return Poll::Pending;
        }
        let Some(queued) = outgoing.take().map(Queued) else { return Poll::Ready(Ok(())) };
        if stream.sending != Sending::Idle {
            self.confirm_without_sleeping |= stream.is_unconfirmed();
            stream.sends.queue.queue(queued, &self.pools);
            return Poll::Ready(Ok(()));
        }
        stream.sends.queue.push(queued);
        Poll::Ready(self.start_sending(key))
    }

    /// Accepts bytes from the slices. Long data is passed to the kernel immediately, and any unsent bytes are queued.
    /// Short data is copied and queued, up to the limit of the queue.
    pub fn poll_write(&mut self, key: Key, slices: &[IoSlice<'_>], waker: &Waker) -> PollIo<usize> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let Some(mut cursor) = stream.sends.start_write(slices)? else { return Poll::Ready(Ok(0)) };
        let length = cursor.remaining_bytes();
        let idle = stream.sending == Sending::Idle;
        // A copy that does not fit into the smallest buffer class would be sent immediately anyway.
        let send_directly = length > CLASS_BYTES[0] || length >= self.limits.direct_send_threshold_bytes;
        if idle && send_directly && stream.is_connected() {
            debug_assert!(stream.sends.queue.is_empty(), "invariant 3: bytes are sent before queued ones");
            let sent = self.kernel.sockets_mut().send_slices(&stream.socket, slices);
            let count = stream.sends.sent(sent, length)?;
            if count < length {
                return Poll::Ready(Ok(self.queue_remainder(key, cursor, count)));
            }
            self.metrics.sends += 1;
            return Poll::Ready(Ok(count));
        }
        if idle && length <= self.limits.max_send_queue_bytes {
            let mut gathered = Some(SendBuf::Chunk(cursor.gather(&self.pools)));
            return self.poll_send(key, &mut gathered, waker).map_ok(|()| length);
        }
        stream.sends.check_open()?;
        // `poll_send` accepts a whole buffer, so the queue can exceed its limit.
        cursor.limit(self.limits.max_send_queue_bytes.saturating_sub(stream.sends.queue.queued_bytes()));
        let accepted = cursor.remaining_bytes();
        self.confirm_without_sleeping |= stream.is_unconfirmed();
        if accepted == 0 {
            stream.sends.waker.wait(waker);
            return Poll::Pending;
        }
        stream.sends.queue.append_copy(&mut cursor, &self.pools);
        if idle {
            self.start_sending(key)?;
        }
        Poll::Ready(Ok(accepted))
    }

    /// Queues a copy of the bytes that the kernel did not take, up to the limit of the queue, and starts a send that
    /// waits for room in the socket buffer. The queue must be empty. Returns the total number of accepted bytes,
    /// including the `sent_bytes` that the kernel took.
    #[cold]
    fn queue_remainder(&mut self, key: Key, mut cursor: IoSliceCursor<'_>, sent_bytes: usize) -> usize {
        self.metrics.short_sends += 1;
        let Some(stream) = self.streams.get_mut(key) else { return sent_bytes };
        debug_assert!(stream.sends.queue.is_empty(), "invariant 3: bytes were sent before queued ones");
        cursor.advance(sent_bytes);
        cursor.limit(self.limits.max_send_queue_bytes);
        let accepted = sent_bytes + cursor.remaining_bytes();
        stream.sends.queue.append_copy(&mut cursor, &self.pools);
        self.submit_send(key, SendMode::Async);
        accepted
    }

    /// Writes like [`poll_write`](Self::poll_write), for data that will soon be followed by more data or by a shutdown:
    /// the kernel may send both together.
    pub fn poll_write_more(&mut self, key: Key, data: &[u8], waker: &Waker) -> PollIo<usize> {
        if let Some(stream) = self.streams.get_mut(key)
            && stream.sending == Sending::Idle
            && stream.is_connected()
            && stream.sends.error.is_none()
        {
            debug_assert!(stream.sends.queue.is_empty(), "invariant 3: bytes are sent before queued ones");
            let sent = self.kernel.sockets_mut().send_more(&stream.socket, data);
            let count = stream.sends.sent(sent, data.len())?;
            if count == 0 && !data.is_empty() {
                let slices = [IoSlice::new(data)];
                return Poll::Ready(Ok(self.queue_remainder(key, IoSliceCursor::new(&slices), 0)));
            }
            self.metrics.count_send(count == data.len());
            return Poll::Ready(Ok(count));
        }
        self.poll_write(key, &[IoSlice::new(data)], waker)
    }

    /// Returns `Ready` when the kernel has taken all accepted bytes.
    pub fn poll_flush(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        let flushed = stream.sends.poll_flush(waker);
        self.confirm_without_sleeping |= flushed.is_pending() && stream.is_unconfirmed();
        flushed
    }

    /// Shuts down the write direction once the kernel has taken all accepted bytes (immediately if it already has).
    pub fn shutdown_write(&mut self, key: Key) -> io::Result<()> {
        let stream = self.streams.get_mut(key).ok_or_else(gone)?;
        stream.sends.shut_down(self.kernel.sockets(), &stream.socket)?;
        self.confirm_without_sleeping |= stream.is_unconfirmed();
        Ok(())
    }

    /// Sends bytes from a file once all previously accepted bytes have been sent. Returns the number of bytes that the
    /// kernel took.
    pub fn poll_send_file(&mut self, key: Key, range: FileRange<'_>, waker: &Waker) -> PollIo<usize> {
        ready!(self.poll_flush(key, waker))?;
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(gone())) };
        if stream.sending == Sending::Idle {
            if !stream.sends_files {
                self.kernel.sockets_mut().prepare_send_file(&stream.socket)?;
                stream.sends_files = true;
            }
            let (sockets, family) = (self.kernel.sockets_mut(), stream.family);
            if stream.is_connected()
                && let Some(count) =
                    stream.sends.send_file(sockets, &stream.socket, family, range, &mut self.metrics)?
            {
                return Poll::Ready(Ok(count));
            }
            stream.sending = Sending::Polling;
            self.kernel.push(Token::new(Kind::Writable, key), Op::Writable { socket: &stream.socket });
        }
        stream.sends.waker.wait(waker);
        Poll::Pending
    }

    #[inline(never)]
    pub(super) fn on_writable(&mut self, key: Key, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else {
            return self.on_late_completion(self.streams.is_earlier(key));
        };
        if !matches!(stream.sending, Sending::Polling | Sending::PollInDoubt) {
            let message = "invariant 8: completion of a poll for writability that is not in flight";
            return self.on_impossible_completion(key, message, wakes);
        }
        // If the poll failed, the next send reports the error.
        stream.sending = Sending::Idle;
        self.after_send(key, false, wakes);
    }

    /// Returns `Ready` when all accepted bytes are in the kernel or will be submitted in the following turns. Returns
    /// `Pending` while the kernel has no room for some of the bytes.
    pub fn poll_submitted(&mut self, key: Key, waker: &Waker) -> PollIo<()> {
        match self.streams.get(key) {
            Some(stream) if stream.is_unconfirmed() && stream.sends.error.is_none() => Poll::Ready(Ok(())),
            _ => self.poll_flush(key, waker),
        }
    }

    /// Sends the front of the queue. A large buffer is sent immediately by a system call, so that it is read while it
    /// is in the CPU cache; any other is sent in the next turn.
    #[inline(never)]
    pub(super) fn start_sending(&mut self, key: Key) -> io::Result<()> {
        let Some(stream) = self.streams.get_mut(key) else { return Err(gone()) };
        debug_assert_eq!(stream.sending, Sending::Idle, "invariant 3: a second send is started");
        let mut would_block = false;
        while let Some(pending) = stream.sends.queue.pending() {
            let length = pending.len();
            let zero_copy = length >= self.zero_copy_bytes
                && self.capabilities.zero_copy
                && stream.family == Family::Internet
                && self.kernel.zero_copy_pays(&stream.socket);
            let send_directly = stream.is_connected()
                && (length >= self.limits.direct_send_threshold_bytes || stream.sends.queue.is_urgent());
            if zero_copy || would_block || !send_directly {
                let mode = if zero_copy {
                    SendMode::ZeroCopy
                } else if would_block {
                    SendMode::Async
                } else {
                    self.default_send_mode
                };
                self.submit_send(key, mode);
                return Ok(());
            }
            let sent = self.kernel.sockets_mut().send(&stream.socket, pending);
            let count = stream.sends.sent(sent, length)?;
            would_block = count < length;
            if count > 0 {
                self.metrics.count_send(!would_block);
                stream.sends.queue.mark_sent(count)?;
            }
            if would_block {
                stream.sends.queue.shrink_front();
            }
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn submit_send(&mut self, key: Key, mode: SendMode) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let Some(pending) = stream.sends.queue.pending() else { return };
        debug_assert_eq!(stream.sending, Sending::Idle, "invariant 3: a second send is submitted");
        debug_assert!(stream.sends.error.is_none(), "invariant 3: a send is submitted after an error");
        // The kernel truncates longer sends, so these need a completion with the number of bytes sent.
        let exceeds_max = pending.len() > MAX_SEND_BYTES;
        let mode = if exceeds_max && mode == SendMode::Inline { SendMode::Async } else { mode };
        let length_bytes = pending.len().min(MAX_SEND_BYTES) as u32;
        let op = Op::Send { socket: &stream.socket, data: pending.as_ptr(), length_bytes, mode };
        let token = match mode {
            SendMode::ZeroCopy => Token::new(
                Kind::SendZeroCopy,
                self.zero_copy_sends.insert(ZeroCopySend { stream: key, short_result: None, memory: None }),
            ),
            SendMode::Inline | SendMode::Async => Token::new(Kind::Send, key),
        };
        let submission_index = self.kernel.push(token, op);
        stream.sending = match mode {
            SendMode::Inline => {
                self.unconfirmed_sends.push((key.index, submission_index));
                self.confirm_without_sleeping |= stream.sends.queue.has_queued_behind_front()
                    || stream.sends.waker.is_waiting()
                    || stream.released;
                Sending::Inline(submission_index)
            }
            SendMode::Async => Sending::Async,
            SendMode::ZeroCopy => {
                self.metrics.zero_copy_sends += 1;
                Sending::ZeroCopy(token.key())
            }
        };
    }

    #[inline(never)]
    pub(super) fn on_send_zero_copy(
        &mut self,
        send_key: Key,
        completion: &Completion,
        wakes: &mut WakeQueue,
    ) {
        let Some(&mut ZeroCopySend { stream: key, ref mut short_result, ref memory }) =
            self.zero_copy_sends.get_mut(send_key)
        else {
            return self.on_late_completion(self.zero_copy_sends.is_earlier(send_key));
        };
        if !completion.has_more() {
            // The last completion: either the result of a send that failed immediately, or the notification that the
            // memory is no longer in use.
            let is_detached = memory.is_some();
            let is_result_lost = completion.is_notification() && !is_detached && short_result.is_none();
            // The notification of a send that has a result carries no result of its own.
            let result = short_result.filter(|_| completion.is_notification()).unwrap_or(completion.result);
            self.zero_copy_sends.remove(send_key);
            if is_result_lost {
                // The completion with the result was dropped. Sending the same bytes again could duplicate them.
                self.abort_incomplete(key, wakes);
            }
            if !is_detached {
                self.on_send(key, result, wakes);
            }
            return;
        }
        let Some(stream) = self.streams.get_mut(key) else { return };
        if memory.is_some() || short_result.is_some() {
            let message = "invariant 8: second result of a zero-copy send";
            return self.on_impossible_completion(key, message, wakes);
        }
        let pending_bytes = stream.sends.queue.pending().map_or(0, <[u8]>::len);
        let is_complete = usize::try_from(completion.result) == Ok(pending_bytes);
        if !is_complete && stream.sends.error.is_none() {
            *short_result = Some(completion.result);
            return;
        }
        self.metrics.count_send(is_complete);
        self.detach_buffer(key, send_key);
        self.after_send(key, false, wakes);
    }

    /// Detaches the buffer of a completed zero-copy send, which the kernel may still be reading, so that the stream can
    /// send again.
    pub(super) fn detach_buffer(&mut self, key: Key, send_key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        debug_assert_eq!(
            stream.sending,
            Sending::ZeroCopy(send_key),
            "invariant 3: the front of the send queue moves to a send to which it does not belong"
        );
        stream.sending = Sending::Idle;
        if let Some(send) = self.zero_copy_sends.get_mut(send_key) {
            debug_assert!(send.memory.is_none(), "invariant 1: memory that the kernel may read is dropped");
            send.memory = stream.sends.queue.take_front();
        }
    }

    /// Processes the result of a send: a byte count or a negated error number.
    #[inline(never)]
    pub(super) fn on_send(&mut self, key: Key, result: i32, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else {
            return self.on_late_completion(self.streams.is_earlier(key));
        };
        if !matches!(stream.sending, Sending::Inline(_) | Sending::Async | Sending::ZeroCopy(_)) {
            let message = "invariant 8: completion of a send that is not in flight";
            return self.on_impossible_completion(key, message, wakes);
        }
        let previous = std::mem::replace(&mut stream.sending, Sending::Idle);
        let mut retry_async = matches!(previous, Sending::Inline(_));
        match result {
            0.. => {
                let is_complete =
                    stream.sends.queue.pending().is_none_or(|pending| pending.len() <= result as usize);
                if stream.sends.queue.mark_sent(result as usize).is_err() {
                    let message = "invariant 3: a send has sent more bytes than were queued";
                    self.on_impossible_completion(key, message, wakes);
                    return self.after_send(key, false, wakes);
                }
                let waits = matches!(previous, Sending::Async | Sending::ZeroCopy(_));
                stream.sends.may_have_lost_error = waits && !is_complete && stream.family == Family::Internet;
                self.metrics.count_send(is_complete);
            }
            _ => match -result {
                // `send_again` cancels.
                libc::EAGAIN | libc::EINTR | libc::ECANCELED => self.metrics.short_sends += 1,
                // Retry with a send that may wait. If that also fails for lack of memory, the error is returned. The
                // memory of a zero-copy send counts towards the locked-memory limit of the user (RLIMIT_MEMLOCK).
                libc::ENOBUFS | libc::ENOMEM
                    if matches!(previous, Sending::Inline(_) | Sending::ZeroCopy(_)) =>
                {
                    self.metrics.short_sends += 1;
                    retry_async = true;
                }
                libc::EOPNOTSUPP if matches!(previous, Sending::ZeroCopy(_)) => {
                    self.zero_copy_bytes = usize::MAX
                }
                errno => stream.sends.record_error(errno),
            },
        }
        self.after_send(key, retry_async, wakes);
    }

    /// Continues with the queue after a send: starts the next send, wakes the task that is waiting for room, and closes
    /// a released stream.
    #[inline(never)]
    pub(super) fn after_send(&mut self, key: Key, retry_async: bool, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        debug_assert_eq!(
            stream.sending,
            Sending::Idle,
            "invariant 3: the send queue continues during a send"
        );
        if stream.sends.error.is_some() {
            stream.sends.queue.clear();
        } else if retry_async && !stream.sends.queue.is_empty() {
            // The bytes that an inline send left unsent are passed to a send that waits for room.
            stream.sends.queue.shrink_front();
            self.submit_send(key, SendMode::Async);
        } else if !stream.sends.queue.is_empty()
            && let Err(error) = self.start_sending(key)
        {
            log_event!(DEBUG, %error, "queued send failed; the next operation on the stream returns the error");
        }
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.sends.shut_down_if_queued(self.kernel.sockets(), &stream.socket);
        stream.sends.wake_if_room(self.limits.max_send_queue_bytes, wakes);
        if stream.released {
            self.finish(key);
        }
    }

    /// Confirms the inline sends that the kernel has consumed without posting a completion: all their bytes were sent.
    #[inline]
    pub(super) fn confirm_sends(&mut self, wakes: &mut WakeQueue) {
        let Some(&(_, last)) = self.unconfirmed_sends.last() else { return };
        debug_assert!(
            self.unconfirmed_sends
                .is_sorted_by(|(_, index), (_, next)| next.wrapping_sub(*index).cast_signed() > 0),
            "invariant 6: sends are not in the order of their submission"
        );
        // In nearly all cases, all sends have been consumed.
        let mut consumed = self.unconfirmed_sends.len();
        if !self.kernel.consumed(last) {
            let is_consumed = |&(_, submission_index): &(u32, u32)| self.kernel.consumed(submission_index);
            consumed = self.unconfirmed_sends.partition_point(is_consumed);
        }
        for position in 0..consumed {
            // New sends are added at the end of the list while these are confirmed.
            let (index, submission_index) = self.unconfirmed_sends[position];
            // An equal submission index means that this is the same send, and therefore the same occupant of the slot.
            let Some((key, stream)) = self.streams.occupant(index) else { continue };
            if stream.sending != Sending::Inline(submission_index) {
                continue;
            }
            stream.sending = Sending::Idle;
            stream.sends.queue.mark_all_sent();
            self.metrics.sends += 1;
            if !stream.sends.queue.is_empty()
                || stream.sends.waker.is_waiting()
                || stream.released
                || stream.sends.write_side == WriteSide::ShutdownQueued
            {
                self.after_send(key, false, wakes);
            }
        }
        if consumed == self.unconfirmed_sends.len() {
            self.unconfirmed_sends.clear();
        } else {
            self.unconfirmed_sends.drain(..consumed);
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::driver::kernel::Kernel;
    use crate::driver::kernel::op::Wait;
    use crate::driver::settings::options::DriverOptions;
    use crate::driver::settings::sim_options::SimOptions;
    use crate::driver::sim::{SimCompletion, SimNetwork};

    /// Returns a proactor and a stream whose send waits for room in the socket buffer, which has eight bytes.
    fn sending() -> (Proactor<SimCompletion>, Key) {
        let (sim, options) = (SimOptions::new(1).socket_buffer_bytes(8), DriverOptions::default());
        let mut kernel = SimCompletion::new(SimNetwork::new(&sim), &sim, &options);
        let (near, far) = kernel.sockets_mut().pair_unix().unwrap();
        let mut proactor = Proactor::new(kernel, &options);
        let key = proactor.attach(near, Family::Unix, false).unwrap();
        proactor.attach(far, Family::Unix, false).unwrap();
        let mut outgoing = Some(SendBuf::Vec(vec![7; 20]));
        assert!(proactor.poll_send(key, &mut outgoing, Waker::noop()).is_ready());
        (0..3).for_each(|_| proactor.turn(Wait::None, &mut WakeQueue::default()).unwrap());
        assert_eq!(proactor.streams.get(key).unwrap().sending, Sending::Async);
        (proactor, key)
    }

    fn complete(proactor: &mut Proactor<SimCompletion>, token: Token, result: i32) {
        let completion = Completion { token, result, flags: 0 };
        proactor.dispatch(&completion, &mut WakeQueue::default());
    }

    /// Both directions fail. In debug builds, the assertion fails first.
    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "invariant 3"))]
    fn more_sent_bytes_than_queued_fail_the_stream() {
        let (mut proactor, key) = sending();
        complete(&mut proactor, Token::new(Kind::Send, key), 21);
        let mut received = None;
        assert!(matches!(proactor.poll_receive(key, &mut received, Waker::noop()), Poll::Ready(Err(_))));
        let mut outgoing = Some(SendBuf::Vec(vec![7]));
        assert!(matches!(proactor.poll_send(key, &mut outgoing, Waker::noop()), Poll::Ready(Err(_))));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "invariant 8"))]
    fn second_completion_of_a_poll_fails_the_stream() {
        let (mut proactor, key) = sending();
        complete(&mut proactor, Token::new(Kind::Writable, key), 0);
        let mut received = None;
        assert!(matches!(proactor.poll_receive(key, &mut received, Waker::noop()), Poll::Ready(Err(_))));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "invariant 7"))]
    fn completion_of_an_unknown_operation_is_counted() {
        let (mut proactor, key) = sending();
        complete(&mut proactor, Token::new(Kind::Send, Key { index: key.index + 100, ..key }), 0);
        assert_eq!(proactor.metrics().late_completions, 1);
    }
}

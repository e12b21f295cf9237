//! Recovery from dropped completions. The kernel drops completions (`EBADR`) if the completion queue is full and there
//! is no memory to keep them.
//!
//! Any operation in flight may have ended without a completion. Bytes may have been received and lost, or not sent.
//! Therefore, every connection that may have lost bytes is reset, and every operation is cancelled. A cancellation that
//! finds no operation proves that its target has ended. Until then, the target is *in doubt*. If the target's own
//! terminal completion arrives first, the operation may be armed again under the same token; the new operation is not
//! in doubt.
//!
//! A resource to which only a dropped completion refers is lost until the runtime shuts down. It can be a buffer of the
//! receive ring, the descriptor of an accepted connection, the memory of a zero-copy send, or the reference to the ring
//! of a worker that was being woken.

use std::num::NonZero;

use super::stream::{Connect, HangupPoll, Received, Receiving, Sending};
use super::{Proactor, ZeroCopySend};
use crate::driver::errors::impossible::report_impossible;
use crate::driver::errors::log::log_event;
use crate::driver::kernel::CompletionKernel;
use crate::driver::kernel::op::{Completion, Op};
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::memory::key::{GENERATION_MASK, Key};
use crate::driver::stream::direct_read::ReadState;
use crate::driver::wake::queue::WakeQueue;

impl<K: CompletionKernel> Proactor<K> {
    /// Returns `true` if completions have been dropped since the last call. Every receive into the ring may then have
    /// lost bytes, even one whose last completion is still in the queue. Bytes that follow the lost ones must not be
    /// delivered.
    #[inline]
    pub(super) fn abort_lost_receives(&mut self, wakes: &mut WakeQueue) -> bool {
        let has_dropped = self.kernel.has_dropped();
        if has_dropped {
            self.abort_receives(wakes);
        }
        has_dropped
    }

    #[cold]
    #[inline(never)]
    pub(super) fn abort_receives(&mut self, wakes: &mut WakeQueue) {
        for key in self.streams.keys() {
            if let Some(stream) = self.streams.get_mut(key)
                && matches!(stream.receiving, Receiving::Ring | Receiving::Cancelling(Kind::Receive))
            {
                // The recovery cancels the receive, unless the receive has already ended by then.
                stream.receiving = Receiving::Cancelling(Kind::Receive);
                self.abort_incomplete(key, wakes);
            }
        }
    }

    /// Cancels the operations that are still in flight after all completions have been read.
    #[cold]
    #[inline(never)]
    pub(super) fn on_completions_dropped(&mut self, wakes: &mut WakeQueue) {
        log_event!(
            ERROR,
            "the kernel dropped completions for lack of memory; resetting connections with operations in flight \
                 (raise the memory limit)"
        );
        // All operations in flight are in doubt again, including cancellations from an earlier recovery.
        self.recovery.round = self.recovery.round % GENERATION_MASK + 1;
        self.recovery.targets.clear();
        for key in self.streams.keys() {
            self.recover_stream(key, wakes);
        }
        for key in self.listeners.keys() {
            if let Some(listener) = self.listeners.get_mut(key)
                && listener.armed
            {
                (listener.cancelling, listener.in_doubt) = (true, true);
                self.cancel_for_recovery(Token::new(Kind::Accept, key));
            }
        }
        for key in self.sources.keys() {
            self.recover_source(key);
        }
        self.doubt_files(wakes);
        // The completion of a wake-up may have been dropped too.
        wakes.mark_notified();
    }

    fn recover_stream(&mut self, key: Key, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let receiving = match stream.receiving {
            Receiving::Idle => None,
            Receiving::Ring => Some(Kind::Receive),
            Receiving::Polling => Some(Kind::Readable),
            Receiving::Cancelling(kind) | Receiving::InDoubt(kind) => Some(kind),
        };
        let sending = match stream.sending {
            // An inline send is confirmed in this or a later turn, once its entry is consumed. The result is ignored.
            Sending::Idle | Sending::Inline(_) => None,
            Sending::Async => Some(Token::new(Kind::Send, key)),
            Sending::ZeroCopy(send_key) => Some(Token::new(Kind::SendZeroCopy, send_key)),
            Sending::Polling | Sending::PollInDoubt => Some(Token::new(Kind::Writable, key)),
        };
        let hangup_poll = stream.hangup_poll.is_in_flight().then_some(Kind::Hangup);
        let connecting = (stream.connect == Connect::InFlight).then_some(Kind::Connect);
        // If the completion of a poll is lost, no data is lost, and the poll is armed again.
        let loses_bytes = receiving == Some(Kind::Receive)
            || connecting.is_some()
            || !matches!(stream.sending, Sending::Idle | Sending::Polling | Sending::PollInDoubt);
        if let Some(kind) = receiving {
            stream.receiving = Receiving::InDoubt(kind);
        }
        if hangup_poll.is_some() {
            stream.hangup_poll = HangupPoll::InDoubt;
        }
        if stream.sending == Sending::Polling {
            stream.sending = Sending::PollInDoubt;
        }
        if loses_bytes {
            self.abort_incomplete(key, wakes);
        }
        let stream_token = |kind| Token::new(kind, key);
        let targets = [
            receiving.map(stream_token),
            hangup_poll.map(stream_token),
            connecting.map(stream_token),
            sending,
        ];
        for target in targets.into_iter().flatten() {
            self.cancel_for_recovery(target);
        }
    }

    /// Fails a stream that may have lost bytes. When the stream is closed, its connection is reset.
    pub(super) fn abort_incomplete(&mut self, key: Key, wakes: &mut WakeQueue) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        debug_assert_ne!(
            stream.receiving,
            Receiving::Ring,
            "invariant 4: the receive of a failed stream is armed"
        );
        let aborted = NonZero::new(libc::ECONNABORTED);
        stream.sends.error = stream.sends.error.or(aborted);
        stream.receive_error = stream.receive_error.or(aborted);
        stream.received = Received::default();
        // If EOF were reported after lost bytes, the data before them would appear complete.
        stream.reads.state = ReadState::Open;
        stream.receive_waker.wake(wakes);
        stream.sends.waker.wake(wakes);
    }

    pub(super) fn cancel_for_recovery(&mut self, target: Token) {
        let key = Key { index: self.recovery.targets.len() as u32, generation: self.recovery.round };
        self.recovery.targets.push(target);
        self.kernel.push(Token::new(Kind::Cancel, key), Op::Cancel { target });
    }

    /// Handles a cancellation that found no operation. If the state of its target was uncertain, the target has ended:
    /// its completion was either read before this one or dropped.
    #[cold]
    #[inline(never)]
    pub(super) fn on_cancel_not_found(&mut self, cancel: Key, wakes: &mut WakeQueue) {
        // Other cancellations, and those of an earlier recovery, whose targets have been cancelled again.
        if cancel.generation == 0 || cancel.generation != self.recovery.round {
            return;
        }
        let Some(&target) = self.recovery.targets.get(cancel.index as usize) else {
            return report_impossible("invariant 7: completion of a cancellation without a target");
        };
        let key = target.key();
        let stream = self.streams.get(key);
        let in_doubt = match target.kind() {
            Some(Kind::SendZeroCopy) => return self.detach_unconfirmed_buffer(key, wakes),
            // A target that has ended may have been armed again under the same token, and may even have been cancelled
            // again. The new operation is not in doubt, and remains in flight until its own terminal completion.
            Some(Kind::Accept) => self.listeners.get(key).is_some_and(|listener| listener.in_doubt),
            Some(Kind::Source) => self.is_source_in_doubt(target),
            Some(Kind::Hangup) => stream.is_some_and(|stream| stream.hangup_poll == HangupPoll::InDoubt),
            Some(kind @ (Kind::Receive | Kind::Readable)) => {
                stream.is_some_and(|stream| stream.receiving == Receiving::InDoubt(kind))
            }
            Some(Kind::Writable) => stream.is_some_and(|stream| stream.sending == Sending::PollInDoubt),
            // A cancellation does not find an operation that the disk is performing.
            Some(Kind::File) => false,
            // If a connect or a send was in doubt, the stream has failed and sends nothing more.
            Some(Kind::Connect) => stream.is_some_and(|stream| stream.connect == Connect::InFlight),
            Some(Kind::Send) => stream.is_some_and(|stream| stream.sending == Sending::Async),
            Some(Kind::Cancel | Kind::Wake | Kind::Message) | None => {
                return report_impossible(
                    "invariant 8: recovery of an operation that has no entry in a table",
                );
            }
        };
        if in_doubt {
            let completion = Completion { token: target, result: -libc::ECANCELED, flags: 0 };
            self.dispatch(&completion, wakes);
        }
    }

    fn detach_unconfirmed_buffer(&mut self, send_key: Key, wakes: &mut WakeQueue) {
        // The kernel may still be reading the memory, and the notification may have been dropped.
        if let Some(&ZeroCopySend { stream: key, .. }) = self.zero_copy_sends.get(send_key)
            && self.streams.get(key).is_some_and(|stream| stream.sending == Sending::ZeroCopy(send_key))
        {
            self.detach_buffer(key, send_key);
            self.after_send(key, false, wakes);
        }
    }
}

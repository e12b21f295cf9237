//! Turns: submitting operations, reading completions and shutting down.

use std::io;

use super::state::Proactor;
use crate::driver::completion_kernel::CompletionKernel;
use crate::driver::op::{Completion, Wait};
use crate::driver::sockets::Sockets;
use crate::driver::token::Kind;
use crate::driver::wake::WakeQueue;

/// Maximum time for the kernel to complete cancelled operations. Only a faulty kernel takes noticeably long.
const SHUTDOWN_TIMEOUT_NS: u64 = 10_000_000_000;

/// Maximum time that shutdown waits for peers to acknowledge zero-copy sends on connections that are already closed.
const ZERO_COPY_ACK_TIMEOUT_NS: u64 = 100_000_000;

impl<K: CompletionKernel> Proactor<K> {
    pub fn turn(&mut self, wait: Wait, wakes: &mut WakeQueue) -> io::Result<()> {
        loop {
            let confirm_now = std::mem::take(&mut self.confirm_without_sleeping);
            let wait_now = if confirm_now { Wait::None } else { wait };
            if confirm_now || wait != Wait::None || self.kernel.needs_enter() {
                self.metrics.turns += 1;
                self.kernel.enter(wait_now)?;
                self.ring_grown = false;
            }
            let mut must_recover = self.abort_lost_receives(wakes);
            loop {
                while let Some(completion) = self.kernel.completion() {
                    if completion.token.kind() == Some(Kind::Receive) {
                        self.on_receive(completion, wakes);
                    } else {
                        self.dispatch(&completion, wakes);
                    }
                }
                if !self.abort_lost_receives(wakes) {
                    break;
                }
                must_recover = true;
            }
            if must_recover {
                self.on_completions_dropped(wakes);
            }
            self.confirm_sends(wakes);
            // The kernel may have stopped before it consumed the submission for which a task is waiting.
            self.confirm_without_sleeping |= confirm_now && !self.unconfirmed_sends.is_empty();
            if wait_now == wait || wakes.has_work() {
                return Ok(());
            }
        }
    }

    /// Returns `true` if a turn would submit queued operations or read pending completions.
    pub fn needs_turn(&self) -> bool {
        self.kernel.needs_enter()
    }

    /// Reads pending completions while the driver is spinning. Returns `true` if there were any.
    pub fn find_work(&mut self, wakes: &mut WakeQueue) -> io::Result<bool> {
        let has_work = self.kernel.has_pending_work();
        if has_work {
            self.turn(Wait::None, wakes)?;
        }
        Ok(has_work)
    }

    /// A separate function, because `turn` handles receives on a fast path.
    #[inline(never)]
    pub(super) fn dispatch(&mut self, completion: &Completion, wakes: &mut WakeQueue) {
        let key = completion.token.key();
        match completion.token.kind() {
            Some(Kind::Receive) => self.on_receive(*completion, wakes),
            Some(Kind::Send) => self.on_send(key, completion, wakes),
            Some(Kind::SendZeroCopy) => self.on_send_zero_copy(key, completion, wakes),
            Some(Kind::Readable) => self.on_readable(key, completion, wakes),
            Some(Kind::Writable) => self.on_writable(key, wakes),
            Some(Kind::Hangup) => self.on_hangup(key, completion, wakes),
            Some(Kind::Accept) => self.on_accept(key, completion, wakes),
            Some(Kind::Connect) => {
                self.kernel.ended(completion);
                self.on_connect(key, completion, wakes);
            }
            Some(Kind::Wake) => {
                self.kernel.ended(completion);
                wakes.mark_notified();
            }
            Some(Kind::Message) => self.kernel.ended(completion),
            // If a cancellation fails, its target has ended or is about to end, and the target's own completion carries
            // the result.
            Some(Kind::Cancel) => {
                if completion.result == -libc::ENOENT {
                    self.on_cancel_not_found(key, wakes);
                }
            }
            None => self.metrics.late_completions += 1,
        }
    }

    pub fn release_all(&mut self) {
        for key in self.listeners.keys() {
            self.release_listener(key);
        }
        for key in self.streams.keys() {
            self.release(key);
        }
    }

    /// Returns `true` if the kernel no longer uses this driver's memory. The memory of each operation, including
    /// receives into the buffer ring, belongs to a stream, a listener or a zero-copy send, which remains in its table
    /// until the terminal completion.
    pub fn is_quiescent(&self) -> bool {
        self.streams.len() + self.listeners.len() + self.zero_copy_sends.len() == 0
    }

    /// Cancels all operations and waits for their terminal completions.
    pub fn shut_down(&mut self, wakes: &mut WakeQueue) -> io::Result<()> {
        for key in self.listeners.keys() {
            self.release_listener(key);
        }
        for key in self.streams.keys() {
            self.abort(key);
        }
        let started_ns = self.kernel.sockets().now_ns();
        if !self.turn_until(started_ns.saturating_add(SHUTDOWN_TIMEOUT_NS), wakes, |this| {
            this.streams.len() + this.listeners.len() == 0
        })? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let ack_deadline_ns = self.kernel.sockets().now_ns().saturating_add(ZERO_COPY_ACK_TIMEOUT_NS);
        if !self.turn_until(ack_deadline_ns, wakes, |this| this.zero_copy_sends.len() == 0)? {
            // The kernel may retransmit the data, so the memory must stay unchanged until the peer has acknowledged it.
            for key in self.zero_copy_sends.keys() {
                std::mem::forget(self.zero_copy_sends.remove(key));
            }
        }
        Ok(())
    }

    /// Runs turns until the condition holds. Returns `false` if the deadline is reached first.
    fn turn_until(
        &mut self,
        deadline_ns: u64,
        wakes: &mut WakeQueue,
        condition: impl Fn(&Self) -> bool,
    ) -> io::Result<bool> {
        while !condition(self) {
            if self.kernel.sockets().now_ns() > deadline_ns {
                return Ok(false);
            }
            self.turn(Wait::For(1_000_000), wakes)?;
        }
        Ok(true)
    }
}

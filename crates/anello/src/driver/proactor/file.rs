//! Reads and writes of files.
//!
//! An operation in flight owns its file and its memory, which stay in the table until the terminal completion. Unlike
//! the operations on sockets, an operation that the disk is performing cannot be cancelled, and a cancellation does not
//! find it. Such a cancellation therefore proves nothing, and an operation whose completion may have been dropped stays
//! in doubt until the driver is dropped.

use std::task::{Poll, Waker};

use super::Proactor;
use crate::driver::errors::impossible::report_impossible;
use crate::driver::file::operation::{FileOperation, Memory, Transfer, lost_file_operation};
use crate::driver::kernel::CompletionKernel;
use crate::driver::kernel::op::Completion;
use crate::driver::kernel::token::{Kind, Token};
use crate::driver::memory::key::Key;
use crate::driver::wake::queue::{PollIo, WakeQueue, WakerSlot};

impl<K: CompletionKernel> Proactor<K> {
    /// Queues an operation. Returns it if the kernel does not support operations on files.
    pub fn start_file(&mut self, operation: FileOperation) -> Result<Key, FileOperation> {
        if !self.capabilities.files {
            return Err(operation);
        }
        let is_buffered_write = operation.transfer() == Transfer::BufferedWrite;
        let key = self.files.insert(operation);
        if is_buffered_write {
            self.incomplete_writes += 1;
            self.queued_writes.push_back(key);
        } else {
            self.push_file(key);
        }
        self.metrics.file_operations += 1;
        Ok(key)
    }

    pub(super) fn push_file(&mut self, key: Key) {
        if let Some(operation) = self.files.get_mut(key) {
            // Invariant 20: an operation owns its memory, and the kernel uses a slot of its own table only.
            debug_assert!(operation.result.is_none(), "invariant 2: a file operation is submitted again");
            let is_registered = self.kernel.push_file(Token::new(Kind::File, key), operation);
            self.metrics.registered_file_operations += u64::from(is_registered);
        }
    }

    /// Returns the number of bytes transferred or the negated error number, and the memory. The key is then released.
    ///
    /// Returns an error if the result is unknown because the completion may have been dropped. The memory is then lost.
    pub fn poll_file(&mut self, key: Key, waker: &Waker) -> PollIo<(i32, Memory)> {
        let Some(operation) = self.files.get_mut(key) else { return Poll::Ready(Err(lost_file_operation())) };
        if operation.in_doubt {
            return Poll::Ready(Err(lost_file_operation()));
        }
        let Some(result) = operation.result else {
            operation.waker.wait(waker);
            return Poll::Pending;
        };
        let operation = self.files.remove(key).ok_or_else(lost_file_operation)?;
        Poll::Ready(Ok((result, operation.into_memory())))
    }

    /// Releases the key. The operation completes in the background.
    pub fn release_file(&mut self, key: Key) {
        let Some(operation) = self.files.get_mut(key) else { return };
        operation.released = true;
        operation.waker = WakerSlot::default();
        if operation.result.is_some() {
            self.files.remove(key);
        }
    }

    pub(super) fn on_file(&mut self, completion: &Completion, wakes: &mut WakeQueue) {
        let key = completion.token.key();
        let Some(operation) = self.files.get_mut(key) else {
            return self.on_late_completion(self.files.is_earlier(key));
        };
        if operation.result.is_some() {
            // The future gets the first result.
            return report_impossible("invariant 8: completion of a file operation that has ended");
        }
        operation.result = Some(completion.result);
        let is_buffered_write = operation.transfer() == Transfer::BufferedWrite;
        debug_assert!(
            !is_buffered_write || operation.in_doubt || self.incomplete_writes > self.queued_writes.len(),
            "invariant 8: a write completed that was not submitted"
        );
        self.incomplete_writes -= usize::from(is_buffered_write && !operation.in_doubt);
        operation.waker.wake(wakes);
        if operation.released {
            self.files.remove(key);
        } else {
            // The completion was not dropped after all.
            operation.in_doubt = false;
        }
    }

    /// Marks the operations whose completions may have been dropped. Called when all completions have been read.
    pub(super) fn doubt_files(&mut self, wakes: &mut WakeQueue) {
        for key in self.files.keys() {
            let is_queued = self.queued_writes.contains(&key);
            if let Some(operation) = self.files.get_mut(key)
                && operation.result.is_none()
                && !operation.in_doubt
                && !is_queued
            {
                operation.in_doubt = true;
                self.incomplete_writes -= usize::from(operation.transfer() == Transfer::BufferedWrite);
                operation.waker.wake(wakes);
            }
        }
    }

    /// Cancels operations in flight, as far as the kernel can.
    pub(super) fn cancel_files(&mut self) {
        self.push_writes(usize::MAX);
        for key in self.files.keys() {
            self.release_file(key);
            if self.files.get(key).is_some() {
                self.cancel(Kind::File, key);
            }
        }
    }

    /// Returns `true` if terminal completions are certain to follow.
    pub(super) fn awaits_files(&self) -> bool {
        self.files.values().any(|operation| !operation.in_doubt)
    }

    /// Leaks operations in doubt, because the kernel may still use their memory.
    pub(super) fn leak_files_in_doubt(&mut self) {
        for key in self.files.keys() {
            if self.files.get(key).is_some_and(|operation| operation.in_doubt) {
                std::mem::forget(self.files.remove(key));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use super::*;
    use crate::driver::kernel::op::Wait;
    use crate::driver::settings::options::DriverOptions;
    use crate::driver::uring::Uring;

    const LENGTH: usize = 4096;

    fn proactor() -> Option<Proactor<Uring>> {
        proactor_with(&DriverOptions::default())
    }

    fn proactor_with(options: &DriverOptions) -> Option<Proactor<Uring>> {
        match Uring::new(options) {
            Ok(uring) => Some(Proactor::new(uring, options)),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    fn read_of(file: &Arc<std::fs::File>) -> FileOperation {
        let memory = Memory::new(vec![0; LENGTH], 0, LENGTH);
        FileOperation::new(Transfer::Read, Arc::clone(file), memory, 0)
    }

    /// Starts writes of one byte each, with different values at consecutive offsets.
    fn start_writes(proactor: &mut Proactor<Uring>, file: &Arc<std::fs::File>, count: u8) -> Vec<Key> {
        let mut start = |index: u8| {
            let memory = Memory::new(vec![index], 0, 1);
            let write =
                FileOperation::new(Transfer::BufferedWrite, Arc::clone(file), memory, u64::from(index));
            proactor.start_file(write).expect("io_uring writes files")
        };
        (0..count).map(&mut start).collect()
    }

    fn assert_written(file: &std::fs::File, count: u8) {
        let mut bytes = vec![0; usize::from(count)];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(bytes, (0..count).collect::<Vec<_>>());
    }

    fn file() -> Arc<std::fs::File> {
        let mut file = tempfile::tempfile().expect("create file");
        file.write_all(&[7; LENGTH]).expect("write file");
        file.rewind().expect("seek");
        Arc::new(file)
    }

    fn turn_until(proactor: &mut Proactor<Uring>, condition: impl Fn(&Proactor<Uring>) -> bool) {
        let mut wakes = WakeQueue::default();
        while !condition(proactor) {
            proactor.turn(Wait::For(1_000_000), &mut wakes).expect("turn");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn released_operation_keeps_file_and_memory_until_completion() {
        let Some(mut proactor) = proactor() else { return };
        let file = file();
        let key = proactor.start_file(read_of(&file)).expect("io_uring reads files");
        proactor.release_file(key);
        assert_eq!((proactor.files.len(), Arc::strong_count(&file)), (1, 2));
        assert_eq!(proactor.metrics().file_operations, 1);
        assert!(!proactor.is_quiescent());
        turn_until(&mut proactor, |proactor| proactor.is_quiescent());
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn buffered_writes_complete_while_worker_waits() {
        const COUNT: u8 = 100;
        let options = |defers: bool, cooperates: bool| {
            let mut options = DriverOptions::default();
            options.testing.disabled_features.defer_taskrun = !defers;
            options.testing.disabled_features.coop_taskrun = !cooperates;
            options
        };
        for options in
            [options(true, true), options(true, false), options(false, true), options(false, false)]
        {
            let Some(mut proactor) = proactor_with(&options) else { return };
            let (file, mut wakes) = (file(), WakeQueue::default());
            let mut keys = start_writes(&mut proactor, &file, COUNT);
            assert!(proactor.has_queued_work() && proactor.needs_turn());
            while !keys.is_empty() {
                // A turn that waited with a queued write would not return.
                keys.retain(|key| match proactor.poll_file(*key, Waker::noop()) {
                    Poll::Ready(result) => {
                        assert_eq!(result.expect("write").0, 1);
                        false
                    }
                    Poll::Pending => true,
                });
                if !keys.is_empty() {
                    proactor.turn(Wait::Forever, &mut wakes).expect("turn");
                    wakes.call();
                }
            }
            assert_eq!(proactor.incomplete_writes, 0);
            assert_written(&file, COUNT);
        }
    }

    /// The turn returns although the completions of released writes wake no task.
    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn turn_with_released_writes_returns_before_the_end_of_the_wait() {
        let Some(mut proactor) = proactor() else { return };
        let (file, mut wakes) = (file(), WakeQueue::default());
        for key in start_writes(&mut proactor, &file, 200) {
            proactor.release_file(key);
        }
        while !proactor.is_quiescent() {
            // Without any completion, the turn would never return.
            proactor.turn(Wait::Forever, &mut wakes).expect("turn");
            assert!(!wakes.has_work());
        }
        assert_written(&file, 200);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn turn_that_does_not_wait_submits_all_writes() {
        let Some(mut proactor) = proactor() else { return };
        let (file, mut wakes) = (file(), WakeQueue::default());
        for key in start_writes(&mut proactor, &file, 100) {
            // The operations complete in the background.
            proactor.release_file(key);
        }
        assert!(!proactor.queued_writes.is_empty());
        proactor.turn(Wait::None, &mut wakes).expect("turn");
        assert!(proactor.queued_writes.is_empty());
        turn_until(&mut proactor, |proactor| proactor.is_quiescent());
        assert_written(&file, 100);
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn shutdown_completes_or_cancels_queued_writes() {
        let Some(mut proactor) = proactor() else { return };
        let (file, mut wakes) = (file(), WakeQueue::default());
        start_writes(&mut proactor, &file, 100);
        proactor.shut_down(&mut wakes).expect("shut down");
        assert!(proactor.is_quiescent());
        assert_eq!((proactor.incomplete_writes, Arc::strong_count(&file)), (0, 1));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn fault_12_late_completion_of_file_operation_is_counted() {
        let Some(mut proactor) = proactor() else { return };
        let (file, mut wakes) = (file(), WakeQueue::default());
        let first = proactor.start_file(read_of(&file)).expect("io_uring reads files");
        turn_until(&mut proactor, |proactor| {
            proactor.files.get(first).is_some_and(|operation| operation.result.is_some())
        });
        proactor.release_file(first);
        let second = proactor.start_file(read_of(&file)).expect("io_uring reads files");
        assert_eq!(first.index, second.index);
        let late = Completion { token: Token::new(Kind::File, first), result: 1, flags: 0 };
        proactor.dispatch(&late, &mut wakes);
        assert_eq!(proactor.metrics().late_completions, 1);
        assert!(proactor.poll_file(second, Waker::noop()).is_pending());
        proactor.release_file(second);
        turn_until(&mut proactor, |proactor| proactor.is_quiescent());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn operation_in_doubt_fails_and_its_memory_is_kept() {
        let Some(mut proactor) = proactor() else { return };
        let (file, mut wakes) = (file(), WakeQueue::default());
        let key = proactor.start_file(read_of(&file)).expect("io_uring reads files");
        proactor.on_completions_dropped(&mut wakes);
        assert!(matches!(proactor.poll_file(key, Waker::noop()), Poll::Ready(Err(_))));
        proactor.release_file(key);
        assert!(!proactor.is_quiescent() && !proactor.awaits_files());
        // If the completion arrives after all, the memory is freed.
        turn_until(&mut proactor, |proactor| proactor.is_quiescent());
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn find_work_reads_completions() {
        let Some(mut proactor) = proactor() else { return };
        let (file, mut wakes) = (file(), WakeQueue::default());
        assert!(!proactor.find_work(&mut wakes).expect("nothing to do"));
        let key = proactor.start_file(read_of(&file)).expect("io_uring reads files");
        proactor.enter(Wait::None).expect("submit");
        while !proactor.find_work(&mut wakes).expect("turn") {}
        turn_until(&mut proactor, |proactor| {
            proactor.files.get(key).is_some_and(|operation| operation.result.is_some())
        });
        proactor.release_file(key);
        assert!(proactor.is_quiescent());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn only_waits_for_several_writes_count_as_waits_without_a_yield() {
        for (count, wait, waits_without_yield) in
            [(2, Wait::Forever, 2), (1, Wait::Forever, 3), (2, Wait::None, 3)]
        {
            let Some(mut proactor) = proactor() else { return };
            let (file, mut wakes) = (file(), WakeQueue::default());
            start_writes(&mut proactor, &file, count);
            proactor.waits_without_yield = 3;
            assert_eq!(proactor.submit_writes(wait).expect("submit"), wait);
            assert_eq!(proactor.waits_without_yield, waits_without_yield, "{count} writes");
            assert!(proactor.queued_writes.is_empty());
            proactor.shut_down(&mut wakes).expect("shut down");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    fn writes_in_doubt_are_not_expected_to_complete() {
        let Some(mut proactor) = proactor() else { return };
        let (file, mut wakes) = (file(), WakeQueue::default());
        start_writes(&mut proactor, &file, 5);
        proactor.push_writes(3);
        proactor.doubt_files(&mut wakes);
        assert_eq!((proactor.incomplete_writes, proactor.queued_writes.len()), (2, 2));
        proactor.shut_down(&mut wakes).expect("shut down");
        assert_eq!((proactor.incomplete_writes, proactor.queued_writes.len()), (0, 0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not support io_uring")]
    #[cfg_attr(plain_memory, ignore = "the deliberate leak would be reported")]
    fn shutdown_waits_for_operations_and_leaks_those_in_doubt() {
        let Some(mut proactor) = proactor() else { return };
        let (file, mut wakes) = (file(), WakeQueue::default());
        let in_doubt = proactor.start_file(read_of(&file)).expect("io_uring reads files");
        turn_until(&mut proactor, |proactor| {
            proactor.files.get(in_doubt).is_some_and(|operation| operation.result.is_some())
        });
        // Represents an operation whose completion was dropped.
        let operation = proactor.files.get_mut(in_doubt).expect("in the table");
        (operation.result, operation.in_doubt) = (None, true);
        for _ in 0..10 {
            proactor.start_file(read_of(&file)).expect("io_uring reads files");
        }
        proactor.shut_down(&mut wakes).expect("shut down");
        assert!(proactor.is_quiescent());
        assert_eq!(Arc::strong_count(&file), 2, "the operation in doubt keeps its file");
        assert_eq!(file.read_at(&mut [0], 0).expect("read"), 1);
    }
}

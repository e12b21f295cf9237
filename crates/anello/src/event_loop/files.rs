//! Calls of an event loop for files.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::event::{Direction, EventKind, FileId, StreamId, check_token};
use super::file_table::{FileEntry, Progress};
use super::turn::EventLoop;
use super::waker::FileWaker;
use crate::driver::{FileRange, Key, Memory, event_waker, gone};
use crate::fs::{AlignedBuf, Detached, File};

impl EventLoop {
    /// Starts to read from a file at an offset into a buffer that the loop owns meanwhile.
    /// [`poll_file`](Self::poll_file) returns the result.
    ///
    /// Data in the page cache is read immediately (`preadv2(2)` with `RWF_NOWAIT`, Linux 4.14). Other data is read on
    /// io_uring (`IORING_OP_READ`, Linux 5.6) or by the threads of the file pool (`pread(2)`), as the table in
    /// [`fs`](crate::fs) describes. On the simulated driver, the call waits for the disk.
    ///
    /// ```
    /// use anello::event_loop::{EventLoop, Events};
    /// use anello::fs::{AlignedBuf, File};
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let file = File::from_std(std::fs::File::open("/proc/version")?);
    /// let read = event_loop.read_at(&file, AlignedBuf::new(4096), 0, 1);
    /// let (count, buffer) = loop {
    ///     match event_loop.poll_file(read) {
    ///         std::task::Poll::Ready(done) => break done,
    ///         std::task::Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// assert!(buffer[..count?].starts_with(b"Linux"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn read_at(&mut self, file: &File, buffer: AlignedBuf, offset: u64, token: usize) -> FileId {
        self.start_file(Detached { file: file.clone(), is_write: false, offset }, buffer, token)
    }

    /// Starts to write a buffer, which the loop owns meanwhile, to a file at an offset. [`poll_file`](Self::poll_file)
    /// returns the result.
    ///
    /// The bytes are written immediately if the file system can do so without waiting (`pwritev2(2)` with
    /// `RWF_NOWAIT`), otherwise on io_uring (`IORING_OP_WRITE`, Linux 5.6) or by the threads of the file pool
    /// (`pwrite(2)`), as the table in [`fs`](crate::fs) describes. On the simulated driver, the call waits for the disk.
    ///
    /// ```
    /// use anello::event_loop::{EventLoop, Events};
    /// use anello::fs::File;
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let file = File::from_std(tempfile::tempfile()?);
    /// let write = event_loop.write_at(&file, b"ciao"[..].into(), 5, 1);
    /// let (count, _buffer) = loop {
    ///     match event_loop.poll_file(write) {
    ///         std::task::Poll::Ready(done) => break done,
    ///         std::task::Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// assert_eq!(count?, 4);
    /// # assert_eq!(file.as_std().metadata()?.len(), 9);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if `token` is larger than [`MAX_TOKEN`](super::MAX_TOKEN).
    #[track_caller]
    pub fn write_at(&mut self, file: &File, buffer: AlignedBuf, offset: u64, token: usize) -> FileId {
        self.start_file(Detached { file: file.clone(), is_write: true, offset }, buffer, token)
    }

    #[track_caller]
    fn start_file(&mut self, operation: Detached, buffer: AlignedBuf, token: usize) -> FileId {
        check_token(token);
        let progress = self.begin(&operation, buffer.memory);
        let key = self.files.insert(FileEntry { token, operation, progress, is_waiting: false });
        FileId { key, token }
    }

    fn begin(&mut self, operation: &Detached, mut memory: Memory) -> Progress {
        if let Some(result) = operation.try_now(&mut memory).transpose() {
            return Progress::Done(result, memory);
        }
        if self.driver.is_simulated() {
            // Its wait is not interrupted by threads, and the order of events must not depend on them.
            return Progress::Done(operation.run(&mut memory), memory);
        }
        match self.start_on_ring(operation, memory) {
            Ok(key) => Progress::Ring(key),
            Err(memory) => Progress::Pool(operation.spawn(memory)),
        }
    }

    fn start_on_ring(&mut self, operation: &Detached, memory: Memory) -> Result<Key, Memory> {
        let transfer =
            if self.driver.supports_files() { operation.ring_transfer(memory.length) } else { None };
        let Some(transfer) = transfer else { return Err(memory) };
        let started = self.driver.enter().start_file(operation.ring_operation(transfer, memory));
        started.map_err(|operation| operation.into_memory())
    }

    /// Returns the result of a read or write, and its buffer. Until it has ended, an event of the kind
    /// [`EventKind::File`] follows.
    ///
    /// The result is the number of bytes; a read returns 0 at the end of the file. The identifier is then stale.
    ///
    /// ```
    /// use anello::event_loop::{EventKind, EventLoop, Events};
    /// use anello::fs::File;
    ///
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let file = File::from_std(tempfile::tempfile()?);
    /// let write = event_loop.write_at(&file, b"ciao"[..].into(), 0, 7);
    /// while event_loop.poll_file(write).is_pending() {
    ///     event_loop.turn(&mut events, None)?;
    ///     assert!(events.iter().all(|event| (event.token(), event.kind()) == (7, EventKind::File)));
    /// }
    /// # assert_eq!(file.as_std().metadata()?.len(), 4);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call, for example `EISDIR` for a directory, `ENOSPC`, or `EINVAL` if the offset
    /// exceeds `i64::MAX` or is not aligned as direct I/O requires. Returns an error and an empty buffer if the
    /// identifier is stale.
    pub fn poll_file(&mut self, file: FileId) -> Poll<(io::Result<usize>, AlignedBuf)> {
        loop {
            let Some(entry) = self.files.get_mut(file) else {
                return Poll::Ready((Err(gone()), AlignedBuf::new(0)));
            };
            let (result, memory) = match &mut entry.progress {
                Progress::Ring(key) => {
                    let waker = event_waker(file.event(EventKind::File));
                    match self.driver.enter().poll_file(*key, &waker) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Ok((result, memory))) => match usize::try_from(result) {
                            Ok(count) => (Ok(count), memory),
                            Err(_) if must_repeat(-result) => {
                                entry.progress = Progress::Pool(entry.operation.spawn(memory));
                                continue;
                            }
                            Err(_) => (Err(io::Error::from_raw_os_error(-result)), memory),
                        },
                        Poll::Ready(Err(error)) => (Err(error), AlignedBuf::new(0).memory),
                    }
                }
                Progress::Pool(handle) => {
                    let waker = Waker::from(Arc::new(FileWaker::new(&self.waker, file.key)));
                    match pin!(handle).poll(&mut Context::from_waker(&waker)) {
                        Poll::Pending => {
                            entry.is_waiting = true;
                            return Poll::Pending;
                        }
                        Poll::Ready(Ok(done)) => done,
                        Poll::Ready(Err(error)) => (Err(error.into()), AlignedBuf::new(0).memory),
                    }
                }
                Progress::Done(result, memory) => {
                    let empty = AlignedBuf::new(0).memory;
                    (std::mem::replace(result, Ok(0)), std::mem::replace(memory, empty))
                }
            };
            self.files.remove(file);
            return Poll::Ready((result, AlignedBuf { memory }));
        }
    }

    /// Abandons a read or write: no event follows, and the identifier is stale. Returns `false` if it was stale before.
    ///
    /// The disk cannot cancel an operation: it completes in the background, and then its buffer is freed. The bytes of
    /// a write may still be written. [`set_deadline`](Self::set_deadline) therefore does not apply to files. To limit
    /// the time for which a program waits for one, use a timer:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use anello::event_loop::{EventKind, EventLoop, Events};
    /// use anello::fs::{AlignedBuf, File};
    ///
    /// const FILE: usize = 1;
    /// const DEADLINE: usize = 2;
    /// let (mut event_loop, mut events) = (EventLoop::new()?, Events::new());
    /// let file = File::from_std(std::fs::File::open("/proc/version")?);
    /// let read = event_loop.read_at(&file, AlignedBuf::new(4096), 0, FILE);
    /// let deadline = event_loop.add_timer(Duration::from_secs(5), DEADLINE);
    /// while event_loop.poll_file(read).is_pending() {
    ///     event_loop.turn(&mut events, None)?;
    ///     if events.iter().any(|event| event.kind() == EventKind::Timer && event.token() == DEADLINE) {
    ///         event_loop.cancel_file(read);
    ///         break;
    ///     }
    /// }
    /// event_loop.cancel_timer(deadline);
    /// assert!(!event_loop.cancel_file(read), "the identifier is stale");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn cancel_file(&mut self, file: FileId) -> bool {
        let Some(entry) = self.files.remove(file) else { return false };
        if let Progress::Ring(key) = entry.progress {
            self.driver.enter().release_file(key);
        }
        true
    }

    /// Sends up to `length` bytes of a file from `offset` without copying them through user space (`sendfile(2)`), and
    /// returns the number of bytes that the kernel took. If it takes none, or bytes that were accepted before have not
    /// been sent, an event of the kind [`EventKind::Send`] follows.
    ///
    /// Returns 0 at the end of the file. Call this again with the rest. `sendfile(2)` waits for the disk if the data is
    /// not in the page cache, so a program that must not wait reads the data with [`read_at`](Self::read_at) first, or
    /// requests it early (`posix_fadvise(2)` with `POSIX_FADV_WILLNEED`).
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use std::task::Poll;
    ///
    /// # let mut events = anello::event_loop::Events::new();
    /// # let mut event_loop = anello::event_loop::EventLoop::new()?;
    /// let mut file = tempfile::tempfile()?;
    /// file.write_all(b"good morning")?;
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let stream = event_loop.import_stream(near, 5)?;
    /// let count = loop {
    ///     match event_loop.send_file(stream, &file, 5, 7)? {
    ///         Poll::Ready(count) => break count,
    ///         Poll::Pending => event_loop.turn(&mut events, None)?,
    ///     }
    /// };
    /// let mut received = [0; 16];
    /// assert_eq!((count, far.read(&mut received)?), (7, 7));
    /// assert_eq!(&received[..7], b"morning");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `sendfile(2)`, or an error if the connection is broken or the identifier is stale.
    pub fn send_file(
        &mut self,
        stream: StreamId,
        file: impl AsFd,
        offset: u64,
        length: usize,
    ) -> Poll<io::Result<usize>> {
        let range = FileRange { file: file.as_fd(), offset, length };
        let waker = event_waker(stream.event(EventKind::Send));
        let polled = self.driver.enter().poll_send_file(stream.key, range, &waker);
        self.clear_deadline_if(polled.is_ready(), stream, Direction::Send);
        polled
    }
}

/// Returns whether the file pool must repeat an operation: kernel threads of the ring can be interrupted, and some
/// files never support the ring's operations.
fn must_repeat(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::EAGAIN | libc::EOPNOTSUPP)
}

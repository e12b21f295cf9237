//! Reads and writes at explicit offsets.

use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::file::File;
use super::owned_buf::{OwnedBuf, zeroed};
use super::ring;
use super::transfer::{
    MAX_COPIED_BYTES, check_offset, gather, poll_budget, scatter, spend_budget, total_bytes,
};
use crate::driver::{Memory, Transfer};
use crate::executor::{JoinHandle, disk, spawn_file_operation};

/// Maximum length of a transfer between memory and the page cache on the ring, where one thread copies the data. For
/// longer reads, and for longer writes to several files, the threads of the file pool, which copy in parallel, had the
/// higher throughput.
const MAX_CACHED_RING_BYTES: usize = 32 * 1024;

impl File {
    /// Reads from `offset` into `buffer`, and returns the number of bytes read. The cursor does not move.
    ///
    /// Returns 0 at the end of the file or if `buffer` is empty. Reads fewer bytes than requested at the end of the
    /// file, if the rest is not in the page cache, or if more than 2 MiB are requested. Data in the page cache is read
    /// directly (`preadv2(2)` with `RWF_NOWAIT`, Linux 4.14). Other data is read on io_uring (`IORING_OP_READ`, Linux 5.6)
    /// or on the file pool (`pread(2)`), as the [module](super) describes, and copied. Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::open("/proc/version").await?;
    /// let mut word = [0; 7];
    /// assert_eq!(file.read_at(&mut word, 6).await?, 7);
    /// assert_eq!(&word, b"version");
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call, for example `EISDIR` for a directory, `EIO` if the disk fails, or `EINVAL`
    /// if the offset exceeds `i64::MAX`.
    pub async fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_vectored_at(&mut [IoSliceMut::new(buffer)], offset).await
    }

    /// Like [`read_at`](Self::read_at), but fills the buffers in order.
    ///
    /// ```
    /// # use std::io::IoSliceMut;
    /// # anello::example! {
    /// let file = anello::fs::File::open("/proc/version").await?;
    /// let (mut name, mut rest) = ([0; 5], [0; 8]);
    /// let buffers = &mut [IoSliceMut::new(&mut name), IoSliceMut::new(&mut rest)];
    /// assert_eq!(file.read_vectored_at(buffers, 0).await?, 13);
    /// assert_eq!(&name, b"Linux");
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`read_at`](Self::read_at).
    pub async fn read_vectored_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        check_offset(offset)?;
        let length = total_bytes(buffers);
        if length == 0 {
            return Ok(0);
        }
        poll_fn(|context| poll_budget(context)).await;
        if let Some(count) = self.read_now(buffers, offset)? {
            spend_budget(count);
            return Ok(count);
        }
        let (length, is_direct) = (length.min(MAX_COPIED_BYTES), self.inner.is_direct());
        let allocate = move || zeroed(length, is_direct);
        let (read, memory) = Box::pin(self.read_memory_at(allocate, length, offset)).await;
        let count = read?;
        spend_budget(count);
        Ok(scatter(&memory.as_slice()[..count], buffers))
    }

    /// Reads from `offset` until `buffer` is full. The cursor does not move.
    ///
    /// Otherwise like [`read_at`](Self::read_at). If the future is dropped, the content of the buffer is unspecified.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::open("/proc/version").await?;
    /// let mut word = [0; 5];
    /// file.read_exact_at(&mut word, 0).await?;
    /// assert_eq!(&word, b"Linux");
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`read_at`](Self::read_at). Also returns `UnexpectedEof` if the file ends first.
    pub async fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_at(&mut buffer[filled..], offset.saturating_add(filled as u64)).await? {
                0 => return Err(unexpected_eof()),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Reads from `offset` into a buffer that the operation owns, and returns the result and the buffer. The cursor
    /// does not move.
    ///
    /// Requests as many bytes as the buffer is long, and does not change its length. Unlike
    /// [`read_at`](Self::read_at), never copies the bytes; use it for direct I/O and for large reads. If the future is
    /// dropped, the operation completes in the background, and then the buffer is freed. If the runtime that started the
    /// operation is dropped first, the result is lost: an error and an empty buffer are returned.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::open("/proc/version").await?;
    /// let (read, buffer) = file.read_owned_at(vec![0; 4096], 0).await;
    /// assert!(buffer[..read?].starts_with(b"Linux"));
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`read_at`](Self::read_at). For direct I/O, returns `EINVAL` if the buffer, its length or the offset is not
    /// aligned.
    pub async fn read_owned_at<B: OwnedBuf>(&self, buffer: B, offset: u64) -> (io::Result<usize>, B) {
        let mut memory = buffer.into_memory();
        poll_fn(|context| poll_budget(context)).await;
        let done = check_offset(offset).and_then(|()| match memory.length {
            0 => Ok(Some(0)),
            _ => self.read_now(&mut [IoSliceMut::new(memory.as_mut_slice())], offset),
        });
        let (result, memory) = match done.transpose() {
            Some(result) => (result, memory),
            None => {
                let length = memory.length;
                Box::pin(self.read_memory_at(move || memory, length, offset)).await
            }
        };
        spend_budget(*result.as_ref().unwrap_or(&0));
        (result, B::from_memory(memory))
    }

    /// Writes `bytes` at `offset`, and returns the number of bytes written, up to 2 MiB. The cursor does not move.
    ///
    /// The file is extended if necessary. Bytes between its end and `offset` become zero. A file opened for appending
    /// ignores the offset. Where the file system can write to the page cache without waiting (`pwritev2(2)` with
    /// `RWF_NOWAIT`; XFS, Btrfs and tmpfs on recent kernels), writes directly. Otherwise, the bytes are copied and
    /// written on io_uring (`IORING_OP_WRITE`, Linux 5.6) or on the file pool (`pwrite(2)`), as the [module](super)
    /// describes. If the future is dropped, the bytes may still be written.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// assert_eq!(file.write_at(b"end", 5).await?, 3);
    /// let mut bytes = [9; 8];
    /// file.read_exact_at(&mut bytes, 0).await?;
    /// assert_eq!(&bytes, b"\0\0\0\0\0end");
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call, for example `ENOSPC`, `EFBIG`, or `EINVAL` if the offset exceeds
    /// `i64::MAX`.
    pub async fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.write_vectored_at(&[IoSlice::new(bytes)], offset).await
    }

    /// Like [`write_at`](Self::write_at), but writes the slices in order.
    ///
    /// ```
    /// # use std::io::IoSlice;
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// assert_eq!(file.write_vectored_at(&[IoSlice::new(b"head"), IoSlice::new(b"body")], 0).await?, 8);
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`write_at`](Self::write_at).
    pub async fn write_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        check_offset(offset)?;
        if total_bytes(slices) == 0 {
            return Ok(0);
        }
        poll_fn(|context| poll_budget(context)).await;
        if let Some(count) = self.write_now(slices, offset)? {
            spend_budget(count);
            return Ok(count);
        }
        let memory = gather(slices, self.inner.is_direct());
        spend_budget(memory.length);
        Box::pin(self.write_memory_at(memory, offset)).await.0
    }

    /// Writes all bytes at `offset`. The cursor does not move.
    ///
    /// Otherwise like [`write_at`](Self::write_at). If the future is dropped, a part of the bytes may be written.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// file.write_all_at(&[7; 10_000_000], 0).await?;
    /// assert_eq!(file.metadata().await?.len(), 10_000_000);
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`write_at`](Self::write_at). Also returns `WriteZero` if the kernel writes no bytes.
    pub async fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match self.write_at(&bytes[written..], offset.saturating_add(written as u64)).await? {
                0 => return Err(write_zero()),
                count => written += count,
            }
        }
        Ok(())
    }

    /// Writes a buffer that the operation owns at `offset`, and returns the number of bytes written and the buffer. The
    /// cursor does not move.
    ///
    /// Unlike [`write_at`](Self::write_at), never copies the bytes, and writes any number of them; use it for direct
    /// I/O and for large writes. If the future is dropped, the operation completes in the background, and then the
    /// buffer is freed. If the runtime that started the operation is dropped first, the bytes may still be written, but
    /// the result is lost: an error and an empty buffer are returned.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// let (written, buffer) = file.write_owned_at(vec![7; 4096], 0).await;
    /// assert_eq!(written?, buffer.len());
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`write_at`](Self::write_at). For direct I/O, returns `EINVAL` if the buffer, its length or the offset is
    /// not aligned.
    pub async fn write_owned_at<B: OwnedBuf>(&self, buffer: B, offset: u64) -> (io::Result<usize>, B) {
        let memory = buffer.into_memory();
        poll_fn(|context| poll_budget(context)).await;
        let done = check_offset(offset).and_then(|()| match memory.length {
            0 => Ok(Some(0)),
            _ => self.write_now(&[IoSlice::new(memory.as_slice())], offset),
        });
        let (result, memory) = match done.transpose() {
            Some(result) => (result, memory),
            None => Box::pin(self.write_memory_at(memory, offset)).await,
        };
        spend_budget(*result.as_ref().unwrap_or(&0));
        (result, B::from_memory(memory))
    }

    /// Reads into memory that the operation owns. The memory is allocated when the operation starts, so that operations
    /// waiting for the file pool occupy none. Callers box the future, because it is large and rarely needed: a task that
    /// reads files stays small.
    async fn read_memory_at(
        &self,
        allocate: impl FnOnce() -> Memory + Send + 'static,
        length: usize,
        offset: u64,
    ) -> (io::Result<usize>, Memory) {
        let allocate: Box<dyn FnOnce() -> Memory + Send> = match self.current_ring_transfer(false, length) {
            Some(read) => match ring::transfer(read, &self.inner.file, allocate(), offset).await {
                Ok(done) => return done,
                Err(memory) => Box::new(move || memory),
            },
            None => Box::new(allocate),
        };
        let read = self.spawn_read(allocate, offset);
        read.await.unwrap_or_else(|error| (Err(error.into()), zeroed(0, false)))
    }

    /// Writes memory that the operation owns. Callers box the future; see [`read_memory_at`](Self::read_memory_at).
    async fn write_memory_at(&self, memory: Memory, offset: u64) -> (io::Result<usize>, Memory) {
        let memory = match self.current_ring_transfer(true, memory.length) {
            Some(write) => match ring::transfer(write, &self.inner.file, memory, offset).await {
                Ok(done) => return done,
                Err(memory) => memory,
            },
            None => memory,
        };
        let written = self.spawn_write(memory, offset);
        written.await.unwrap_or_else(|error| (Err(error.into()), zeroed(0, false)))
    }

    fn current_ring_transfer(&self, is_write: bool, length: usize) -> Option<Transfer> {
        if ring::is_available() { self.ring_transfer(is_write, length) } else { None }
    }

    /// Returns the operation of a ring for a transfer of this length, or `None` if the file pool takes less time.
    pub(super) fn ring_transfer(&self, is_write: bool, length: usize) -> Option<Transfer> {
        let is_direct = self.inner.is_direct();
        let is_short = is_direct || length <= MAX_CACHED_RING_BYTES;
        // The kernel threads of the ring would perform synchronous writes through the page cache sequentially.
        let runs_sequentially = is_write && !is_direct && self.inner.is_synchronous();
        if !is_short || runs_sequentially || !self.inner.supports_nowait() {
            return None;
        }
        Some(match (is_write, is_direct) {
            (false, _) => Transfer::Read,
            (true, true) => Transfer::DirectWrite,
            (true, false) => Transfer::BufferedWrite,
        })
    }

    pub(super) fn spawn_read(
        &self,
        allocate: impl FnOnce() -> Memory + Send + 'static,
        offset: u64,
    ) -> JoinHandle<(io::Result<usize>, Memory)> {
        let (file, disk) = (Arc::clone(&self.inner.file), disk());
        spawn_file_operation(move || {
            let mut memory = allocate();
            let result = disk.read(|| file.read_at(memory.as_mut_slice(), offset));
            (result, memory)
        })
    }

    pub(super) fn spawn_write(&self, memory: Memory, offset: u64) -> JoinHandle<(io::Result<usize>, Memory)> {
        let (file, disk) = (Arc::clone(&self.inner.file), disk());
        self.inner.spawn_write(move || {
            let write = || file.write_at(memory.as_slice(), offset);
            let result = disk.write(&file, Some(offset), memory.length, write);
            (result, memory)
        })
    }
}

#[cold]
pub(super) fn unexpected_eof() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "cannot read all bytes: end of file")
}

#[cold]
pub(super) fn write_zero() -> io::Error {
    io::Error::new(io::ErrorKind::WriteZero, "cannot write all bytes: the kernel wrote none")
}

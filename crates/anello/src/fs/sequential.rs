//! Reads, writes and seeks at the cursor.

use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::cursor::{Cursor, ReadBytes};
use super::file::File;
use super::owned_buf::zeroed;
use super::positional::{unexpected_eof, write_zero};
use super::transfer::{AT_CURSOR, MAX_COPIED_BYTES, gather, poll_budget, scatter, spend_budget, total_bytes};
use crate::driver::wake_all;
use crate::executor::{AcceptedWrite, disk, spawn_limited_file_operation};

/// Minimum number of bytes by which `read_to_end` extends its buffer.
const MIN_READ_BYTES: usize = 4096;

impl File {
    /// Reads from the cursor into `buffer`, advances the cursor, and returns the number of bytes read.
    ///
    /// Returns 0 at the end of the file or if `buffer` is empty. Can read fewer bytes than requested, as
    /// [`read_at`](Self::read_at) does, which also describes where the read runs. Waits for the previous operation at
    /// the cursor. Cancel-safe: bytes that a dropped future has read are returned by the next read, even if they have been
    /// overwritten at an offset in the meantime. [`seek`](Self::seek) discards them.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::open("/proc/version").await?;
    /// let mut word = [0; 5];
    /// assert_eq!(file.read(&mut word).await?, 5);
    /// assert_eq!(&word, b"Linux");
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call, for example `EISDIR` for a directory or `EIO` if the disk fails.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, &mut [IoSliceMut::new(buffer)])).await
    }

    /// Like [`read`](Self::read), but fills the buffers in order.
    ///
    /// ```
    /// # use std::io::IoSliceMut;
    /// # anello::example! {
    /// let file = anello::fs::File::open("/proc/version").await?;
    /// let (mut name, mut rest) = ([0; 5], [0; 8]);
    /// let buffers = &mut [IoSliceMut::new(&mut name), IoSliceMut::new(&mut rest)];
    /// assert_eq!(file.read_vectored(buffers).await?, 13);
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub async fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        poll_fn(|context| self.poll_read(context, buffers)).await
    }

    /// Reads from the cursor until `buffer` is full.
    ///
    /// Not cancel-safe: if the future is dropped, bytes already read remain in the buffer, and their number is unknown.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::open("/proc/version").await?;
    /// let mut words = [0; 13];
    /// file.read_exact(&mut words).await?;
    /// assert_eq!(&words, b"Linux version");
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`read`](Self::read). Also returns `UnexpectedEof` if the file ends first.
    pub async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]).await? {
                0 => return Err(unexpected_eof()),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Reads from the cursor to the end of the file, appends the bytes to `bytes`, and returns their number.
    ///
    /// If the future is dropped, the bytes that have been read remain in `bytes`, possibly followed by zeroes.
    ///
    /// ```
    /// # anello::example! {
    /// let mut bytes = Vec::new();
    /// anello::fs::File::open("/proc/version").await?.read_to_end(&mut bytes).await?;
    /// assert!(bytes.starts_with(b"Linux version"));
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`read`](Self::read).
    pub async fn read_to_end(&self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let (start, mut filled) = (bytes.len(), bytes.len());
        loop {
            // Doubles the number of bytes of each read, up to the limit.
            let room = (filled - start).clamp(MIN_READ_BYTES, MAX_COPIED_BYTES);
            bytes.resize(filled + room, 0);
            let read = self.read(&mut bytes[filled..]).await;
            filled += *read.as_ref().unwrap_or(&0);
            if !matches!(read, Ok(1..)) {
                bytes.truncate(filled);
                return read.map(|_eof| filled - start);
            }
        }
    }

    /// Reads from the cursor to the end of the file, appends the text to `text`, and returns the number of bytes.
    ///
    /// Not cancel-safe: if the future is dropped, the text that has been read is lost.
    ///
    /// ```
    /// # anello::example! {
    /// let mut text = String::new();
    /// anello::fs::File::open("/proc/version").await?.read_to_string(&mut text).await?;
    /// assert!(text.starts_with("Linux version"));
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`read`](Self::read). Also returns `InvalidData` if the bytes are not UTF-8. `text` is then unchanged.
    pub async fn read_to_string(&self, text: &mut String) -> io::Result<usize> {
        let mut bytes = Vec::new();
        let count = self.read_to_end(&mut bytes).await?;
        let read = String::from_utf8(bytes).map_err(|_invalid| {
            io::Error::new(io::ErrorKind::InvalidData, "cannot read text: the file is not valid UTF-8")
        })?;
        text.push_str(&read);
        Ok(count)
    }

    /// Accepts bytes for writing at the cursor, and returns their number, up to 2 MiB.
    ///
    /// As in tokio, accepted bytes are written in the background, even if the file is dropped, and an error is returned
    /// by the next write, flush or sync. Waits until the previous operation at the cursor has completed. Where the file
    /// system can write without waiting ([`write_at`](Self::write_at)), writes directly. Cancel-safe: if the future is
    /// dropped before it completes, no bytes are written.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// assert_eq!(file.write(b"text").await?, 4);
    /// file.flush().await?;
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of this or the previous write, for example `ENOSPC`.
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)]).await
    }

    /// Like [`write`](Self::write), but writes the slices in order.
    ///
    /// ```
    /// # use std::io::IoSlice;
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// assert_eq!(file.write_vectored(&[IoSlice::new(b"head"), IoSlice::new(b"body")]).await?, 8);
    /// file.flush().await?;
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub async fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        poll_fn(|context| self.poll_write(context, slices)).await
    }

    /// Accepts all bytes for writing at the cursor; see [`write`](Self::write).
    ///
    /// Not cancel-safe: if the future is dropped, a part of the bytes may be written.
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// file.write_all(&[7; 10_000_000]).await?;
    /// file.flush().await?;
    /// assert_eq!(file.metadata().await?.len(), 10_000_000);
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`write`](Self::write). Also returns `WriteZero` if the kernel writes no bytes.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write(bytes).await? {
                0 => return Err(write_zero()),
                count => bytes = &bytes[count..],
            }
        }
        Ok(())
    }

    /// Waits until the accepted bytes have been written to the page cache. They are not yet on the disk; see
    /// [`sync_all`](Self::sync_all). Cancel-safe.
    ///
    /// ```
    /// # anello::example! {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("file");
    /// let file = anello::fs::File::create(&path).await?;
    /// file.write_all(b"text").await?;
    /// file.flush().await?;
    /// assert_eq!(std::fs::read(&path)?, b"text");
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of an accepted write.
    pub async fn flush(&self) -> io::Result<()> {
        poll_fn(|context| self.poll_flush(context)).await
    }

    /// Moves the cursor, and returns its new position in bytes from the start of the file (`lseek(2)`).
    ///
    /// Waits for the previous operation at the cursor. A seek relative to the end runs on the file pool, because a
    /// network file system must query the server. Cancel-safe, except that the cursor may move.
    ///
    /// ```
    /// # anello::example! {
    /// use std::io::SeekFrom;
    ///
    /// let file = anello::fs::File::from_std(tempfile::tempfile()?);
    /// file.write_all(b"0123456789").await?;
    /// assert_eq!(file.seek(SeekFrom::End(-3)).await?, 7);
    /// let mut rest = String::new();
    /// file.read_to_string(&mut rest).await?;
    /// assert_eq!(rest, "789");
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of the system call: `EINVAL` if the position would be negative or exceeds `i64::MAX`, `ESPIPE`
    /// for a pipe.
    pub async fn seek(&self, position: SeekFrom) -> io::Result<u64> {
        poll_fn(|context| self.poll_seek(context, position)).await
    }

    /// Moves the cursor to the start of the file (`lseek(2)`).
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::open("/proc/version").await?;
    /// file.read_exact(&mut [0; 5]).await?;
    /// file.rewind().await?;
    /// assert_eq!(file.stream_position().await?, 0);
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`seek`](Self::seek).
    pub async fn rewind(&self) -> io::Result<()> {
        self.seek(SeekFrom::Start(0)).await.map(drop)
    }

    /// Returns the position of the cursor in bytes from the start of the file (`lseek(2)`).
    ///
    /// ```
    /// # anello::example! {
    /// let file = anello::fs::File::open("/proc/version").await?;
    /// file.read_exact(&mut [0; 5]).await?;
    /// assert_eq!(file.stream_position().await?, 5);
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`seek`](Self::seek).
    pub async fn stream_position(&self) -> io::Result<u64> {
        self.seek(SeekFrom::Current(0)).await
    }

    pub(crate) fn poll_read(
        &self,
        context: &Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = total_bytes(buffers);
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        ready!(poll_budget(context));
        loop {
            let mut cursor = ready!(self.poll_cursor(context));
            cursor.seek = None;
            if let Some(read) = cursor.read.take() {
                let mut read = read?;
                let count = scatter(read.remaining(), buffers);
                read.returned += count;
                if !read.remaining().is_empty() {
                    cursor.read = Some(Ok(read));
                }
                spend_budget(count);
                return Poll::Ready(Ok(count));
            }
            if let Some(count) = self.read_now(buffers, AT_CURSOR)? {
                spend_budget(count);
                return Poll::Ready(Ok(count));
            }
            cursor.is_busy = true;
            drop(cursor);
            let mut memory = zeroed(length.min(MAX_COPIED_BYTES), self.inner.is_direct());
            let disk = disk();
            self.start(move |mut file| {
                let read = disk.read(|| file.read(memory.as_mut_slice()));
                let read = read.map(|count| ReadBytes {
                    end: memory.start + count,
                    returned: memory.start,
                    bytes: memory.allocation,
                });
                move |cursor| cursor.read = Some(read)
            });
        }
    }

    pub(crate) fn poll_write(
        &self,
        context: &Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(poll_budget(context));
        let mut cursor = ready!(self.poll_cursor(context));
        if let Some(error) = cursor.write_error.take() {
            return Poll::Ready(Err(error));
        }
        if total_bytes(slices) == 0 {
            return Poll::Ready(Ok(0));
        }
        self.discard_unreturned(&mut cursor)?;
        if let Some(count) = self.write_now(slices, AT_CURSOR)? {
            spend_budget(count);
            return Poll::Ready(Ok(count));
        }
        cursor.is_busy = true;
        drop(cursor);
        let memory = gather(slices, self.inner.is_direct());
        let count = memory.length;
        let disk = disk();
        let accepted = AcceptedWrite::new();
        self.start(move |mut file| {
            let _accepted = accepted;
            let written = disk.write(file, None, memory.length, || file.write_all(memory.as_slice()));
            let error = written.err();
            move |cursor| cursor.write_error = error
        });
        spend_budget(count);
        Poll::Ready(Ok(count))
    }

    pub(crate) fn poll_flush(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut cursor = ready!(self.poll_cursor(context));
        Poll::Ready(cursor.write_error.take().map_or(Ok(()), Err))
    }

    pub(crate) fn poll_seek(&self, context: &Context<'_>, position: SeekFrom) -> Poll<io::Result<u64>> {
        loop {
            let mut cursor = ready!(self.poll_cursor(context));
            if let Some((sought, result)) = cursor.seek.take()
                && sought == position
            {
                return Poll::Ready(result);
            }
            if let SeekFrom::Start(_) = position {
                cursor.read = None;
            }
            self.discard_unreturned(&mut cursor)?;
            let SeekFrom::End(_) = position else {
                return Poll::Ready((&*self.inner.file).seek(position));
            };
            cursor.is_busy = true;
            drop(cursor);
            self.start(move |mut file| {
                let result = file.seek(position);
                move |cursor| cursor.seek = Some((position, result))
            });
        }
    }

    /// Records the seek that the next [`poll_requested_seek`](Self::poll_requested_seek) performs.
    #[cfg(feature = "compat-tokio")]
    pub(crate) fn request_seek(&self, position: SeekFrom) {
        self.inner.cursor().requested_seek = Some(position);
    }

    /// Performs the requested seek, or returns the current position if there is none.
    #[cfg(feature = "compat-tokio")]
    pub(crate) fn poll_requested_seek(&self, context: &Context<'_>) -> Poll<io::Result<u64>> {
        let requested = self.inner.cursor().requested_seek;
        if let Some(position) = requested {
            let result = ready!(self.poll_seek(context, position));
            self.inner.cursor().requested_seek = None;
            return Poll::Ready(result);
        }
        let cursor = ready!(self.poll_cursor(context));
        // A file without a cursor, such as a terminal, reports position 0, as in tokio.
        let position = (&*self.inner.file).stream_position().unwrap_or(0);
        Poll::Ready(Ok(position.saturating_sub(cursor.unreturned_bytes() as u64)))
    }

    /// Waits for the running operation, and moves the kernel's cursor back to the last returned byte.
    pub(super) async fn align_cursor(&self) -> io::Result<()> {
        poll_fn(|context| self.poll_cursor(context).map(|mut cursor| self.discard_unreturned(&mut cursor)))
            .await
    }

    /// Discards bytes that were read but not returned, and moves the kernel's cursor back by their number.
    fn discard_unreturned(&self, cursor: &mut Cursor) -> io::Result<()> {
        cursor.seek = None;
        let unreturned = cursor.unreturned_bytes();
        if unreturned > 0 {
            match (&*self.inner.file).seek(SeekFrom::Current(-(unreturned as i64))) {
                // Input from a terminal, for example, is independent of the output. It is kept for the next read.
                Err(error) if error.raw_os_error() == Some(libc::ESPIPE) => return Ok(()),
                result => result?,
            };
        }
        cursor.read = None;
        Ok(())
    }

    /// Runs an operation at the cursor on the file pool. The caller has set `is_busy`. The operation returns a function
    /// that stores its result.
    fn start<S: FnOnce(&mut Cursor)>(&self, operation: impl FnOnce(&std::fs::File) -> S + Send + 'static) {
        let inner = Arc::clone(&self.inner);
        spawn_limited_file_operation(move || {
            let store = operation(&inner.file);
            let mut cursor = inner.cursor();
            cursor.is_busy = false;
            store(&mut cursor);
            let wakers = std::mem::take(&mut cursor.wakers);
            drop(cursor);
            // Dropped first, so that a woken task can take the file out of the last reference.
            drop(inner);
            wake_all(wakers);
        })
        .detach();
    }
}

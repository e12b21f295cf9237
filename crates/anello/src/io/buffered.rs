//! Reading by line and by byte from a reader of owned buffers.

use std::future::poll_fn;
use std::io::{self, BufRead};
use std::mem;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::traits::{AsyncRecv, AsyncSend};
use crate::driver::{SendBuf, unexpected_eof};

/// Default of [`BufReader::max_line_bytes`]: 64 KiB.
///
/// ```
/// # anello::example! {
/// use anello::io::{BufReader, DEFAULT_MAX_LINE_BYTES, duplex};
///
/// let (reader, mut writer) = duplex(64);
/// writer.send(vec![b'a'; DEFAULT_MAX_LINE_BYTES + 1]).await?;
/// let error = BufReader::new(reader).read_line(&mut String::new()).await.unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
/// # }
/// ```
pub const DEFAULT_MAX_LINE_BYTES: usize = 64 * 1024;

/// Reader that keeps the received buffer until all of its bytes are consumed, so that they can be read by line.
///
/// The buffer is the one that the inner reader returns; its bytes are copied only if a line is spread over several
/// buffers. All methods that return lines are cancel-safe: the bytes of an incomplete line stay in the reader. Bytes
/// that are left can be received with [`AsyncRecv`], for example to [`copy`](super::copy()) what follows a header.
///
/// ```
/// # anello::example! {
/// use anello::io::{BufReader, duplex};
///
/// let (mut client, server) = duplex(64);
/// client.send("first\r\nsecond\nrest").await?;
/// drop(client);
/// let mut lines = BufReader::new(server).lines();
/// let mut texts = Vec::new();
/// while let Some(line) = lines.next_line().await? {
///     texts.push(line);
/// }
/// assert_eq!(texts, ["first", "second", "rest"]);
/// # }
/// ```
#[derive(Debug)]
pub struct BufReader<R> {
    reader: R,
    /// Bytes of an incomplete line, which precede `buffer`.
    front: Vec<u8>,
    /// Bytes that have been received, but not consumed.
    buffer: Option<SendBuf>,
    max_line_bytes: usize,
}

/// Lines of a [`BufReader`]; see [`BufReader::lines`].
///
/// ```
/// # anello::example! {
/// use anello::io::{BufReader, DuplexStream, Lines, duplex};
///
/// async fn sum(mut lines: Lines<DuplexStream>) -> std::io::Result<i32> {
///     let mut sum = 0;
///     while let Some(line) = lines.next_line().await? {
///         sum += line.parse::<i32>().map_err(std::io::Error::other)?;
///     }
///     Ok(sum)
/// }
/// let (reader, mut writer) = duplex(64);
/// writer.send("1\n2\n3\n").await?;
/// drop(writer);
/// assert_eq!(sum(BufReader::new(reader).lines()).await?, 6);
/// # }
/// ```
#[derive(Debug)]
pub struct Lines<R> {
    reader: BufReader<R>,
}

impl<R> BufReader<R> {
    /// Creates a reader with an empty buffer.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, _writer) = duplex(64);
    /// let reader = BufReader::new(reader);
    /// assert!(reader.buffer().is_empty());
    /// # }
    /// ```
    pub fn new(reader: R) -> Self {
        Self { reader, front: Vec::new(), buffer: None, max_line_bytes: DEFAULT_MAX_LINE_BYTES }
    }

    /// Sets the maximum length of a line in bytes, without its delimiter. Limits the memory that a peer can occupy. The
    /// default is [`DEFAULT_MAX_LINE_BYTES`].
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("a line that is too long\n").await?;
    /// let mut reader = BufReader::new(reader).max_line_bytes(10);
    /// let error = reader.read_line(&mut String::new()).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
    /// # }
    /// ```
    #[must_use]
    pub fn max_line_bytes(mut self, bytes: usize) -> Self {
        self.max_line_bytes = bytes;
        self
    }

    /// Returns bytes that have been received, but not consumed. After the future of a line has been dropped, returns
    /// only some of them.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("line\nrest").await?;
    /// let mut reader = BufReader::new(reader);
    /// reader.read_line(&mut String::new()).await?;
    /// assert_eq!(reader.buffer(), b"rest");
    /// # }
    /// ```
    pub fn buffer(&self) -> &[u8] {
        match &self.buffer {
            _ if !self.front.is_empty() => &self.front,
            Some(buffer) => buffer,
            None => &[],
        }
    }

    /// Removes the first `count` bytes that [`buffer`](Self::buffer) returns.
    ///
    /// # Panics
    /// Panics if `count` is greater than their number.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("ciao").await?;
    /// let mut reader = BufReader::new(reader);
    /// assert_eq!(reader.fill_buf().await?, b"ciao");
    /// reader.consume(1);
    /// assert_eq!(reader.buffer(), b"iao");
    /// # }
    /// ```
    #[track_caller]
    pub fn consume(&mut self, count: usize) {
        let length = self.buffer().len();
        assert!(count <= length, "cannot consume {count} of {length} bytes");
        if !self.front.is_empty() {
            self.front.drain(..count);
        } else if let Some(mut buffer) = self.buffer.take() {
            buffer.advance(count);
            self.buffer = Some(buffer).filter(|buffer| !buffer.is_empty());
        }
    }

    /// Returns the inner reader.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::BufReader;
    /// # use anello::net::{TcpListener, TcpStream};
    /// # let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let reader = BufReader::new(TcpStream::connect(listener.local_addr()?).await?);
    /// assert_eq!(reader.get_ref().peer_addr()?, listener.local_addr()?);
    /// # }
    /// ```
    pub fn get_ref(&self) -> &R {
        &self.reader
    }

    /// Returns a mutable reference to the inner reader. Bytes that are received from it directly follow those in the
    /// buffer.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (one, mut other) = duplex(64);
    /// let mut reader = BufReader::new(one);
    /// reader.get_mut().send("request\n").await?;
    /// assert_eq!(other.recv().await?.as_deref(), Some(&b"request\n"[..]));
    /// # }
    /// ```
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.reader
    }

    /// Returns the inner reader. Bytes in the buffer are lost.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (one, mut other) = duplex(64);
    /// other.send("line\n").await?;
    /// let mut reader = BufReader::new(one);
    /// reader.read_line(&mut String::new()).await?;
    /// // The buffer is empty, so nothing is lost.
    /// assert!(reader.buffer().is_empty());
    /// let mut one = reader.into_inner();
    /// other.send("rest").await?;
    /// assert_eq!(one.recv().await?.as_deref(), Some(&b"rest"[..]));
    /// # }
    /// ```
    pub fn into_inner(self) -> R {
        self.reader
    }

    /// Calls `use_bytes` with the first `count` bytes, which may be spread over both buffers, and consumes them.
    fn take<T>(&mut self, count: usize, use_bytes: impl FnOnce(&[u8]) -> T) -> T {
        let from_buffer = count.saturating_sub(self.front.len());
        if self.front.is_empty() || from_buffer == 0 {
            let result = use_bytes(&self.buffer()[..count]);
            self.consume(count);
            return result;
        }
        let mut line = mem::take(&mut self.front);
        line.extend_from_slice(&self.buffer()[..from_buffer]);
        self.consume(from_buffer);
        use_bytes(&line)
    }
}

/// Returns the number of bytes up to and including the delimiter, or `None` if there is none.
fn position_after(delimiter: u8, bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    // Uses the fast search of the standard library. Reading from a slice does not fail.
    let count = rest.skip_until(delimiter).ok()?;
    (count > 0 && bytes[count - 1] == delimiter).then_some(count)
}

impl<R: AsyncRecv> BufReader<R> {
    /// Receives bytes unless the buffer contains some. Returns `false` at EOF.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.buffer().is_empty() {
            match ready!(self.reader.poll_recv(context))? {
                Some(buffer) => self.buffer = Some(buffer.into()),
                None => return Poll::Ready(Ok(false)),
            }
        }
        Poll::Ready(Ok(true))
    }

    /// Receives bytes until they contain the delimiter. Returns the number of bytes up to and including the delimiter,
    /// or of all bytes at EOF.
    fn poll_line(&mut self, delimiter: u8, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut found = position_after(delimiter, &self.front);
        loop {
            let front = self.front.len();
            let buffer = self.buffer.as_deref().unwrap_or_default();
            found = found.or_else(|| position_after(delimiter, buffer).map(|count| front + count));
            // Checked before bytes are copied to `front`, so that its length is also limited.
            if found.unwrap_or(front + buffer.len() + 1) > self.max_line_bytes.saturating_add(1) {
                let message = format!(
                    "cannot read line: it is longer than {} bytes (raise max_line_bytes)",
                    self.max_line_bytes
                );
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)));
            }
            if let Some(count) = found {
                return Poll::Ready(Ok(count));
            }
            // A received buffer is kept whole as long as it may contain the whole line.
            let received = ready!(self.reader.poll_recv(context))?;
            if let Some(incomplete) = self.buffer.take() {
                self.front.extend_from_slice(&incomplete);
            }
            match received {
                Some(buffer) => self.buffer = Some(buffer.into()),
                None => return Poll::Ready(Ok(self.front.len())),
            }
        }
    }

    /// Returns bytes that have been received, but not consumed. Receives some if there are none, and returns an empty
    /// slice at EOF. Cancel-safe. [`consume`](Self::consume) removes the bytes.
    ///
    /// # Errors
    /// Returns the error of the reader.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("ciao").await?;
    /// drop(writer);
    /// let mut reader = BufReader::new(reader);
    /// assert_eq!(reader.fill_buf().await?, b"ciao");
    /// reader.consume(4);
    /// assert!(reader.fill_buf().await?.is_empty(), "EOF");
    /// # }
    /// ```
    pub async fn fill_buf(&mut self) -> io::Result<&[u8]> {
        poll_fn(|context| self.poll_fill(context)).await?;
        Ok(self.buffer())
    }

    /// Copies bytes into `buffer` and returns their number. Returns 0 at EOF or if `buffer` is empty. Cancel-safe.
    ///
    /// # Errors
    /// Returns the error of the reader.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("ciao").await?;
    /// let mut reader = BufReader::new(reader);
    /// let mut buffer = [0; 3];
    /// assert_eq!(reader.read(&mut buffer).await?, 3);
    /// assert_eq!((&buffer, reader.buffer()), (b"cia", &b"o"[..]));
    /// # }
    /// ```
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let bytes = self.fill_buf().await?;
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Ok(count)
    }

    /// Fills `buffer`. Not cancel-safe: the number of bytes already copied is lost.
    ///
    /// # Errors
    /// Returns the error of the reader, or `UnexpectedEof` if the stream ends before `buffer` is full.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("one ").await?;
    /// writer.send("two").await?;
    /// let mut buffer = [0; 7];
    /// BufReader::new(reader).read_exact(&mut buffer).await?;
    /// assert_eq!(&buffer, b"one two");
    /// # }
    /// ```
    pub async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]).await? {
                0 => return Err(unexpected_eof(filled, buffer.len())),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Appends all bytes up to and including the delimiter, or up to EOF, to `line`. Returns their number, which is 0
    /// at EOF. Cancel-safe: if the future is dropped, `line` is unchanged and no byte is lost.
    ///
    /// # Errors
    /// Returns the error of the reader, or `InvalidData` if the line is longer than
    /// [`max_line_bytes`](Self::max_line_bytes). The bytes then stay in the reader.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("key=value").await?;
    /// let mut reader = BufReader::new(reader);
    /// let mut key = Vec::new();
    /// assert_eq!(reader.read_until(b'=', &mut key).await?, 4);
    /// assert_eq!((&key[..], reader.buffer()), (&b"key="[..], &b"value"[..]));
    /// # }
    /// ```
    pub async fn read_until(&mut self, delimiter: u8, line: &mut Vec<u8>) -> io::Result<usize> {
        let count = poll_fn(|context| self.poll_line(delimiter, context)).await?;
        self.take(count, |bytes| line.extend_from_slice(bytes));
        Ok(count)
    }

    /// Appends a line, including its line feed, to `line`. Returns the number of bytes, which is 0 at EOF. The last
    /// line may have no line feed. Cancel-safe like [`read_until`](Self::read_until).
    ///
    /// # Errors
    /// Returns the errors of [`read_until`](Self::read_until), or `InvalidData` if the line is not UTF-8. The line is
    /// then consumed.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("first\nlast").await?;
    /// drop(writer);
    /// let (mut reader, mut lines) = (BufReader::new(reader), String::new());
    /// assert_eq!(reader.read_line(&mut lines).await?, 6);
    /// assert_eq!(reader.read_line(&mut lines).await?, 4);
    /// assert_eq!(reader.read_line(&mut lines).await?, 0, "EOF");
    /// assert_eq!(lines, "first\nlast");
    /// # }
    /// ```
    pub async fn read_line(&mut self, line: &mut String) -> io::Result<usize> {
        let count = poll_fn(|context| self.poll_line(b'\n', context)).await?;
        self.take(count, |bytes| {
            let text = std::str::from_utf8(bytes).map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, format!("cannot read line: {error}"))
            })?;
            line.push_str(text);
            Ok(count)
        })
    }

    /// Returns the lines of the rest of the stream.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("first\nsecond\n").await?;
    /// drop(writer);
    /// let mut lines = BufReader::new(reader).lines();
    /// assert_eq!(lines.next_line().await?.as_deref(), Some("first"));
    /// assert_eq!(lines.next_line().await?.as_deref(), Some("second"));
    /// assert_eq!(lines.next_line().await?, None);
    /// # }
    /// ```
    pub fn lines(self) -> Lines<R> {
        Lines { reader: self }
    }
}

impl<R: AsyncRecv> Lines<R> {
    /// Returns the next line without its line feed (`\n` or `\r\n`), or `None` at EOF. Cancel-safe.
    ///
    /// # Errors
    /// See [`BufReader::read_line`].
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("Host: localhost\r\n\r\nbody").await?;
    /// let mut lines = BufReader::new(reader).lines();
    /// assert_eq!(lines.next_line().await?.as_deref(), Some("Host: localhost"));
    /// assert_eq!(lines.next_line().await?.as_deref(), Some(""));
    /// # }
    /// ```
    pub async fn next_line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        if line.ends_with('\n') {
            line.pop();
            if line.ends_with('\r') {
                line.pop();
            }
        }
        Ok(Some(line))
    }
}

impl<R> Lines<R> {
    /// Returns the reader of the lines.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("first\nsecond\n").await?;
    /// let mut lines = BufReader::new(reader).lines();
    /// lines.next_line().await?;
    /// assert_eq!(lines.get_ref().buffer(), b"second\n");
    /// # }
    /// ```
    pub fn get_ref(&self) -> &BufReader<R> {
        &self.reader
    }

    /// Returns a mutable reference to the reader of the lines.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("2\nab").await?;
    /// let mut lines = BufReader::new(reader).lines();
    /// let length: usize = lines.next_line().await?.expect("a line").parse().expect("a number");
    /// let mut body = vec![0; length];
    /// lines.get_mut().read_exact(&mut body).await?;
    /// assert_eq!(body, b"ab");
    /// # }
    /// ```
    pub fn get_mut(&mut self) -> &mut BufReader<R> {
        &mut self.reader
    }

    /// Returns the reader of the lines, with the bytes that follow the last line.
    ///
    /// ```
    /// # anello::example! {
    /// # use anello::io::{AsyncRecv, BufReader, duplex};
    /// let (reader, mut writer) = duplex(64);
    /// writer.send("head\n\nbody").await?;
    /// let mut lines = BufReader::new(reader).lines();
    /// while lines.next_line().await?.is_some_and(|line| !line.is_empty()) {}
    /// let body = lines.into_inner().recv().await?.expect("bytes");
    /// assert_eq!(body.as_ref(), b"body");
    /// # }
    /// ```
    pub fn into_inner(self) -> BufReader<R> {
        self.reader
    }
}

/// Returns the bytes in the buffer before receiving others.
impl<R: AsyncRecv> AsyncRecv for BufReader<R> {
    type Buf = SendBuf;

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<SendBuf>>> {
        if !self.front.is_empty() {
            let front = Bytes::from(mem::take(&mut self.front));
            return Poll::Ready(Ok(Some(front.into())));
        }
        if let Some(buffer) = self.buffer.take() {
            return Poll::Ready(Ok(Some(buffer)));
        }
        self.reader.poll_recv(context).map_ok(|received| received.map(Into::into))
    }
}

impl<R: AsyncSend> AsyncSend for BufReader<R> {
    fn poll_send(&mut self, bytes: &mut Option<SendBuf>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reader.poll_send(bytes, context)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reader.poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reader.poll_shutdown(context)
    }
}

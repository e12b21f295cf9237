//! Copying from readers to writers.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use super::traits::{AsyncRecv, AsyncSend, AsyncSplit};
use crate::driver::SendBuf;

/// Sends everything that a reader receives until EOF, then flushes the writer. Returns the number of bytes.
///
/// The buffers move from the reader to the writer: with streams, the bytes are not copied between the two sockets'
/// kernel buffers in user space. At most one buffer is held outside the reader and the writer. The writer is not shut
/// down.
///
/// Not cancel-safe: if the future is dropped, the number of bytes is lost, and so is a buffer that the writer has not
/// accepted yet. To send a file, use [`send_file`](crate::net::StreamSocket::send_file).
///
/// # Errors
/// Returns the first error of the reader or the writer.
///
/// ```
/// # anello::example! {
/// use anello::io::{copy, duplex};
///
/// let (mut client, mut server) = duplex(64);
/// client.send("ciao").await?;
/// client.shutdown().await?;
/// let (mut reader, mut writer) = server.split();
/// assert_eq!(copy(&mut reader, &mut writer).await?, 4);
/// assert_eq!(client.recv().await?.as_deref(), Some(&b"ciao"[..]));
/// # }
/// ```
pub async fn copy<R, W>(reader: &mut R, writer: &mut W) -> io::Result<u64>
where
    R: AsyncRecv + ?Sized,
    W: AsyncSend + ?Sized,
{
    let mut copying = Copying::new(Step::Flush);
    poll_fn(|context| copying.poll(reader, writer, context)).await
}

/// Copies in both directions between two streams until both have received EOF. Returns the numbers of bytes from `a` to
/// `b` and from `b` to `a`.
///
/// When one stream receives EOF, the other one is shut down for writing after the last byte, and the opposite direction
/// continues: a half-close is forwarded. The function returns once the kernel has taken all bytes. The buffers move
/// from one stream to the other as in [`copy`](copy()), so this function has no buffer sizes to set. Neither direction
/// can starve the other one.
///
/// Not cancel-safe: if the future is dropped, the numbers of bytes are lost, and so is one buffer per direction that
/// the writer has not accepted yet.
///
/// # Errors
/// Returns the first error of either stream. The other direction may then be incomplete.
///
/// ```
/// # anello::example! {
/// use anello::io::{copy_bidirectional, duplex};
///
/// let (mut client, mut proxy_in) = duplex(64);
/// let (mut proxy_out, mut server) = duplex(64);
/// let proxy = anello::spawn(async move { copy_bidirectional(&mut proxy_in, &mut proxy_out).await });
/// client.send("request").await?;
/// client.shutdown().await?;
/// assert_eq!(server.recv().await?.as_deref(), Some(&b"request"[..]));
/// assert_eq!(server.recv().await?, None);
/// // The client has shut down its side, but can still receive the response.
/// server.send("answer").await?;
/// drop(server);
/// assert_eq!(client.recv().await?.as_deref(), Some(&b"answer"[..]));
/// assert_eq!(proxy.await.expect("the task does not panic")?, (7, 6));
/// # }
/// ```
pub async fn copy_bidirectional<A, B>(a: &mut A, b: &mut B) -> io::Result<(u64, u64)>
where
    A: AsyncSplit + ?Sized,
    B: AsyncSplit + ?Sized,
{
    let ((mut from_a, mut to_a), (mut from_b, mut to_b)) = (a.halves(), b.halves());
    let (mut forth, mut back) = (Copying::new(Step::Shutdown), Copying::new(Step::Shutdown));
    let mut is_back_first = true;
    poll_fn(|context| {
        // A direction that is always ready consumes the whole budget, so the directions take turns.
        is_back_first = !is_back_first;
        let (forth, back) = if is_back_first {
            let back = back.poll(&mut from_b, &mut to_a, context)?;
            (forth.poll(&mut from_a, &mut to_b, context)?, back)
        } else {
            let forth = forth.poll(&mut from_a, &mut to_b, context)?;
            (forth, back.poll(&mut from_b, &mut to_a, context)?)
        };
        Poll::Ready(Ok((ready!(forth), ready!(back))))
    })
    .await
}

/// State of copying in one direction.
struct Copying {
    step: Step,
    /// Buffer that the writer has not accepted yet.
    outgoing: Option<SendBuf>,
    /// Number of bytes received.
    bytes: u64,
    /// Step that follows EOF.
    after_eof: Step,
}

#[derive(Clone, Copy)]
enum Step {
    Transfer,
    Shutdown,
    Flush,
    Done,
}

impl Copying {
    fn new(after_eof: Step) -> Self {
        Self { step: Step::Transfer, outgoing: None, bytes: 0, after_eof }
    }

    /// Returns the number of bytes when done, in every call.
    #[inline]
    fn poll<R, W>(
        &mut self,
        reader: &mut R,
        writer: &mut W,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<u64>>
    where
        R: AsyncRecv + ?Sized,
        W: AsyncSend + ?Sized,
    {
        loop {
            self.step = match self.step {
                Step::Transfer => {
                    ready!(self.poll_transfer(reader, writer, context))?;
                    self.after_eof
                }
                Step::Shutdown => {
                    ready!(writer.poll_shutdown(context))?;
                    Step::Flush
                }
                Step::Flush => {
                    ready!(writer.poll_flush(context))?;
                    Step::Done
                }
                Step::Done => return Poll::Ready(Ok(self.bytes)),
            };
        }
    }

    /// Transfers buffers until EOF.
    #[inline]
    fn poll_transfer<R, W>(
        &mut self,
        reader: &mut R,
        writer: &mut W,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRecv + ?Sized,
        W: AsyncSend + ?Sized,
    {
        loop {
            if self.outgoing.is_some() {
                ready!(writer.poll_send(&mut self.outgoing, context))?;
            }
            match ready!(reader.poll_recv(context))? {
                Some(buffer) => {
                    self.bytes += buffer.as_ref().len() as u64;
                    self.outgoing = Some(buffer.into());
                }
                None => return Poll::Ready(Ok(())),
            }
        }
    }
}

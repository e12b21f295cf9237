//! Consistent reads of small files.

use std::io;

use anello::fs::File;
use bytes::Bytes;
use rustix::fs::fstat;

use super::cache::Contents;
use super::document_root::stamp;
use super::stamp::FileStamp;

/// After this many attempts to read a file that keeps changing, the response is sent from the open file.
const MAX_READ_ATTEMPTS: usize = 3;

/// Reads a file that has this stamp. Returns the contents and the stamp that was current both before and after the
/// read. If the file keeps changing, returns the open file and its latest stamp instead.
pub(super) async fn read_whole(file: File, previous: FileStamp) -> io::Result<(Contents, FileStamp)> {
    let read = async |buffer: &mut [u8], offset| file.read_at(buffer, offset).await;
    let stat = || Ok(stamp(&fstat(&file)?));
    let (contents, stamp) = read_consistent(read, stat, previous).await?;
    Ok((contents.map_or(Contents::File(file), |bytes| Contents::Memory(Bytes::from(bytes))), stamp))
}

/// Reads again if the file changed during the read.
async fn read_consistent(
    read: impl AsyncFn(&mut [u8], u64) -> io::Result<usize>,
    stat: impl Fn() -> io::Result<FileStamp>,
    mut previous: FileStamp,
) -> io::Result<(Option<Vec<u8>>, FileStamp)> {
    for _ in 0..MAX_READ_ATTEMPTS {
        let mut bytes = vec![0; usize::try_from(previous.size_bytes).map_err(io::Error::other)?];
        let mut filled = 0;
        while filled < bytes.len() {
            match read(&mut bytes[filled..], filled as u64).await? {
                0 => break,
                count => filled += count,
            }
        }
        let after = stat()?;
        if after == previous && filled == bytes.len() {
            return Ok((Some(bytes), after));
        }
        previous = after;
    }
    Ok((None, previous))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::files::stamp::Timestamp;

    /// Reads a file of ten bytes, at most four bytes at a time, which is meanwhile overwritten with the next letter after
    /// each of these numbers of reads, with a new length. Returns the contents, and whether the stamp describes the last
    /// state.
    fn read_while(writes: &[(usize, usize)]) -> (Option<String>, bool) {
        let (state, length, reads) = (Cell::new(0_u8), Cell::new(10_usize), Cell::new(0));
        let stat = || -> io::Result<FileStamp> {
            let changed = Timestamp { seconds: i64::from(state.get()), nanoseconds: 0 };
            Ok(FileStamp { size_bytes: length.get() as u64, changed, ..FileStamp::default() })
        };
        let read = async |buffer: &mut [u8], offset: u64| {
            let count = buffer.len().min(4).min(length.get().saturating_sub(offset as usize));
            buffer[..count].fill(b'a' + state.get());
            reads.update(|reads| reads + 1);
            if let Some((after, new_length)) = writes.get(usize::from(state.get()))
                && *after == reads.get()
            {
                state.update(|state| state + 1);
                length.set(*new_length);
            }
            Ok(count)
        };
        let future = pin!(read_consistent(read, stat, stat().unwrap()));
        let polled = future.poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok((bytes, stamp))) = polled else { panic!("read is pending") };
        (bytes.map(|bytes| String::from_utf8(bytes).unwrap()), stamp == stat().unwrap())
    }

    #[test]
    fn fault_35_file_changed_during_read_is_read_again() {
        for (writes, expected) in [
            (&[][..], Some("aaaaaaaaaa")),
            (&[(1, 10)], Some("bbbbbbbbbb")),
            (&[(2, 10)], Some("bbbbbbbbbb")),
            (&[(3, 10)], Some("bbbbbbbbbb")),
            (&[(1, 3)], Some("bbb")),
            (&[(1, 0)], Some("")),
            (&[(2, 20)], Some("bbbbbbbbbbbbbbbbbbbb")),
            (&[(1, 10), (4, 10)], Some("cccccccccc")),
            (&[(1, 10), (2, 10), (3, 10)], Some("dddddddddd")),
            // A file that keeps changing is sent from its descriptor.
            (&[(1, 10), (4, 10), (7, 10)], None),
        ] {
            assert_eq!(read_while(writes), (expected.map(str::to_owned), true), "{writes:?}");
        }
    }
}

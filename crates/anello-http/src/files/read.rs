//! Consistent reads of small files.

use std::io;

use anello::fs::File;
use bytes::Bytes;
use rustix::fs::fstat;

use super::cache::Contents;
use super::document_root::stamp;
use super::stamp::FileStamp;

/// Maximum number of attempts to read a file that changes during the read. After that, the response is sent from
/// the open file.
const MAX_READ_ATTEMPTS: usize = 3;

/// Reads a file that has this stamp. Returns the contents and the stamp that was current both before and after the
/// read. If the file keeps changing, returns the open file and its latest stamp instead.
pub(super) async fn read_whole(file: File, previous: FileStamp) -> io::Result<(Contents, FileStamp)> {
    let read = async |buffer: &mut [u8], offset| file.read_at(buffer, offset).await;
    let stat = || Ok(stamp(&fstat(&file)?));
    let (contents, stamp) = read_consistent(read, stat, previous).await?;
    Ok((contents.map_or(Contents::File(file), |bytes| Contents::Memory(Bytes::from(bytes))), stamp))
}

/// Reads until the buffer is full, then compares the stamp. Tries again if the file changed during the read.
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
    use std::cell::RefCell;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::files::stamp::Timestamp;

    /// A file that is overwritten while it is being read, each time with the next letter.
    struct ChangingFile {
        state: u8,
        length: usize,
        /// Number of reads before each overwrite, and the new length of the file.
        writes: Vec<(usize, usize)>,
        reads: usize,
    }

    impl ChangingFile {
        fn stamp(&self) -> FileStamp {
            let changed = Timestamp { seconds: i64::from(self.state), nanoseconds: 0 };
            FileStamp { size_bytes: self.length as u64, changed, ..FileStamp::default() }
        }

        /// Reads at most four bytes.
        fn read(&mut self, buffer: &mut [u8], offset: usize) -> usize {
            let count = buffer.len().min(4).min(self.length.saturating_sub(offset));
            buffer[..count].fill(b'a' + self.state);
            self.reads += 1;
            if let Some(&(after, length)) = self.writes.first()
                && after == self.reads
            {
                self.writes.remove(0);
                (self.state, self.length) = (self.state + 1, length);
            }
            count
        }
    }

    /// Returns the contents read from a file of ten bytes, and whether the stamp describes the last state.
    fn read_while(writes: &[(usize, usize)]) -> (Option<String>, bool) {
        let file = RefCell::new(ChangingFile { state: 0, length: 10, writes: writes.to_vec(), reads: 0 });
        let previous = file.borrow().stamp();
        let read = async |buffer: &mut [u8], offset| Ok(file.borrow_mut().read(buffer, offset as usize));
        let stat = || Ok(file.borrow().stamp());
        let mut future = pin!(read_consistent(read, stat, previous));
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok((bytes, stamp))) = polled else { panic!("read is pending") };
        (bytes.map(|bytes| String::from_utf8(bytes).unwrap()), stamp == file.borrow().stamp())
    }

    #[test]
    fn fault_35_file_changed_during_read_is_read_again() {
        for (writes, expected) in [
            (&[][..], "aaaaaaaaaa"),
            (&[(1, 10)], "bbbbbbbbbb"),
            (&[(2, 10)], "bbbbbbbbbb"),
            (&[(3, 10)], "bbbbbbbbbb"),
            (&[(1, 3)], "bbb"),
            (&[(1, 0)], ""),
            (&[(2, 20)], "bbbbbbbbbbbbbbbbbbbb"),
            (&[(1, 10), (4, 10)], "cccccccccc"),
            (&[(1, 10), (2, 10), (3, 10)], "dddddddddd"),
        ] {
            assert_eq!(read_while(writes), (Some(expected.to_owned()), true), "{writes:?}");
        }
    }

    #[test]
    fn fault_35_constantly_changing_file_is_sent_from_descriptor() {
        assert_eq!(read_while(&[(1, 10), (4, 10), (7, 10)]), (None, true));
    }
}

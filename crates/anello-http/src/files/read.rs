//! Reading a small file whole, in one state.

use std::io;

use anello::fs::File;
use bytes::Bytes;
use rustix::fs::fstat;

use super::cache::Contents;
use super::folder::stamp;
use super::stamp::FileStamp;

/// How often a file is read that changes while it is read, until it is sent from where it lies.
const MOST_READS: usize = 3;

/// Reads a file that has this stamp: its contents, and the stamp that it had before and after. A file that does not stop
/// changing is not read: it is sent as it will be.
pub(super) async fn read_whole(file: File, mut before: FileStamp) -> io::Result<(Contents, FileStamp)> {
    for _ in 0..MOST_READS {
        let mut bytes = vec![0; usize::try_from(before.size_bytes).map_err(io::Error::other)?];
        let mut read = 0;
        while read < bytes.len() {
            match file.read_at(&mut bytes[read..], read as u64).await? {
                0 => break,
                count => read += count,
            }
        }
        let after = stamp(&fstat(&file)?);
        if after == before && read == bytes.len() {
            return Ok((Contents::Memory(Bytes::from(bytes)), after));
        }
        before = after;
    }
    Ok((Contents::File(file), before))
}

//! Receiving by a system call when the kernel has said that there is something: into memory that is still in the
//! cache, of a size that follows what arrives.

use std::io;
use std::rc::Rc;

use super::buffer::{CLASS_BYTES, Chunk, Pools};
use super::sockets::{Family, Sockets};

/// What is known of the receiving side of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectRead {
    /// A receive may find something; stays so at the end.
    pub readable: bool,
    /// A short read does not mean that nothing is left: the end has been announced, for which no further edge will come,
    /// or urgent data, before which a read stops; or it is a Unix socket.
    pub short_read_is_inconclusive: bool,
    /// The end was found.
    pub eof: bool,
    /// Size class of the next receive.
    class: u8,
    /// Receives in a row for which the class below would have been ample.
    oversized_reads: u8,
}

/// What a receive found.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    Chunk(Chunk),
    Eof,
    /// Nothing yet.
    WouldBlock,
    Error(io::Error),
}

/// Receives in a row that are ample before the size goes down.
const SHRINK_AFTER_READS: u8 = 16;

impl DirectRead {
    /// Nothing is known: the first receive tries, and mostly finds the first request there already.
    pub fn speculative(family: Family) -> Self {
        Self {
            readable: true,
            short_read_is_inconclusive: family == Family::Unix,
            eof: false,
            class: 0,
            oversized_reads: 0,
        }
    }

    /// Receives once. A short read means that the socket was drained, so that no second call has to say so.
    #[inline]
    pub fn receive<S: Sockets>(
        &mut self,
        sockets: &mut S,
        socket: &S::Socket,
        pools: &Rc<Pools>,
    ) -> ReadOutcome {
        let mut chunk = pools.lease(usize::from(self.class));
        match sockets.receive(socket, chunk.spare()) {
            Ok(0) => {
                self.eof = true;
                ReadOutcome::Eof
            }
            Ok(count) => {
                chunk.filled(count);
                let drained = self.adapt(count);
                self.readable = self.short_read_is_inconclusive || !drained;
                ReadOutcome::Chunk(chunk)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                ReadOutcome::WouldBlock
            }
            Err(error) => ReadOutcome::Error(error),
        }
    }

    /// Receives into the caller's memory. `None` when there is nothing yet.
    pub fn receive_into<S: Sockets>(
        &mut self,
        sockets: &mut S,
        socket: &S::Socket,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        match sockets.receive(socket, buffer) {
            Ok(0) => {
                self.eof = true;
                Ok(Some(0))
            }
            Ok(count) => {
                self.readable = self.short_read_is_inconclusive || count == buffer.len();
                Ok(Some(count))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Follows the sizes that arrive; whether the socket was drained.
    #[inline]
    fn adapt(&mut self, count: usize) -> bool {
        let class = usize::from(self.class);
        if count == CLASS_BYTES[class] {
            self.class = (self.class + 1).min(CLASS_BYTES.len() as u8 - 1);
            self.oversized_reads = 0;
            return false;
        }
        if class > 0 {
            self.oversized_reads = if count < CLASS_BYTES[class - 1] { self.oversized_reads + 1 } else { 0 };
            if self.oversized_reads >= SHRINK_AFTER_READS {
                self.class -= 1;
                self.oversized_reads = 0;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_follows_what_arrives() {
        let mut reads = DirectRead::speculative(Family::Internet);
        assert!(!reads.adapt(CLASS_BYTES[0]), "a full read may have left something");
        assert!(!reads.adapt(CLASS_BYTES[1]));
        assert!(!reads.adapt(CLASS_BYTES[2]), "there is no larger class");
        assert_eq!(reads.class, 2);
        for _ in 0..2 * SHRINK_AFTER_READS {
            assert!(reads.adapt(100), "a short read drains");
        }
        assert_eq!(reads.class, 0);
    }

    #[test]
    fn a_message_as_long_as_a_class_stays_in_the_one_above() {
        let mut reads = DirectRead::speculative(Family::Internet);
        for _ in 0..1000 {
            reads.adapt(CLASS_BYTES[0]);
        }
        assert_eq!(reads.class, 1, "no swinging between two sizes");
    }
}

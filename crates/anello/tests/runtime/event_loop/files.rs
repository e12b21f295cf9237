//! Tests of the file operations of an event loop.

use std::collections::HashMap;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::task::Poll;
use std::time::Duration;

use anello::event_loop::{EventKind, EventLoop, Events, FileId};
use anello::fs::{AlignedBuf, File};
use rustix::fs::Advice;

use crate::common::event_loops::{open, wait};
use crate::common::{on_every_driver, on_every_driver_and_sim, pattern};

const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Longer than the operations that are performed on the ring.
const LONG: usize = 100_000;

/// Lengths of blocks at consecutive offsets.
fn lengths() -> impl Iterator<Item = usize> {
    (0..30).map(|index| if index % 10 == 9 { LONG } else { 1000 + index })
}

fn temporary() -> (std::fs::File, File) {
    let file = tempfile::tempfile().unwrap();
    (file.try_clone().unwrap(), File::from_std(file))
}

/// Returns the results of all operations by token, reacting to events only.
fn finish(event_loop: &mut EventLoop, started: Vec<FileId>) -> HashMap<usize, (usize, AlignedBuf)> {
    let (mut results, mut pending, mut events) = (HashMap::new(), HashMap::new(), Events::new());
    let mut ready = started;
    loop {
        for id in ready.drain(..) {
            match event_loop.poll_file(id) {
                Poll::Ready((count, buffer)) => {
                    results.insert(id.token(), (count.unwrap(), buffer));
                    assert!(event_loop.poll_file(id).map(|done| done.0.is_err()).is_ready(), "it is stale");
                }
                Poll::Pending => {
                    pending.insert(id.token(), id);
                }
            }
        }
        if pending.is_empty() {
            return results;
        }
        event_loop.turn(&mut events, None).unwrap();
        for event in events.iter() {
            assert_eq!(event.kind(), EventKind::File);
            ready.push(pending.remove(&event.token()).expect("one event per call that returned `Pending`"));
        }
    }
}

#[test]
fn blocks_are_written_and_read_at_their_offsets() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (plain, file) = temporary();
        let (mut offset, mut writes, mut expected) = (0, Vec::new(), Vec::new());
        for (token, length) in lengths().enumerate() {
            let block = pattern(token as u64, length);
            writes.push(event_loop.write_at(&file, block[..].into(), offset, token));
            offset += length as u64;
            expected.extend(block);
        }
        let written = finish(&mut event_loop, writes);
        assert!(lengths().enumerate().all(|(token, length)| written[&token].0 == length));
        let mut content = vec![0; expected.len()];
        plain.read_exact_at(&mut content, 0).unwrap();
        assert!(content == expected);
        for is_cached in [true, false] {
            if !is_cached {
                plain.sync_all().unwrap();
                rustix::fs::fadvise(plain.as_fd(), 0, None, Advice::DontNeed).unwrap();
            }
            let (mut offset, mut reads) = (0, Vec::new());
            for (token, length) in lengths().enumerate() {
                reads.push(event_loop.read_at(&file, AlignedBuf::new(length), offset, token));
                offset += length as u64;
            }
            let read = finish(&mut event_loop, reads);
            let mut offset = 0;
            for (token, length) in lengths().enumerate() {
                let (count, buffer) = &read[&token];
                // Data that is only partly in the page cache is read partly.
                assert!((1..=length).contains(count));
                assert!(buffer[..*count] == expected[offset..offset + count]);
                offset += length;
            }
        }
        event_loop.shutdown(Duration::from_secs(1)).unwrap();
    });
}

#[test]
fn errors_and_the_end_of_the_file_are_returned_with_the_buffer() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let (_, file) = temporary();
        let mut run = |file: &File, buffer, offset| {
            let id = event_loop.read_at(file, buffer, offset, 1);
            wait(&mut event_loop, |event_loop| event_loop.poll_file(id))
        };
        let (count, buffer) = run(&file, AlignedBuf::new(100), 0);
        assert_eq!((count.unwrap(), buffer.len()), (0, 100));
        let (count, buffer) = run(&file, AlignedBuf::new(0), 0);
        assert_eq!((count.unwrap(), buffer.len()), (0, 0));
        let (error, buffer) = run(&file, AlignedBuf::new(100), u64::MAX);
        assert_eq!((error.unwrap_err().raw_os_error(), buffer.len()), (Some(libc::EINVAL), 100));
        let directory = File::from_std(std::fs::File::open("/").unwrap());
        let (error, buffer) = run(&directory, AlignedBuf::new(100), 0);
        assert_eq!((error.unwrap_err().raw_os_error(), buffer.len()), (Some(libc::EISDIR), 100));
        let named = tempfile::NamedTempFile::new().unwrap();
        let read_only = File::from_std(std::fs::File::open(named.path()).unwrap());
        let write = event_loop.write_at(&read_only, b"x"[..].into(), 0, 1);
        let (error, _) = wait(&mut event_loop, |event_loop| event_loop.poll_file(write));
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EBADF));
    });
}

#[test]
fn fault_10_cancelled_operations_report_no_event_and_complete_in_the_background() {
    on_every_driver(|setup| {
        let (mut event_loop, mut events) = (open(setup), Events::new());
        let (plain, file) = temporary();
        for round in 0..20 {
            let lengths = [1000, LONG];
            let ids = lengths.map(|length| event_loop.write_at(&file, vec![7; length].into(), 0, 1));
            for id in ids {
                // Half of them wait for an event.
                if round % 2 == 0 {
                    if let Poll::Ready(done) = event_loop.poll_file(id) {
                        done.0.unwrap();
                    }
                } else {
                    assert!(event_loop.cancel_file(id));
                }
                event_loop.cancel_file(id);
                assert!(!event_loop.cancel_file(id));
                assert!(event_loop.poll_file(id).map(|done| done.0.is_err()).is_ready());
            }
            // The slots are used again; only these operations report events.
            let next = event_loop.write_at(&file, vec![7; 2 * LONG].into(), 0, 2);
            assert_eq!(finish(&mut event_loop, vec![next])[&2].0, 2 * LONG);
        }
        event_loop.turn(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty(), "{events:?}");
        // Shutting down waits for the operations on the ring.
        event_loop.shutdown(Duration::from_secs(1)).unwrap();
        let mut content = Vec::new();
        (&plain).read_to_end(&mut content).unwrap();
        assert!(content == [7; 2 * LONG]);
    });
}

#[test]
fn file_is_sent_after_accepted_bytes() {
    on_every_driver_and_sim(|setup| {
        let mut event_loop = open(setup);
        let listener = event_loop.listen(ANY_PORT, 0).unwrap();
        let address = event_loop.local_addr(listener).unwrap();
        let client = event_loop.connect(address, 1).unwrap();
        let server = wait(&mut event_loop, |event_loop| event_loop.accept(listener, 2)).unwrap();
        wait(&mut event_loop, |event_loop| event_loop.poll_connect(client)).unwrap();
        let (plain, content) = (tempfile::tempfile().unwrap(), pattern(1, 500_000));
        plain.write_all_at(&content, 0).unwrap();
        assert!(matches!(event_loop.write(server, b"head"), Poll::Ready(Ok(4))));
        let (mut sent, mut received, mut is_shut) = (0, Vec::new(), false);
        let mut events = Events::new();
        loop {
            while !is_shut {
                match event_loop.send_file(server, &plain, sent, 100_000).map(Result::unwrap) {
                    Poll::Ready(0) => {
                        event_loop.shutdown_write(server).unwrap();
                        is_shut = true;
                    }
                    Poll::Ready(count) => sent += count as u64,
                    Poll::Pending => break,
                }
            }
            match event_loop.recv(client).map(Result::unwrap) {
                Poll::Ready(Some(chunk)) => received.extend_from_slice(&chunk),
                Poll::Ready(None) => break,
                Poll::Pending => event_loop.turn(&mut events, None).unwrap(),
            }
        }
        assert!(received[..4] == *b"head" && received[4..] == content);
    });
}

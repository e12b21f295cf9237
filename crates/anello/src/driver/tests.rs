//! Tests that memory used by operations in flight is not freed too early when an io_uring or epoll driver is dropped.

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use bytes::Bytes;

use super::stream::lingering::Sending;
use super::*;

/// More bytes than a Unix socket's buffer can hold.
const MESSAGE_BYTES: usize = 2 << 20;

/// Memory that is overwritten instead of freed when dropped, so that a late read by the kernel is detected.
struct Poisoned(&'static mut [u8], Arc<AtomicUsize>);

static DROPPED: Mutex<Vec<&'static mut [u8]>> = Mutex::new(Vec::new());

impl AsRef<[u8]> for Poisoned {
    fn as_ref(&self) -> &[u8] {
        self.0
    }
}

impl Drop for Poisoned {
    fn drop(&mut self) {
        self.0.fill(0xdd);
        DROPPED.lock().unwrap().push(std::mem::take(&mut self.0));
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns a driver with a send in flight, the stream's key and peer, and a counter of how often the send's memory has
/// been freed.
fn sending(kind: &DriverKind, task_work: TaskWork) -> Option<(Driver, Key, UnixStream, Arc<AtomicUsize>)> {
    let mut driver = match Driver::new(kind, &DriverOptions { task_work, ..DriverOptions::default() }) {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("skipped on {kind}: {error}");
            return None;
        }
    };
    let (near, far) = UnixStream::pair().unwrap();
    let key = driver.import_stream(near.into()).unwrap();
    let freed = Arc::new(AtomicUsize::new(0));
    let message = Poisoned(vec![1; MESSAGE_BYTES].leak(), Arc::clone(&freed));
    let mut outgoing = Some(SendBuf::Bytes(Bytes::from_owner(message)));
    assert!(driver.poll_send(key, &mut outgoing, Waker::noop()).is_ready());
    for _ in 0..3 {
        driver.turn(Wait::None, &mut WakeQueue::default()).unwrap();
    }
    Some((driver, key, far, freed))
}

fn for_each_driver(test: impl Fn(Driver, Key, UnixStream, Arc<AtomicUsize>)) {
    let variants = [
        (DriverKind::Uring, TaskWork::Deferred),
        (DriverKind::Uring, TaskWork::Cooperative),
        (DriverKind::Epoll, TaskWork::Deferred),
    ];
    for (kind, task_work) in variants {
        if let Some((driver, key, far, freed)) = sending(&kind, task_work) {
            test(driver, key, far, freed);
        }
    }
}

#[test]
fn dropped_driver_cancels_operations_before_freeing_memory() {
    for_each_driver(|driver, _, mut far, freed| {
        // The notifier keeps the ring open, so that operations stay in flight until the driver cancels them.
        let _notifier = driver.notifier().unwrap();
        drop(driver);
        assert_eq!(freed.load(Ordering::SeqCst), 1);
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        assert!(received.len() < MESSAGE_BYTES && received.iter().all(|byte| *byte == 1));
    });
}

#[test]
#[cfg_attr(plain_memory, ignore = "the deliberate leak would be reported")]
fn driver_with_failed_shutdown_leaks_memory_in_flight() {
    for_each_driver(|mut driver, _, far, freed| {
        // Simulates a kernel that has not completed the operations in time.
        driver.closed = true;
        let is_idle = matches!(*driver.backend, Backend::Epoll(_));
        drop(driver);
        assert_eq!(freed.load(Ordering::SeqCst), usize::from(is_idle));
        drop(far);
    });
}

/// Reads bytes while the driver makes progress, until the peer has received `count` bytes.
fn read_from(driver: &mut Driver, far: &mut UnixStream, count: usize) {
    far.set_nonblocking(true).unwrap();
    let (mut received, mut bytes) = (0, vec![0; 64 << 10]);
    while received < count {
        let length = bytes.len().min(count - received);
        match far.read(&mut bytes[..length]) {
            Ok(count) => received += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                driver.turn(Wait::None, &mut WakeQueue::default()).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn interrupted_send_counts_its_bytes_and_continues() {
    for_each_driver(|mut driver, key, mut far, _| {
        let (mut received, mut unsent_bytes) = (0, Sending::unsent_bytes(&driver, key));
        assert!(unsent_bytes > 0);
        for _ in 0..3 {
            read_from(&mut driver, &mut far, 512 << 10);
            received += 512 << 10;
            driver.send_again(key, &mut WakeQueue::default());
            for _ in 0..3 {
                driver.turn(Wait::None, &mut WakeQueue::default()).unwrap();
            }
            let unsent_before = std::mem::replace(&mut unsent_bytes, Sending::unsent_bytes(&driver, key));
            assert!(unsent_bytes < unsent_before, "the bytes that were taken are counted");
            assert!(matches!(driver.poll_write(key, &[], Waker::noop()), Poll::Ready(Ok(_))));
        }
        // Interrupted without progress.
        driver.send_again(key, &mut WakeQueue::default());
        read_from(&mut driver, &mut far, MESSAGE_BYTES - received);
        driver.abort(key);
        driver.turn(Wait::None, &mut WakeQueue::default()).unwrap();
        far.set_nonblocking(false).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "no byte was sent twice");
    });
}

#[test]
fn shut_down_driver_starts_no_operations() {
    for_each_driver(|mut driver, key, far, freed| {
        driver.shut_down(Duration::ZERO, &mut WakeQueue::default()).unwrap();
        assert_eq!((freed.load(Ordering::SeqCst), driver.metrics().sockets), (1, 0));
        drop(far);
        let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = std::net::TcpListener::bind(any_port).unwrap();
        let path = UnixAddress::from_pathname("/nowhere").unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        let listen_options = ListenOptions { backlog: 1, ..ListenOptions::default() };
        let results = [
            driver.listen(any_port, &listen_options),
            driver.listen_unix(&path, 1),
            driver.import_listener(listener.try_clone().unwrap().into()),
            driver.import_stream(near.into()),
            driver.connect(listener.local_addr().unwrap(), None),
            driver.connect_unix(&path),
        ];
        for result in results {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::NotConnected);
        }
        let (waker, mut chunk) = (Waker::noop(), None);
        assert!(matches!(driver.poll_accept(key, waker), Poll::Ready(Err(_))));
        assert!(matches!(driver.poll_connect(key, waker), Poll::Ready(Err(_))));
        assert!(matches!(driver.poll_receive(key, &mut chunk, waker), Poll::Ready(Err(_))));
        assert!(matches!(driver.poll_send(key, &mut Some(vec![1].into()), waker), Poll::Ready(Err(_))));
        assert!(matches!(driver.poll_flush(key, waker), Poll::Ready(Err(_))));
        assert!(matches!(driver.poll_detach(key, waker), Poll::Ready(Err(_))));
        assert_eq!(driver.metrics().sockets, 0);
    });
}

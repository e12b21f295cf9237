//! Tests of pipes, FIFOs and the standard streams.

use std::fs::File;
use std::future::Future;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::task::Poll;

use anello::net::pipe::{OpenOptions, Receiver, Sender, pipe};
use anello::net::raw_os_error;
use anello::{DriverKind, Runtime, spawn, yield_now};

use crate::common::{
    TURNS, command_for, on_both_drivers, on_each, on_every_driver, pattern, simulated_drivers,
};

const LARGE: usize = 1 << 20;

async fn stays_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    for _ in 0..TURNS {
        let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready()));
        if polled.await {
            return false;
        }
        yield_now().await;
    }
    true
}

#[test]
fn pipe_transfers_more_than_its_capacity_and_eof() {
    on_every_driver(|setup| {
        setup.run(async {
            let (sender, receiver) = pipe().unwrap();
            let writer = spawn(async move { sender.write_all(&pattern(1, LARGE)).await });
            let mut received = b"kept".to_vec();
            assert_eq!(receiver.read_to_end(&mut received).await.unwrap(), LARGE);
            assert!(received[4..] == pattern(1, LARGE));
            writer.await.unwrap().unwrap();
            assert_eq!(receiver.read(&mut [0; 4]).await.unwrap(), 0);
            assert_eq!(receiver.read_exact(&mut [0; 4]).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        });
    });
}

#[test]
fn pipe_without_reader_is_broken() {
    on_every_driver(|setup| {
        setup.run(async {
            let (sender, receiver) = pipe().unwrap();
            let waiting = spawn(async move {
                let error = sender.write_all(&pattern(1, LARGE)).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                sender.writable().await.unwrap();
                sender
            });
            for _ in 0..TURNS {
                yield_now().await;
            }
            assert!(!waiting.is_finished());
            drop(receiver);
            let sender = waiting.await.unwrap();
            assert_eq!(sender.try_write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        });
    });
}

#[test]
fn try_methods_do_not_wait() {
    on_every_driver(|setup| {
        setup.run(async {
            let (sender, receiver) = pipe().unwrap();
            let mut buffer = [0; 8];
            assert_eq!(receiver.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
            // `WouldBlock` clears the readiness, for which the next method then waits.
            let read = || Ok(rustix::io::read(&receiver, &mut [0; 8])?);
            assert_eq!(receiver.try_io(read).unwrap_err().kind(), ErrorKind::WouldBlock);
            assert!(stays_pending(pin!(receiver.readable()).as_mut()).await);
            assert_eq!(sender.try_write_vectored(&[IoSlice::new(b""), IoSlice::new(b"ab")]).unwrap(), 2);
            assert_eq!(sender.write_vectored(&[IoSlice::new(b"c"), IoSlice::new(b"d")]).await.unwrap(), 2);
            receiver.readable().await.unwrap();
            let (one, two) = buffer.split_at_mut(1);
            let mut slices = [IoSliceMut::new(one), IoSliceMut::new(two)];
            assert_eq!(receiver.try_read_vectored(&mut slices).unwrap(), 4);
            assert_eq!(&buffer[..4], b"abcd");
            assert_eq!(sender.try_io(|| Ok(rustix::io::write(&sender, b"e")?)).unwrap(), 1);
            assert_eq!(receiver.try_io(|| Ok(rustix::io::read(&receiver, &mut buffer)?)).unwrap(), 1);
            while sender.try_write(&[0; 4096]).is_ok() {}
            let mut writable = pin!(sender.writable());
            assert!(stays_pending(writable.as_mut()).await);
            assert_eq!(receiver.read(&mut vec![0; 1 << 20]).await.unwrap() % 4096, 0);
            writable.await.unwrap();
            assert_eq!(sender.write(b"").await.unwrap(), 0);
        });
    });
}

#[test]
fn fault_10_dropped_read_loses_no_bytes() {
    on_every_driver(|setup| {
        setup.run(async {
            let (sender, receiver) = pipe().unwrap();
            let mut received = Vec::new();
            for round in 0..50 {
                {
                    let mut buffer = [0; 4];
                    let mut read = pin!(receiver.read(&mut buffer));
                    for _ in 0..round % 3 {
                        let polled = std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context)));
                        assert!(polled.await.is_pending());
                        yield_now().await;
                    }
                }
                sender.write_all(&[round]).await.unwrap();
                let mut byte = [0];
                assert_eq!(receiver.read(&mut byte).await.unwrap(), 1);
                received.push(byte[0]);
            }
            assert_eq!(received, (0..50).collect::<Vec<u8>>());
        });
    });
}

#[test]
fn several_readers_and_writers_share_a_pipe() {
    on_every_driver(|setup| {
        setup.run(async {
            let (sender, receiver) = pipe().unwrap();
            let (sender, receiver) = (Rc::new(sender), Rc::new(receiver));
            let writers: Vec<_> = (0..3)
                .map(|_| {
                    let sender = Rc::clone(&sender);
                    spawn(async move { sender.write_all(&pattern(1, LARGE)).await.unwrap() })
                })
                .collect();
            drop(sender);
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    let receiver = Rc::clone(&receiver);
                    spawn(async move { receiver.read_to_end(&mut Vec::new()).await.unwrap() })
                })
                .collect();
            for writer in writers {
                writer.await.unwrap();
            }
            let mut total = 0;
            for reader in readers {
                total += reader.await.unwrap();
            }
            assert_eq!(total, 3 * LARGE);
        });
    });
}

#[test]
fn fifo_is_opened_by_path() {
    on_every_driver(|setup| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        setup.run(async {
            let error = OpenOptions::new().open_sender(&path).unwrap_err();
            assert_eq!(raw_os_error(&error), Some(libc::ENXIO));
            assert!(error.to_string().starts_with(&format!("cannot open {}: ", path.display())), "{error}");
            let receiver = OpenOptions::new().open_receiver(&path).unwrap();
            let mut buffer = [0; 8];
            {
                // Reads wait for the first writer, which may close the FIFO without writing.
                let mut read = pin!(receiver.read(&mut buffer));
                assert!(stays_pending(read.as_mut()).await);
                let sender = OpenOptions::new().open_sender(&path).unwrap();
                assert!(stays_pending(read.as_mut()).await);
                drop(sender);
                assert_eq!(read.await.unwrap(), 0);
            }
            drop(receiver);
            let receiver = OpenOptions::new().open_receiver(&path).unwrap();
            let would_block =
                |result: std::io::Result<usize>| result.unwrap_err().kind() == ErrorKind::WouldBlock;
            assert!(would_block(receiver.try_read(&mut buffer)));
            assert!(would_block(receiver.try_read_vectored(&mut [IoSliceMut::new(&mut buffer)])));
            assert_eq!(receiver.try_read(&mut []).unwrap(), 0);
            let mut appended = Vec::new();
            {
                let mut read = pin!(receiver.read_to_end(&mut appended));
                assert!(stays_pending(read.as_mut()).await);
                let sender = OpenOptions::new().open_sender(&path).unwrap();
                sender.write_all(b"first").await.unwrap();
                drop(sender);
                assert_eq!(read.await.unwrap(), 5);
            }
            drop(receiver);
            let receiver = OpenOptions::new().open_receiver(&path).unwrap();
            for round in 0..3 {
                // Each time that all writers are closed, the receiver reads EOF. Later writers work, and waiting for
                // them does not use the stale EOF.
                let sender = OpenOptions::new().open_sender(&path).unwrap();
                let mut buffer = [0; 8];
                {
                    let mut read = pin!(receiver.read(&mut buffer));
                    assert!(stays_pending(read.as_mut()).await, "round {round}");
                    sender.write_all(b"fifo").await.unwrap();
                    assert_eq!(read.await.unwrap(), 4);
                }
                drop(sender);
                assert_eq!(receiver.read(&mut buffer).await.unwrap(), 0);
            }
            drop(receiver);
            let both = OpenOptions::new().read_write(true).open_sender(&path).unwrap();
            both.write_all(b"x").await.unwrap();
            let error = OpenOptions::new().open_receiver(directory.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let expected = format!("cannot open {}: file type is Directory", directory.path().display());
            assert!(error.to_string().starts_with(&expected), "{error}");
        });
    });
}

#[test]
fn descriptors_are_checked_and_returned() {
    on_every_driver(|setup| {
        setup.run(async {
            let (sender, receiver) = pipe().unwrap();
            let mut readable = Box::pin(receiver.readable());
            assert!(stays_pending(readable.as_mut()).await);
            drop(readable);
            let read: OwnedFd = receiver.into_blocking_fd().unwrap();
            let write = sender.into_nonblocking_fd().unwrap();
            let error = Sender::from_owned_fd(read.try_clone().unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let socket = UnixStream::pair().unwrap().0;
            assert_eq!(
                Receiver::try_from(OwnedFd::from(socket)).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
            let (sender, receiver) =
                (Sender::try_from(write).unwrap(), Receiver::from_file(File::from(read)).unwrap());
            sender.write_all(b"again").await.unwrap();
            let mut file = File::from(receiver.into_blocking_fd().unwrap());
            drop(sender);
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "again");
        });
    });
}

#[test]
fn simulated_driver_has_no_pipes() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            assert_eq!(pipe().unwrap_err().kind(), ErrorKind::Unsupported);
        });
    });
}

#[test]
fn pipes_implement_the_traits_of_tokio_and_futures() {
    on_both_drivers(|setup| {
        setup.run(async {
            let (mut sender, mut receiver) = pipe().unwrap();
            let writer = spawn(async move {
                tokio::io::AsyncWriteExt::write_all(&mut sender, &pattern(1, LARGE)).await.unwrap();
                futures_util::AsyncWriteExt::write_all(&mut sender, b"end").await.unwrap();
                futures_util::AsyncWriteExt::close(&mut sender).await.unwrap();
            });
            let mut received = vec![0; LARGE];
            tokio::io::AsyncReadExt::read_exact(&mut receiver, &mut received).await.unwrap();
            assert!(received == pattern(1, LARGE));
            let mut end = Vec::new();
            futures_util::AsyncReadExt::read_to_end(&mut receiver, &mut end).await.unwrap();
            assert_eq!(end, b"end");
            writer.await.unwrap();
        });
    });
}

// ---- Standard streams --------------------------------------------------------------------------------------------

/// Set in the environment of the child processes, to the name of the driver.
const DRIVER: &str = "PIPES_TEST_DRIVER";

/// Not a test of its own: child processes of the other tests run it. Copies the standard input to the standard output,
/// and its length to the standard error.
#[test]
fn child_copies_its_standard_input() {
    let Ok(driver) = std::env::var(DRIVER) else { return };
    let runtime = Runtime::builder().driver(driver.parse::<DriverKind>().unwrap());
    let runtime = runtime.driver_from_environment(false).build().unwrap();
    runtime.block_on(async {
        let (mut stdin, mut stdout) = (anello::io::stdin(), anello::io::stdout());
        let mut buffer = [0; 5000];
        let mut total = 0;
        stdout.write_all(b"<").await.unwrap();
        loop {
            match stdin.read(&mut buffer).await.unwrap() {
                0 => break,
                count => {
                    total += count;
                    stdout.write_all(&buffer[..count]).await.unwrap();
                }
            }
        }
        stdout.write_all(b">").await.unwrap();
        let mut stderr = anello::io::stderr();
        tokio::io::AsyncWriteExt::write_all(&mut stderr, format!("{total} bytes").as_bytes()).await.unwrap();
    });
    // Not flushed: the last runtime waits for what was accepted.
    drop(runtime);
    std::process::exit(0);
}

fn child(driver: &DriverKind) -> Command {
    let mut command = command_for(&child_copies_its_standard_input);
    command.env(DRIVER, driver.to_string());
    command
}

/// Returns what the child has copied, without the output of the test harness around it.
fn copied(output: &[u8]) -> &[u8] {
    let start = output.iter().position(|byte| *byte == b'<').expect("the child has started");
    let end = output.iter().rposition(|byte| *byte == b'>').expect("the child has ended");
    &output[start + 1..end]
}

fn input() -> Vec<u8> {
    // No angle brackets, which delimit the copy.
    pattern(1, LARGE).into_iter().map(|byte| b'a' + byte % 26).collect()
}

#[test]
fn standard_streams_can_be_pipes() {
    on_both_drivers(|setup| {
        let mut child = child(&setup.kind);
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || stdin.write_all(&input()).unwrap());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(copied(&output.stdout) == input(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("{LARGE} bytes")));
    });
}

#[test]
fn standard_streams_can_be_files_sockets_and_null() {
    on_both_drivers(|setup| {
        let directory = tempfile::tempdir().unwrap();
        let [source, target, errors] = ["in", "out", "errors"].map(|name| directory.path().join(name));
        std::fs::write(&source, input()).unwrap();
        let open = || File::open(&source).unwrap();
        let status = child(&setup.kind)
            .stdin(open())
            .stdout(File::create(&target).unwrap())
            .stderr(File::create(&errors).unwrap())
            .status();
        assert!(status.unwrap().success());
        assert!(copied(&std::fs::read(&target).unwrap()) == input());
        let errors = std::fs::read_to_string(errors).unwrap();
        assert!(errors.ends_with(&format!("{LARGE} bytes")), "{errors}");

        let output = child(&setup.kind).stdin(Stdio::null()).output().unwrap();
        assert_eq!(copied(&output.stdout), b"");

        let (near, far) = UnixStream::pair().unwrap();
        let far: OwnedFd = far.into();
        let mut child = child(&setup.kind);
        child.stdin(far.try_clone().unwrap()).stdout(far).stderr(Stdio::null());
        let mut running = child.spawn().unwrap();
        drop(child);
        let mut writing = near.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            writing.write_all(&input()).unwrap();
            writing.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        (&near).read_to_end(&mut received).unwrap();
        writer.join().unwrap();
        assert!(running.wait().unwrap().success());
        assert!(copied(&received) == input());
    });
}

#[test]
fn mode_of_shared_standard_input_is_not_changed() {
    on_both_drivers(|setup| {
        let (read, mut write) = std::io::pipe().unwrap();
        let flags = |fd: &std::io::PipeReader| rustix::fs::fcntl_getfl(fd).unwrap();
        let before = flags(&read);
        let mut child = child(&setup.kind);
        child.stdin(read.try_clone().unwrap()).stdout(Stdio::piped());
        let mut running = child.spawn().unwrap();
        write.write_all(b"shared").unwrap();
        let mut start = [0; 1];
        let mut stdout = running.stdout.take().unwrap();
        while start != *b"<" {
            stdout.read_exact(&mut start).unwrap();
        }
        assert_eq!(flags(&read), before);
        drop(write);
        running.wait().unwrap();
    });
}

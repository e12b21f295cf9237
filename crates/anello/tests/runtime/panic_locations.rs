//! Functions that panic when they are misused report the line of their caller, not a line of the runtime.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Duration;

use anello::io::{AsyncFd, stderr, stdin, stdout};
use anello::net::pipe::{OpenOptions, Receiver, Sender, pipe};
use anello::net::{TcpListener, TcpSocket, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use anello::process::Command;
use anello::server::ListenerGroup;
use anello::signal::{SignalKind, Signals, signal};
use anello::sync::{broadcast, local, mpsc};
use anello::task::{self, JoinSet};
use anello::time::{self, Instant};
use anello::{Handle, Runtime};

use crate::common::add_panic_hook;

thread_local! {
    /// File of the last panic on this thread.
    static FILE: RefCell<String> = const { RefCell::new(String::new()) };
}

type Misuse = Box<dyn FnOnce()>;

/// Returns a row of a table: the expression, and a closure that evaluates it.
macro_rules! misuse {
    ($expression:expr) => {
        (stringify!($expression), Box::new(move || _ = $expression) as Misuse)
    };
}

fn assert_report_caller(misuses: Vec<(&str, Misuse)>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        add_panic_hook(|info| {
            let location = info.location().expect("panics have a location");
            FILE.set(location.file().to_owned());
            true
        });
    });
    let wrong =
        misuses.into_iter().filter_map(|(name, misuse)| match catch_unwind(AssertUnwindSafe(misuse)) {
            Ok(()) => Some(format!("{name}: no panic")),
            Err(_) if FILE.take() == file!() => None,
            Err(_) => Some(format!("{name}: other location")),
        });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn descriptor() -> OwnedFd {
    std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket").into()
}

fn std_stream() -> std::net::TcpStream {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection")
}

fn std_pair() -> std::os::unix::net::UnixStream {
    std::os::unix::net::UnixStream::pair().expect("a pair").0
}

fn group() -> ListenerGroup<TcpListener> {
    ListenerGroup::bind("127.0.0.1:0".parse().expect("an address"), 1).expect("a group")
}

#[test]
fn functions_without_runtime_report_caller() {
    let second = Duration::from_secs(1);
    let directory = tempfile::tempdir().expect("a directory");
    let [one, two, three, four] = ["1", "2", "3", "4"].map(|name| directory.path().join(name));
    assert!(std::process::Command::new("mkfifo").arg(&four).status().expect("mkfifo runs").success());
    let address = std::os::unix::net::SocketAddr::from_pathname(&three).expect("an address");
    let fifo = move || OpenOptions::new().read_write(true).open_receiver(&four);
    assert_report_caller(vec![
        misuse!(anello::spawn(async {})),
        misuse!(task::Builder::new().spawn(async {})),
        misuse!(JoinSet::new().spawn(async {})),
        misuse!(task::id()),
        misuse!(Handle::current()),
        misuse!(time::sleep(second)),
        misuse!(time::sleep_until(Instant::now())),
        misuse!(time::timeout(second, async {})),
        misuse!(time::interval(second)),
        misuse!(time::monotonic_now()),
        misuse!(time::advance(second)),
        misuse!(TcpListener::bind("127.0.0.1:0")),
        misuse!(TcpListener::builder().bind("127.0.0.1:0")),
        misuse!(TcpListener::from_std(std::net::TcpListener::bind("127.0.0.1:0").expect("a listener"))),
        misuse!(TcpStream::from_std(std_stream())),
        misuse!(TcpStream::from_std_with(std_stream(), b"received")),
        misuse!(TcpStream::try_from(std_stream())),
        misuse!(TcpStream::try_from(OwnedFd::from(std_stream()))),
        misuse!(TcpSocket::new_v4()),
        misuse!(TcpSocket::new_v6()),
        misuse!(TcpSocket::try_from(OwnedFd::from(std_stream()))),
        misuse!(UdpSocket::bind("127.0.0.1:0")),
        misuse!(UdpSocket::builder().bind("127.0.0.1:0")),
        misuse!(UdpSocket::from_std(descriptor().into())),
        misuse!(UdpSocket::try_from(descriptor())),
        misuse!(UnixListener::bind(one)),
        misuse!(UnixStream::pair()),
        misuse!(UnixStream::from_std(std_pair())),
        misuse!(UnixDatagram::bind(two)),
        misuse!(UnixDatagram::bind_addr(&address)),
        misuse!(UnixDatagram::unbound()),
        misuse!(UnixDatagram::pair()),
        misuse!(group().join(0)),
        misuse!(pipe()),
        misuse!(fifo()),
        misuse!(Sender::from_owned_fd(std::io::pipe().expect("a pipe").1.into())),
        misuse!(Sender::try_from(OwnedFd::from(std::io::pipe().expect("a pipe").1))),
        misuse!(Receiver::from_owned_fd_unchecked(descriptor())),
        misuse!(AsyncFd::new(descriptor())),
        misuse!(AsyncFd::try_new(descriptor())),
        misuse!(stdin()),
        misuse!(stdout()),
        misuse!(stderr()),
        misuse!(Command::new("true").spawn()),
        misuse!(Command::new("true").spawn_with(std::process::Command::spawn)),
        misuse!(Command::new("true").status()),
        misuse!(Command::new("true").output()),
        misuse!(signal(SignalKind::hangup())),
        misuse!(Signals::new([SignalKind::hangup()])),
    ]);
    drop(directory);
}

#[test]
fn functions_with_invalid_arguments_report_caller() {
    anello::task_local! {
        static NAME: String;
    }
    assert_report_caller(vec![
        misuse!(mpsc::channel::<()>(0)),
        misuse!(local::mpsc::channel::<()>(0)),
        misuse!(broadcast::channel::<()>(0)),
        misuse!(anello::io::duplex(0)),
        misuse!(NAME.get()),
        misuse!(NAME.with(String::len)),
    ]);
}

#[test]
fn functions_in_runtime_report_caller() {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let (unused, joined) = (group(), group());
        let _member = joined.join(0);
        let mut receiver = mpsc::channel::<()>(1).1;
        let nested = Runtime::new().expect("a runtime");
        assert_report_caller(vec![
            misuse!(unused.join(1)),
            misuse!(joined.join(0)),
            misuse!(time::interval(Duration::ZERO)),
            misuse!(receiver.blocking_recv()),
            misuse!(nested.block_on(async {})),
            misuse!(Handle::current().block_on(async {})),
        ]);
    });
}

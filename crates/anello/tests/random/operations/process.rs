//! Child processes and signals.

use std::io::{PipeWriter, Result};
use std::process::Stdio;
use std::task::Poll;

use anello::process::{Child, ChildStdin, Command};
use anello::signal::{Signal, SignalKind, Signals, ctrl_c, signal};

use super::Support::{Linux, Processes};
use super::{Kind, checked, kind, unchecked};

pub fn kinds() -> Vec<Kind> {
    vec![
        running("Child::wait", Linux, async |it| it.wait().await),
        running("ChildStdout::read", Linux, async |it| it.stdout.as_mut().unwrap().read(&mut [0; 9]).await),
        running("ChildStdout::read_to_end", Processes, async |it| {
            it.stdout.as_mut().unwrap().read_to_end(&mut Vec::new()).await
        }),
        running("Child::kill", Processes, async |it| match it.id() {
            Some(_) => it.kill().await,
            None => Ok(()),
        }),
        command("Command::status", async |it| it.status().await),
        command("Command::output", async |it| it.output().await),
        command("Child::wait_with_output", async |it| it.spawn()?.wait_with_output().await),
        input("ChildStdin::write", async |it| it.write(b"x").await),
        input("ChildStdin::write_all", async |it| it.write_all(b"bytes").await),
        kind("Signal::recv", Linux, || unchecked((window(), ()), async |it| it.recv().await, |()| resize())),
        kind("Signals::recv", Linux, || {
            let signals = Signals::new([SignalKind::window_change()]).unwrap();
            checked((signals, ()), async |it| it.recv().await, |()| resize())
        }),
        kind("ctrl_c", Linux, || {
            // This listener also receives signals that arrive before `ctrl_c` is polled.
            let earlier = signal(SignalKind::interrupt()).unwrap();
            let wait = async |earlier: &mut Signal| {
                let (mut one, mut other) = (Box::pin(ctrl_c()), Box::pin(earlier.recv()));
                std::future::poll_fn(|context| {
                    match (one.as_mut().poll(context), other.as_mut().poll(context)) {
                        (Poll::Pending, Poll::Pending) => Poll::Pending,
                        _ => Poll::Ready(()),
                    }
                })
                .await;
            };
            let keeps_handler = signal(SignalKind::interrupt()).unwrap();
            unchecked((earlier, keeps_handler), wait, |_| raise(libc::SIGINT))
        }),
    ]
}

/// Returns a listener for a signal that is ignored by default.
fn window() -> Signal {
    signal(SignalKind::window_change()).unwrap()
}

fn resize() {
    raise(libc::SIGWINCH);
}

/// Sends a signal to the calling thread, which handles it before this function returns. A signal to the process could
/// arrive after the last listener has been dropped.
fn raise(signal: i32) {
    signal_hook::low_level::raise(signal).unwrap();
}

/// Returns an operation on a child that exits when its input is closed.
fn running<R: 'static>(
    name: &'static str,
    support: super::Support,
    wait: impl AsyncFn(&mut Child) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, support, move || {
        let mut child = cat().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        checked((child, stdin), wait, Option::take)
    })
}

/// Returns an operation that starts a process, which exits when its input is closed.
fn command<R: 'static>(
    name: &'static str,
    run: impl AsyncFn(&mut Command) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Processes, move || {
        let (reader, writer) = std::io::pipe().unwrap();
        let run = async move |(input, _): &mut (std::io::PipeReader, ())| {
            let mut command = cat();
            run(command.stdin(input.try_clone()?)).await
        };
        checked(((reader, ()), Some(writer)), run, |writer: &mut Option<PipeWriter>| writer.take())
    })
}

/// Returns an operation on the input of a child, whose pipe is full until the child exits.
fn input<R: 'static>(
    name: &'static str,
    write: impl AsyncFn(&mut ChildStdin) -> Result<R> + Copy + Send + Sync + 'static,
) -> Kind {
    kind(name, Processes, move || {
        let mut child =
            Command::new("sleep").arg("1000").stdin(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        while rustix::io::write(&stdin, &[0; 4096]).is_ok() {}
        unchecked((stdin, child), write, Child::start_kill)
    })
}

fn cat() -> Command {
    let mut command = Command::new("cat");
    command.kill_on_drop(true);
    command
}

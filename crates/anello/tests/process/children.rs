//! Child processes: exit status, piped streams, cancelled waits, killed and dropped children, and the simulator.

use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::pin::pin;
use std::process::Stdio;

use anello::io::copy;
use anello::net::raw_os_error;
use anello::process::{Child, Command};
use anello::{spawn, yield_now};

use crate::common::usage::{limit_open_files, usage};
use crate::common::{
    OwnProcess, assert_same_bytes, can_inject, exchange, in_own_process, is_own_process, join,
    on_both_drivers, on_each, on_every_driver, pair, pattern, poll_at_most, simulated_drivers,
};

/// Returns a child that runs until its standard input is closed or it is killed.
fn cat() -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// Waits until a process has been reaped. Its ID is not reused by this test program, because the kernel assigns IDs in
/// ascending order.
async fn reaped(id: u32) {
    while std::fs::exists(format!("/proc/{id}")).unwrap() {
        anello::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// Polls a future in this number of turns, then drops it. Returns the output if the future completed.
async fn poll_turns<F: Future>(turns: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..turns {
        if let Some(output) = poll_at_most(1, future.as_mut()).await {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

/// Returns the number of children of this process, including zombies.
fn child_count() -> usize {
    let id = std::process::id();
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let children = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap());
    children.map(|children| children.split_whitespace().count()).sum()
}

#[test]
fn status_is_that_of_program() {
    on_every_driver(|setup| {
        setup.run(async {
            assert!(Command::new("true").status().await.unwrap().success());
            assert_eq!(shell("exit 7").status().await.unwrap().code(), Some(7));
            assert_eq!(shell("kill -KILL $$").status().await.unwrap().signal(), Some(libc::SIGKILL));
            let error = Command::new("/no/such/program").status().await.unwrap_err();
            assert_eq!((error.kind(), raw_os_error(&error)), (ErrorKind::NotFound, Some(libc::ENOENT)));
            assert!(error.to_string().starts_with("cannot start /no/such/program: "), "{error}");
        });
    });
}

#[test]
fn command_passes_options_to_program() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut command = shell("echo $0 $ONE $TWO $THREE; pwd");
            command.arg("zero").env("ONE", "1").envs([("TWO", "2"), ("THREE", "3")]).env_remove("THREE");
            let output = command.current_dir("/").output().await.unwrap();
            assert_eq!(output.stdout, b"zero 1 2\n/\n");
            let output = Command::new("/bin/sh").args(["-c", "echo [$HOME] $0"]).env_clear().output().await;
            assert_eq!(output.unwrap().stdout, b"[] /bin/sh\n");
            let mut command = Command::new("cat");
            command.arg("/proc/self/cmdline").arg0("renamed");
            // A program such as BusyBox depends on its name.
            let mut std = std::process::Command::new("cat");
            let expected = std.arg("/proc/self/cmdline").arg0("renamed").output().unwrap();
            assert_eq!(command.output().await.unwrap().stdout, expected.stdout);
            let mut command = shell("exit 3");
            command.as_std_mut().env("X", "1");
            assert_eq!(command.as_std().get_envs().count(), 1);
            assert_eq!(Command::from(command.into_std()).status().await.unwrap().code(), Some(3));
        });
    });
}

#[test]
fn process_group_is_new() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut child = Command::new("cat").stdin(Stdio::piped()).process_group(0).spawn().unwrap();
            let id = i32::try_from(child.id().unwrap()).unwrap();
            let pid = rustix::process::Pid::from_raw(id);
            assert_eq!(rustix::process::getpgid(pid).unwrap().as_raw_nonzero().get(), id);
            child.kill().await.unwrap();
        });
    });
}

#[test]
fn output_reads_both_pipes_without_deadlock() {
    on_every_driver(|setup| {
        setup.run(async {
            let script = "head -c 1048576 /dev/zero | tee /proc/self/fd/2; head -c 1048576 /dev/zero >&2; \
                          head -c 1048576 /dev/zero";
            let output = shell(script).output().await.unwrap();
            assert!(output.status.success());
            assert_same_bytes(&output.stdout, &vec![0; 2 << 20]);
            assert_same_bytes(&output.stderr, &vec![0; 2 << 20]);
        });
    });
}

#[test]
fn output_uses_configured_streams_and_keeps_command_reusable() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut command = shell("echo out; echo err >&2; cat");
            command.stderr(Stdio::null());
            for _ in 0..2 {
                let output = command.output().await.unwrap();
                // Standard input is /dev/null, so `cat` writes nothing.
                assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b""[..]));
            }
            // `output` has not changed the defaults of `spawn`.
            let mut child = Command::new("true").spawn().unwrap();
            assert!(child.stdin.is_none() && child.stdout.is_none() && child.stderr.is_none());
            child.wait().await.unwrap();
        });
    });
}

#[test]
fn bytes_pass_through_child_unchanged() {
    on_every_driver(|setup| {
        setup.run(async {
            let mut child = cat();
            let bytes = pattern(1, 1 << 20);
            let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            let write = async {
                stdin.write_all(&bytes).await.unwrap();
                drop(stdin);
            };
            let mut received = Vec::new();
            let (_, count) = join(write, stdout.read_to_end(&mut received)).await;
            assert_eq!(count.unwrap(), bytes.len());
            assert_same_bytes(&received, &bytes);
            assert!(child.wait().await.unwrap().success());
        });
    });
}

#[test]
fn small_reads_return_bytes_in_order_then_eof() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut child = cat();
            let mut stdout = child.stdout.take().unwrap();
            child.stdin.as_mut().unwrap().write_all(b"abcdef").await.unwrap();
            let mut buffer = [0; 4];
            assert_eq!(stdout.read(&mut []).await.unwrap(), 0);
            assert_eq!(stdout.read(&mut buffer).await.unwrap(), 4);
            assert_eq!(&buffer, b"abcd");
            assert_eq!(stdout.read(&mut buffer).await.unwrap(), 2);
            assert_eq!(&buffer[..2], b"ef");
            assert!(poll_at_most(1, stdout.read(&mut buffer)).await.is_none());
            child.wait().await.unwrap();
            assert_eq!(stdout.read(&mut buffer).await.unwrap(), 0);
            assert_eq!(stdout.read(&mut buffer).await.unwrap(), 0);
        });
    });
}

#[test]
fn write_to_exited_child_returns_broken_pipe() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut child = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            child.wait().await.unwrap();
            // A child of another test can hold a copy of the read end until its `execve(2)` closes it.
            let error = loop {
                match stdin.write_all(b"lost").await {
                    Ok(()) => yield_now().await,
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        });
    });
}

#[test]
fn text_that_is_not_utf8_is_rejected() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut child = shell("printf '\\377'").stdout(Stdio::piped()).spawn().unwrap();
            let mut text = "before".to_owned();
            let error = child.stdout.take().unwrap().read_to_string(&mut text).await.unwrap_err();
            assert_eq!((error.kind(), text.as_str()), (ErrorKind::InvalidData, "before"));
            child.wait().await.unwrap();
        });
    });
}

#[test]
fn children_are_connected_by_pipe() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut first = shell("echo ciao; sleep 0; echo ancora").stdout(Stdio::piped()).spawn().unwrap();
            let pipe: Stdio = first.stdout.take().unwrap().try_into().unwrap();
            let output = Command::new("cat").stdin(pipe).output().await.unwrap();
            assert_eq!(output.stdout, b"ciao\nancora\n");
            assert!(first.wait().await.unwrap().success());
        });
    });
}

#[test]
fn wait_returns_same_status_again() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut child = cat();
            assert_eq!(child.try_wait().unwrap(), None);
            // Closes the standard input, which ends `cat`.
            let status = child.wait().await.unwrap();
            assert_eq!(child.id(), None);
            assert_eq!(child.wait().await.unwrap(), status);
            assert_eq!(child.try_wait().unwrap(), Some(status));
            child.start_kill().unwrap();
            child.kill().await.unwrap();
            assert_eq!(child.wait().await.unwrap(), status);
        });
    });
}

#[test]
fn fifty_children_report_their_own_status() {
    on_every_driver(|setup| {
        setup.run(async {
            let waiting: Vec<_> = (0..50)
                .map(|number| {
                    let mut child =
                        shell(&format!("read line; exit {number}")).stdin(Stdio::piped()).spawn().unwrap();
                    spawn(async move { (number, child.wait().await.unwrap()) })
                })
                .collect();
            for task in waiting {
                let (number, status) = task.await.unwrap();
                assert_eq!(status.code(), Some(number));
            }
        });
    });
}

#[test]
fn killed_child_reports_signal() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut child = cat();
            child.kill().await.unwrap();
            assert_eq!(child.wait().await.unwrap().signal(), Some(libc::SIGKILL));
            let mut child = cat();
            child.start_kill().unwrap();
            assert_eq!(child.wait().await.unwrap().signal(), Some(libc::SIGKILL));
        });
    });
}

#[test]
fn dropped_child_is_killed_only_on_request_and_reaped() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let child = command.kill_on_drop(true).spawn().unwrap();
            let id = child.id().unwrap();
            drop(child);
            reaped(id).await;

            let mut child = command.kill_on_drop(false).spawn().unwrap();
            let (id, mut stdin) = (child.id().unwrap(), child.stdin.take().unwrap());
            let mut stdout = child.stdout.take().unwrap();
            drop(child);
            stdin.write_all(b"alive").await.unwrap();
            let mut buffer = [0; 5];
            assert_eq!(stdout.read(&mut buffer).await.unwrap(), 5);
            drop(stdin);
            reaped(id).await;
        });
    });
}

#[test]
fn dropped_output_future_kills_child_on_request() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut command = Command::new("sleep");
            let output = command.arg("1000").kill_on_drop(true).output();
            // The process runs before the future is polled.
            assert!(poll_turns(2, output).await.is_none());
            let status = command.status();
            drop(status);
        });
    });
}

/// Fault 17: a task that panics drops its child.
#[test]
fn fault_17_child_of_panicking_task_is_killed_and_reaped() {
    on_both_drivers(|setup| {
        setup.run(async {
            let child = Command::new("sleep").arg("1000").kill_on_drop(true).spawn().unwrap();
            let id = child.id().unwrap();
            let task = spawn(async move {
                yield_now().await;
                let _child = child;
                panic!("deliberate");
            });
            assert!(task.await.is_err());
            reaped(id).await;
        });
    });
}

/// Runs in a child process, because other tests of this program also start and drop children.
#[test]
fn orphan_of_dropped_runtime_is_reaped_by_next_start() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            let runtime = setup.runtime();
            let (child, stdin) = runtime.block_on(async {
                let mut child = cat();
                let stdin = child.stdin.take().unwrap().into_owned_fd().unwrap();
                (child, stdin)
            });
            let id = child.id().unwrap();
            // Outside of the runtime, before and after it is dropped.
            let early = runtime.block_on(async { cat() });
            drop(early);
            drop(runtime);
            drop(child);
            drop(stdin);
            setup.run(async {
                while std::fs::exists(format!("/proc/{id}")).unwrap() {
                    Command::new("true").status().await.unwrap();
                }
                while child_count() > 0 {
                    Command::new("true").status().await.unwrap();
                }
            });
        });
    });
}

#[test]
fn child_of_dropped_runtime_returns_error() {
    on_both_drivers(|setup| {
        let mut child = setup.run(async { cat() });
        let mut stdin = child.stdin.take().unwrap();
        setup.run(async {
            assert!(stdin.write(b"late").await.is_err());
            assert!(child.wait().await.is_err());
            // The process itself can still be killed and reaped.
            child.start_kill().unwrap();
            while child.try_wait().unwrap().is_none() {
                yield_now().await;
            }
        });
    });
}

/// Fault 10: waits and reads that are dropped at a random poll lose nothing.
#[test]
fn fault_10_dropped_waits_and_reads_lose_nothing() {
    on_both_drivers(|setup| {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = crate::common::Rng::with_seed(seed);
        setup.run(async {
            for _ in 0..20 {
                let bytes = pattern(random.u64(..), 20_000);
                let mut child = cat();
                let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
                let (mut sent, mut received) = (0, Vec::new());
                while received.len() < bytes.len() {
                    let end = bytes.len().min(sent + random.usize(1..3000));
                    if sent < end {
                        let write = poll_turns(random.usize(1..3), stdin.write(&bytes[sent..end])).await;
                        sent += write.map_or(0, |count| count.unwrap());
                    }
                    let mut buffer = vec![0; random.usize(1..5000)];
                    let read = poll_turns(random.usize(1..4), stdout.read(&mut buffer)).await;
                    received.extend_from_slice(&buffer[..read.map_or(0, |count| count.unwrap())]);
                    assert!(poll_turns(random.usize(1..3), child.wait()).await.is_none());
                }
                assert_same_bytes(&received, &bytes);
                drop(stdin);
                assert!(child.wait().await.unwrap().success());
            }
        });
    });
}

/// Fault 11: children leave no descriptors and no zombies behind, however they are dropped. Runs in a child process, to
/// count the descriptors of this test only.
#[test]
fn fault_11_dropped_children_leave_no_descriptors() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            setup.run(async {
                let mut random = crate::common::Rng::with_seed(11);
                let mut drop_children = async || {
                    for _ in 0..60 {
                        let mut command = Command::new("cat");
                        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                        let mut child = command.kill_on_drop(random.bool()).spawn().unwrap();
                        poll_turns(random.usize(1..3), async {
                            let mut buffer = [0; 1];
                            child.stdout.as_mut().unwrap().read(&mut buffer).await.unwrap();
                        })
                        .await;
                        let polls = random.usize(0..3);
                        poll_turns(polls, child.wait_with_output()).await;
                    }
                    while child_count() > 0 {
                        anello::time::sleep(std::time::Duration::from_millis(1)).await;
                    }
                    for _ in 0..crate::common::TURNS {
                        yield_now().await;
                    }
                };
                drop_children().await;
                let before = usage().descriptors;
                drop_children().await;
                assert_eq!(usage().descriptors, before);
            });
        });
    });
}

/// Runs in a child process, because the limit affects the whole process.
#[test]
fn child_is_killed_if_descriptors_run_out() {
    in_own_process(|| {
        on_both_drivers(|setup| {
            setup.run(async {
                let before = usage().descriptors;
                // Starting a process needs descriptors as well. The number at which the limit hits the runtime varies.
                for spare in 0..12 {
                    limit_open_files((before + spare) as u64).unwrap();
                    let started = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
                    limit_open_files(1000).unwrap();
                    match started {
                        Ok(mut child) => {
                            child.wait().await.unwrap();
                        }
                        Err(error) => assert_eq!(raw_os_error(&error), Some(libc::EMFILE), "{error}"),
                    }
                }
                while child_count() > 0 {
                    Command::new("true").status().await.unwrap();
                }
            });
        });
    });
}

#[test]
fn thread_waits_if_process_descriptors_are_unavailable() {
    if !is_own_process() && !can_inject() {
        return;
    }
    let process = OwnProcess::injecting(&["pidfd_open:error=ENOSYS"]);
    process.run(|| {
        on_both_drivers(|setup| {
            setup.run(async {
                let mut child = cat();
                let stdin = child.stdin.take();
                assert!(poll_turns(3, child.wait()).await.is_none());
                drop(stdin);
                assert!(child.wait().await.unwrap().success());
                assert_eq!(shell("exit 4").status().await.unwrap().code(), Some(4));
                let child = Command::new("sleep").arg("1000").kill_on_drop(true).spawn().unwrap();
                let id = child.id().unwrap();
                drop(child);
                reaped(id).await;
            });
        });
    });
}

#[test]
fn process_is_unsupported_on_simulator() {
    on_each(simulated_drivers(), |setup| {
        setup.run(async {
            for error in [
                Command::new("true").spawn().map(|_| ()).unwrap_err(),
                Command::new("true").status().await.map(|_| ()).unwrap_err(),
                Command::new("true").output().await.map(|_| ()).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.to_string().starts_with("cannot start true: "), "{error}");
                assert!(error.to_string().contains("use the uring or epoll driver"), "{error}");
            }
        });
    });
}

#[test]
fn pipes_implement_traits_of_tokio_and_futures() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut child = cat();
            let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            tokio::io::AsyncWriteExt::write_all(&mut stdin, b"tokio ").await.unwrap();
            futures_util::AsyncWriteExt::write_all(&mut stdin, b"futures").await.unwrap();
            futures_util::AsyncWriteExt::close(&mut stdin).await.unwrap();
            drop(stdin);
            let mut bytes = [0; 6];
            tokio::io::AsyncReadExt::read_exact(&mut stdout, &mut bytes).await.unwrap();
            assert_eq!(&bytes, b"tokio ");
            let mut rest = Vec::new();
            futures_util::AsyncReadExt::read_to_end(&mut stdout, &mut rest).await.unwrap();
            assert_eq!(rest, b"futures");
            child.wait().await.unwrap();
        });
    });
}

#[test]
fn futures_do_not_borrow_command() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut command = shell("exit 5");
            let (one, other) = (command.status(), command.status());
            let (one, other) = join(one, other).await;
            assert_eq!((one.unwrap().code(), other.unwrap().code()), (Some(5), Some(5)));
        });
    });
}

#[test]
fn copy_passes_stream_through_child() {
    on_both_drivers(|setup| {
        setup.run(async {
            let mut child = cat();
            let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            let (mut client, mut server) = pair().await.unwrap();
            // More than fits in the pipes and sockets.
            let message = pattern(1, 3 << 20);
            let exchanging = spawn(async move {
                exchange(&mut client, &message).await;
                client.shutdown().await.unwrap();
                assert!(client.recv().await.unwrap().is_none());
            });
            let (mut reader, mut writer) = server.split();
            let forth = async {
                let count = copy(&mut reader, &mut stdin).await.unwrap();
                drop(stdin);
                count
            };
            let back = async {
                let count = copy(&mut stdout, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
                count
            };
            assert_eq!(join(forth, back).await, (3 << 20, 3 << 20));
            exchanging.await.unwrap();
            assert!(child.wait().await.unwrap().success());
        });
    });
}

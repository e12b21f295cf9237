//! `anello-bare MODEL [--addr ADDRESS] [OPTION...]`: one baseline echo server as a process.

#![forbid(unsafe_code)]

use std::env;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anello_bare::{Model, Options, UringOptions, check, listen_for, parse_core, run};

const USAGE: &str = "usage: anello-bare uring|epoll|poll|select|threads [--addr ADDRESS:PORT] [OPTION...]

TCP echo server without a runtime, on one thread (threads: one per connection).
--addr defaults to 127.0.0.1:7000. Prints one line when it listens; stops on a signal.

epoll and uring:
  --spin DURATION           poll for events for this time before sleeping, e.g. 50us; maximum 1s, default 0
uring (any of these, and --spin, select the configurable server instead of the baseline):
  --configurable            the configurable server with default options: the baseline of its variants
  --task-work MODE          deferred (default), deferred-once, cooperative or interrupting
  --sqpoll IDLE_MS          a kernel thread polls for submissions and sleeps after IDLE_MS without any
  --sqpoll-core CORE        pin the polling thread to this core, or to the last usable core: last
  --one-shot-receive        one submission per receive
  --per-connection-buffers  receive into buffers of the connection instead of a buffer ring
  --registered-files        keep connections only in the ring's table of registered files
  --forced-async            execute every receive and send on a worker thread
  --linked-timeout DURATION link a timeout to each receive
  --bundles                 one completion for several buffers
  --completion-per-send     one completion per send
  --zero-copy-sends         send from the received buffers without a copy
  --rings COUNT             threads with one ring each, 1 to 256, default 1
  --shared-workers          one pool of worker threads for all rings";

/// Maximum spin time; the same as for the `--spin` flag of `anello`.
const MAX_SPIN: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let arguments = match parse(env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("anello-bare: {reason}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anello-bare: {} on {}: {error}", arguments.model, arguments.address);
            ExitCode::FAILURE
        }
    }
}

/// Parsed command line.
#[derive(Debug)]
struct Arguments {
    model: Model,
    address: SocketAddr,
    options: Options,
}

fn serve(Arguments { model, address, options }: &Arguments) -> io::Result<()> {
    let features = check(*model, options)?;
    let listeners = listen_for(*address, options)?;
    let mut output = io::stdout().lock();
    write!(output, "anello-bare ready model={model}")?;
    if let Some(listener) = listeners.first() {
        write!(output, " addr={}", listener.local_addr()?)?;
    }
    if let Some(features) = features {
        write!(output, " features={features}")?;
    }
    writeln!(output)?;
    output.flush()?;
    run(*model, listeners, options)
}

/// Parses the command line. Returns `None` if it requests help.
fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut model = None;
    let mut address = SocketAddr::from(([127, 0, 0, 1], 7000));
    let mut options = Options::default();
    let mut spin = Duration::ZERO;
    while let Some(argument) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("missing value for {argument}"));
        match argument.as_str() {
            "-h" | "--help" => return Ok(None),
            "--addr" => address = parse_value(&argument, &value()?, "ADDRESS:PORT, e.g. 127.0.0.1:7000")?,
            "--spin" => spin = parse_spin(&argument, &value()?)?,
            flag if flag.starts_with('-') => {
                set_option(options.uring.get_or_insert_default(), flag, &mut value)?;
            }
            name if model.is_none() => {
                model = Some(name.parse::<Model>().map_err(|error| error.to_string())?);
            }
            extra => return Err(format!("unexpected argument {extra:?}")),
        }
    }
    let model = model.ok_or("missing model (expected uring, epoll, poll, select or threads)")?;
    if model != Model::Uring {
        options.spin = spin;
    } else if !spin.is_zero() {
        options.uring.get_or_insert_default().spin = spin;
    }
    Ok(Some(Arguments { model, address, options }))
}

/// Sets the io_uring option of `flag`.
fn set_option(
    options: &mut UringOptions,
    flag: &str,
    value: &mut dyn FnMut() -> Result<String, String>,
) -> Result<(), String> {
    match flag {
        "--configurable" => {}
        "--task-work" => options.task_work = Some(value()?.parse()?),
        "--sqpoll" => {
            options.sqpoll = Some(Duration::from_millis(
                parse_value::<u32>(flag, &value()?, "whole milliseconds, e.g. 10")?.into(),
            ))
        }
        "--sqpoll-core" => options.sqpoll_core = Some(parse_core(&value()?)?),
        "--one-shot-receive" => options.one_shot_receive = true,
        "--per-connection-buffers" => options.per_connection_buffers = true,
        "--registered-files" => options.registered_files = true,
        "--forced-async" => options.forced_async = true,
        "--linked-timeout" => options.linked_timeout = Some(parse_duration(flag, &value()?)?),
        "--bundles" => options.bundles = true,
        "--completion-per-send" => options.completion_per_send = true,
        "--zero-copy-sends" => options.zero_copy_sends = true,
        "--rings" => options.rings = parse_value(flag, &value()?, "a whole number, e.g. 2")?,
        "--shared-workers" => options.shared_workers = true,
        _ => return Err(format!("unknown flag {flag}")),
    }
    Ok(())
}

fn parse_value<T: FromStr>(flag: &str, text: &str, expected: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("invalid value {text:?} for {flag} (expected {expected})"))
}

/// Parses a duration of at most [`MAX_SPIN`].
fn parse_spin(flag: &str, text: &str) -> Result<Duration, String> {
    let spin = parse_duration(flag, text)?;
    if spin <= MAX_SPIN {
        Ok(spin)
    } else {
        Err(format!("invalid value {text:?} for {flag} (expected at most 1s, e.g. 50us)"))
    }
}

/// Parses whole microseconds, milliseconds or seconds: 50us, 250ms, 60s.
fn parse_duration(flag: &str, text: &str) -> Result<Duration, String> {
    let units = [
        ("us", Duration::from_micros as fn(u64) -> Duration),
        ("ms", Duration::from_millis),
        ("s", Duration::from_secs),
    ];
    let value = units.into_iter().find_map(|(unit, make)| {
        let number = text.strip_suffix(unit)?;
        number.parse().ok().map(make)
    });
    value.ok_or_else(|| {
        format!("invalid value {text:?} for {flag} (expected a duration, e.g. 50us, 250ms or 60s)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Option<Arguments>, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    fn arguments(line: &str) -> Arguments {
        parse_line(line).expect(line).expect("not a help request")
    }

    #[test]
    fn reads_model_and_address_in_any_order() {
        for line in ["poll --addr [::1]:9", "--addr [::1]:9 poll"] {
            let arguments = arguments(line);
            assert_eq!((arguments.model, arguments.address), (Model::Poll, "[::1]:9".parse().unwrap()));
        }
        assert!(parse_line("--help").expect("help succeeds").is_none());
    }

    #[test]
    fn uring_options_select_configurable_server() {
        assert_eq!(arguments("uring").options.uring, None);
        assert_eq!(arguments("uring --configurable").options.uring, Some(UringOptions::default()));
        assert_eq!(arguments("epoll --spin 50us").options.spin, Duration::from_micros(50));
        let uring =
            arguments("uring --spin 1ms --sqpoll 250 --sqpoll-core 1 --rings 2").options.uring.unwrap();
        let expected = UringOptions {
            spin: Duration::from_millis(1),
            sqpoll: Some(Duration::from_millis(250)),
            sqpoll_core: Some(1),
            rings: 2,
            ..UringOptions::default()
        };
        assert_eq!(uring, expected);
        for variant in anello_bare::variants() {
            let arguments = arguments(&variant.arguments.join(" "));
            arguments.options.uring.expect("variants have options").validate().expect(variant.name);
        }
    }

    #[test]
    fn rejects_unknown_arguments() {
        let lines = ["", "kqueue", "epoll --addr", "epoll --addr localhost", "epoll --fast", "epoll poll"];
        let options = [
            "uring --spin 5",
            "epoll --spin 10s",
            "uring --task-work late",
            "uring --rings",
            "uring --sqpoll 1s",
        ];
        for line in lines.into_iter().chain(options) {
            assert!(parse_line(line).is_err(), "{line:?} was accepted");
        }
    }
}

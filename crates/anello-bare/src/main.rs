//! `anello-bare MODEL [--addr ADDRESS]`: one bare echo server as a process.

#![forbid(unsafe_code)]

use std::env;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use anello_bare::{Model, Options, check, listen, run};

const USAGE: &str = "usage: anello-bare uring|epoll|poll|select|threads [--addr ADDRESS:PORT]

A TCP echo server without a runtime, on one thread (threads: one per connection).
--addr defaults to 127.0.0.1:7000. Prints one line when it listens; ends by a signal.";

fn main() -> ExitCode {
    let (model, address) = match parse(env::args().skip(1)) {
        Ok(Some(request)) => request,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("anello-bare: {reason}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(model, address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anello-bare: {model} on {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(model: Model, address: SocketAddr) -> io::Result<()> {
    check(model)?;
    let listener = listen(address)?;
    let mut output = io::stdout().lock();
    writeln!(output, "anello-bare ready model={model} addr={}", listener.local_addr()?)?;
    output.flush()?;
    run(model, listener, &Options::default())
}

/// `None`: help was asked for.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<(Model, SocketAddr)>, String> {
    let mut model = None;
    let mut address = SocketAddr::from(([127, 0, 0, 1], 7000));
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-h" | "--help" => return Ok(None),
            "--addr" => {
                let value = arguments.next().ok_or("--addr needs ADDRESS:PORT")?;
                address = value.parse().map_err(|_| format!("--addr {value:?} is not ADDRESS:PORT"))?;
            }
            flag if flag.starts_with('-') => return Err(format!("unknown flag {flag}")),
            name if model.is_none() => {
                model = Some(name.parse::<Model>().map_err(|error| error.to_string())?);
            }
            extra => return Err(format!("unexpected argument {extra:?}")),
        }
    }
    Ok(Some((model.ok_or("which model?")?, address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Option<(Model, SocketAddr)>, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn reads_model_and_address_in_any_order() {
        let expected = Ok(Some((Model::Poll, "[::1]:9".parse().unwrap())));
        assert_eq!(parse_line("poll --addr [::1]:9"), expected);
        assert_eq!(parse_line("--addr [::1]:9 poll"), expected);
        assert_eq!(parse_line("--help"), Ok(None));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for line in ["", "kqueue", "epoll --addr", "epoll --addr localhost", "epoll --fast", "epoll poll"] {
            assert!(parse_line(line).is_err(), "{line:?} was taken");
        }
    }
}

//! `anello-bare MODEL [--addr ADDRESS] [OPTION...]`: one baseline echo server as a process.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use anello_bare::{Model, Options, UringOptions, check, listen_for, run};
use clap::Parser;

/// TCP echo server without a runtime, on one thread (threads: one per connection).
///
/// Prints one line when it is listening; stops on a signal. The io_uring options apply only to uring, except --spin,
/// which also applies to epoll.
#[derive(Debug, Parser)]
#[command(name = "anello-bare")]
struct Arguments {
    model: Model,

    /// Address to listen on; with port 0, the kernel chooses the port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7000")]
    addr: SocketAddr,

    /// Run the configurable server even without other io_uring options, as the reference for measuring them.
    #[arg(long)]
    configurable: bool,

    #[command(flatten)]
    uring: UringOptions,
}

impl Arguments {
    fn options(&self) -> Options {
        let mut uring = self.uring;
        let mut options = Options::default();
        if self.model != Model::Uring {
            options.spin = std::mem::take(&mut uring.spin);
        }
        let is_configurable = self.configurable || uring != UringOptions::default();
        options.uring = is_configurable.then_some(uring);
        options
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anello-bare: {} on {}: {error}", arguments.model, arguments.addr);
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &Arguments) -> io::Result<()> {
    let (model, options) = (arguments.model, arguments.options());
    let features = check(model, &options)?;
    let listeners = listen_for(arguments.addr, &options)?;
    let address = listeners[0].local_addr()?;
    let features = features.map(|features| format!(" features={features}")).unwrap_or_default();
    println!("anello-bare ready model={model} addr={address}{features}");
    io::stdout().flush()?;
    run(model, listeners, &options)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse_line(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["anello-bare"].into_iter().chain(line.split_whitespace()))
    }

    fn options(line: &str) -> Options {
        parse_line(line).expect(line).options()
    }

    #[test]
    fn reads_model_and_address_in_any_order() {
        for line in ["poll --addr [::1]:9", "--addr [::1]:9 poll"] {
            let arguments = parse_line(line).expect(line);
            assert_eq!((arguments.model, arguments.addr), (Model::Poll, "[::1]:9".parse().unwrap()));
        }
        let help = parse_line("--help").expect_err("help is not a command");
        assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp);
    }

    #[test]
    fn uring_options_select_configurable_server() {
        assert_eq!(options("uring").uring, None);
        assert_eq!(options("uring --configurable").uring, Some(UringOptions::default()));
        assert_eq!(options("epoll --spin 50us").spin, Duration::from_micros(50));
        assert_eq!(options("epoll --spin 50us").uring, None);
        let uring = options("uring --spin 1ms --sqpoll 250 --sqpoll-core 1 --rings 2").uring.unwrap();
        let expected = UringOptions {
            spin: Duration::from_millis(1),
            sqpoll: Some(Duration::from_millis(250)),
            sqpoll_core: Some(1),
            rings: 2,
            ..UringOptions::default()
        };
        assert_eq!(uring, expected);
        for variant in anello_bare::variants() {
            let uring = options(&variant.arguments.join(" ")).uring;
            uring.expect("variants have options").validate().expect(variant.name);
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

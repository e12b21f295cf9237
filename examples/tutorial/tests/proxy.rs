//! Tests of the proxy.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A running program of this package, which is killed when it is dropped.
struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl Program {
    fn start(path: &str, driver: &str, arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(path)
            .args(arguments)
            .env("ANELLO_DRIVER", driver)
            .env("TOKEN", "secret")
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let address = line.split_whitespace().nth(2).expect("listening on ADDRESS").to_owned();
        Ok(Self { child, stdout, address })
    }

    /// Sends SIGTERM.
    fn terminate(&self) -> Result<()> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().map(drop)
    }

    fn next_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().expect("the child has not been awaited");
    }
}

#[test]
fn open_connection_ends_before_proxy_stops() -> Result<()> {
    for driver in ["auto", "epoll"] {
        let echo = Program::start(env!("CARGO_BIN_EXE_echo"), driver, &["127.0.0.1:0"])?;
        let mut proxy = Program::start(env!("CARGO_BIN_EXE_proxy"), driver, &["127.0.0.1:0", &echo.address])?;
        let mut client = TcpStream::connect(&proxy.address)?;
        client.write_all(b"before")?;
        let mut reply = [0; 6];
        client.read_exact(&mut reply)?;
        assert_eq!(&reply, b"before");

        proxy.terminate()?;
        client.write_all(b"after")?;
        client.shutdown(Shutdown::Write)?;
        let mut rest = String::new();
        client.read_to_string(&mut rest)?;
        assert_eq!(rest, "after");
        assert_eq!(proxy.next_line()?, "stopped, 0 connections aborted\n");
    }
    Ok(())
}

#[test]
fn proxy_forwards_requests_to_service() -> Result<()> {
    for driver in ["auto", "epoll"] {
        let mut service = Program::start(env!("CARGO_BIN_EXE_service"), driver, &["127.0.0.1:0"])?;
        let proxy = Program::start(env!("CARGO_BIN_EXE_proxy"), driver, &["127.0.0.1:0", &service.address])?;
        let mut client = TcpStream::connect(&proxy.address)?;
        client.write_all(b"GET /metrics HTTP/1.0\r\nAuthorization: Bearer secret\r\n\r\n")?;
        let mut response = String::new();
        client.read_to_string(&mut response)?;
        assert!(response.contains("anello_http_connections_open 1\n"), "{response}");

        service.terminate()?;
        assert_eq!(service.next_line()?, "stopped, 0 connections aborted\n");
    }
    Ok(())
}

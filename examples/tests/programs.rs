//! Starts each program and drives it with independent clients.

#![forbid(unsafe_code)]

mod common;

use std::io::{Read, Write};

use anello_test::{ANY_PORT, driver_flags, http_response, serve_http, tcp_server};
use tungstenite::Message;

use common::{Client, Program, has_tool, run};

#[test]
fn redis_executes_commands_of_redis_cli() {
    if !has_tool("redis-cli", "redis-tools") {
        return;
    }
    driver_flags().for_each(|driver| {
        let server = Program::start(env!("CARGO_BIN_EXE_redis"), driver, &[ANY_PORT]);
        let cli = |command: &str| {
            let mut arguments = vec!["-p", server.port()];
            arguments.extend(command.split(' '));
            run("redis-cli", &arguments, "").trim_end().to_owned()
        };
        for (command, reply) in [
            ("PING", "PONG"),
            ("GET city", ""),
            ("SET city Milano", "OK"),
            ("get city", "Milano"),
            ("SET city Roma NX", ""),
            ("SET city Roma XX", "OK"),
            ("GET city", "Roma"),
            ("EXISTS city other", "1"),
            ("TTL city", "-1"),
            ("EXPIRE city 100", "1"),
            ("TTL city", "100"),
            ("EXPIRE city 0", "1"),
            ("EXISTS city", "0"),
            ("TTL city", "-2"),
            ("SET short 1 EX 1000", "OK"),
            ("INCR short", "2"),
            ("INCR new", "1"),
            ("DBSIZE", "2"),
            ("DEL short new missing", "2"),
            ("SET k v EX", "ERR syntax error"),
            ("NONSENSE", "ERR unknown command or wrong number of arguments: 'NONSENSE'"),
        ] {
            assert_eq!(cli(command), reply, "{driver}: {command}");
        }
        assert!(cli("INFO").contains(&format!("io_driver:{driver}")));
        // One megabyte in one value, and commands that arrive together.
        let value = "ciao".repeat(1 << 18);
        let input = format!("SET large {value}\nGET large\n");
        assert_eq!(run("redis-cli", &["-p", server.port()], &input), format!("OK\n{value}\n"));
    });
}

#[test]
fn redis_serves_redis_benchmark_with_and_without_pipelining() {
    if !has_tool("redis-benchmark", "redis-tools") {
        return;
    }
    driver_flags().for_each(|driver| {
        let server = Program::start(env!("CARGO_BIN_EXE_redis"), driver, &[ANY_PORT]);
        for pipelined in ["1", "16"] {
            let tests = ["-t", "ping,set,get,incr", "-n", "2000", "-c", "20", "-q", "-P", pipelined];
            let arguments: Vec<&str> = ["-p", server.port()].into_iter().chain(tests).collect();
            let report = run("redis-benchmark", &arguments, "");
            for test in ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR"] {
                let line = report.split(['\r', '\n']).rfind(|line| line.starts_with(&format!("{test}: ")));
                let has_result = line.is_some_and(|line| line.contains("requests per second"));
                assert!(has_result, "{driver}: {report}");
            }
        }
    });
}

#[test]
fn redis_replies_in_order_and_closes_after_protocol_error() {
    driver_flags().for_each(|driver| {
        let server = Program::start(env!("CARGO_BIN_EXE_redis"), driver, &[ANY_PORT]);
        let mut client = server.connect();
        let requests = b"*2\r\n$4\r\nECHO\r\n$1\r\n1\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$1\r\n2\r\n*1\r\n?";
        // Each byte arrives alone.
        for byte in requests {
            client.write_all(&[*byte]).expect("send succeeds");
        }
        let mut replies = String::new();
        client.read_to_string(&mut replies).expect("EOF");
        assert_eq!(
            replies, "$1\r\n1\r\n+PONG\r\n$1\r\n2\r\n-ERR Protocol error: expected '$'\r\n",
            "{driver}"
        );
        let mut client = server.connect();
        client.write_all(b"SET a b\r\nQUIT\r\nGET a\r\n").expect("send succeeds");
        let mut replies = String::new();
        client.read_to_string(&mut replies).expect("EOF");
        assert_eq!(replies, "+OK\r\n+OK\r\n", "{driver}");
    });
}

#[test]
fn event_loop_echo_returns_bytes_of_each_client() {
    driver_flags().for_each(|driver| {
        let server = Program::start(env!("CARGO_BIN_EXE_event_loop_echo"), driver, &[ANY_PORT, driver]);
        // More than the buffers of a connection hold, so that sends wait for the client.
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (mut client, bytes) = (server.connect(), bytes.clone());
                std::thread::spawn(move || {
                    for part in bytes.chunks(50_000) {
                        client.write_all(part).expect("send succeeds");
                        let mut echo = vec![0; part.len()];
                        client.read_exact(&mut echo).expect("the bytes come back");
                        assert!(echo == part);
                    }
                    client.shut_down_write();
                    assert_eq!(client.read(&mut [0]).expect("EOF"), 0);
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("no panic"));
    });
}

#[test]
fn websocket_echo_returns_messages_of_client() {
    driver_flags().for_each(|driver| {
        let server = Program::start(env!("CARGO_BIN_EXE_websocket_echo"), driver, &[ANY_PORT]);
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let url = format!("ws://{}/", server.address);
                tungstenite::client(url, server.connect()).expect("the handshake succeeds").0
            })
            .collect();
        for (number, mut client) in clients.into_iter().enumerate() {
            let large = "ciao".repeat(200_000);
            for message in [
                Message::text(format!("client {number}")),
                Message::binary(vec![1, 2, 3]),
                Message::text(large),
            ] {
                client.send(message.clone()).expect("send succeeds");
                assert_eq!(client.read().expect("a response"), message, "{driver}");
            }
            client.send(Message::Ping(vec![7].into())).expect("send succeeds");
            assert_eq!(client.read().expect("a response"), Message::Pong(vec![7].into()), "{driver}");
            client.close(None).expect("send succeeds");
            assert!(matches!(client.read(), Ok(Message::Close(_))), "{driver}");
        }
    });
}

#[test]
fn websocket_echo_rejects_other_protocols_and_large_messages() {
    driver_flags().for_each(|driver| {
        let server = Program::start(env!("CARGO_BIN_EXE_websocket_echo"), driver, &[ANY_PORT]);
        let mut other = server.connect();
        other.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").expect("send succeeds");
        let mut response = Vec::new();
        other.read_to_end(&mut response).expect("EOF");
        assert_eq!(response, b"", "{driver}");
        let url = format!("ws://{}/", server.address);
        let (mut client, _) = tungstenite::client(url, server.connect()).expect("the handshake succeeds");
        client.send(Message::binary(vec![0; 2 << 20])).ok();
        assert!(client.read().is_err(), "{driver}");
    });
}

#[test]
fn file_transfer_returns_identical_files_and_rejects_others() {
    let program = env!("CARGO_BIN_EXE_file_transfer");
    driver_flags().for_each(|driver| {
        let folder = tempfile::tempdir().expect("a directory");
        let path = |name: &str| folder.path().join(name);
        let served = path("served");
        std::fs::create_dir(&served).expect("a directory");
        let large: Vec<u8> =
            (0..5_000_000_u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
        for (name, content) in [("large", large.as_slice()), ("empty", &[]), ("città", b"Milano")] {
            std::fs::write(served.join(name), content).expect("a file");
        }
        std::fs::write(path("secret"), "hidden").expect("a file");
        let directory = served.to_str().expect("UTF-8");
        let server = Program::start(program, driver, &["serve", ANY_PORT, directory]);
        let target = path("target");
        let get = |name: &str| {
            let target = target.to_str().expect("UTF-8");
            let mut command = std::process::Command::new(program);
            command.args(["get", &server.address, name, target]).env("ANELLO_DRIVER", driver);
            command.output().expect("the program starts").status.success()
        };
        for name in ["large", "empty", "città"] {
            assert!(get(name), "{driver}: {name}");
            let (received, expected) = (std::fs::read(&target), std::fs::read(served.join(name)));
            assert!(received.expect("a file") == expected.expect("a file"), "{driver}: {name}");
        }
        for name in ["missing", "../secret", ".", "", &"a".repeat(300)] {
            assert!(!get(name), "{driver}: {name}");
        }
        let names = std::fs::read_dir(folder.path()).expect("a directory");
        assert_eq!(names.count(), 3, "{driver}: a partial file is left");
    });
}

/// Reads from a chat client until the text appears.
fn read_until(client: &mut Client, text: &str) -> String {
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains(text) {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap_or_else(|error| {
            panic!("{error} while waiting for {text:?}: {}", String::from_utf8_lossy(&received))
        });
        received.push(byte[0]);
    }
    String::from_utf8(received).expect("UTF-8")
}

#[test]
fn chat_sends_lines_to_clients_of_all_workers() {
    driver_flags().for_each(|driver| {
        let server = Program::start(env!("CARGO_BIN_EXE_chat"), driver, &[ANY_PORT]);
        let names = ["Ada", "Bice", "Carlo", "Dora"];
        let mut clients: Vec<_> = names.iter().map(|_| server.connect()).collect();
        for (joined, name) in names.iter().enumerate() {
            read_until(&mut clients[joined], "Your name? ");
            clients[joined].write_all(format!("{name}\r\n").as_bytes()).expect("send succeeds");
            for client in &mut clients[..=joined] {
                assert_eq!(read_until(client, "joined\n"), format!("* {name} has joined\n"), "{driver}");
            }
        }
        for (speaker, name) in names.iter().enumerate() {
            clients[speaker].write_all(b"ciao\nciao a tutti\n").expect("send succeeds");
            for (listener, client) in clients.iter_mut().enumerate() {
                if listener != speaker {
                    let expected = format!("{name}: ciao\n{name}: ciao a tutti\n");
                    assert_eq!(read_until(client, "tutti\n"), expected, "{driver}");
                }
            }
        }
        drop(clients.pop());
        assert_eq!(read_until(&mut clients[0], "left\n"), "* Dora has left\n", "{driver}");
        clients[1].write_all(&[b'a'; 4096]).expect("send succeeds");
        assert_eq!(read_until(&mut clients[0], "left\n"), "* Bice has left\n", "{driver}");
    });
}

/// Starts an HTTP server and returns its address.
fn http_server() -> String {
    tcp_server(|stream| serve_http(stream, |_| http_response("200 OK", "Milano"))).to_string()
}

#[test]
fn tcp_proxy_forwards_both_directions_and_half_closes() {
    driver_flags().for_each(|driver| {
        let target = std::net::TcpListener::bind(ANY_PORT).expect("a port");
        let target_address = target.local_addr().expect("an address").to_string();
        let proxy = Program::start(env!("CARGO_BIN_EXE_tcp_proxy"), driver, &[ANY_PORT, &target_address]);
        // The target responds only once the client has shut down its write direction.
        let target = std::thread::spawn(move || {
            let (mut stream, _) = target.accept().expect("a connection");
            let mut request = Vec::new();
            stream.read_to_end(&mut request).expect("EOF");
            request.reverse();
            stream.write_all(&request).expect("send succeeds");
        });
        let mut client = proxy.connect();
        let request: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        client.write_all(&request).expect("send succeeds");
        client.shut_down_write();
        let mut response = Vec::new();
        client.read_to_end(&mut response).expect("EOF");
        target.join().expect("no panic");
        assert!(response.iter().eq(request.iter().rev()), "{driver}: {} bytes", response.len());
        if has_tool("curl", "curl") {
            let server = Program::start(env!("CARGO_BIN_EXE_tcp_proxy"), driver, &[ANY_PORT, &http_server()]);
            let url = format!("http://{}/", server.address);
            assert_eq!(run("curl", &["--silent", "--show-error", &url], ""), "Milano", "{driver}");
        }
    });
}

#[test]
fn tcp_proxy_closes_connections_to_unreachable_target() {
    driver_flags().for_each(|driver| {
        let unused = std::net::TcpListener::bind(ANY_PORT).expect("a port");
        let target = unused.local_addr().expect("an address").to_string();
        drop(unused);
        let proxy = Program::start(env!("CARGO_BIN_EXE_tcp_proxy"), driver, &[ANY_PORT, &target]);
        let mut response = Vec::new();
        proxy.connect().read_to_end(&mut response).expect("EOF");
        assert_eq!(response, b"", "{driver}");
    });
}

/// After an EOF, the client would take a part of the response for all of it.
#[test]
fn tcp_proxy_forwards_reset() {
    driver_flags().for_each(|driver| {
        let target = std::net::TcpListener::bind(ANY_PORT).expect("a port");
        let target_address = target.local_addr().expect("an address").to_string();
        let proxy = Program::start(env!("CARGO_BIN_EXE_tcp_proxy"), driver, &[ANY_PORT, &target_address]);
        let mut client = proxy.connect();
        client.write_all(b"request").expect("send succeeds");
        let (mut stream, _) = target.accept().expect("a connection");
        // Unread bytes of the request make the kernel reset the connection when it is closed.
        stream.write_all(b"part").expect("send succeeds");
        stream.peek(&mut [0]).expect("the request");
        client.read_exact(&mut [0; 4]).expect("a part of the response");
        drop(stream);
        let end = client.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset), "{driver}");
    });
}

#[test]
fn socks5_serves_curl() {
    if !has_tool("curl", "curl") {
        return;
    }
    driver_flags().for_each(|driver| {
        let proxy = Program::start(env!("CARGO_BIN_EXE_socks5"), driver, &[ANY_PORT]);
        let server = http_server();
        let port = server.rsplit_once(':').expect("a port").1;
        let curl = |option: &str, host: &str| {
            let url = format!("http://{host}:{port}/");
            run("curl", &["--silent", "--show-error", option, &proxy.address, &url], "")
        };
        assert_eq!(curl("--socks5", "127.0.0.1"), "Milano", "{driver}");
        // The proxy resolves the name.
        assert_eq!(curl("--socks5-hostname", "localhost"), "Milano", "{driver}");
    });
}

#[test]
fn socks5_rejects_other_requests() {
    driver_flags().for_each(|driver| {
        let proxy = Program::start(env!("CARGO_BIN_EXE_socks5"), driver, &[ANY_PORT]);
        let unused = std::net::TcpListener::bind(ANY_PORT).expect("a port");
        let port = unused.local_addr().expect("an address").port().to_be_bytes();
        drop(unused);
        let refused = [b"\x05\x01\x00\x05\x01\x00\x01\x7f\0\0\x01".as_slice(), &port].concat();
        let cases: [(&[u8], &[u8]); 4] = [
            (b"\x05\x01\x02", b"\x05\xff"),
            (&refused, b"\x05\0\x05\x05\0\x01\0\0\0\0\0\0"),
            (b"\x05\x01\x00\x05\x02\x00\x01\x7f\0\0\x01\0\x50", b"\x05\0\x05\x07\0\x01\0\0\0\0\0\0"),
            (b"\x05\x02\x02\x00\x05\x01\x00\x09", b"\x05\0\x05\x08\0\x01\0\0\0\0\0\0"),
        ];
        for (request, expected) in cases {
            let mut client = proxy.connect();
            client.write_all(request).expect("send succeeds");
            let mut response = Vec::new();
            client.read_to_end(&mut response).expect("EOF");
            assert_eq!(response, expected, "{driver}: {request:?}");
        }
    });
}

#[test]
fn dns_answers_queries_of_dig() {
    if !has_tool("dig", "dnsutils") {
        return;
    }
    driver_flags().for_each(|driver| {
        let records =
            ["www.test=192.0.2.1", "www.test=192.0.2.2", "www.test=2001:db8::1", "Mail.Test.=192.0.2.3"];
        let arguments: Vec<&str> = [ANY_PORT].into_iter().chain(records).collect();
        let server = Program::start(env!("CARGO_BIN_EXE_dns"), driver, &arguments);
        let dig = |arguments: &str| {
            let server = ["@127.0.0.1", "-p", server.port(), "+tries=10"];
            run("dig", &server.into_iter().chain(arguments.split(' ')).collect::<Vec<_>>(), "")
        };
        assert_eq!(dig("+short www.test A"), "192.0.2.1\n192.0.2.2\n", "{driver}");
        assert_eq!(dig("+short WWW.Test AAAA"), "2001:db8::1\n", "{driver}");
        assert_eq!(dig("+short mail.test"), "192.0.2.3\n", "{driver}");
        assert_eq!(dig("+short mail.test AAAA"), "", "{driver}");
        assert!(dig("other.test").contains("status: NXDOMAIN"), "{driver}");
        assert!(dig("+opcode=STATUS www.test").contains("status: NOTIMP"), "{driver}");
        // A packet that is not a query has no effect on the others.
        let socket = std::net::UdpSocket::bind(ANY_PORT).expect("a port");
        for packet in [&b""[..], b"short", &[0xff; 600]] {
            socket.send_to(packet, &server.address).expect("send succeeds");
        }
        assert_eq!(dig("+short mail.test A"), "192.0.2.3\n", "{driver}");
    });
}

//! Runs each program, on each driver and on tokio, against a server or client that is independent of this workspace.

mod common;
mod databases;
mod http;
mod messages;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use common::*;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;

#[test]
fn tls_exchanges_lines_with_openssl() {
    if !ensure("openssl", "openssl") {
        return;
    }
    let files = Certificate::new();
    // More than the buffers of any layer.
    let input: String = (0..50_000).map(|number| format!("line {number}\n")).collect();
    let reversed: String =
        input.lines().map(|line| format!("{}\n", line.chars().rev().collect::<String>())).collect();
    on_each_platform(|platform| {
        let (_server, port) = serve("tls", platform, &[&files.certificate, &files.key]);
        for version in ["-tls1_2", "-tls1_3"] {
            let mut client = Command::new("openssl");
            client.args([
                "s_client",
                "-quiet",
                "-no_ign_eof",
                version,
                "-verify_return_error",
                "-verify_hostname",
            ]);
            client.args([
                "localhost",
                "-CAfile",
                &files.certificate,
                "-connect",
                &format!("127.0.0.1:{port}"),
            ]);
            assert_eq!(
                openssl_lines(&mut client, "ciao\nmondo\n", 2),
                "CIAO\nMONDO\n",
                "{platform:?} {version}"
            );
        }
        let mut client =
            program("tls", platform, &["client", &format!("127.0.0.1:{port}"), &files.certificate]);
        assert_eq!(output(&mut client, input.as_bytes()), input.to_uppercase(), "{platform:?}");

        let port = free_port();
        let mut server = Command::new("openssl");
        server.args(["s_server", "-quiet", "-rev", "-accept", &format!("127.0.0.1:{port}")]);
        server.args(["-cert", &files.certificate, "-key", &files.key]).stderr(Stdio::null());
        let mut server = Process::start(&mut server);
        server.wait_for_port(port);
        let mut client =
            program("tls", platform, &["client", &format!("127.0.0.1:{port}"), &files.certificate]);
        assert_eq!(output(&mut client, input.as_bytes()), reversed, "{platform:?}");
    });
}

/// Sends text to a command that exits at the end of its input, and returns that many lines of its output.
fn openssl_lines(client: &mut Command, text: &str, lines: usize) -> String {
    let mut child =
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("openssl");
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    stdin.write_all(text.as_bytes()).expect("openssl reads");
    let reader = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
    let reply = reader.lines().take(lines).map(|line| line.expect("text") + "\n").collect();
    drop(stdin);
    assert!(child.wait().expect("openssl exits").success());
    reply
}

#[test]
fn telemetry_arrives_at_collector() {
    on_each_platform(|platform| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let collector = std::thread::spawn(move || {
            let (mut spans, mut counts) = (Vec::new(), Vec::new());
            while spans.len() < 4 || counts.is_empty() {
                let (mut stream, _) = listener.accept().expect("a connection");
                let (path, body) = read_request(&mut stream);
                let reply = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                stream.write_all(reply.as_bytes()).expect("the client reads");
                match path.as_str() {
                    "/v1/traces" => {
                        let request = ExportTraceServiceRequest::decode(&body[..]).expect("a valid message");
                        let scopes =
                            request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
                        spans.extend(scopes.flat_map(|scope| scope.spans));
                    }
                    "/v1/metrics" => {
                        let request =
                            ExportMetricsServiceRequest::decode(&body[..]).expect("a valid message");
                        let scopes =
                            request.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
                        counts.extend(scopes.flat_map(|scope| scope.metrics));
                    }
                    _ => panic!("unexpected path {path}"),
                }
            }
            (spans, counts)
        });
        assert_eq!(run("telemetry", platform, &[&url]), "exported\n", "{platform:?}");
        let (spans, counts) = collector.join().expect("the collector has received everything");
        let request = spans.iter().find(|span| span.name == "request").expect("the outer span");
        let mut names: Vec<&str> = spans
            .iter()
            .filter(|span| span.parent_span_id == request.span_id && span.trace_id == request.trace_id)
            .map(|span| span.name.as_str())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["query 0", "query 1", "query 2"], "{platform:?}");
        assert!(format!("{:?}", counts[0]).contains("AsInt(3)"), "{platform:?}: {counts:?}");
    });
}

#[test]
fn grpc_calls_and_serves_grpcio() {
    let Some(python) = python() else { return };
    on_each_platform(|platform| {
        let own_calls = "ciao, Ada\nInvalidArgument the name is empty\n1000 greetings\nErr(DeadlineExceeded)\n\
            cancelled true\nciao, Bob\n";
        let expected = "ciao, Ada\nINVALID_ARGUMENT the name is empty\n1000 greetings\nDEADLINE_EXCEEDED\n\
            cancelled True\nciao, Bob\n";
        // At the deadline, the transport of tonic and the server of grpcio cancel the call. The client may see this
        // before its own time limit has passed.
        let at_deadline = |text: String| {
            text.replace("(Cancelled)", "(DeadlineExceeded)").replace("\nCANCELLED", "\nDEADLINE_EXCEEDED")
        };
        let exact = |text: String| if platform == Platform::Tokio { at_deadline(text) } else { text };

        let (mut server, port) = serve("grpc", platform, &[]);
        let calls = output(&mut peer(python, "grpc_peer.py", &["client", &port.to_string()]), b"");
        assert_eq!(exact(calls), expected, "{platform:?}");
        assert_eq!([server.line(), server.line()], ["cancelled", "cancelled"], "{platform:?}");
        let address = format!("127.0.0.1:{port}");
        assert_eq!(exact(run("grpc", platform, &["client", &address])), own_calls, "{platform:?}");

        let mut server = Process::start(&mut peer(python, "grpc_peer.py", &["server"]));
        let address = format!("127.0.0.1:{}", server.line());
        assert_eq!(at_deadline(run("grpc", platform, &["client", &address])), own_calls, "{platform:?}");
        assert_eq!([server.line(), server.line()], ["cancelled", "cancelled"], "{platform:?}");
    });
}

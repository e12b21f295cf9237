//! TLS loads against servers with known behaviour, correct and faulty, on every driver. The servers use rustls on
//! blocking sockets.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use crate::common::tls::{
    CONNECTIONS, TIMEOUT, assert_connections_fail, end, handshakes, head, identity, identity_with, load,
    request, respond, serve, serve_with_identity, tls_server,
};
use crate::common::{drivers, reports};
use anello_load::check::http::{Page, Server, complete_bytes, many_connections, stalled_reader};
use anello_load::tls::{HandshakeSummary, Trust, cipher_suite_names};
use anello_load::{ErrorKind, LoadConfig, Tls, TlsOptions, run};
use anello_test::tcp_server;
use rcgen::{BasicConstraints, CertificateParams, IsCa, date_time_ymd};
use rustls::crypto::ring;
use rustls::version::TLS12;
use rustls::{ServerConfig, ServerConnection};

#[test]
fn verifies_responses_of_all_sizes_with_and_without_keep_alive() {
    let identity = identity();
    let bodies: [Vec<u8>; 3] = [13, 40_000, 3_000_001].map(|bytes| (0..bytes).map(|i| i as u8).collect());
    let expected = bodies.clone();
    let address = tls_server(identity.server_config(), move |client| {
        while let Some((path, closes)) = request(client)? {
            respond(client, &bodies[path[1..].parse::<usize>().unwrap()])?;
            if closes {
                return end(client);
            }
        }
        Ok(())
    });
    for (keep_alive, index) in [(true, 0), (true, 1), (true, 2), (false, 0), (false, 1)] {
        let load = load(address, identity.trusting_options(), |http| {
            http.keep_alive = keep_alive;
            http.paths = vec![format!("/{index}")];
            http.expected_body = Some(expected[index].clone().into());
        });
        for report in reports(&load) {
            assert!(report.is_success() && report.connections_open_at_end == CONNECTIONS, "{report:?}");
            let tls = report.tls.clone().unwrap();
            assert!(tls.certificates_verified && tls.server_name == "localhost");
            let [kind] = &tls.handshakes[..] else { panic!("{tls:?}") };
            assert_eq!((kind.version.as_str(), kind.resumed), ("TLS 1.3", false));
            let expected_handshakes = if keep_alive { CONNECTIONS as u64 } else { report.requests };
            assert_eq!(kind.count, expected_handshakes, "{report:?}");
            let body_bytes = expected[index].len() as u64 * report.requests;
            assert!(
                report.received_bytes > body_bytes
                    && report.received_bytes < body_bytes + 100 * report.requests
            );
        }
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let identity = identity();
    let address = tls_server(identity.server_config(), |client| serve(client, b"hello"));
    let load = load(address, identity.trusting_options(), |http| {
        http.pipeline_depth = 16;
        http.expected_body = Some(b"hello"[..].into());
    });
    for report in reports(&load) {
        assert!(report.is_success() && report.requests >= 16 * CONNECTIONS as u64, "{report:?}");
    }
}

#[test]
fn configured_cipher_suite_is_negotiated() {
    let new = |name: &str| {
        let options =
            TlsOptions { cipher: Some(name.to_owned()), trust: Trust::AcceptAny, ..TlsOptions::default() };
        Tls::new("localhost", options)
    };
    assert!(new("RC4").unwrap_err().to_string().contains("TLS13_AES_256_GCM_SHA384"));
    assert!(cipher_suite_names().any(|name| name == "TLS13_AES_128_GCM_SHA256"));
    let identity = identity();
    let address = tls_server(identity.server_config(), |client| serve(client, b"hello"));
    let iana = ["tls_aes_128_gcm_sha256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"];
    for name in cipher_suite_names().chain(iana) {
        let options = TlsOptions { cipher: Some(name.to_owned()), ..identity.trusting_options() };
        let load = load(address, options, |_| {});
        if name.contains("_RSA_") {
            assert_connections_fail(&load, ErrorKind::Tls, "offer another suite or all suites");
            continue;
        }
        for report in reports(&load) {
            assert!(report.is_success(), "{report:?}");
            let [kind] = handshakes(&report) else { panic!("{report:?}") };
            let name = if name == iana[0] { "TLS13_AES_128_GCM_SHA256" } else { name };
            let version = if name.starts_with("TLS13") { "TLS 1.3" } else { "TLS 1.2" };
            let negotiated =
                (kind.version.as_str(), kind.cipher_suite.as_str(), kind.key_exchange.as_deref());
            assert_eq!(negotiated, (version, name, Some("X25519")), "{report:?}");
        }
    }
}

#[test]
fn invalid_certificate_is_rejected_with_remedy_unless_any_is_accepted() {
    let right = identity();
    let other_name = identity_with(|parameters| {
        *parameters = CertificateParams::new(["example.org".to_owned()]).unwrap();
    });
    let expired = identity_with(|parameters| {
        parameters.not_before = date_time_ymd(2000, 1, 1);
        parameters.not_after = date_time_ymd(2001, 1, 1);
    });
    for (identity, trusted, expected_text) in [
        (&right, &other_name, "not signed by a trusted CA (specify its CA file, or disable verification)"),
        (&other_name, &other_name, "use a name that the certificate is valid for"),
        (&expired, &expired, "renew the certificate"),
    ] {
        let address = tls_server(identity.server_config(), |client| serve(client, b"hello"));
        assert_connections_fail(
            &load(address, trusted.trusting_options(), |_| {}),
            ErrorKind::Tls,
            expected_text,
        );
        let other = TlsOptions { trust: Trust::Certificate(right.file()), ..TlsOptions::default() };
        let own = TlsOptions { trust: Trust::Certificate(identity.file()), ..TlsOptions::default() };
        let is_right = identity.certificate == right.certificate;
        if !is_right {
            let expected_text = "the server certificate is not the expected one";
            assert_connections_fail(&load(address, other, |_| {}), ErrorKind::Tls, expected_text);
        }
        let anything = TlsOptions { trust: Trust::AcceptAny, ..TlsOptions::default() };
        for (options, verified) in [(own, true), (anything, false)] {
            for report in reports(&load(address, options, |_| {})) {
                assert!(report.is_success(), "{report:?}");
                assert_eq!(report.tls.unwrap().certificates_verified, verified);
            }
        }
    }
}

#[test]
fn listed_ca_certificate_is_accepted_as_end_entity() {
    let authority = |parameters: &mut CertificateParams| {
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    };
    let right = identity_with(authority);
    for report in reports(&load(serve_with_identity(&right), right.trusting_options(), |_| {})) {
        assert!(report.is_success() && report.tls.unwrap().certificates_verified);
    }
    // The other checks still apply: the certificate must be listed, match the server name, and be currently valid.
    let other_name = identity_with(|parameters| {
        *parameters = CertificateParams::new(["example.org".to_owned()]).unwrap();
        authority(parameters);
    });
    let expired = identity_with(|parameters| {
        authority(parameters);
        parameters.not_before = date_time_ymd(2000, 1, 1);
        parameters.not_after = date_time_ymd(2001, 1, 1);
    });
    let not_yet_valid = identity_with(|parameters| {
        authority(parameters);
        parameters.not_before = date_time_ymd(4000, 1, 1);
        parameters.not_after = date_time_ymd(4001, 1, 1);
    });
    for (shown, trusted, expected_text) in [
        (&right, &other_name, "trust this certificate itself"),
        (&right, &identity(), "trust this certificate itself"),
        (&other_name, &other_name, "use a name that the certificate is valid for"),
        (&expired, &expired, "renew the certificate"),
        (&not_yet_valid, &not_yet_valid, "correct the clock"),
    ] {
        assert_connections_fail(
            &load(serve_with_identity(shown), trusted.trusting_options(), |_| {}),
            ErrorKind::Tls,
            expected_text,
        );
    }
    // A server that presents the certificate without having its key is rejected.
    let mut impostor = identity();
    impostor.certificate = right.certificate.clone();
    let config = impostor.mismatched_key_config();
    let address = tls_server(config, |client| serve(client, b"hello"));
    assert_connections_fail(
        &load(address, right.trusting_options(), |_| {}),
        ErrorKind::Tls,
        "not signed by a trusted CA",
    );
}

#[test]
fn connections_closed_together_resume_their_sessions() {
    const CONNECTION_COUNT: usize = 50;
    let identity = identity();
    for driver in drivers() {
        // Each of the first connections is closed after one response. The responses are sent once a request has arrived
        // on all of these connections.
        let (accepted, barrier) = (AtomicU64::new(0), Barrier::new(CONNECTION_COUNT));
        let address = tls_server(identity.server_config(), move |client| {
            if accepted.fetch_add(1, Ordering::SeqCst) >= CONNECTION_COUNT as u64 {
                return serve(client, b"hello");
            }
            request(client)?;
            barrier.wait();
            let fields = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n";
            client.write_all(format!("{fields}hello").as_bytes())?;
            end(client)
        });
        let options = TlsOptions { session_resumption: true, ..identity.trusting_options() };
        let load = LoadConfig {
            connections: CONNECTION_COUNT,
            duration: Duration::from_millis(300),
            ..load(address, options, |_| {})
        };
        let report = run(&load, &driver, |_| ControlFlow::Continue(())).unwrap().report;
        assert!(report.is_success(), "{report:?}");
        let full =
            handshakes(&report).iter().filter(|kind| !kind.resumed).map(|kind| kind.count).sum::<u64>();
        assert_eq!(
            full,
            CONNECTION_COUNT as u64,
            "full handshakes, one per initial connection: {:?}",
            handshakes(&report)
        );
    }
}

#[test]
fn sessions_are_resumed_only_if_enabled() {
    let identity = identity();
    let resumed = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&resumed);
    let address = tls_server(identity.server_config(), move |client| {
        let result = serve(client, b"hello");
        let is_resumed = client.conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        counter.fetch_add(u64::from(is_resumed), Ordering::SeqCst);
        result
    });
    for resume in [false, true] {
        let options = TlsOptions { session_resumption: resume, ..identity.trusting_options() };
        let load = LoadConfig {
            connections: 1,
            duration: Duration::from_millis(60),
            ..load(address, options, |http| http.keep_alive = false)
        };
        for report in reports(&load) {
            assert!(report.is_success(), "{report:?}");
            let kinds = handshakes(&report);
            let count = |resumed| {
                kinds.iter().filter(|kind| kind.resumed == resumed).map(|kind| kind.count).sum::<u64>()
            };
            assert_eq!(count(true) + count(false), report.requests, "{report:?}");
            if !resume {
                assert_eq!((count(true), resumed.load(Ordering::SeqCst)), (0, 0), "{report:?}");
            } else if report.requests > 1 {
                assert!(count(true) > 0, "{report:?}");
            }
        }
    }
}

#[test]
fn wrong_bytes_are_reported_without_closing_connection() {
    let identity = identity();
    let wrong = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&wrong);
    let address = tls_server(identity.server_config(), move |client| {
        for number in 0.. {
            if request(client)?.is_none() {
                break;
            }
            let body = if number % 4 == 3 { "hallo" } else { "hello" };
            counter.fetch_add(u64::from(body == "hallo"), Ordering::SeqCst);
            respond(client, body.as_bytes())?;
        }
        Ok(())
    });
    let load =
        load(address, identity.trusting_options(), |http| http.expected_body = Some(b"hello"[..].into()));
    for report in reports(&load) {
        let wrong = wrong.swap(0, Ordering::SeqCst);
        assert_eq!((report.errors.count(ErrorKind::WrongBytes), report.errors.total()), (wrong, wrong));
        assert_eq!(report.connections_open_at_end, CONNECTIONS, "{report:?}");
    }
}

#[test]
fn fault_44_close_during_handshake_is_reported() {
    let identity = identity();
    // Servers that close without reading, after reading the ClientHello, and in the middle of their first flight.
    let immediately = tcp_server(|_| Ok(()));
    let after_hello = tcp_server(|mut stream| stream.read(&mut [0; 4096]).map(drop));
    let config = Arc::new(identity.server_config());
    let mid_flight = tcp_server(move |mut stream| {
        let mut session = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
        while !session.wants_write() {
            session.read_tls(&mut stream)?;
            session.process_new_packets().map_err(io::Error::other)?;
        }
        let mut flight = Vec::new();
        session.write_tls(&mut flight)?;
        stream.write_all(&flight[..flight.len() / 2])
    });
    for address in [immediately, after_hello, mid_flight] {
        for report in reports(&load(address, identity.trusting_options(), |_| {})) {
            let closed = report.errors.iter().find(|error| error.kind == ErrorKind::Tls);
            // If the client was still sending, the close can arrive as a reset.
            let reset = report.errors.count(ErrorKind::Reset);
            if let Some(closed) = closed {
                assert!(
                    closed.example.contains("during the handshake (check that this is a TLS port)"),
                    "{closed:?}"
                );
            }
            let closed = closed.map_or(0, |closed| closed.count);
            assert_eq!((closed + reset, report.errors.total()), (3, 3), "{report:?}");
            assert_eq!((report.requests, handshakes(&report)), (0, &[][..]));
        }
    }
}

#[test]
fn fault_44_non_tls_response_is_reported() {
    let identity = identity();
    let address = tcp_server(|mut stream| {
        stream.read_exact(&mut [0; 5])?;
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?;
        // Read until the client closes, so that no reset overtakes the response.
        io::copy(&mut stream, &mut io::sink()).map(drop)
    });
    assert_connections_fail(
        &load(address, identity.trusting_options(), |_| {}),
        ErrorKind::Tls,
        "use http://",
    );
}

#[test]
fn server_without_common_protocol_or_version_is_reported() {
    let identity = identity();
    let mut other_protocol = identity.server_config();
    other_protocol.alpn_protocols = vec![b"h2".to_vec()];
    let address = tls_server(other_protocol, |client| serve(client, b"hello"));
    assert_connections_fail(
        &load(address, identity.trusting_options(), |_| {}),
        ErrorKind::Tls,
        "does not support HTTP/1.1",
    );
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&TLS12]).unwrap().with_no_client_auth();
    let old = builder.with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key()).unwrap();
    let address = tls_server(old, |client| serve(client, b"hello"));
    let cipher = Some("TLS13_AES_128_GCM_SHA256".to_owned());
    let options = TlsOptions { cipher, ..identity.trusting_options() };
    assert_connections_fail(
        &load(address, options, |_| {}),
        ErrorKind::Tls,
        "version or cipher suite in common",
    );
    for report in reports(&load(address, identity.trusting_options(), |_| {})) {
        assert!(report.is_success() && handshakes(&report)[0].version == "TLS 1.2", "{report:?}");
    }
}

#[test]
fn fault_44_eof_ends_response_only_after_close_notify() {
    let identity = identity();
    let server_with = |bytes: &'static [u8], sends_close_notify: bool| {
        tls_server(identity.server_config(), move |client| {
            if request(client)?.is_some() {
                client.write_all(bytes)?;
            }
            if sends_close_notify { end(client) } else { client.flush() }
        })
    };
    let until_eof = b"HTTP/1.1 200 OK\r\n\r\nhello";
    let load_of = |address| {
        load(address, identity.trusting_options(), |http| http.expected_body = Some(b"hello"[..].into()))
    };
    for report in reports(&load_of(server_with(until_eof, true))) {
        assert!(report.is_success() && report.connections_open_at_end == CONNECTIONS, "{report:?}");
    }
    let truncated = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel";
    for (bytes, sends_close_notify, expected_text) in [
        (&until_eof[..], false, "without a TLS close_notify"),
        (truncated, false, "without a TLS close_notify"),
        (truncated, true, "closed the connection after part of a response"),
    ] {
        assert_connections_fail(
            &load_of(server_with(bytes, sends_close_notify)),
            ErrorKind::TruncatedReply,
            expected_text,
        );
    }
    // A response with a Content-Length is complete with or without a close_notify.
    let complete = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    for sends_close_notify in [false, true] {
        for report in reports(&load_of(server_with(complete, sends_close_notify))) {
            assert!(report.is_success() && report.connections_open_at_end == CONNECTIONS, "{report:?}");
        }
    }
}

#[test]
fn fault_44_corrupt_ciphertext_closes_connection() {
    let identity = identity();
    let address = tls_server(identity.server_config(), |client| {
        request(client)?;
        // An application data record that cannot be decrypted with any key.
        client.sock.write_all(&[23, 3, 3, 0, 32])?;
        client.sock.write_all(&[7; 32])?;
        io::copy(&mut client.sock, &mut io::sink()).map(drop)
    });
    assert_connections_fail(&load(address, identity.trusting_options(), |_| {}), ErrorKind::Tls, "TLS: ");
}

#[test]
fn client_sends_close_notify() {
    let identity = identity();
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let address = tls_server(identity.server_config(), move |client| {
        while let Some((_, closes)) = request(client).unwrap_or(None) {
            if !closes {
                respond(client, b"hello")?;
            } else {
                // Wait for the close_notify of the client before closing the socket.
                let fields = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n";
                client.write_all(format!("{fields}hello").as_bytes())?;
                client.conn.send_close_notify();
                client.flush()?;
                break;
            }
        }
        // Fails if the client closes without a close_notify.
        let rest = client.read(&mut [0; 64]);
        sender.lock().unwrap().send(rest.map_err(|error| error.to_string())).unwrap();
        client.sock.shutdown(Shutdown::Both)
    });
    for keep_alive in [true, false] {
        for report in
            reports(&load(address, identity.trusting_options(), |http| http.keep_alive = keep_alive))
        {
            assert!(report.is_success(), "{report:?}");
            let connections = if keep_alive { CONNECTIONS as u64 } else { report.requests };
            for _ in 0..connections {
                assert_eq!(receiver.recv_timeout(TIMEOUT), Ok(Ok(0)));
            }
        }
    }
}

#[test]
fn server_checks_work_with_tls() {
    let identity = identity();
    let large: Vec<u8> = (0..10 << 20).map(|i: u32| (i % 251) as u8).collect();
    let bodies = [b"hello".to_vec(), large];
    let pages = ["/small", "/large"].map(str::to_owned);
    let [small, large] = [0, 1].map(|index: usize| Page {
        path: pages[index].clone(),
        body: bodies[index].clone().into(),
        answers_head: true,
    });
    let served = [small.clone(), large.clone()];
    let server_with = |corrupts: bool| {
        let served = served.clone();
        tls_server(identity.server_config(), move |client| {
            while let Some(head) = head(client)? {
                let page = served.iter().find(|page| head.contains(&page.path)).unwrap();
                let mut body = page.body.to_vec();
                body[3] ^= u8::from(corrupts);
                let fields = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                client.write_all(fields.as_bytes())?;
                if head.starts_with("GET") {
                    client.write_all(&body)?;
                }
            }
            Ok(())
        })
    };
    let tls = Some(Tls::new("localhost", identity.trusting_options()).unwrap());
    let tls_target = |address| Server { address, tls: tls.clone() };
    anello::Runtime::new().unwrap().block_on(async {
        let correct = tls_target(server_with(false));
        let pages = [small.clone(), large.clone()];
        complete_bytes(correct.clone(), &pages, TIMEOUT).await.unwrap();
        stalled_reader(correct.clone(), &large, &small, TIMEOUT).await.unwrap();
        many_connections(correct, 40, &small, TIMEOUT).await.unwrap();
        let faulty = tls_target(server_with(true));
        let error = complete_bytes(faulty.clone(), &pages, TIMEOUT).await.unwrap_err();
        assert_eq!(error, "GET /small: byte 3 of 5 is wrong");
        let error = many_connections(faulty, 5, &small, TIMEOUT).await.unwrap_err();
        assert!(error.starts_with("0 of 5 connections received a correct reply: 5 × wrong bytes"), "{error}");
        // Plain HTTP requests to a TLS server.
        assert!(complete_bytes(server_with(false), &pages, TIMEOUT).await.is_err());
    });
}

#[test]
fn error_names_invalid_input() {
    let error = |name: &str, options: TlsOptions| Tls::new(name, options).unwrap_err().to_string();
    let trusting = |trust| TlsOptions { trust, ..TlsOptions::default() };
    assert!(error("a b", trusting(Trust::AcceptAny)).contains("\"a b\""));
    let absent = PathBuf::from("/no/such/file");
    assert!(error("a", trusting(Trust::CaFile(absent.clone()))).contains("/no/such/file: "));
    assert!(error("a", trusting(Trust::Certificate(absent))).contains("/no/such/file: "));
    let empty = tempfile::NamedTempFile::new().unwrap();
    let no_certificates = error("a", trusting(Trust::CaFile(empty.path().to_owned())));
    assert!(no_certificates.contains("cannot load PEM certificates from"), "{no_certificates}");
    assert!(no_certificates.ends_with(": file contains no certificates"), "{no_certificates}");
    let cipher = Some("x".to_owned());
    assert!(error("a", TlsOptions { cipher, ..trusting(Trust::AcceptAny) }).contains("\"x\""));
}

#[test]
fn handshakes_are_counted_by_outcome() {
    let full = HandshakeSummary {
        version: "TLS 1.3".to_owned(),
        cipher_suite: "TLS13_AES_128_GCM_SHA256".to_owned(),
        key_exchange: Some("X25519".to_owned()),
        resumed: false,
        count: 1,
    };
    let resumed = HandshakeSummary { resumed: true, ..full.clone() };
    let older = HandshakeSummary { version: "TLS 1.2".to_owned(), key_exchange: None, ..full.clone() };
    let mut all = Vec::new();
    for summary in [&full, &resumed, &full, &HandshakeSummary { count: 5, ..resumed.clone() }, &older] {
        HandshakeSummary::add(&mut all, summary.clone());
    }
    let described: Vec<_> = all.iter().map(|summary| (summary.in_words(), summary.count)).collect();
    let words = "TLS 1.3, TLS13_AES_128_GCM_SHA256, X25519";
    let older_words = "TLS 1.2, TLS13_AES_128_GCM_SHA256";
    let expected = [(words.to_owned(), 2), (format!("{words}, resumed"), 6), (older_words.to_owned(), 1)];
    assert_eq!(described, expected);
}

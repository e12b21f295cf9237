//! What must be refused, over whole servers: the rows of the list of faults whose bytes `h1_support/cases.rs` has. The
//! decoder alone is asked in `h1_faults.rs` and `h1_splits.rs`; here the answers are those that a client sees, on every
//! driver and on the simulated kernels, however the bytes are cut.
//!
//! `ANELLO_SEEDS` says how many simulated kernels with faults (8 by default); `ANELLO_SEED` runs one alone, as a failure
//! tells.

#![forbid(unsafe_code)]

mod common;
mod h1_support;

use std::net::SocketAddr;
use std::time::Duration;

use anello::net::TcpStream;
use anello::time::sleep;
use anello::{DriverKind, SimFaults, SimModel, SimOptions, spawn};
use anello_http::{Request, RequestBodyError, Response, ServerOptions};

use common::{drivers, for_each_driver, serve};
use h1_support::cases::{self, CONNECTIONS, RejectedCase};
use h1_support::whole;

/// Longer ones are cut at some places only, everywhere.
const SHORT_BYTES: usize = 200;

/// Answers with what it was asked, in the words of [`h1_support::Outcome::lines`].
async fn mirror(mut request: Request) -> Response {
    let line = format!("{} {} ", request.method_text(), request.target());
    match request.body().collect().await {
        Ok(body) => Response::text(line + &body.escape_ascii().to_string()),
        Err(RequestBodyError::Rejected(refusal)) => Response::new(refusal.status),
        Err(_) => Response::new(400),
    }
}

/// What a client does when it has sent all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterSend {
    /// Nothing: whoever ends the connection, it is the server.
    Wait,
    HalfClose,
}

/// All that is answered to these pieces. Each is sent some time after the one before, so that they mostly come one by one.
async fn send_pieces(address: SocketAddr, pieces: Vec<Vec<u8>>, then: AfterSend) -> Vec<u8> {
    let (mut reader, mut writer) = TcpStream::connect(address).await.expect("connects").into_split();
    let sending = spawn(async move {
        for (number, piece) in pieces.iter().enumerate() {
            if number > 0 {
                sleep(Duration::from_micros(200)).await;
            }
            if writer.write_all(piece).await.is_err() {
                // The server has ended the connection, which is for others to judge.
                return writer;
            }
        }
        if then == AfterSend::HalfClose {
            writer.shutdown().await.ok();
        }
        writer
    });
    let mut received = Vec::new();
    while let Ok(Some(chunk)) = reader.recv().await {
        received.extend_from_slice(&chunk);
    }
    drop(sending.await.expect("sends"));
    received
}

/// An answer as it was received.
#[derive(Debug)]
struct ClientResponse {
    status: u16,
    /// It says that it is the last one.
    closes: bool,
    body: String,
}

/// Takes the next answer off, if there is one. Those that ask for a body are left out: they depend on whether it has come.
fn next_response(bytes: &mut &[u8], method: &str) -> Option<ClientResponse> {
    while let Some(rest) = bytes.strip_prefix(anello_http::h1::CONTINUE) {
        *bytes = rest;
    }
    let shown = bytes.escape_ascii();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let (head, rest) = bytes.split_at(end);
    let head = str::from_utf8(head).expect("a head of text");
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|head| head.get(..3)?.parse().ok());
    let status: u16 = status.unwrap_or_else(|| panic!("no answer: {shown}"));
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length = match length.map(|length| length.parse().expect("a length")) {
        _ if method == "HEAD" => 0,
        Some(length) => length,
        // What follows is another protocol's.
        None => rest.len(),
    };
    assert!(rest.len() >= length, "cut: {shown}");
    let (body, rest) = rest.split_at(length);
    *bytes = rest;
    let closes = head.contains("\r\nConnection: close\r\n");
    Some(ClientResponse { status, closes, body: String::from_utf8_lossy(body).into_owned() })
}

/// Cut at this place.
fn split_at_offset(text: &[u8], split_offset: usize) -> Vec<Vec<u8>> {
    let (first, second) = text.split_at(split_offset);
    [first, second].into_iter().filter(|piece| !piece.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Where a text is cut, the first of which leaves it whole: short ones everywhere, where that takes no time, else in some
/// places and before the last byte.
fn split_offsets(length: usize, kind: &DriverKind) -> Vec<usize> {
    let is_everywhere = matches!(kind, DriverKind::Sim(_)) && length <= SHORT_BYTES;
    let step = if is_everywhere { 1 } else { length.div_ceil(4) };
    (0..length).step_by(step).chain([length - 1]).collect()
}

/// Each is answered by its status, and the server ends the connection, which it says.
fn assert_rejected_on_each_driver(cases: Vec<RejectedCase>) {
    for_each_driver(drivers(), move |kind| {
        let cases = cases.clone();
        async move {
            let (_server, address) = serve(ServerOptions::default(), mirror);
            for (text, status) in &cases {
                for split_offset in split_offsets(text.len(), &kind) {
                    let received =
                        send_pieces(address, split_at_offset(text, split_offset), AfterSend::Wait).await;
                    assert_rejected(text, &received, *status, split_offset);
                }
            }
        }
    });
}

fn assert_rejected(text: &[u8], received: &[u8], status: u16, split_offset: usize) {
    let shown = format!("{} cut at {split_offset}: {}", truncated(text), received.escape_ascii());
    let mut rest = received;
    let response = next_response(&mut rest, "").unwrap_or_else(|| panic!("no answer: {shown}"));
    assert_eq!((response.status, response.closes), (status, true), "{shown}");
    assert!(rest.is_empty(), "more than one answer: {shown}");
}

fn truncated(text: &[u8]) -> String {
    text[..text.len().min(SHORT_BYTES)].escape_ascii().to_string()
}

#[test]
fn fault_25_what_is_too_long_or_too_many_is_refused() {
    assert_rejected_on_each_driver(cases::too_long_or_too_many());
}

#[test]
fn fault_26_what_is_framed_twice_is_refused() {
    assert_rejected_on_each_driver(cases::conflicting_framing());
}

#[test]
fn fault_27_lengths_that_are_none_or_two_are_refused() {
    assert_rejected_on_each_driver(cases::bad_lengths());
}

#[test]
fn fault_28_chunks_that_are_not_exact_are_refused() {
    assert_rejected_on_each_driver(cases::bad_chunks());
}

/// The handler answers without a look at the body: what is wrong with it must not be taken for the next request.
#[test]
fn fault_28_malformed_bodies_that_nobody_reads_end_the_connection() {
    for_each_driver(drivers(), async |kind| {
        let (_server, address) = serve(ServerOptions::default(), async |_: Request| Response::text("unread"));
        for (text, _) in cases::bad_chunks() {
            let head_bytes = text.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
            // One that comes at once with its head, and one that comes when it has been answered.
            let before = split_offsets(text.len(), &kind).into_iter().chain([head_bytes]);
            let next = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";
            for split_offset in before {
                let mut pieces = split_at_offset(&text, split_offset);
                pieces.push(next.to_vec());
                let received = send_pieces(address, pieces, AfterSend::Wait).await;
                assert_rejected(&text, &received, 200, split_offset);
            }
        }
    });
}

#[test]
fn fault_29_fields_that_are_none_are_refused() {
    assert_rejected_on_each_driver(cases::bad_fields());
}

/// What is answered to a client that sends this and then ends its side, as the decoder alone has it: to whole requests what
/// they are, and a status to what is refused. Beside each its method.
fn expected(text: &[u8]) -> Vec<(String, u16, Option<String>)> {
    let outcome = whole(text);
    let requests = outcome.requests.iter().zip(outcome.lines()).filter(|(request, _)| request.is_whole);
    let mut expected: Vec<_> = requests
        .map(|(request, line)| {
            let body = if request.method == "HEAD" { String::new() } else { line };
            (request.method.clone(), 200, Some(body))
        })
        .collect();
    let failure = outcome.refusal.or(outcome.end.err());
    expected.extend(failure.map(|refusal| ("".to_owned(), refusal.status, None)));
    expected
}

fn assert_as_expected(text: &[u8], received: &[u8], how: &str) {
    let shown = format!("{} {how}: {}", truncated(text), received.escape_ascii());
    let mut rest = received;
    for (method, status, body) in expected(text) {
        let response =
            next_response(&mut rest, &method).unwrap_or_else(|| panic!("an answer is missing: {shown}"));
        assert_eq!(response.status, status, "{shown}");
        assert!(body.is_none_or(|body| body == response.body), "{response:?}: {shown}");
    }
    assert!(rest.is_empty(), "more than is due: {shown}");
}

#[test]
fn fault_31_cuts_make_no_difference_to_what_is_answered() {
    for_each_driver(drivers(), async |kind| {
        let (_server, address) = serve(ServerOptions::default(), mirror);
        for text in CONNECTIONS.iter().map(|text| text.as_bytes()) {
            for split_offset in split_offsets(text.len(), &kind) {
                let received =
                    send_pieces(address, split_at_offset(text, split_offset), AfterSend::HalfClose).await;
                assert_as_expected(text, &received, &format!("cut at {split_offset}"));
            }
            if matches!(kind, DriverKind::Sim(_)) {
                let bytes = text.iter().map(|&byte| vec![byte]).collect();
                let received = send_pieces(address, bytes, AfterSend::HalfClose).await;
                assert_as_expected(text, &received, "byte by byte");
            }
        }
    });
}

/// Simulated kernels in which everything goes wrong that a connection has to survive, each with its seed, which a failure
/// prints. A third of them hold one byte of a connection at a time.
fn fault_injecting_drivers() -> Vec<DriverKind> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match number("ANELLO_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ANELLO_SEEDS").unwrap_or(8),
    };
    let kernel = |seed: u64| {
        let mut faults = SimFaults::lossless([20, 100, 300][seed as usize % 3]);
        // A server without descriptors turns clients away.
        faults.descriptor_exhaustion = 0;
        let model = if seed.is_multiple_of(2) { SimModel::Completion } else { SimModel::Readiness };
        let bytes = [1, 7, 16 * 1024][(seed / 2) as usize % 3];
        DriverKind::Sim(SimOptions::new(seed).model(model).faults(faults).socket_buffer_bytes(bytes))
    };
    seeds.map(kernel).collect()
}

#[test]
fn fault_31_kernels_that_cut_and_delay_make_no_difference_to_what_is_answered() {
    for_each_driver(fault_injecting_drivers(), async |_| {
        let (_server, address) = serve(ServerOptions::default(), mirror);
        for text in CONNECTIONS.iter().map(|text| text.as_bytes()) {
            let received = send_pieces(address, vec![text.to_vec()], AfterSend::HalfClose).await;
            assert_as_expected(text, &received, "on a faulty kernel");
        }
    });
}

#[test]
fn fault_31_kernels_that_cut_and_delay_make_no_difference_to_what_is_refused() {
    let all = [
        cases::too_long_or_too_many(),
        cases::conflicting_framing(),
        cases::bad_lengths(),
        cases::bad_chunks(),
        cases::bad_fields(),
    ]
    .concat();
    let short: Vec<_> = all.into_iter().filter(|(text, _)| text.len() <= SHORT_BYTES).collect();
    for_each_driver(fault_injecting_drivers(), move |_| {
        let cases = short.clone();
        async move {
            let (_server, address) = serve(ServerOptions::default(), mirror);
            for (text, status) in &cases {
                let received = send_pieces(address, vec![text.clone()], AfterSend::Wait).await;
                assert_rejected(text, &received, *status, 0);
            }
        }
    });
}

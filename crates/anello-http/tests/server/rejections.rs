//! Rejection of invalid requests by a complete server: the cases in `h1_support/cases.rs`, as seen by a client. The
//! tests run on every driver and on the simulated kernels, with the bytes split in different ways. `components/h1`
//! tests the decoder alone.
//!
//! `ANELLO_SEEDS` sets the number of simulated kernels with faults (default: 6). If `ANELLO_SEED` is set to a seed
//! printed by a failed test, only the simulated kernel with this seed is used.

use std::net::SocketAddr;
use std::time::Duration;

use anello::net::TcpStream;
use anello::sim::{SimFaults, SimModel, SimOptions};
use anello::time::sleep;
use anello::{DriverKind, spawn};
use anello_http::{Request, RequestBodyError, Response, ServerOptions};
use anello_test::{Setup, main_drivers_and_sim, run_on_each, seeds, short_or_long};

use crate::common::serve;
use crate::properties::h1_support::cases::{self, CONNECTIONS, RejectedCase};
use crate::properties::h1_support::feed_whole;

/// Inputs up to this length are split at more offsets than longer ones.
const SHORT_BYTES: usize = 200;

/// A handler that responds with the request, in the format of [`h1_support::Outcome::lines`].
async fn mirror(mut request: Request) -> Response {
    let line = format!("{} {} ", request.method_text(), request.target());
    match request.body().collect().await {
        Ok(body) => Response::text(line + &body.escape_ascii().to_string()),
        Err(RequestBodyError::Rejected(rejection)) => Response::new(rejection.status),
        Err(_) => Response::new(400),
    }
}

/// What a client does after it has sent its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterSend {
    /// Leaves the connection open, so that the server must close it.
    Wait,
    HalfClose,
}

/// Sends the parts and returns everything that the server sends until it closes the connection. Parts are sent with a
/// delay between them, so that the server usually receives them one by one.
async fn send_parts(address: SocketAddr, parts: Vec<Vec<u8>>, after_send: AfterSend) -> Vec<u8> {
    let (mut reader, mut writer) = TcpStream::connect(address).await.expect("connect").into_split();
    let sending = spawn(async move {
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                sleep(Duration::from_micros(200)).await;
            }
            if writer.write_all(part).await.is_err() {
                // The server closed the connection early. The caller checks the response.
                return writer;
            }
        }
        if after_send == AfterSend::HalfClose {
            writer.shutdown().await.ok();
        }
        writer
    });
    let mut received = Vec::new();
    while let Ok(Some(chunk)) = reader.recv().await {
        received.extend_from_slice(&chunk);
    }
    drop(sending.await.expect("send task"));
    received
}

/// A received response.
#[derive(Debug)]
struct ClientResponse {
    status: u16,
    /// Whether it contains `Connection: close`.
    closes: bool,
    body: String,
}

/// Parses and removes the next response, if there is one. Skips `100 Continue` responses, because the server sends them
/// only if the body has not arrived yet.
fn next_response(bytes: &mut &[u8], method: &str) -> Option<ClientResponse> {
    while let Some(rest) = bytes.strip_prefix(anello_http::h1::CONTINUE) {
        *bytes = rest;
    }
    let escaped = bytes.escape_ascii();
    let head_bytes = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let (head, rest) = bytes.split_at(head_bytes);
    let head = str::from_utf8(head).expect("UTF-8 head");
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|head| head.get(..3)?.parse().ok());
    let status: u16 = status.unwrap_or_else(|| panic!("no response: {escaped}"));
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length = match length.map(|length| length.parse().expect("numeric length")) {
        _ if method == "HEAD" => 0,
        Some(length) => length,
        // After an upgrade, the remaining bytes belong to the new protocol.
        None => rest.len(),
    };
    assert!(rest.len() >= length, "truncated: {escaped}");
    let (body, rest) = rest.split_at(length);
    *bytes = rest;
    let closes = head.contains("\r\nConnection: close\r\n");
    Some(ClientResponse { status, closes, body: String::from_utf8_lossy(body).into_owned() })
}

/// Splits an input at this offset. Empty parts are omitted.
fn split_at_offset(text: &[u8], split_offset: usize) -> Vec<Vec<u8>> {
    let (first, second) = text.split_at(split_offset);
    [first, second].into_iter().filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Returns the offsets at which to split an input: some, and the one before the last byte. Offset 0 leaves it whole. Short
/// inputs are split at more offsets, especially on simulated kernels, where this is fast: at every one if `ANELLO_LONG`
/// is set.
fn split_offsets(length: usize, setup: &Setup) -> Vec<usize> {
    let count = match (length <= SHORT_BYTES, setup.is_simulated()) {
        (true, true) => short_or_long(8, length),
        (true, false) => 4,
        (false, _) => short_or_long(1, 4),
    };
    let step = length.div_ceil(count);
    (0..length).step_by(step).chain([length - 1]).collect()
}

/// Checks that the server rejects each case with its status, announces the close, and closes the connection.
fn assert_rejected_on_each_driver(cases: Vec<RejectedCase>) {
    run_on_each(main_drivers_and_sim(), move |setup| {
        let cases = cases.clone();
        async move {
            let (_server, address) = serve(ServerOptions::default(), mirror);
            for (text, status) in &cases {
                for split_offset in split_offsets(text.len(), &setup) {
                    let received =
                        send_parts(address, split_at_offset(text, split_offset), AfterSend::Wait).await;
                    assert_rejected(text, &received, *status, split_offset);
                }
            }
        }
    });
}

fn assert_rejected(text: &[u8], received: &[u8], status: u16, split_offset: usize) {
    let context = format!("{} split at {split_offset}: {}", truncated(text), received.escape_ascii());
    let mut rest = received;
    let response = next_response(&mut rest, "").unwrap_or_else(|| panic!("no response: {context}"));
    assert_eq!((response.status, response.closes), (status, true), "{context}");
    assert!(rest.is_empty(), "more than one response: {context}");
}

fn truncated(text: &[u8]) -> String {
    text[..text.len().min(SHORT_BYTES)].escape_ascii().to_string()
}

#[test]
fn fault_25_exceeded_limits_are_rejected() {
    assert_rejected_on_each_driver(cases::too_long_or_too_many());
}

#[test]
fn fault_26_conflicting_framing_is_rejected() {
    assert_rejected_on_each_driver(cases::conflicting_framing());
}

#[test]
fn fault_27_invalid_or_duplicate_content_length_is_rejected() {
    assert_rejected_on_each_driver(cases::bad_lengths());
}

#[test]
fn fault_28_invalid_chunks_are_rejected() {
    assert_rejected_on_each_driver(cases::bad_chunks());
}

/// The handler responds without reading the body. The rest of a malformed body must not be decoded as the next request.
#[test]
fn fault_28_malformed_unread_body_closes_connection() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (_server, address) = serve(ServerOptions::default(), async |_: Request| Response::text("unread"));
        for (text, _) in cases::bad_chunks() {
            let head_bytes =
                text.windows(4).position(|window| window == b"\r\n\r\n").expect("complete head") + 4;
            // The last offset delays the body until after the response has been sent.
            let offsets = split_offsets(text.len(), &setup).into_iter().chain([head_bytes]);
            let next_request = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";
            for split_offset in offsets {
                let mut parts = split_at_offset(&text, split_offset);
                parts.push(next_request.to_vec());
                let received = send_parts(address, parts, AfterSend::Wait).await;
                assert_rejected(&text, &received, 200, split_offset);
            }
        }
    });
}

#[test]
fn fault_29_invalid_fields_are_rejected() {
    assert_rejected_on_each_driver(cases::bad_fields());
}

/// Returns the request method, status and body of each expected response to a client that sends `text` and then
/// half-closes. They are derived from the outcome of the decoder. A complete request is expected to be echoed; for a
/// rejection, only the status is known.
fn expected_responses(text: &[u8]) -> Vec<(String, u16, Option<String>)> {
    let outcome = feed_whole(text);
    let requests = outcome.requests.iter().zip(outcome.lines()).filter(|(request, _)| request.is_complete);
    let mut expected: Vec<_> = requests
        .map(|(request, line)| {
            let body = if request.method == "HEAD" { String::new() } else { line };
            (request.method.clone(), 200, Some(body))
        })
        .collect();
    let rejection = outcome.rejection.or(outcome.eof_result.err());
    expected.extend(rejection.map(|rejection| ("".to_owned(), rejection.status, None)));
    expected
}

fn assert_expected_responses(text: &[u8], received: &[u8], condition: &str) {
    let context = format!("{} {condition}: {}", truncated(text), received.escape_ascii());
    let mut rest = received;
    for (method, status, body) in expected_responses(text) {
        let response =
            next_response(&mut rest, &method).unwrap_or_else(|| panic!("missing response: {context}"));
        assert_eq!(response.status, status, "{context}");
        assert!(body.is_none_or(|body| body == response.body), "{response:?}: {context}");
    }
    assert!(rest.is_empty(), "unexpected bytes after the last response: {context}");
}

#[test]
fn fault_31_splits_do_not_change_responses() {
    run_on_each(main_drivers_and_sim(), async |setup| {
        let (_server, address) = serve(ServerOptions::default(), mirror);
        for text in CONNECTIONS.iter().map(|text| text.as_bytes()) {
            for split_offset in split_offsets(text.len(), &setup) {
                let received =
                    send_parts(address, split_at_offset(text, split_offset), AfterSend::HalfClose).await;
                assert_expected_responses(text, &received, &format!("split at {split_offset}"));
            }
            if setup.is_simulated() {
                let bytes = text.iter().map(|&byte| vec![byte]).collect();
                let received = send_parts(address, bytes, AfterSend::HalfClose).await;
                assert_expected_responses(text, &received, "byte by byte");
            }
        }
    });
}

/// Runs a test on simulated kernels that inject all faults that a connection must survive. A failed test prints the seed.
/// A third of the kernels buffer only one byte per connection.
fn run_with_faults<F: Future<Output = ()>>(test: impl Fn(u64) -> F + Clone + Send + Sync + 'static) {
    for seed in seeds(6) {
        println!("ANELLO_SEED={seed}");
        let mut faults = SimFaults::lossless([20, 100, 300][seed as usize % 3]);
        // A server without free descriptors rejects clients, which would change the responses.
        faults.descriptor_exhaustion = 0;
        let (name, model) = match seed.is_multiple_of(2) {
            true => ("sim-completion", SimModel::Completion),
            false => ("sim-readiness", SimModel::Readiness),
        };
        let bytes = [1, 7, 16 * 1024][(seed / 2) as usize % 3];
        let options = SimOptions::new(seed).model(model).faults(faults).socket_buffer_bytes(bytes);
        let test = test.clone();
        run_on_each(vec![Setup::new(name, DriverKind::Sim(options), |_| {})], move |_| test(seed));
    }
}

#[test]
fn fault_31_kernel_faults_do_not_change_responses() {
    run_with_faults(async |_| {
        let (_server, address) = serve(ServerOptions::default(), mirror);
        for text in CONNECTIONS.iter().map(|text| text.as_bytes()) {
            let received = send_parts(address, vec![text.to_vec()], AfterSend::HalfClose).await;
            assert_expected_responses(text, &received, "on a kernel with faults");
        }
    });
}

#[test]
fn fault_31_kernel_faults_do_not_change_rejections() {
    let all_cases = [
        cases::too_long_or_too_many(),
        cases::conflicting_framing(),
        cases::bad_lengths(),
        cases::bad_chunks(),
        cases::bad_fields(),
    ]
    .concat();
    let short_cases: Vec<_> = all_cases.into_iter().filter(|(text, _)| text.len() <= SHORT_BYTES).collect();
    // A third of the cases for each seed, and thus two kernels for each case, unless `ANELLO_LONG` is set.
    let step = short_or_long(3, 1);
    run_with_faults(move |seed| {
        let cases: Vec<_> = short_cases.iter().skip(seed as usize % step).step_by(step).cloned().collect();
        async move {
            let (_server, address) = serve(ServerOptions::default(), mirror);
            for (text, status) in &cases {
                let received = send_parts(address, vec![text.clone()], AfterSend::Wait).await;
                assert_rejected(text, &received, *status, 0);
            }
        }
    });
}

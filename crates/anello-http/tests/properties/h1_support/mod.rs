//! Records the output of a request decoder in a form that can be compared.

#![allow(dead_code, reason = "each test binary uses a subset of these helpers")]

pub mod cases;

use anello_http::h1::{Decoder, Event, Head, Limits, Rejection, RequestFraming, Trailers};

/// Everything decoded from the bytes of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub requests: Vec<RecordedRequest>,
    /// The error at which decoding stopped.
    pub rejection: Option<Rejection>,
    /// Bytes after the last request, which the decoder did not consume.
    pub unread: Vec<u8>,
    /// Result of `finish_eof` after the last byte.
    pub eof_result: Result<(), Rejection>,
}

/// One request, which can be incomplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// All properties of the head except its length.
    pub head: String,
    pub method: String,
    pub target: String,
    pub framing: RequestFraming,
    pub head_bytes: usize,
    pub fields: Vec<String>,
    pub body: Vec<u8>,
    pub trailers: Vec<String>,
    pub is_complete: bool,
}

impl Outcome {
    /// Returns the status code of the rejection, or 0 if there is none.
    pub fn status(&self) -> u16 {
        self.rejection.map_or(0, |rejection| rejection.status)
    }

    /// Returns the method, target and body of each request.
    pub fn lines(&self) -> Vec<String> {
        let line = |request: &RecordedRequest| {
            format!("{} {} {}", request.method, request.target, request.body.escape_ascii())
        };
        self.requests.iter().map(line).collect()
    }
}

/// Feeds the parts to a new decoder in order. Checks that recycling heads does not change the outcome.
pub fn feed<'a>(parts: impl IntoIterator<Item = &'a [u8]> + Clone, limits: Limits) -> Outcome {
    let outcome = feed_once(parts.clone(), limits, true);
    assert_eq!(feed_once(parts, limits, false), outcome);
    outcome
}

fn feed_once<'a>(parts: impl IntoIterator<Item = &'a [u8]>, limits: Limits, recycle: bool) -> Outcome {
    let mut decoder = Decoder::new(limits);
    let mut outcome =
        Outcome { requests: Vec::new(), rejection: None, unread: Vec::new(), eof_result: Ok(()) };
    for mut input in parts {
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(event)) => {
                    if let Some(head) = record_event(event, &mut outcome).filter(|_| recycle) {
                        decoder.recycle(head);
                    }
                }
                Ok(None) => break,
                Err(rejection) => {
                    outcome.rejection = Some(rejection);
                    break;
                }
            }
        }
        let max_bytes = limits.max_head_bytes.max(limits.max_trailer_bytes);
        assert!(decoder.buffered_bytes() <= max_bytes, "{} bytes are buffered", decoder.buffered_bytes());
        if outcome.rejection.is_some() {
            break;
        }
        assert!(
            input.is_empty() || decoder.is_closed(),
            "input left over before the last request is complete"
        );
        outcome.unread.extend_from_slice(input);
    }
    assert_eq!(decoder.is_idle(), decoder.finish_eof().is_ok());
    outcome.eof_result = decoder.finish_eof();
    outcome
}

/// Records an event. Returns the head if the event contains one.
fn record_event(event: Event<'_>, outcome: &mut Outcome) -> Option<Head> {
    match event {
        Event::Head(head) => {
            assert!(outcome.requests.last().is_none_or(|last| last.is_complete), "head inside a body");
            outcome.requests.push(recorded_request(&head));
            return Some(head);
        }
        Event::Data(data) => {
            assert!(!data.is_empty());
            let current = outcome.requests.last_mut().expect("data without a request");
            assert!(!current.is_complete, "data after the end of the body");
            current.body.extend_from_slice(data);
        }
        Event::End(trailers) => {
            let current = outcome.requests.last_mut().expect("end without a request");
            assert!(!current.is_complete, "second end of one body");
            current.is_complete = true;
            current.trailers = trailers.iter().flat_map(Trailers::fields).map(field_text).collect();
        }
    }
    None
}

fn recorded_request(head: &Head) -> RecordedRequest {
    let fields: Vec<_> = head.fields().map(field_text).collect();
    let lookup_ignores_case = head.fields().all(|(name, _)| head.field(&name.to_ascii_uppercase()).is_some());
    assert!(lookup_ignores_case, "{fields:?}");
    let text = format!(
        "{:?} {} {:?} {:?} {:?} {:?} {:?} host {:?} keeps {} expects {} upgrade {:?} {fields:?}",
        head.method(),
        head.method_text(),
        head.target_form(),
        head.target(),
        head.path(),
        head.query(),
        head.version(),
        head.host(),
        head.keeps_alive(),
        head.expects_continue(),
        head.upgrade(),
    );
    RecordedRequest {
        head: text,
        method: head.method_text().to_owned(),
        target: head.target().to_owned(),
        framing: head.framing(),
        head_bytes: head.head_bytes(),
        fields,
        body: Vec::new(),
        trailers: Vec::new(),
        is_complete: false,
    }
}

pub fn field_text((name, value): (&str, &[u8])) -> String {
    format!("{name}={}", value.escape_ascii())
}

/// Feeds the whole input in one call to a decoder with default limits.
pub fn feed_whole(text: impl AsRef<[u8]>) -> Outcome {
    feed([text.as_ref()], Limits::default())
}

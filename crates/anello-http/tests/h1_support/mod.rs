//! What a decoder makes of bytes, written down so that it can be compared.

// Every test program uses some of it.
#![allow(dead_code)]

pub mod cases;

use anello_http::h1::{Decoder, Event, Head, Limits, Rejection, RequestFraming, Trailers};

/// All that came of the bytes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub requests: Vec<Seen>,
    /// Why the decoder took no more.
    pub refusal: Option<Rejection>,
    /// What it left alone behind the last request.
    pub left: Vec<u8>,
    /// What it says when the connection ends here.
    pub end: Result<(), Rejection>,
}

/// One request, as far as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// All that the head says, but for its length.
    pub head: String,
    pub method: String,
    pub target: String,
    pub framing: RequestFraming,
    pub head_bytes: usize,
    pub fields: Vec<String>,
    pub body: Vec<u8>,
    pub trailers: Vec<String>,
    pub is_whole: bool,
}

impl Outcome {
    /// The status of the refusal; 0 if there is none.
    pub fn status(&self) -> u16 {
        self.refusal.map_or(0, |refusal| refusal.status)
    }

    /// Method, target and body of each request.
    pub fn lines(&self) -> Vec<String> {
        let line = |seen: &Seen| format!("{} {} {}", seen.method, seen.target, seen.body.escape_ascii());
        self.requests.iter().map(line).collect()
    }
}

/// Feeds the pieces to a new decoder, one after the other. Whether heads are recycled makes no difference.
pub fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]> + Clone, limits: Limits) -> Outcome {
    let outcome = feed_once(pieces.clone(), limits, true);
    assert_eq!(feed_once(pieces, limits, false), outcome);
    outcome
}

fn feed_once<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limits: Limits, recycles: bool) -> Outcome {
    let mut decoder = Decoder::new(limits);
    let mut outcome = Outcome { requests: Vec::new(), refusal: None, left: Vec::new(), end: Ok(()) };
    for mut input in pieces {
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(event)) => {
                    if let Some(head) = take(event, &mut outcome).filter(|_| recycles) {
                        decoder.recycle(head);
                    }
                }
                Ok(None) => break,
                Err(refusal) => {
                    outcome.refusal = Some(refusal);
                    break;
                }
            }
        }
        let most = limits.max_head_bytes.max(limits.max_trailer_bytes);
        assert!(decoder.buffered_bytes() <= most, "{} bytes are kept", decoder.buffered_bytes());
        if outcome.refusal.is_some() {
            break;
        }
        assert!(input.is_empty() || decoder.is_closed(), "all is taken until the last request is over");
        outcome.left.extend_from_slice(input);
    }
    assert_eq!(decoder.is_idle(), decoder.finish_eof().is_ok());
    outcome.end = decoder.finish_eof();
    outcome
}

/// Notes an event; the head, if it is one.
fn take(event: Event<'_>, outcome: &mut Outcome) -> Option<Head> {
    match event {
        Event::Head(head) => {
            assert!(outcome.requests.last().is_none_or(|last| last.is_whole), "a head in a body");
            outcome.requests.push(seen(&head));
            return Some(head);
        }
        Event::Data(data) => {
            assert!(!data.is_empty());
            let current = outcome.requests.last_mut().expect("data belongs to a request");
            assert!(!current.is_whole, "data behind the end");
            current.body.extend_from_slice(data);
        }
        Event::End(trailers) => {
            let current = outcome.requests.last_mut().expect("an end belongs to a request");
            assert!(!current.is_whole, "an end behind the end");
            current.is_whole = true;
            current.trailers = trailers.iter().flat_map(Trailers::fields).map(field_text).collect();
        }
    }
    None
}

fn seen(head: &Head) -> Seen {
    let fields: Vec<_> = head.fields().map(field_text).collect();
    let names_are_found = head.fields().all(|(name, _)| head.field(&name.to_ascii_uppercase()).is_some());
    assert!(names_are_found, "{fields:?}");
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
    Seen {
        head: text,
        method: head.method_text().to_owned(),
        target: head.target().to_owned(),
        framing: head.framing(),
        head_bytes: head.head_bytes(),
        fields,
        body: Vec::new(),
        trailers: Vec::new(),
        is_whole: false,
    }
}

pub fn field_text((name, value): (&str, &[u8])) -> String {
    format!("{name}={}", value.escape_ascii())
}

/// All in one piece, with the usual limits.
pub fn whole(text: impl AsRef<[u8]>) -> Outcome {
    feed([text.as_ref()], Limits::default())
}

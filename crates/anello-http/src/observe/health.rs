//! Whether the server should be given requests, as `/health` answers it.
//!
//! ```text
//!   Starting ──ready()──▶ Ready ──drain()──▶ Draining
//!       └────────────────drain()────────────────▲
//! ```
//!
//! There is no way back: a server that drains ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The state of the server. Clones are the same state; every thread may ask and change it.
#[derive(Clone, Debug, Default)]
pub struct Health {
    state: Arc<AtomicU8>,
}

/// What a server is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HealthState {
    /// It does not listen yet, or not on all workers.
    Starting,
    /// It serves.
    Ready,
    /// It ends what it has begun and takes nothing new.
    Draining,
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthFormat {
    /// One word and a line feed.
    #[default]
    Text,
    /// An object with the field `status`.
    Json,
}

/// An answer to `/health`. It must not be stored: send `Cache-Control: no-store` with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthResponse {
    /// 200 when the server is ready, else 503.
    pub status: u16,
    /// The media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: &'static [u8],
}

impl Health {
    /// A server that is starting.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the server is doing.
    #[must_use]
    pub fn state(&self) -> HealthState {
        // Alone and without anything that it guards: no order with other memory is needed.
        HealthState::of(self.state.load(Ordering::Relaxed))
    }

    /// The server serves from now on. False if it did already, or drains: then nothing changes.
    pub fn set_ready(&self) -> bool {
        self.advance(HealthState::Ready)
    }

    /// The server takes nothing new from now on. False if it drained already.
    pub fn set_draining(&self) -> bool {
        self.advance(HealthState::Draining)
    }

    /// What to answer now.
    #[must_use]
    pub fn response(&self, format: HealthFormat) -> HealthResponse {
        let state = self.state();
        let (content_type, body) = match format {
            HealthFormat::Text => ("text/plain; charset=utf-8", state.text()),
            HealthFormat::Json => ("application/json", state.json()),
        };
        HealthResponse { status: state.status(), content_type, body: body.as_bytes() }
    }

    fn advance(&self, to: HealthState) -> bool {
        self.state.fetch_max(to as u8, Ordering::Relaxed) < to as u8
    }
}

impl HealthState {
    fn of(number: u8) -> Self {
        match number {
            0 => Self::Starting,
            1 => Self::Ready,
            _ => Self::Draining,
        }
    }

    /// The status of an answer in this state.
    #[must_use]
    pub fn status(self) -> u16 {
        if self == Self::Ready { 200 } else { 503 }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Starting => "starting\n",
            Self::Ready => "ready\n",
            Self::Draining => "draining\n",
        }
    }

    fn json(self) -> &'static str {
        match self {
            Self::Starting => "{\"status\":\"starting\"}\n",
            Self::Ready => "{\"status\":\"ready\"}\n",
            Self::Draining => "{\"status\":\"draining\"}\n",
        }
    }
}

impl HealthFormat {
    /// JSON when the value of an `Accept` field names `application/json`, else text, which every checker of health
    /// understands. Weights are not compared: both formats say the same.
    #[must_use]
    pub fn from_accept(accept: Option<&[u8]>) -> Self {
        let names_json = |range: &[u8]| {
            let media_type = range.split(|&byte| byte == b';').next().unwrap_or_default();
            media_type.trim_ascii().eq_ignore_ascii_case(b"application/json")
        };
        match accept {
            Some(accept) if accept.split(|&byte| byte == b',').any(names_json) => Self::Json,
            _ => Self::Text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_starts_serves_drains_and_never_goes_back() {
        let health = Health::new();
        let seen_elsewhere = health.clone();
        assert_eq!(health.state(), HealthState::Starting);
        assert!(health.set_ready() && !health.set_ready());
        assert_eq!(seen_elsewhere.state(), HealthState::Ready);
        assert!(health.set_draining() && !health.set_draining() && !health.set_ready());
        assert_eq!(seen_elsewhere.state(), HealthState::Draining);
    }

    #[test]
    fn a_server_that_could_not_start_drains_at_once() {
        let health = Health::new();
        assert!(health.set_draining() && !health.set_ready());
        assert_eq!(health.state(), HealthState::Draining);
    }

    #[test]
    fn answers_say_the_state_in_both_formats() {
        let health = Health::new();
        let answer = |format| health.response(format);
        let json = |answer: HealthResponse| serde_json::from_slice::<serde_json::Value>(answer.body).unwrap();
        assert_eq!(
            (answer(HealthFormat::Text).status, answer(HealthFormat::Text).body),
            (503, &b"starting\n"[..])
        );
        assert_eq!(json(answer(HealthFormat::Json))["status"], "starting");
        health.set_ready();
        assert_eq!(
            (answer(HealthFormat::Text).status, answer(HealthFormat::Text).body),
            (200, &b"ready\n"[..])
        );
        assert_eq!(json(answer(HealthFormat::Json))["status"], "ready");
        assert_eq!(answer(HealthFormat::Json).content_type, "application/json");
        health.set_draining();
        assert_eq!(
            (answer(HealthFormat::Text).status, answer(HealthFormat::Text).body),
            (503, &b"draining\n"[..])
        );
        assert_eq!(json(answer(HealthFormat::Json))["status"], "draining");
        assert_eq!(answer(HealthFormat::Json).status, 503);
    }

    #[test]
    fn json_is_for_those_who_ask_for_it() {
        for json in
            [&b"application/json"[..], b"text/html, Application/JSON;q=0.9", b" application/json ;q=1"]
        {
            assert_eq!(HealthFormat::from_accept(Some(json)), HealthFormat::Json);
        }
        for text in [&b"*/*"[..], b"text/plain", b"application/jsonp", b"", b",;,", b"\xff"] {
            assert_eq!(HealthFormat::from_accept(Some(text)), HealthFormat::Text);
        }
        assert_eq!(HealthFormat::from_accept(None), HealthFormat::Text);
    }
}

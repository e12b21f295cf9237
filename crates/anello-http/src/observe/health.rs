//! Health state of the server, as reported by `/health`.
//!
//! ```text
//!   Starting ──set_ready()──▶ Ready ──set_draining()──▶ Draining
//!       └──────────────────set_draining()──────────────────▲
//! ```
//!
//! The state never moves backward: a draining server always shuts down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::h1::elements;

/// A shared handle to the health state. All clones refer to the same state, and any thread can read or change it.
///
/// ```
/// use anello_http::observe::health::{Health, HealthState};
///
/// let health = Health::new();
/// let worker = health.clone();
/// std::thread::spawn(move || worker.set_ready()).join().expect("the thread does not panic");
/// assert_eq!(health.state(), HealthState::Ready);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Health {
    state: Arc<AtomicU8>,
}

/// The lifecycle state of a server.
///
/// ```
/// use anello_http::observe::health::HealthState;
///
/// // The state never moves backward.
/// assert!(HealthState::Starting < HealthState::Ready && HealthState::Ready < HealthState::Draining);
/// assert_eq!(HealthState::Draining.status(), 503);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum HealthState {
    /// Some workers are not listening yet.
    Starting,
    /// All workers are serving requests.
    Ready,
    /// The server finishes in-flight requests and accepts no new ones.
    Draining,
}

/// The format of a health response.
///
/// ```
/// use anello_http::observe::health::{Health, HealthFormat};
///
/// let health = Health::new();
/// assert_eq!(health.response(HealthFormat::Text).body, b"starting\n");
/// assert_eq!(health.response(HealthFormat::Json).body, b"{\"status\":\"starting\"}\n");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HealthFormat {
    /// The state as one word, followed by a line feed.
    #[default]
    Text,
    /// A JSON object with the field `status`.
    Json,
}

/// A response to `/health`. Send it with `Cache-Control: no-store`.
///
/// ```
/// use anello_http::Response;
/// use anello_http::h1::FieldName;
/// use anello_http::observe::health::{Health, HealthFormat, HealthResponse};
///
/// let HealthResponse { status, content_type, body } = Health::new().response(HealthFormat::Json);
/// let response = Response::new(status)
///     .field(FieldName::CONTENT_TYPE, content_type.as_bytes())?
///     .field(FieldName::CACHE_CONTROL, b"no-store")?
///     .with_body(body);
/// assert_eq!(response.status(), 503);
/// # Ok::<(), anello_http::h1::InvalidField>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthResponse {
    /// Status code: 200 if the server is ready, 503 otherwise.
    pub status: u16,
    /// Value of the `Content-Type` field.
    pub content_type: &'static str,
    /// Response body, including a final line feed.
    pub body: &'static [u8],
}

impl Health {
    /// Creates a handle in the state [`HealthState::Starting`].
    ///
    /// ```
    /// use anello_http::observe::health::{Health, HealthState};
    ///
    /// assert_eq!(Health::new().state(), HealthState::Starting);
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the current state.
    ///
    /// ```
    /// use anello_http::observe::health::{Health, HealthState};
    ///
    /// let health = Health::new();
    /// health.set_ready();
    /// assert_eq!(health.state(), HealthState::Ready);
    /// ```
    pub fn state(&self) -> HealthState {
        // `Relaxed` is sufficient: the state publishes no other memory.
        match self.state.load(Ordering::Relaxed) {
            0 => HealthState::Starting,
            1 => HealthState::Ready,
            _ => HealthState::Draining,
        }
    }

    /// Marks the server as ready. Returns `false` and changes nothing if the server is already ready or draining.
    ///
    /// ```
    /// use anello_http::observe::health::Health;
    ///
    /// let health = Health::new();
    /// assert!(health.set_ready());
    /// health.set_draining();
    /// assert!(!health.set_ready());
    /// ```
    pub fn set_ready(&self) -> bool {
        self.advance(HealthState::Ready)
    }

    /// Marks the server as draining. Returns `false` if it is already draining.
    ///
    /// ```
    /// use anello_http::observe::health::{Health, HealthState};
    ///
    /// let health = Health::new();
    /// assert!(health.set_draining());
    /// assert!(!health.set_draining());
    /// assert_eq!(health.state(), HealthState::Draining);
    /// ```
    pub fn set_draining(&self) -> bool {
        self.advance(HealthState::Draining)
    }

    /// Returns the response for the current state.
    ///
    /// ```
    /// use anello_http::observe::health::{Health, HealthFormat};
    ///
    /// let health = Health::new();
    /// assert_eq!(health.response(HealthFormat::Text).status, 503);
    /// health.set_ready();
    /// assert_eq!(health.response(HealthFormat::Text).status, 200);
    /// ```
    pub fn response(&self, format: HealthFormat) -> HealthResponse {
        let state = self.state();
        let [text, json] = match state {
            HealthState::Starting => ["starting\n", "{\"status\":\"starting\"}\n"],
            HealthState::Ready => ["ready\n", "{\"status\":\"ready\"}\n"],
            HealthState::Draining => ["draining\n", "{\"status\":\"draining\"}\n"],
        };
        let (content_type, body) = match format {
            HealthFormat::Text => ("text/plain; charset=utf-8", text),
            HealthFormat::Json => ("application/json", json),
        };
        HealthResponse { status: state.status(), content_type, body: body.as_bytes() }
    }

    fn advance(&self, to: HealthState) -> bool {
        self.state.fetch_max(to as u8, Ordering::Relaxed) < to as u8
    }
}

impl HealthState {
    /// Returns the HTTP status code that `/health` responds with in this state.
    ///
    /// ```
    /// use anello_http::observe::health::HealthState;
    ///
    /// assert_eq!(HealthState::Ready.status(), 200);
    /// assert_eq!(HealthState::Starting.status(), 503);
    /// ```
    pub fn status(self) -> u16 {
        if self == Self::Ready { 200 } else { 503 }
    }
}

impl HealthFormat {
    /// Selects [`Json`](Self::Json) if the value of an `Accept` field lists `application/json`, and
    /// [`Text`](Self::Text) otherwise. Quality values are ignored, since both formats carry the same information.
    ///
    /// ```
    /// use anello_http::observe::health::HealthFormat;
    ///
    /// assert_eq!(HealthFormat::from_accept(Some(b"application/json")), HealthFormat::Json);
    /// assert_eq!(HealthFormat::from_accept(None), HealthFormat::Text);
    /// ```
    pub fn from_accept(accept: Option<&[u8]>) -> Self {
        let names_json = |range: &[u8]| {
            let media_type = range.split(|&byte| byte == b';').next().unwrap_or_default();
            media_type.trim_ascii().eq_ignore_ascii_case(b"application/json")
        };
        let accepts_json = accept.is_some_and(|accept| elements(accept).any(names_json));
        if accepts_json { Self::Json } else { Self::Text }
    }
}

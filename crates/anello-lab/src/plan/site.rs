//! Resources that HTTP servers serve: the files of a small site with known contents, a fixed response, and the routes of
//! a small application.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::plan::contender::Serves;

/// Minimum size of a large response, see [`Target::is_large`].
const LARGE_BYTES: usize = 128 << 10;

const HELLO: &[u8] = b"Hello, World!";

const JSON: &[u8] = br#"{"message":"Hello, World!"}"#;

/// Resource that a request asks for.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::Display,
    strum::IntoStaticStr,
)]
#[non_exhaustive]
pub enum Target {
    /// A file with 13 bytes of text.
    #[serde(rename = "hello.txt")]
    #[strum(to_string = "hello.txt")]
    Hello,
    /// An HTML file of 6 KiB.
    #[serde(rename = "page.html")]
    #[strum(to_string = "page.html")]
    Page,
    /// A file of 300 KiB of pseudorandom bytes.
    #[serde(rename = "300k.bin")]
    #[strum(to_string = "300k.bin")]
    Large,
    /// A file of 10 MiB of pseudorandom bytes.
    #[serde(rename = "10m.bin")]
    #[strum(to_string = "10m.bin")]
    Huge,
    /// A fixed response of 13 bytes from a handler. Servers without handlers serve a file with this name instead.
    #[serde(rename = "/fixed")]
    #[strum(to_string = "/fixed")]
    Fixed,
    /// An object of 27 bytes that a handler serializes as JSON.
    #[serde(rename = "/json")]
    #[strum(to_string = "/json")]
    Json,
    /// A POST request with a body of 1 KiB, which the handler returns.
    #[serde(rename = "/echo")]
    #[strum(to_string = "/echo")]
    Echo,
    /// A body of 100 KiB that a handler streams in parts, without stating its length in advance.
    #[serde(rename = "/stream")]
    #[strum(to_string = "/stream")]
    Stream,
}

impl Target {
    /// All targets.
    pub const ALL: [Target; 8] = [
        Target::Hello,
        Target::Page,
        Target::Large,
        Target::Huge,
        Target::Fixed,
        Target::Json,
        Target::Echo,
        Target::Stream,
    ];

    /// Returns whether only a handler can serve this target, not a file.
    pub const fn is_route(self) -> bool {
        matches!(self, Target::Json | Target::Echo | Target::Stream)
    }

    /// Returns the body of the request, which is sent with the method POST. `None` for GET requests.
    pub fn request_body(self) -> Option<&'static [u8]> {
        (self == Target::Echo).then(|| self.body())
    }

    /// Returns the target with this name.
    ///
    /// # Errors
    /// Returns a list of all names if there is none.
    pub fn parse(name: &str) -> Result<Target, String> {
        let found = Target::ALL.into_iter().find(|target| target.name() == name);
        found.ok_or_else(|| format!("expected one of {}", Target::ALL.map(Target::name).join(", ")))
    }

    /// Returns the file name, or the path of a response from a handler.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the request path, for example `/hello.txt`.
    pub fn path(self) -> String {
        format!("/{}", self.file_name())
    }

    /// Returns the size of the body in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Target::Hello | Target::Fixed => HELLO.len(),
            Target::Page => 6 << 10,
            Target::Large => 300 << 10,
            Target::Huge => 10 << 20,
            Target::Json => JSON.len(),
            Target::Echo => 1 << 10,
            Target::Stream => 100 << 10,
        }
    }

    /// Returns the body. It is generated on first use and kept until the process exits.
    pub fn body(self) -> &'static [u8] {
        static BODIES: [OnceLock<Vec<u8>>; Target::ALL.len()] =
            [const { OnceLock::new() }; Target::ALL.len()];
        BODIES[self as usize].get_or_init(|| match self {
            Target::Hello | Target::Fixed => HELLO.to_vec(),
            Target::Page => page(self.bytes()),
            Target::Large | Target::Huge | Target::Echo => noise(self.bytes()),
            Target::Json => JSON.to_vec(),
            Target::Stream => vec![b'x'; self.bytes()],
        })
    }

    /// Returns whether the response is larger than the socket buffer. The reader's speed then limits the transfer.
    pub const fn is_large(self) -> bool {
        self.bytes() >= LARGE_BYTES
    }

    /// Returns the size with a unit: "13 bytes", "6 KiB".
    pub fn size_in_words(self) -> String {
        match self.bytes() {
            bytes if bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
            bytes if bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} bytes"),
        }
    }

    pub(crate) fn file_name(self) -> &'static str {
        self.name().trim_start_matches('/')
    }
}

/// Resources that an HTTP server can serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupportedTargets {
    /// `true` if the server serves files, including a file with the name of the fixed response.
    pub files: bool,
    /// `true` if the server has a handler for the fixed response.
    pub fixed: bool,
    /// `true` if the server has handlers for the routes of the application ([`Target::is_route`]).
    pub routes: bool,
}

impl SupportedTargets {
    /// Converts the list of resources that a contender declares. If the list is empty, the contender is assumed to
    /// serve everything.
    pub fn of(serves: &[Serves]) -> SupportedTargets {
        let has = |resource| serves.is_empty() || serves.contains(&resource);
        SupportedTargets { files: has(Serves::Files), fixed: has(Serves::Fixed), routes: has(Serves::Routes) }
    }

    /// Returns whether the server can serve `target`.
    pub fn has(self, target: Target) -> bool {
        match target {
            target if target.is_route() => self.routes,
            Target::Fixed => self.files || self.fixed,
            _ => self.files,
        }
    }

    /// Returns all supported targets, ordered by size.
    pub fn targets(self) -> Vec<Target> {
        let mut targets: Vec<Target> = Target::ALL.into_iter().filter(|&target| self.has(target)).collect();
        targets.sort_by_key(|target| target.bytes());
        targets
    }
}

/// Returns an HTML page of exactly this size, with numbered lines.
fn page(bytes: usize) -> Vec<u8> {
    const END: &str = "</body>\n</html>\n";
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>A page</title></head>\n<body>\n",
    );
    for number in 1.. {
        let line =
            format!("<p>Line {number} of a page that is neither small nor large, as most pages are.</p>\n");
        if page.len() + line.len() + END.len() > bytes {
            break;
        }
        page += &line;
    }
    page += &" ".repeat(bytes - page.len() - END.len());
    page += END;
    page.into_bytes()
}

/// Returns pseudorandom bytes without repetitions, so that lost, duplicated or shifted bytes are detected. The contents
/// depend only on the length. They are generated by xorshift64, which requires a non-zero state.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ bytes as u64;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

//! What is in a folder, as a page or as JSON.
//!
//! Names in a folder are chosen by whoever may write there, so they are escaped wherever they stand, and the page loads
//! and runs nothing (see [`CONTENT_SECURITY_POLICY`]). Only what a request for it would be answered with is listed: no
//! hidden files, no names that [`path`](super::path) refuses. Links are relative to the folder, whose target must end
//! with a slash.

mod html;
mod json;

use super::fields::FieldLines;
use super::path::{Dotfiles, check_name};
use super::quality::{Quality, weighted};
use super::stamp::Timestamp;
use crate::h1::trim;

/// The value of `Content-Security-Policy` for the page: its own style, and nothing else.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// The entries of a folder. Fill it with [`add`](Self::add) and take it as [`html`](Self::html) or
/// [`json`](Self::json), in which folders come first, and then files, each by name.
///
/// ```
/// use anello_http::files::listing::{Contents, Listing};
/// use anello_http::files::path::Dotfiles;
/// use anello_http::files::stamp::Timestamp;
/// let mut listing = Listing::new("music", Dotfiles::Hide, 10_000);
/// for name in [&b"b & c.ogg"[..], b".cache"] {
///     if listing.includes(name) && !listing.add(name, Contents::File { bytes: 2048 }, Timestamp::default()) {
///         break;
///     }
/// }
/// assert!(listing.html().contains("<a href=\"b%20%26%20c.ogg\"><bdi>b &amp; c.ogg</bdi></a>"));
/// assert!(listing.json().contains("{\"name\":\"b & c.ogg\",\"type\":\"file\",\"size_bytes\":2048,"));
/// ```
#[derive(Clone, Debug)]
pub struct Listing {
    /// The folder, relative to the served one.
    path: String,
    dotfiles: Dotfiles,
    max_entries: usize,
    entries: Vec<Entry>,
    is_cut: bool,
}

/// What is behind a name; symbolic links are what they lead to. What is neither (a FIFO, a device) is not served, and
/// not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A folder.
    Directory,
    /// A regular file.
    File {
        /// Its length in bytes.
        bytes: u64,
    },
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    contents: Contents,
    modified: Timestamp,
}

impl Listing {
    /// Of a folder by its [path](super::path::TargetPath::relative), with so many entries at most.
    #[must_use]
    pub fn new(path: &str, dotfiles: Dotfiles, max_entries: usize) -> Self {
        Self { path: path.to_owned(), dotfiles, max_entries, entries: Vec::new(), is_cut: false }
    }

    /// Whether a file of this name (`getdents64(2)`) is listed at all: to be asked before it is looked at.
    #[must_use]
    pub fn includes(&self, name: &[u8]) -> bool {
        self.included_name(name).is_some()
    }

    fn included_name<'n>(&self, name: &'n [u8]) -> Option<&'n str> {
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('/'))?;
        check_name(name, self.path.is_empty(), self.dotfiles).ok()?;
        Some(name)
    }

    /// Adds an entry, unless its name is not [shown](Self::includes). Returns false if there was no room for it: reading
    /// on is in vain then, and the listing says that it is not complete. Which entries are in it then depends on the
    /// order in which they came.
    #[must_use]
    pub fn add(&mut self, name: &[u8], contents: Contents, modified: Timestamp) -> bool {
        let Some(name) = self.included_name(name) else { return true };
        if self.entries.len() >= self.max_entries {
            self.is_cut = true;
            return false;
        }
        self.entries.push(Entry { name: name.to_owned(), contents, modified });
        true
    }

    /// The page: `text/html; charset=utf-8`, to be sent with the [`CONTENT_SECURITY_POLICY`].
    #[must_use]
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// The object: `application/json`. It has the `path` from the served folder on, with slashes around it, the
    /// `entries` with `name`, `type` (`folder` or `file`), `size_bytes` (of files) and `modified` (RFC 3339, UTC), and
    /// `complete`, which is false where entries were left out.
    #[must_use]
    pub fn json(&self) -> String {
        json::object(self)
    }

    fn in_order(&self) -> Vec<&Entry> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_cached_key(|entry| {
            (entry.contents != Contents::Directory, entry.name.to_lowercase(), entry.name.as_str())
        });
        entries
    }

    /// With slashes around it.
    fn full_path(&self) -> String {
        if self.path.is_empty() { "/".to_owned() } else { format!("/{}/", self.path) }
    }
}

/// How a listing is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A page for people.
    Html,
    /// An object for programs.
    Json,
}

impl Format {
    /// What a request wants: what its query names (`?format=json`, `?format=html`), or else what its `Accept` weighs
    /// more. A page, if neither says. The answer has `Vary: Accept`.
    #[must_use]
    pub fn from_request(accept: &FieldLines<'_>, query: Option<&str>) -> Self {
        let parameters = query.into_iter().flat_map(|query| query.split('&'));
        for parameter in parameters {
            match parameter {
                "format=json" => return Self::Json,
                "format=html" => return Self::Html,
                _ => {}
            }
        }
        let [json, html] = ["application/json", "text/html"].map(|media_type| quality(accept, media_type));
        if json > html { Self::Json } else { Self::Html }
    }
}

/// What `Accept` says of a media type: what is most specific about it counts (RFC 9110, section 12.5.1).
fn quality(accept: &FieldLines<'_>, media_type: &str) -> Quality {
    let family = media_type.split('/').next().unwrap_or_default();
    let specific = |range: &[u8]| {
        let range = trim(range);
        if range.eq_ignore_ascii_case(media_type.as_bytes()) {
            Some(3)
        } else if range.strip_suffix(b"/*").is_some_and(|range| range.eq_ignore_ascii_case(family.as_bytes()))
        {
            Some(2)
        } else {
            (range == b"*/*").then_some(1)
        }
    };
    let matching = weighted(accept).filter_map(|(range, quality)| Some((specific(range)?, quality)));
    matching.max().map_or(0, |(_, quality)| quality)
}

#[cfg(test)]
mod tests;

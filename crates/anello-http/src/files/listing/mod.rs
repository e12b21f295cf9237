//! Directory listings in HTML and JSON.
//!
//! File names are untrusted input: any user with write permission can choose them. They are escaped everywhere, and
//! the page loads and executes nothing (see [`CONTENT_SECURITY_POLICY`]). Only names that can be requested are
//! listed: no hidden files, and no names that [`path`](super::path) rejects. Links are relative to the directory,
//! so its URL must end with a slash.

mod html;
mod json;

use super::fields::FieldLines;
use super::path::{Dotfiles, check_name};
use super::quality::{Quality, weighted};
use super::stamp::Timestamp;
use crate::h1::trim;

/// `Content-Security-Policy` of the page: allows only the inline style sheet.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// Entries of a directory. [`add`](Self::add) adds entries; [`html`](Self::html) and [`json`](Self::json) render
/// them with directories first, then files, each sorted by name.
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
    /// Path of the directory, relative to the document root.
    path: String,
    dotfiles: Dotfiles,
    max_entries: usize,
    entries: Vec<Entry>,
    is_truncated: bool,
}

/// Type of a directory entry. A symbolic link has the type of its target. Other types (FIFO, device) are neither
/// served nor listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Size in bytes.
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
    /// Creates an empty listing of a directory. `path` is relative to the document root, as returned by
    /// [`TargetPath::relative`](super::path::TargetPath::relative). At most `max_entries` entries are kept.
    #[must_use]
    pub fn new(path: &str, dotfiles: Dotfiles, max_entries: usize) -> Self {
        Self { path: path.to_owned(), dotfiles, max_entries, entries: Vec::new(), is_truncated: false }
    }

    /// Returns `true` if entries with this name are listed. Call it before `fstatat(2)` to skip other entries.
    #[must_use]
    pub fn includes(&self, name: &[u8]) -> bool {
        self.listable_name(name).is_some()
    }

    fn listable_name<'n>(&self, name: &'n [u8]) -> Option<&'n str> {
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('/'))?;
        check_name(name, self.path.is_empty(), self.dotfiles).ok()?;
        Some(name)
    }

    /// Adds an entry, unless its name is not [listed](Self::includes). Returns `false` if the listing is full: stop
    /// reading the directory then. The listing is marked as incomplete, and which entries it contains depends on
    /// the order of the calls.
    #[must_use]
    pub fn add(&mut self, name: &[u8], contents: Contents, modified: Timestamp) -> bool {
        let Some(name) = self.listable_name(name) else { return true };
        if self.entries.len() >= self.max_entries {
            self.is_truncated = true;
            return false;
        }
        self.entries.push(Entry { name: name.to_owned(), contents, modified });
        true
    }

    /// Renders the listing as `text/html; charset=utf-8`. Send it with [`CONTENT_SECURITY_POLICY`].
    #[must_use]
    pub fn html(&self) -> String {
        html::render(self)
    }

    /// Renders the listing as `application/json`. The object has `path` (relative to the document root, with
    /// leading and trailing slash), `entries` and `complete`, which is `false` if entries were omitted. Each entry
    /// has `name`, `type` (`folder` or `file`), `size_bytes` (files only) and `modified` (RFC 3339, UTC).
    #[must_use]
    pub fn json(&self) -> String {
        json::render(self)
    }

    fn sorted_entries(&self) -> Vec<&Entry> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_cached_key(|entry| {
            (entry.contents != Contents::Directory, entry.name.to_lowercase(), entry.name.as_str())
        });
        entries
    }

    /// Returns the path with leading and trailing slash.
    fn full_path(&self) -> String {
        if self.path.is_empty() { "/".to_owned() } else { format!("/{}/", self.path) }
    }
}

/// Output format of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// HTML page.
    Html,
    /// JSON object.
    Json,
}

impl Format {
    /// Selects the format from the query (`?format=json`, `?format=html`) or else from the weights in `Accept`. The
    /// default is HTML. The response needs `Vary: Accept`.
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

/// Returns the weight of a media type in `Accept`. The most specific matching media range applies (RFC 9110,
/// section 12.5.1).
fn quality(accept: &FieldLines<'_>, media_type: &str) -> Quality {
    let top_level_type = media_type.split('/').next().unwrap_or_default();
    let specificity = |range: &[u8]| {
        let range = trim(range);
        if range.eq_ignore_ascii_case(media_type.as_bytes()) {
            Some(3)
        } else if range
            .strip_suffix(b"/*")
            .is_some_and(|range| range.eq_ignore_ascii_case(top_level_type.as_bytes()))
        {
            Some(2)
        } else {
            (range == b"*/*").then_some(1)
        }
    };
    let matching = weighted(accept).filter_map(|(range, quality)| Some((specificity(range)?, quality)));
    matching.max().map_or(0, |(_, quality)| quality)
}

#[cfg(test)]
mod tests;

//! The entries of a directory.

use serde::{Serialize, Serializer};

use super::super::path::{Dotfiles, check_name};
use super::super::stamp::Timestamp;

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
    pub(super) path: String,
    dotfiles: Dotfiles,
    max_entries: usize,
    pub(super) entries: Vec<Entry>,
    pub(super) is_truncated: bool,
}

/// Type of a directory entry. A symbolic link has the type of its target. Other types (FIFO, device) are neither
/// served nor listed.
///
/// ```
/// use anello_http::files::listing::{Contents, Listing};
/// # use anello_http::files::path::Dotfiles;
/// # use anello_http::files::stamp::Timestamp;
///
/// let mut listing = Listing::new("", Dotfiles::Hide, 100);
/// assert!(listing.add(b"song.ogg", Contents::File { bytes: 2048 }, Timestamp::default()));
/// assert!(listing.add(b"albums", Contents::Directory, Timestamp::default()));
/// let json = listing.json();
/// assert!(json.find("albums") < json.find("song.ogg"), "directories come first");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
#[non_exhaustive]
pub enum Contents {
    /// A directory.
    #[serde(rename = "folder")]
    Directory,
    /// A regular file.
    #[serde(rename = "file")]
    File {
        /// Size in bytes.
        #[serde(rename = "size_bytes")]
        bytes: u64,
    },
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Entry {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) contents: Contents,
    #[serde(serialize_with = "serialize_time")]
    pub(super) modified: Timestamp,
}

fn serialize_time<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_seconds(time.to_system_time()))
}

impl Listing {
    /// Creates an empty listing of a directory. `path` is relative to the document root, as returned by
    /// [`TargetPath::relative`](crate::files::path::TargetPath::relative). The listing keeps at most `max_entries`
    /// entries.
    ///
    /// ```
    /// use anello_http::files::listing::Listing;
    /// use anello_http::files::path::Dotfiles;
    ///
    /// let listing = Listing::new("music", Dotfiles::Hide, 100);
    /// assert_eq!(listing.json(), r#"{"path":"/music/","entries":[],"complete":true}"#);
    /// ```
    pub fn new(path: &str, dotfiles: Dotfiles, max_entries: usize) -> Self {
        Self { path: path.to_owned(), dotfiles, max_entries, entries: Vec::new(), is_truncated: false }
    }

    /// Returns `true` if entries with this name are listed. Call it before `fstatat(2)` to skip other entries.
    ///
    /// ```
    /// use anello_http::files::listing::Listing;
    /// use anello_http::files::path::Dotfiles;
    ///
    /// let listing = Listing::new("music", Dotfiles::Hide, 100);
    /// assert!(listing.includes(b"song.ogg"));
    /// assert!(!listing.includes(b".cache"));
    /// ```
    pub fn includes(&self, name: &[u8]) -> bool {
        self.listable_name(name).is_some()
    }

    fn listable_name<'n>(&self, name: &'n [u8]) -> Option<&'n str> {
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('/'))?;
        check_name(name, self.path.is_empty(), self.dotfiles).ok()?;
        Some(name)
    }

    /// Adds an entry if its name is [listed](Self::includes). Returns `false` if the listing is full; the caller should
    /// then stop reading the directory. In this case, the listing is marked as incomplete, and which entries it
    /// contains depends on the order of the calls.
    ///
    /// ```
    /// use anello_http::files::listing::{Contents, Listing};
    /// use anello_http::files::path::Dotfiles;
    /// use anello_http::files::stamp::Timestamp;
    ///
    /// let mut listing = Listing::new("music", Dotfiles::Hide, 1);
    /// assert!(listing.add(b"a.ogg", Contents::File { bytes: 2048 }, Timestamp::default()));
    /// assert!(!listing.add(b"b.ogg", Contents::File { bytes: 2048 }, Timestamp::default()));
    /// assert!(listing.json().ends_with(r#""complete":false}"#));
    /// ```
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

    pub(super) fn sorted_entries(&self) -> Vec<&Entry> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_cached_key(|entry| {
            (entry.contents != Contents::Directory, entry.name.to_lowercase(), entry.name.as_str())
        });
        entries
    }

    /// Returns the path with a leading and a trailing slash.
    pub(super) fn full_path(&self) -> String {
        if self.path.is_empty() { "/".to_owned() } else { format!("/{}/", self.path) }
    }

    /// Renders the listing as `application/json`. The object has `path` (relative to the document root, with a leading
    /// and a trailing slash), `entries` and `complete`, which is `false` if entries were omitted. Each entry has
    /// `name`, `type` (`folder` or `file`), `size_bytes` (files only) and `modified` (RFC 3339, UTC).
    ///
    /// ```
    /// use anello_http::files::listing::{Contents, Listing};
    /// use anello_http::files::path::Dotfiles;
    /// use anello_http::files::stamp::Timestamp;
    ///
    /// let mut listing = Listing::new("", Dotfiles::Hide, 100);
    /// assert!(listing.add(b"a.ogg", Contents::File { bytes: 2048 }, Timestamp::default()));
    /// let entry = r#"{"name":"a.ogg","type":"file","size_bytes":2048,"modified":"1970-01-01T00:00:00Z"}"#;
    /// assert_eq!(listing.json(), format!(r#"{{"path":"/","entries":[{entry}],"complete":true}}"#));
    /// ```
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Object<'a> {
            path: String,
            entries: Vec<&'a Entry>,
            complete: bool,
        }
        let (path, entries) = (self.full_path(), self.sorted_entries());
        // Serializing strings, numbers and booleans cannot fail.
        serde_json::to_string(&Object { path, entries, complete: !self.is_truncated }).unwrap_or_default()
    }
}

//! Directory listing as JSON.

use serde::Serialize;

use super::entries::{Contents, Entry, Listing};

#[derive(Serialize)]
struct ListingObject<'a> {
    path: String,
    entries: Vec<EntryObject<'a>>,
    complete: bool,
}

#[derive(Serialize)]
struct EntryObject<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    modified: String,
}

impl<'a> From<&'a Entry> for EntryObject<'a> {
    fn from(entry: &'a Entry) -> Self {
        let (kind, size_bytes) = match entry.contents {
            Contents::Directory => ("folder", None),
            Contents::File { bytes } => ("file", Some(bytes)),
        };
        let modified = humantime::format_rfc3339_seconds(entry.modified.to_system_time()).to_string();
        Self { name: &entry.name, kind, size_bytes, modified }
    }
}

impl Listing {
    /// Renders the listing as `application/json`. The object has `path` (relative to the document root, with a leading
    /// and a trailing slash), `entries` and `complete`, which is `false` if entries were omitted. Each entry has
    /// `name`, `type` (`folder` or `file`), `size_bytes` (files only) and `modified` (RFC 3339, UTC).
    pub fn json(&self) -> String {
        let entries = self.sorted_entries().into_iter().map(EntryObject::from).collect();
        let object = ListingObject { path: self.full_path(), entries, complete: !self.is_truncated };
        // Serializing strings, numbers and booleans cannot fail.
        serde_json::to_string(&object).unwrap_or_default()
    }
}

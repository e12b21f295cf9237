//! Directory listing as JSON.

use serde::Serialize;

use super::{Contents, Entry, Listing};

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

pub(super) fn render(listing: &Listing) -> String {
    let entries = listing.sorted_entries().into_iter().map(EntryObject::from).collect();
    let object = ListingObject { path: listing.full_path(), entries, complete: !listing.is_truncated };
    // Serializing strings, numbers and booleans cannot fail.
    serde_json::to_string(&object).unwrap_or_default()
}

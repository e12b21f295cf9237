//! Directory listings in HTML and JSON.
//!
//! File names are untrusted input: any user with write permission can choose them. They are escaped everywhere, and
//! the page loads and executes nothing (see [`CONTENT_SECURITY_POLICY`]). Only names that can be requested are
//! listed: no hidden files, and no names that [`path`](super::path) rejects. Links are relative to the directory,
//! so its URL must end with a slash.

mod entries;
mod html;

pub use entries::{Contents, Listing};
pub use html::CONTENT_SECURITY_POLICY;

use super::fields::FieldLines;
use super::negotiate::{Quality, weighted};

/// Output format of a listing.
///
/// ```
/// use anello_http::files::fields::FieldLines;
/// use anello_http::files::listing::Format;
///
/// let accept: FieldLines<'_> = [&b"application/json"[..]].into_iter().collect();
/// assert_eq!(Format::from_request(&accept, None), Format::Json);
/// assert_eq!(Format::from_request(&FieldLines::default(), None), Format::Html);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// HTML page.
    Html,
    /// JSON object.
    Json,
}

impl Format {
    /// Selects the format from the query (`?format=json`, `?format=html`) or otherwise from the weights in `Accept`.
    /// The default is HTML. The response needs `Vary: Accept`.
    ///
    /// ```
    /// use anello_http::files::fields::FieldLines;
    /// use anello_http::files::listing::Format;
    ///
    /// let accept: FieldLines<'_> = [&b"text/html, application/json;q=0.5"[..]].into_iter().collect();
    /// assert_eq!(Format::from_request(&accept, None), Format::Html);
    /// // The query takes precedence.
    /// assert_eq!(Format::from_request(&accept, Some("format=json")), Format::Json);
    /// ```
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
    let (top_level_type, _) = media_type.split_once('/').unwrap_or_default();
    let ranges = ["*/*", &format!("{top_level_type}/*"), media_type];
    let specificity =
        |range: &[u8]| ranges.iter().position(|known| known.as_bytes().eq_ignore_ascii_case(range));
    let matching = weighted(accept).filter_map(|(range, quality)| Some((specificity(range)?, quality)));
    matching.max().map_or(0, |(_, quality)| quality)
}

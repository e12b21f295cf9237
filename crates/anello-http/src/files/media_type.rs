//! Media types by file extension.
//!
//! The `mime_guess` crate provides the mapping. `OVERRIDDEN_TYPES` takes precedence where `mime_guess` has an
//! obsolete name or a meaning that is uncommon on the web. Types set by the operator take precedence over both.
//!
//! `charset=utf-8` is added to types whose files do not declare their encoding and are nearly always UTF-8: text,
//! JavaScript (RFC 9239), JSON (always UTF-8; the parameter helps tools that display it as text) and YAML. It is not
//! added to XML, and therefore not to SVG: an XML document declares its encoding or is UTF-8 (RFC 7303), and the
//! parameter would override the declaration. The operator of a site with another encoding sets the types explicitly,
//! for example `html = "text/html; charset=windows-1252"`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use mime_guess::mime::Mime;

use super::invalid_option::InvalidOption;

/// Types that override those in `mime_guess`.
const OVERRIDDEN_TYPES: [(&str, &str); 14] = [
    // RFC 9239 registers `text/javascript` as the only current type for JavaScript.
    ("cjs", "text/javascript"),
    ("mjs", "text/javascript"),
    // HTTP Live Streaming: playlist and media segment (RFC 8216).
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("ts", "video/mp2t"),
    ("m4a", "audio/mp4"),
    // Source maps are JSON.
    ("map", "application/json"),
    // Font types (RFC 8081).
    ("otf", "font/otf"),
    ("woff", "font/woff"),
    // YAML (RFC 9512).
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("toml", "application/toml"),
    // Zstandard (RFC 8878).
    ("zst", "application/zstd"),
    // One JSON object per line. The type is not registered, but is in common use.
    ("ndjson", "application/x-ndjson"),
    // 3D model in STL format. `mime_guess` maps the extension to Microsoft's certificate trust list.
    ("stl", "model/stl"),
];

/// Mapping from file extension to media type.
///
/// ```
/// use anello_http::files::media_type::MediaTypes;
///
/// let types = MediaTypes::new(&Default::default(), "application/octet-stream")?;
/// assert_eq!(types.of("app.js"), "text/javascript; charset=utf-8");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MediaTypes {
    /// Pairs of an extension, without the dot, and its media type.
    overrides: Vec<(String, String)>,
    default: String,
}

impl MediaTypes {
    /// Creates a mapping from extensions (case-insensitive, with or without a leading dot) to media types, which are
    /// sent unchanged. `default` is the type for files without a known extension.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    ///
    /// use anello_http::files::media_type::MediaTypes;
    ///
    /// let overrides = BTreeMap::from([("html".to_owned(), "text/html; charset=windows-1252".to_owned())]);
    /// let types = MediaTypes::new(&overrides, "text/plain")?;
    /// assert_eq!(types.of("index.HTML"), "text/html; charset=windows-1252");
    /// assert_eq!(types.of("LICENSE"), "text/plain");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a media type is malformed, or if an extension is empty or contains a dot or a slash.
    pub fn new(overrides: &BTreeMap<String, String>, default: &str) -> Result<Self, InvalidOption> {
        const OVERRIDES: &str = "media-type";
        let overrides = overrides.iter().map(|(extension, media_type)| {
            check_media_type(OVERRIDES, media_type)?;
            let extension = extension.strip_prefix('.').unwrap_or(extension);
            if extension.is_empty() || extension.contains(['.', '/']) {
                let reason = "an extension is the part of a name after its last dot, for example \"html\"";
                return Err(InvalidOption::new(OVERRIDES, extension, reason));
            }
            Ok((extension.to_owned(), media_type.clone()))
        });
        let overrides = overrides.collect::<Result<_, InvalidOption>>()?;
        check_media_type("default-media-type", default)?;
        Ok(Self { overrides, default: default.to_owned() })
    }

    /// Returns the `Content-Type` of a file. For a precompressed variant, pass the path of the uncompressed file.
    /// Allocates only for less common text types.
    ///
    /// ```
    /// # use anello_http::files::media_type::MediaTypes;
    /// let types = MediaTypes::new(&Default::default(), "application/octet-stream")?;
    /// assert_eq!(types.of("index.html"), "text/html; charset=utf-8");
    /// assert_eq!(types.of("logo.svg"), "image/svg+xml");
    /// assert_eq!(types.of("LICENSE"), "application/octet-stream");
    /// # Ok::<(), anello_http::files::options::InvalidOption>(())
    /// ```
    pub fn of(&self, path: &str) -> Cow<'_, str> {
        let Some(extension) = extension(path) else { return Cow::Borrowed(&self.default) };
        let configured = self.overrides.iter().find(|(key, _)| key.eq_ignore_ascii_case(extension));
        if let Some((_, media_type)) = configured {
            return Cow::Borrowed(media_type);
        }
        let overridden = OVERRIDDEN_TYPES.iter().find(|(key, _)| key.eq_ignore_ascii_case(extension));
        let media_type = overridden.map(|(_, media_type)| *media_type);
        match media_type.or_else(|| mime_guess::from_ext(extension).first_raw()) {
            Some(media_type) => with_charset(media_type),
            None => Cow::Borrowed(&self.default),
        }
    }
}

/// Returns the part after the last dot of the file name. Names whose only dot is the first character (`.profile`) have
/// no extension.
fn extension(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    let (stem, extension) = name.rsplit_once('.')?;
    (!stem.is_empty() && !extension.is_empty()).then_some(extension)
}

fn with_charset(media_type: &'static str) -> Cow<'static, str> {
    Cow::Borrowed(match media_type {
        "text/html" => "text/html; charset=utf-8",
        "text/css" => "text/css; charset=utf-8",
        "text/javascript" => "text/javascript; charset=utf-8",
        "application/json" => "application/json; charset=utf-8",
        "text/plain" => "text/plain; charset=utf-8",
        "text/markdown" => "text/markdown; charset=utf-8",
        other if is_text_without_charset(other) => return Cow::Owned(format!("{other}; charset=utf-8")),
        other => other,
    })
}

fn is_text_without_charset(media_type: &str) -> bool {
    let is_text = media_type.starts_with("text/") && media_type != "text/xml";
    let is_text_application_type =
        matches!(media_type, "application/javascript" | "application/yaml" | "application/toml");
    is_text || is_text_application_type || media_type.ends_with("+json")
}

fn check_media_type(option: &'static str, media_type: &str) -> Result<(), InvalidOption> {
    const REASON: &str = "a media type has the form type/subtype, for example \"text/html\"";
    // `Mime` accepts bytes other than printable ASCII in quoted parameters, but this function rejects them.
    let is_printable = media_type.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match media_type.parse::<Mime>() {
        Ok(parsed) if is_printable && parsed.subtype() != "" => Ok(()),
        Ok(_) => Err(InvalidOption::new(option, media_type, REASON)),
        Err(error) => Err(InvalidOption::new(option, media_type, format!("{error}; {REASON}"))),
    }
}

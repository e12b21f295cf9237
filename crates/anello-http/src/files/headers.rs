//! Fields that the operator adds to responses, for all of them or by path pattern.

use globset::GlobMatcher;

use super::cache_control::compile;
use super::invalid_option::InvalidOption;
use crate::h1::{FieldBlock, FieldName, InvalidField, is_value};

/// A field that is added to responses.
///
/// ```
/// use anello_http::files::FileOptions;
/// use anello_http::files::headers::HeaderRule;
///
/// let rule = HeaderRule {
///     pattern: Some("*.html".to_owned()),
///     name: "Content-Security-Policy".to_owned(),
///     value: "default-src 'self'".to_owned(),
/// };
/// let options = FileOptions::default().headers(vec![rule]);
/// assert!(options.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    /// Glob pattern for the paths of files, with the syntax of [`CacheRule`](super::cache_control::CacheRule). Without a
    /// pattern, the field is added to all responses, also to those without a file, such as 404.
    pub pattern: Option<String>,
    /// Field name. The fields that the server itself sends are not allowed.
    pub name: String,
    /// Field value, for example `max-age=31536000`.
    pub value: String,
}

/// Fields that depend on the file or the request, so that the server must send them itself.
const SERVER_FIELDS: [&str; 9] = [
    "accept-ranges",
    "allow",
    "cache-control",
    "content-encoding",
    "content-range",
    "content-type",
    "etag",
    "last-modified",
    "location",
];

impl HeaderRule {
    pub(super) fn error(&self) -> Option<InvalidOption> {
        let Self { pattern, name, value } = self;
        if let Some(Err(error)) = pattern.as_deref().map(|pattern| compile(OPTION, pattern)) {
            return Some(error);
        }
        let reason = match FieldName::new(name) {
            Err(error) => error.to_string(),
            Ok(_) if SERVER_FIELDS.contains(&&*name.to_ascii_lowercase()) => {
                "the server sets this field (for the media type and caching, use media-type and cache-control)".to_owned()
            }
            Ok(_) if !is_value(value.as_bytes()) => InvalidField::Value.to_string(),
            Ok(_) => return None,
        };
        Some(InvalidOption::new(OPTION, &format!("{name}: {value}"), reason))
    }
}

const OPTION: &str = "header";

/// Compiled rules.
#[derive(Clone, Debug)]
pub(super) struct HeaderRules {
    /// The rules without a pattern.
    common: Vec<HeaderRule>,
    by_path: Vec<(GlobMatcher, HeaderRule)>,
}

impl HeaderRules {
    pub fn new(rules: &[HeaderRule]) -> Result<Self, InvalidOption> {
        let (mut common, mut by_path) = (Vec::new(), Vec::new());
        for rule in rules {
            match (rule.error(), &rule.pattern) {
                (Some(error), _) => return Err(error),
                (None, Some(pattern)) => by_path.push((compile(OPTION, pattern)?, rule.clone())),
                (None, None) => common.push(rule.clone()),
            }
        }
        Ok(Self { common, by_path })
    }

    /// Returns the fields of all responses.
    pub fn common(&self) -> impl Iterator<Item = (FieldName<'_>, &[u8])> {
        self.common.iter().filter_map(field)
    }

    /// Adds the fields of a file at this path, in addition to those of all responses.
    pub fn push_fields(&self, path: &str, fields: &mut FieldBlock) -> Result<(), InvalidField> {
        let matching = self.by_path.iter().filter(|(pattern, _)| pattern.is_match(path));
        for (name, value) in matching.filter_map(|(_, rule)| field(rule)) {
            fields.push(name, value)?;
        }
        Ok(())
    }
}

fn field(rule: &HeaderRule) -> Option<(FieldName<'_>, &[u8])> {
    Some((FieldName::new(&rule.name).ok()?, rule.value.as_bytes()))
}

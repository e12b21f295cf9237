//! What can be set about a server of files.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::slice;
use std::thread::available_parallelism;
use std::time::Duration;

use super::cache_control::CacheRule;
use super::cors::CorsOrigins;
use super::media_type::MediaTypes;
use super::negotiate::Codings;
use super::path::{Dotfiles, MAX_NAME_BYTES, resolve};

/// What can be set about a server of files. [`FileOptions::default`] has the defaults; every field may be changed.
/// [`validate`](Self::validate) tells whether they go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Names of files that are sent for the folder that they are in: the first that exists. `index.html` by default;
    /// none is allowed.
    pub index_files: Vec<String>,
    /// Whether a folder without an index file is shown as a list of what is in it; if not, it is answered with 404. Off
    /// by default, since not all that lies in a folder is meant to be found.
    pub listing: bool,
    /// Most entries of a folder that are shown; 10,000 by default. The rest is left out, and the list says so. Each
    /// costs an `fstatat(2)`, a `faccessat(2)` and some 300 bytes of the page, more if its name is long.
    pub max_listing_entries: usize,
    /// The variants that are looked for beside each file and sent to clients that accept them: `.br`, `.zst`, `.gz`.
    /// None by default: who sets it says that they are made anew with their files.
    pub precompressed: Codings,
    /// The values of `Cache-Control`, by patterns for paths; the first that matches counts. None by default.
    pub cache_control: Vec<CacheRule>,
    /// Media types by extension, which go before those that are known; none by default.
    pub media_types: BTreeMap<String, String>,
    /// The media type of what has no known extension; `application/octet-stream` by default, which browsers save.
    pub default_media_type: String,
    /// A file, by its path from the served folder on, that is the body of answers of status 404, which have neither its
    /// validators nor its `Cache-Control`: it stands in for other files. None by default: they have a line of text.
    pub not_found_file: Option<String>,
    /// A file, by its path from the served folder on, that is sent with status 200 where there is none, if the last
    /// name of the path has no extension and none is hidden: the page of an application that makes up its paths in the
    /// browser. None by default. For other paths there is `not_found_file`.
    pub spa_fallback_file: Option<String>,
    /// Whether files and folders are served whose names begin with a dot; hidden by default.
    pub dotfiles: Dotfiles,
    /// The sites whose scripts may read what is served, as `https://example.org`, or `*` for all; none by default.
    pub cors_origins: Vec<String>,
    /// What becomes of symbolic links; those that stay below the served folder are followed by default.
    pub symlinks: Symlinks,
    /// Memory for the contents of small files, in bytes, of each worker; 64 MiB by default. 0 keeps none.
    pub max_cache_bytes: usize,
    /// Largest file whose contents are kept in memory, in bytes; 64 KiB by default. Larger ones are sent from the
    /// kernel's own cache.
    pub max_cached_file_bytes: usize,
    /// How many workers of this process serve files, each with options like these: their caches keep a quarter of the
    /// descriptors that the process may have between them, and 512 files each at most. By default as many as the cores
    /// that the calling thread may use, which are fewer where it is pinned.
    pub workers: usize,
    /// How long a file that was looked at counts as unchanged; 1 second by default. A changed file is sent in its new
    /// state at most so much later. Where the contents are not kept in memory, what is written to the file or put in its
    /// place is seen at once (`fstat(2)` for each answer). Zero looks (`openat2(2)`, `fstat(2)`) at each request. It is
    /// also how long a list of a folder is sent to others who ask for it.
    pub revalidate_interval: Duration,
}

/// What becomes of symbolic links in a path. None ever leads out of the served folder (`openat2(2)` with
/// `RESOLVE_BENEATH`, Linux 5.6), nor through `/proc`'s (`RESOLVE_NO_MAGICLINKS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Symlinks {
    /// They are followed as long as they stay below the served folder. Absolute ones never do, wherever they lead.
    #[default]
    FollowBeneath,
    /// None is followed: a path with one in it is answered with 404 (`RESOLVE_NO_SYMLINKS`).
    Deny,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            index_files: vec!["index.html".to_owned()],
            listing: false,
            max_listing_entries: 10_000,
            precompressed: Codings::NONE,
            cache_control: Vec::new(),
            media_types: BTreeMap::new(),
            default_media_type: UNKNOWN_MEDIA_TYPE.to_owned(),
            not_found_file: None,
            spa_fallback_file: None,
            dotfiles: Dotfiles::Hide,
            cors_origins: Vec::new(),
            symlinks: Symlinks::FollowBeneath,
            max_cache_bytes: 64 << 20,
            max_cached_file_bytes: 64 << 10,
            workers: available_parallelism().map_or(1, NonZero::get),
            revalidate_interval: Duration::from_secs(1),
        }
    }
}

/// The type of what is not known: browsers save it.
const UNKNOWN_MEDIA_TYPE: &str = "application/octet-stream";

/// Longest `revalidate_interval`.
const REVALIDATE_LIMIT: Duration = Duration::from_secs(24 * 3600);

impl FileOptions {
    /// Whether they are well-formed and go together. Looks at no file.
    ///
    /// ```
    /// use anello_http::files::options::FileOptions;
    /// assert!(FileOptions::default().validate().is_ok());
    /// let options = FileOptions { not_found_file: Some("../404.html".to_owned()), ..FileOptions::default() };
    /// assert!(options.validate().unwrap_err().to_string().starts_with("not-found-file: \"../404.html\""));
    /// ```
    ///
    /// # Errors
    /// The first that is not.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        self.validation_errors().into_iter().next().map_or(Ok(()), Err)
    }

    /// Everything that [`validate`](Self::validate) finds, not the first of it alone.
    #[must_use]
    pub fn validation_errors(&self) -> Vec<InvalidOption> {
        let index_files = self.index_files.iter().map(|name| check_index_file(name));
        let named_files = [
            check_file("not-found-file", self.not_found_file.as_deref()),
            check_file("spa-fallback", self.spa_fallback_file.as_deref()),
        ];
        // One by one, so that each is told.
        let rules = self.cache_control.iter().flat_map(CacheRule::errors).map(Err);
        let types = self.media_types.iter().map(|(extension, media_type)| {
            let one = BTreeMap::from([(extension.clone(), media_type.clone())]);
            MediaTypes::new(&one, UNKNOWN_MEDIA_TYPE).map(drop)
        });
        let default_type = MediaTypes::new(&BTreeMap::new(), &self.default_media_type).map(drop);
        let origins = self.cors_origins.iter().map(|one| CorsOrigins::new(slice::from_ref(one)).map(drop));
        let found = index_files.chain(named_files).chain(rules).chain(types).chain([default_type]);
        let mut errors: Vec<_> = found.chain(origins).filter_map(Result::err).collect();
        errors.extend(self.number_errors());
        errors
    }

    fn number_errors(&self) -> Vec<InvalidOption> {
        let mut errors = Vec::new();
        if self.listing && self.max_listing_entries == 0 {
            let why = "a list of no entries shows nothing; switch the listing off instead";
            errors.push(InvalidOption::new("max-listing-entries", "0", why));
        }
        if self.max_cache_bytes > 0 && self.max_cached_file_bytes > self.max_cache_bytes {
            let why =
                format!("a file must fit into the whole cache, which has {} bytes", self.max_cache_bytes);
            errors.push(InvalidOption::new(
                "max-cached-file-bytes",
                &self.max_cached_file_bytes.to_string(),
                why,
            ));
        }
        if self.revalidate_interval > REVALIDATE_LIMIT {
            let why = "a day at most: files would be served from before they changed for that long";
            let value = format!("{:?}", self.revalidate_interval);
            errors.push(InvalidOption::new("revalidate-interval", &value, why));
        }
        errors
    }
}

fn check_index_file(name: &str) -> Result<(), InvalidOption> {
    let is_name =
        !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']) && name.len() <= MAX_NAME_BYTES;
    let why = "an index file is given by its name alone, as in \"index.html\"";
    if is_name { Ok(()) } else { Err(InvalidOption::new("index", name, why)) }
}

/// Whether this is a path as those that targets lead to: relative, and not out of the folder.
fn check_file(option: &'static str, path: Option<&str>) -> Result<(), InvalidOption> {
    let Some(path) = path else { return Ok(()) };
    let target = format!("/{}", super::path::encoded_path(path));
    let leads_there = |target: &str| {
        let resolved = resolve(target, Dotfiles::Serve).ok()?;
        (!resolved.is_directory() && resolved.relative() == path).then_some(())
    };
    let why = "the path of a file goes from the served folder down, as in \"errors/404.html\"";
    leads_there(&target).ok_or_else(|| InvalidOption::new(option, path, why))
}

/// An option that cannot be as it is. Its text names the option, the value, and what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidOption {
    option: &'static str,
    value: String,
    why: String,
}

impl InvalidOption {
    pub(super) fn new(option: &'static str, value: &str, why: impl Into<String>) -> Self {
        Self { option, value: value.to_owned(), why: why.into() }
    }

    /// The name of the option, as flags and configuration files have it.
    #[must_use]
    pub fn option(&self) -> &'static str {
        self.option
    }
}

impl fmt::Display for InvalidOption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {:?}: {}", self.option, self.value, self.why)
    }
}

impl std::error::Error for InvalidOption {}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: impl FnOnce(&mut FileOptions)) -> String {
        let mut options = FileOptions::default();
        change(&mut options);
        let error = options.validate().unwrap_err();
        assert!(error.to_string().starts_with(error.option()));
        error.to_string()
    }

    #[test]
    fn the_defaults_go_together() {
        FileOptions::default().validate().unwrap();
    }

    #[test]
    fn options_that_make_sense_are_accepted() {
        let options = FileOptions {
            index_files: vec!["index.html".into(), ".index".into(), "index page.htm".into()],
            not_found_file: Some("errors/404.html".into()),
            spa_fallback_file: Some(".app/ünïcode 100%.html".into()),
            max_cache_bytes: 0,
            revalidate_interval: Duration::ZERO,
            listing: true,
            ..FileOptions::default()
        };
        options.validate().unwrap();
        FileOptions { index_files: Vec::new(), ..options }.validate().unwrap();
    }

    #[test]
    fn index_files_are_names() {
        for name in ["", ".", "..", "a/b", "/index.html", "a\0"] {
            assert!(
                error(|options| options.index_files.push(name.into())).contains("by its name alone"),
                "{name}"
            );
        }
    }

    #[test]
    fn files_lie_below_the_served_folder() {
        for path in ["", "/404.html", "../404.html", "a/../404.html", "a//b", "a/", "./a", "a\0", "a\\b"] {
            assert!(
                error(|options| options.not_found_file = Some(path.into())).starts_with("not-found-file")
            );
            assert!(
                error(|options| options.spa_fallback_file = Some(path.into())).starts_with("spa-fallback")
            );
        }
    }

    #[test]
    fn every_other_option_is_looked_at() {
        let rule = CacheRule { pattern: "[".into(), value: "no-cache".into() };
        assert!(error(|options| options.cache_control.push(rule)).starts_with("cache-control"));
        assert!(error(|options| options.default_media_type.clear()).starts_with("default-media-type"));
        assert!(error(|options| options.cors_origins.push("a".into())).starts_with("cors-origin:"));
        assert!(error(|options| options.revalidate_interval *= 100_000).starts_with("revalidate-interval"));
        let of_types = error(|options| {
            options.media_types.insert("html".into(), "html".into());
        });
        assert!(of_types.starts_with("media-type:"));
        let of_cache = error(|options| options.max_cached_file_bytes = options.max_cache_bytes + 1);
        assert!(of_cache.contains("which has 67108864 bytes"));
        let of_listing = error(|options| {
            options.listing = true;
            options.max_listing_entries = 0;
        });
        assert!(of_listing.contains("switch the listing off"));
    }

    #[test]
    fn all_that_is_wrong_is_found_at_once() {
        assert_eq!(FileOptions::default().validation_errors(), []);
        let rule = |pattern: &str| CacheRule { pattern: pattern.into(), value: "no-cache".into() };
        let options = FileOptions {
            index_files: vec!["a/b".into(), "index.html".into(), "..".into()],
            cache_control: vec![
                rule("["),
                rule("*.css"),
                CacheRule { pattern: String::new(), value: String::new() },
            ],
            media_types: BTreeMap::from([("a".into(), "b".into()), ("html".into(), "html".into())]),
            default_media_type: String::new(),
            cors_origins: vec!["https://example.org".into(), "a".into()],
            spa_fallback_file: Some("/".into()),
            revalidate_interval: REVALIDATE_LIMIT * 2,
            ..FileOptions::default()
        };
        let found: Vec<&str> = options.validation_errors().iter().map(InvalidOption::option).collect();
        assert_eq!(
            found,
            [
                "index",
                "index",
                "spa-fallback",
                "cache-control",
                "cache-control",
                "cache-control",
                "media-type",
                "media-type",
                "default-media-type",
                "cors-origin",
                "revalidate-interval"
            ]
        );
        assert_eq!(options.validate().unwrap_err(), options.validation_errors()[0]);
    }
}

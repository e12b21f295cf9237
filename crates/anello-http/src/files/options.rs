//! File server options.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::slice;
use std::thread::available_parallelism;
use std::time::Duration;

use super::cache_control::CacheRule;
use super::cors::CorsOrigins;
use super::headers::HeaderRule;
pub use super::invalid_option::InvalidOption;
use super::media_type::MediaTypes;
use super::negotiate::Codings;
use super::path::{Dotfiles, MAX_NAME_BYTES, resolve};

/// File server options. [`validate`](Self::validate) checks the values and their combination.
///
/// ```
/// use anello_http::files::FileOptions;
///
/// let options = FileOptions::default().listing(true).not_found_file(Some("errors/404.html".to_owned()));
/// assert!(options.validate().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileOptions {
    /// Index file names for directories, in order of preference. May be empty. Default: `index.html`.
    pub index_files: Vec<String>,
    /// Name of the only file in the document root that is served. All other paths are missing, except for `/` if the file
    /// is one of the [`index_files`](Self::index_files). Default: none, which serves all files.
    pub single_file: Option<String>,
    /// Whether a directory without an index file is shown as a listing. Otherwise the response is 404. Default:
    /// `false`, because not every file in a directory is meant to be discovered.
    pub listing: bool,
    /// Maximum number of entries in a listing. Default: 10,000. Longer listings are marked as incomplete. Each entry
    /// requires calls to `fstatat(2)` and `faccessat(2)`, and adds about 300 bytes to the page, or more for a long
    /// name.
    pub max_listing_entries: usize,
    /// Codings of the precompressed variants (`.br`, `.zst`, `.gz`) that are looked up for each file and sent to clients
    /// that accept them. The operator must regenerate the variants whenever the file changes. Default: none.
    pub precompressed: Codings,
    /// Codings with which files of at least 1 KiB are compressed while they are sent, if their media type is
    /// compressible, the client accepts the coding, and there is no precompressed variant. Default: none, because it
    /// costs processor time for each response. Such a response has neither a length nor ranges.
    #[cfg(feature = "compression")]
    pub compress: Codings,
    /// Maximum memory of the encoders of all responses in the process that are being compressed, in bytes. Default: 64
    /// MiB, which suffices for 16 Brotli encoders of 4 MiB, the largest ones. Above the limit, files are sent
    /// uncompressed. Files of up to 16 KiB are compressed in one step, and occupy no encoder.
    #[cfg(feature = "compression")]
    pub max_compress_bytes: usize,
    /// `Cache-Control` values by path pattern; the first matching rule applies. Default: none.
    pub cache_control: Vec<CacheRule>,
    /// Fields that are added to responses, such as `Strict-Transport-Security`. All matching rules apply. Default: none.
    pub headers: Vec<HeaderRule>,
    /// Media types by extension. They take precedence over the built-in types. Default: none.
    pub media_types: BTreeMap<String, String>,
    /// Media type of files without a known extension. Default: `application/octet-stream`, which browsers save to
    /// disk.
    pub default_media_type: String,
    /// Path of the error page for 404 responses, relative to the document root. The response has neither the validators
    /// nor the `Cache-Control` of the page, because it does not represent the requested file. Default: none; a line of
    /// text is sent instead.
    pub not_found_file: Option<String>,
    /// Path of the page of a single-page application, relative to the document root. It is sent with status 200 for
    /// paths that do not exist, if the last path segment has no extension and no segment is hidden. For other missing
    /// paths, `not_found_file` is sent. Default: none.
    pub spa_fallback_file: Option<String>,
    /// Whether to serve files and directories whose names start with a dot. Default: they are hidden.
    pub dotfiles: Dotfiles,
    /// Origins whose scripts may read responses, for example `https://example.org`, or `*` for all. Default: none.
    pub cors_origins: Vec<String>,
    /// Policy for symbolic links. Default: follow links that stay in the document root.
    pub symlinks: Symlinks,
    /// Maximum memory for the contents of small files, in bytes per worker. Default: 64 MiB. 0 disables this cache.
    pub max_cache_bytes: usize,
    /// Maximum size of a file whose contents are cached, in bytes. Default: 64 KiB. Larger files are sent from the page
    /// cache.
    pub max_cached_file_bytes: usize,
    /// Number of workers in this process that serve files with these options. Their caches share a quarter of the
    /// process's descriptor limit, with at most 512 open files per worker. Default: the number of cores on which the
    /// calling thread may run, which is lower if the thread is pinned.
    pub workers: usize,
    /// Time for which a checked file is considered unchanged, and for which a directory listing is shared between
    /// requests. Default: 1 second. Changes to a file become visible after at most this time. For files that are not
    /// cached in memory, writes and replacements are detected immediately (by `fstat(2)` for each response). If zero,
    /// files are checked on every request (by `openat2(2)` and `fstat(2)`).
    pub revalidate_interval: Duration,
}

setters!(FileOptions {
    index_files: Vec<String> = vec!["index.htm".to_owned()],
    single_file: Option<String> = Some("index.html".to_owned()),
    listing: bool = true,
    max_listing_entries: usize = 1000,
    precompressed: Codings = Codings::ALL,
    cache_control: Vec<CacheRule> = vec![CacheRule { pattern: "**".to_owned(), value: "no-cache".to_owned() }],
    headers: Vec<HeaderRule> =
        vec![HeaderRule { pattern: None, name: "Referrer-Policy".to_owned(), value: "no-referrer".to_owned() }],
    media_types: BTreeMap<String, String> = BTreeMap::from([("foo".to_owned(), "text/plain".to_owned())]),
    default_media_type: String = "text/plain".to_owned(),
    not_found_file: Option<String> = Some("404.html".to_owned()),
    spa_fallback_file: Option<String> = Some("index.html".to_owned()),
    dotfiles: Dotfiles = Dotfiles::Serve,
    cors_origins: Vec<String> = vec!["https://example.org".to_owned()],
    symlinks: Symlinks = Symlinks::Deny,
    max_cache_bytes: usize = 1 << 20,
    max_cached_file_bytes: usize = 4096,
    workers: usize = 4,
    revalidate_interval: Duration = Duration::ZERO,
});

#[cfg(feature = "compression")]
setters!(FileOptions { compress: Codings = Codings::ALL, max_compress_bytes: usize = 1 << 20 });

/// Policy for symbolic links in a path. No link can lead out of the document root (`openat2(2)` with
/// `RESOLVE_BENEATH`, Linux 5.6) or through a magic link of `/proc` (`RESOLVE_NO_MAGICLINKS`).
///
/// ```
/// use anello_http::files::FileOptions;
/// use anello_http::files::options::Symlinks;
///
/// assert_eq!(FileOptions::default().symlinks, Symlinks::FollowBeneath);
/// let options = FileOptions::default().symlinks(Symlinks::Deny);
/// assert!(options.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Symlinks {
    /// Follows links that stay in the document root. Absolute links are never followed, even if the target is in
    /// the document root.
    #[default]
    FollowBeneath,
    /// Follows no symbolic links: a path that contains one results in a 404 response (`RESOLVE_NO_SYMLINKS`).
    Deny,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            index_files: vec!["index.html".to_owned()],
            single_file: None,
            listing: false,
            max_listing_entries: 10_000,
            precompressed: Codings::NONE,
            #[cfg(feature = "compression")]
            compress: Codings::NONE,
            #[cfg(feature = "compression")]
            max_compress_bytes: 64 << 20,
            cache_control: Vec::new(),
            headers: Vec::new(),
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

const UNKNOWN_MEDIA_TYPE: &str = "application/octet-stream";
const MAX_REVALIDATE_INTERVAL: Duration = Duration::from_secs(24 * 3600);

impl FileOptions {
    /// Checks that the options are well-formed and consistent. If they are not, returns the first of the
    /// [`validation_errors`](Self::validation_errors). Does not access any files.
    ///
    /// ```
    /// use anello_http::files::options::FileOptions;
    /// assert!(FileOptions::default().validate().is_ok());
    /// let options = FileOptions::default().not_found_file(Some("../404.html".to_owned()));
    /// assert!(options.validate().unwrap_err().to_string().starts_with("not-found-file: \"../404.html\""));
    /// ```
    pub fn validate(&self) -> Result<(), InvalidOption> {
        self.validation_errors().into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns all errors in the options, whereas [`validate`](Self::validate) returns only the first.
    ///
    /// ```
    /// use anello_http::files::FileOptions;
    ///
    /// let options = FileOptions::default()
    ///     .index_files(vec!["a/b.html".to_owned()])
    ///     .default_media_type("text".to_owned());
    /// let names: Vec<_> = options.validation_errors().iter().map(|error| error.option()).collect();
    /// assert_eq!(names, ["index", "default-media-type"]);
    /// ```
    pub fn validation_errors(&self) -> Vec<InvalidOption> {
        let index_files = self.index_files.iter().map(|name| check_index_file(name));
        let named_files = [
            check_file("single-file", self.single_file.as_deref()),
            check_file("not-found-file", self.not_found_file.as_deref()),
            check_file("spa-fallback", self.spa_fallback_file.as_deref()),
        ];
        // Check the entries separately so that every error is reported.
        let rules = self.cache_control.iter().flat_map(CacheRule::errors).map(Err);
        let headers = self.headers.iter().filter_map(HeaderRule::error).map(Err);
        let types = self.media_types.iter().map(|(extension, media_type)| {
            let single = BTreeMap::from([(extension.clone(), media_type.clone())]);
            MediaTypes::new(&single, UNKNOWN_MEDIA_TYPE).map(drop)
        });
        let default_type = MediaTypes::new(&BTreeMap::new(), &self.default_media_type).map(drop);
        let origins =
            self.cors_origins.iter().map(|single| CorsOrigins::new(slice::from_ref(single)).map(drop));
        let results =
            index_files.chain(named_files).chain(rules).chain(headers).chain(types).chain([default_type]);
        let mut errors: Vec<_> = results.chain(origins).filter_map(Result::err).collect();
        if self.listing && self.max_listing_entries == 0 {
            let reason = "must be at least 1 (to turn off listings, leave `listing` unset)";
            errors.push(InvalidOption::new("max-listing-entries", "0", reason));
        }
        if self.max_cache_bytes > 0 && self.max_cached_file_bytes > self.max_cache_bytes {
            let reason = format!("must not exceed the cache size of {} bytes", self.max_cache_bytes);
            let value = self.max_cached_file_bytes.to_string();
            errors.push(InvalidOption::new("max-cached-file-bytes", &value, reason));
        }
        if self.revalidate_interval > MAX_REVALIDATE_INTERVAL {
            let reason = "must not exceed one day; otherwise, old versions of changed files would be served for too long";
            let value = format!("{:?}", self.revalidate_interval);
            errors.push(InvalidOption::new("revalidate-interval", &value, reason));
        }
        errors
    }
}

fn check_index_file(name: &str) -> Result<(), InvalidOption> {
    let is_name =
        !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']) && name.len() <= MAX_NAME_BYTES;
    let reason = "an index file must be a name without a path, for example \"index.html\"";
    if is_name { Ok(()) } else { Err(InvalidOption::new("index", name, reason)) }
}

/// Checks that `path` is a path that a request target can resolve to: relative and within the document root.
fn check_file(option: &'static str, path: Option<&str>) -> Result<(), InvalidOption> {
    let Some(path) = path else { return Ok(()) };
    let target = format!("/{}", super::path::encoded_path(path));
    let resolves_to_path = resolve(&target, Dotfiles::Serve)
        .is_ok_and(|resolved| !resolved.is_directory() && resolved.relative() == path);
    let reason = "must be the path of a file relative to the document root, for example \"errors/404.html\"";
    if resolves_to_path { Ok(()) } else { Err(InvalidOption::new(option, path, reason)) }
}

//! Request handler for static files.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::cache::{Cache, Contents, Entry, Lookup, Variant, wall_clock};
use super::cache_control::CacheRules;
#[cfg(feature = "compression")]
use super::compress::{self, Choice, compressible};
use super::conditional::{Outcome, applicable_range, evaluate};
use super::cors::CorsOrigins;
use super::document_root::{DocumentRoot, Opened, check_opened, read_whole};
use super::fields::RequestFields;
use super::headers::HeaderRules;
use super::listing::{CONTENT_SECURITY_POLICY, Format};
use super::listings::Listings;
use super::media_type::MediaTypes;
use super::negotiate::{Coding, negotiate};
use super::options::{FileOptions, InvalidOption};
use super::path::{Dotfiles, TargetPath, encoded_path, may_be_spa_route, resolve};
use super::response::{
    FileErrorLog, error_page, error_response, full_response, is_forbidden, is_missing, is_out_of_descriptors,
    not_acceptable, range_response, select_variant, text_response, with_vary,
};
use super::stamp::FileStamp;
use super::validator::Validator;
use crate::h1::{EncodedResponse, FieldBlock, FieldName, Head, HttpDate, InvalidField, Method};
use crate::message::{COPIED_BODY_BYTES, Request, Response};
use crate::observe::metrics::WorkerMetrics;

/// Serves the files of a directory. Create one instance per worker.
///
/// ```no_run
/// # anello::example! {
/// use std::rc::Rc;
///
/// use anello::net::TcpListener;
/// use anello_http::files::{FileOptions, Files};
/// use anello_http::{Request, Server};
///
/// let files = Rc::new(Files::open("public", FileOptions::default())?);
/// let listener = TcpListener::bind("127.0.0.1:8080")?;
/// Server::builder().build().serve(listener, async move |request: Request| files.handle(&request).await).await?;
/// # }
/// ```
#[derive(Debug)]
pub struct Files {
    root: DocumentRoot,
    options: FileOptions,
    media_types: MediaTypes,
    cache_rules: CacheRules,
    header_rules: HeaderRules,
    cors: CorsOrigins,
    cache: Rc<Cache>,
    listings: Listings,
    error_log: FileErrorLog,
}

/// The error returned by [`Files::open`].
///
/// ```
/// use anello_http::files::{FileOptions, Files, FilesError};
///
/// let missing = Files::open("/does/not/exist", FileOptions::default());
/// assert!(matches!(missing, Err(FilesError::Directory(_))));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// An option is invalid.
    #[error("{0}")]
    Option(InvalidOption),
    /// The document root cannot be opened.
    #[error("cannot open document root: {0} (must be a directory readable by this user)")]
    Directory(io::Error),
}

enum FileLookup {
    Entry(Rc<Entry>),
    Response(Response),
    Missing,
}

const ALLOW_ORIGIN: FieldName<'static> = FieldName::constant("Access-Control-Allow-Origin");
const ALLOW_METHODS: FieldName<'static> = FieldName::constant("Access-Control-Allow-Methods");
const ALLOW_HEADERS: FieldName<'static> = FieldName::constant("Access-Control-Allow-Headers");
const EXPOSE_HEADERS: FieldName<'static> = FieldName::constant("Access-Control-Expose-Headers");
const MAX_AGE: FieldName<'static> = FieldName::constant("Access-Control-Max-Age");
const SECURITY_POLICY: FieldName<'static> = FieldName::constant("Content-Security-Policy");
const METHODS: &[u8] = b"GET, HEAD, OPTIONS";

/// Fields needed to request and combine ranges. Scripts may read them in addition to the fields that the Fetch standard
/// always exposes (`Content-Type`, `Content-Length`, `Last-Modified`, `Cache-Control`).
const EXPOSED: &[u8] = b"Accept-Ranges, Content-Encoding, Content-Range, ETag";

impl Files {
    /// Opens a directory as the document root.
    ///
    /// ```
    /// use anello_http::files::{FileOptions, Files};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path();
    /// let files = Files::open(path, FileOptions::default().listing(true))?;
    /// assert_eq!(files.cache_bytes(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`FilesError::Option`] if an option is invalid, and [`FilesError::Directory`] if the directory cannot
    /// be opened.
    pub fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<Self, FilesError> {
        options.validate().map_err(FilesError::Option)?;
        Ok(Self {
            root: DocumentRoot::open(path.as_ref(), options.symlinks).map_err(FilesError::Directory)?,
            media_types: MediaTypes::new(&options.media_types, &options.default_media_type)
                .map_err(FilesError::Option)?,
            cache_rules: CacheRules::new(&options.cache_control).map_err(FilesError::Option)?,
            header_rules: HeaderRules::new(&options.headers).map_err(FilesError::Option)?,
            cors: CorsOrigins::new(&options.cors_origins).map_err(FilesError::Option)?,
            cache: Cache::new(options.max_cache_bytes, options.revalidate_interval, options.workers),
            listings: Listings::new(&options),
            error_log: FileErrorLog::default(),
            options,
        })
    }

    /// Sets the metrics that record cache hits, misses and bytes. They can be shared with the server on the same
    /// thread.
    ///
    /// ```
    /// use std::rc::Rc;
    ///
    /// use anello_http::files::{FileOptions, Files};
    /// use anello_http::observe::metrics::{MetricsOptions, ServerMetrics};
    /// use anello_http::Server;
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path();
    /// let metrics = ServerMetrics::new(MetricsOptions::default());
    /// let worker = Rc::new(metrics.worker(0).expect("not in use"));
    /// let files = Files::open(path, FileOptions::default())?.with_metrics(Rc::clone(&worker));
    /// let server = Server::builder().metrics(worker).build();
    /// # assert_eq!((files.cache_bytes(), server.connections()), (0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_metrics(self, metrics: Rc<WorkerMetrics>) -> Self {
        self.cache.set_metrics(metrics);
        self
    }

    /// Returns the approximate memory use of the file cache in bytes.
    ///
    /// ```
    /// # anello::example! {
    /// use std::rc::Rc;
    ///
    /// use anello_http::files::{FileOptions, Files};
    /// use anello_http::{Request, Server};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path();
    #[doc = listener!()]
    /// std::fs::write(path.join("hello.txt"), "ciao")?;
    /// let files = Rc::new(Files::open(path, FileOptions::default())?);
    /// let served = Rc::clone(&files);
    /// let handler = async move |request: Request| served.handle(&request).await;
    /// Server::builder().build().serve(listener, handler).detach();
    /// assert_eq!(files.cache_bytes(), 0);
    /// exchange("GET /hello.txt HTTP/1.0\r\n\r\n").await?;
    /// assert!(files.cache_bytes() >= b"ciao".len());
    /// # }
    /// ```
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes.get()
    }

    /// Returns an error for each file named in the options ([`not_found_file`](FileOptions::not_found_file),
    /// [`spa_fallback_file`](FileOptions::spa_fallback_file)) that cannot be opened. A server can start without these
    /// files; it then sends a line of text instead.
    ///
    /// ```
    /// # anello::example! {
    /// use anello_http::files::{FileOptions, Files};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path();
    /// let options = FileOptions::default().not_found_file(Some("404.html".to_owned()));
    /// let files = Files::open(path, options)?;
    /// // The directory is empty.
    /// let invalid = files.invalid_option_files().await;
    /// assert_eq!(invalid.iter().map(|error| error.option()).collect::<Vec<_>>(), ["not-found-file"]);
    /// # }
    /// ```
    pub async fn invalid_option_files(&self) -> Vec<InvalidOption> {
        let FileOptions { not_found_file, spa_fallback_file, .. } = &self.options;
        let mut invalid = Vec::new();
        for (option, path) in [("not-found-file", not_found_file), ("spa-fallback", spa_fallback_file)] {
            if let Some(path) = path
                && let Err(reason) = check_opened(self.root.find(path).await)
            {
                invalid.push(InvalidOption::new(option, path, reason));
            }
        }
        invalid
    }

    /// Handles a request. Responds with 501 to unknown methods ([`Method::Other`]), and with 405 to all others except
    /// GET, HEAD and OPTIONS.
    ///
    /// ```
    /// # anello::example! {
    /// use std::rc::Rc;
    ///
    /// use anello_http::files::{FileOptions, Files};
    /// use anello_http::{Request, Server};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path();
    #[doc = listener!()]
    /// std::fs::write(path.join("hello.txt"), "ciao")?;
    /// let files = Rc::new(Files::open(path, FileOptions::default())?);
    /// let served = Rc::clone(&files);
    /// let handler = async move |request: Request| served.handle(&request).await;
    /// Server::builder().build().serve(listener, handler).detach();
    /// assert!(exchange("GET /hello.txt HTTP/1.0\r\n\r\n").await?.ends_with("\r\n\r\nciao"));
    /// assert!(exchange("GET /missing HTTP/1.0\r\n\r\n").await?.starts_with("HTTP/1.1 404 Not Found\r\n"));
    /// # }
    /// ```
    pub async fn handle(&self, request: &Request) -> Response {
        let head = request.head();
        let response = match head.method() {
            Method::Get | Method::Head => self.get(head).await,
            Method::Options => self.options(head),
            Method::Other => {
                text_response(501, "unknown method (supported methods are GET, HEAD and OPTIONS)")
            }
            _ => text_response(405, "supported methods are GET, HEAD and OPTIONS")
                .with_valid_field(FieldName::ALLOW, METHODS),
        };
        let response =
            if self.options.cors_origins.is_empty() { response } else { self.with_cors(head, response) };
        let add = |response: Response, (name, value)| response.with_valid_field(name, value);
        self.header_rules.common().fold(response, add)
    }

    #[inline]
    async fn get(&self, head: &Head) -> Response {
        // Nearly all targets are cache keys, so try the target before resolving it.
        if let Lookup::Fresh(entry) =
            self.cache.get_by_target(head.target_bytes(), |entry| is_unchanged(entry, head))
        {
            return self.respond(&entry, head);
        }
        // Box the rarely used future so that connection tasks stay small.
        Box::pin(self.get_by_path(head)).await
    }

    async fn get_by_path(&self, head: &Head) -> Response {
        let is_spa_route = match resolve(head.target(), self.options.dotfiles) {
            Ok(path) if !self.is_served(path.relative()) => false,
            Ok(path) => match self.look_up(&path, head).await {
                Ok(FileLookup::Entry(entry)) => return self.respond(&entry, head),
                Ok(FileLookup::Response(response)) => return response,
                Ok(FileLookup::Missing) => path.has_no_extension(),
                Err(error) => return self.error_response(path.relative(), &error),
            },
            Err(error) if error.status() == 404 => may_be_spa_route(head.target(), self.options.dotfiles),
            Err(error) => return text_response(error.status(), &error.to_string()),
        };
        self.spa_fallback_or_missing(is_spa_route, head).await
    }

    fn is_served(&self, path: &str) -> bool {
        self.options.single_file.as_deref().is_none_or(|name| path.is_empty() || path == name)
    }

    fn options(&self, head: &Head) -> Response {
        let response = Response::new(204).with_valid_field(FieldName::ALLOW, METHODS);
        let is_preflight = head.field("access-control-request-method").is_some();
        // Do not disclose the allowed methods and fields to other origins.
        if !is_preflight || self.cors.headers(head.field("origin")).allow_origin.is_none() {
            return response;
        }
        // This is a preflight request. Browsers send one before a request that is not simple, such as one with `Range`.
        let response = response.with_valid_field(ALLOW_METHODS, METHODS).with_valid_field(MAX_AGE, b"86400");
        match head.field("access-control-request-headers") {
            Some(names) => response.field(ALLOW_HEADERS, names).unwrap_or_else(|_| Response::new(400)),
            None => response,
        }
    }

    fn with_cors(&self, head: &Head, response: Response) -> Response {
        let cors = self.cors.headers(head.field("origin"));
        let response = match cors.allow_origin {
            Some(origin) => response
                .with_valid_field(ALLOW_ORIGIN, origin.as_bytes())
                .with_valid_field(EXPOSE_HEADERS, EXPOSED),
            None => response,
        };
        if cors.varies { response.with_valid_field(FieldName::VARY, b"Origin") } else { response }
    }

    /// Looks up a path in the cache, then in the document root.
    async fn look_up(&self, path: &TargetPath<'_>, head: &Head) -> io::Result<FileLookup> {
        let (relative, is_directory) = (path.relative(), path.is_directory());
        let cached = match self.cache.get(relative, is_directory, |entry| is_unchanged(entry, head)) {
            Lookup::Fresh(entry) => return Ok(FileLookup::Entry(entry)),
            Lookup::Stale(entry) => Some(entry),
            Lookup::Miss => None,
        };
        match (self.find(path, head, cached.clone()).await, cached) {
            // The stale entry needs no new descriptor, so send it if its open files have not changed.
            (Err(error), Some(stale)) if is_out_of_descriptors(&error) && stale.is_unchanged() => {
                self.log_error(relative, &error);
                Ok(FileLookup::Entry(stale))
            }
            (result, _) => result,
        }
    }

    /// Looks up a path in the document root. `cached` is the stale cache entry for the path, if there is one.
    async fn find(
        &self,
        path: &TargetPath<'_>,
        head: &Head,
        cached: Option<Rc<Entry>>,
    ) -> io::Result<FileLookup> {
        let (relative, checked_at) = (path.relative(), self.cache.now());
        let opened = self.find_file(relative).await;
        if let Err(error) = &opened
            && is_missing(error)
        {
            // To the client, the file does not exist, but the operator may have forgotten its permissions.
            if is_forbidden(error) {
                self.log_error(relative, error);
            }
            self.cache.remove(relative, path.is_directory(), checked_at);
            return Ok(FileLookup::Missing);
        }
        match opened? {
            Opened::File { .. } if path.is_directory() => Ok(FileLookup::Missing),
            Opened::File { file, stamp } => {
                let entry = self.entry(relative, file, stamp, cached, checked_at).await?;
                self.cache.insert(relative, false, &entry);
                Ok(FileLookup::Entry(entry))
            }
            Opened::Directory if path.is_directory() => self.find_index(path, head, cached, checked_at).await,
            Opened::Directory => {
                let response = text_response(301, "the URL of a directory must end with a slash");
                let location = path.redirect_location();
                Ok(FileLookup::Response(response.with_valid_field(FieldName::LOCATION, location.as_bytes())))
            }
            Opened::Other => Ok(FileLookup::Missing),
        }
    }

    async fn find_index(
        &self,
        path: &TargetPath<'_>,
        head: &Head,
        cached: Option<Rc<Entry>>,
        checked_at: Duration,
    ) -> io::Result<FileLookup> {
        for name in &self.options.index_files {
            let relative = match path.relative() {
                "" => name.clone(),
                directory => format!("{directory}/{name}"),
            };
            match self.find_file(&relative).await {
                Ok(Opened::File { file, stamp }) => {
                    let entry = self.entry(&relative, file, stamp, cached, checked_at).await?;
                    self.cache.insert(path.relative(), true, &entry);
                    return Ok(FileLookup::Entry(entry));
                }
                Ok(_) => {}
                // The index file exists but is not readable. Do not show a listing instead.
                Err(error) if is_forbidden(&error) => {
                    self.log_error(&relative, &error);
                    return Ok(FileLookup::Missing);
                }
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.cache.remove(path.relative(), true, checked_at);
        if self.options.listing { Ok(self.list_directory(path, head).await) } else { Ok(FileLookup::Missing) }
    }

    async fn list_directory(&self, path: &TargetPath<'_>, head: &Head) -> FileLookup {
        let fields = RequestFields::pick(head.field_bytes());
        let format = Format::from_request(&fields.accept, path.query());
        let list = || self.listings.list(&self.root, path.relative(), format);
        let mut result = list().await;
        if result.as_ref().is_err_and(|error| is_out_of_descriptors(error)) && self.cache.close_files().await
        {
            result = list().await;
        }
        let page = match result {
            Ok(page) => page,
            Err(error) if is_missing(&error) => {
                if is_forbidden(&error) {
                    self.log_error(path.relative(), &error);
                }
                return FileLookup::Missing;
            }
            Err(error) => return FileLookup::Response(self.error_response(path.relative(), &error)),
        };
        let validator = Validator { tag: page.tag, last_modified_seconds: None };
        let response = match (evaluate(&fields, &validator), format) {
            (Outcome::PreconditionFailed, _) => {
                let response = text_response(412, "the listing does not satisfy the precondition");
                return FileLookup::Response(response.with_valid_field(FieldName::VARY, b"Accept"));
            }
            (Outcome::NotModified, _) => Response::new(304),
            (Outcome::Proceed, Format::Html) => Response::html(page.bytes)
                .with_valid_field(SECURITY_POLICY, CONTENT_SECURITY_POLICY.as_bytes()),
            (Outcome::Proceed, Format::Json) => Response::json(page.bytes),
        };
        let response = response
            .with_valid_field(FieldName::ETAG, page.tag.as_str().as_bytes())
            .with_valid_field(FieldName::VARY, b"Accept")
            .with_valid_field(FieldName::CACHE_CONTROL, b"no-cache");
        FileLookup::Response(response)
    }

    /// Opens a path. If the process is out of file descriptors, closes the files in the cache and tries again.
    async fn find_file(&self, relative: &str) -> io::Result<Opened> {
        match self.root.find(relative).await {
            Err(error) if is_out_of_descriptors(&error) && self.cache.close_files().await => {
                self.root.find(relative).await
            }
            other => other,
        }
    }

    /// Returns the cached entry if the file and its variants are unchanged, otherwise a new one.
    async fn entry(
        &self,
        path: &str,
        file: anello::fs::File,
        stamp: FileStamp,
        cached: Option<Rc<Entry>>,
        checked_at: Duration,
    ) -> io::Result<Rc<Entry>> {
        let mut encoded = Vec::new();
        for coding in self.options.precompressed.iter() {
            let variant_path = format!("{path}{}", coding.suffix());
            match self.find_file(&variant_path).await {
                Ok(Opened::File { file, stamp }) => encoded.push((coding, file, stamp)),
                // Return the error, because an entry without this variant would replace a complete entry in the cache.
                Err(error) if is_out_of_descriptors(&error) => return Err(error),
                _ => {}
            }
        }
        let are_current = |cached: &[(Coding, Variant)]| {
            cached.iter().zip(&encoded).all(|((_, cached), (_, _, stamp))| is_current(cached, stamp))
        };
        if let Some(cached) = cached
            && *cached.path == *path
            && is_current(&cached.identity, &stamp)
            && cached.encoded.len() == encoded.len()
            && are_current(&cached.encoded)
        {
            cached.mark_fresh(checked_at);
            return Ok(cached);
        }
        let compressible = compressible(&self.options, &self.media_types.of(path), &stamp);
        let varies = !encoded.is_empty() || !compressible.is_empty();
        let identity = self.variant(path, None, file, stamp, varies).await?;
        let mut variants = Vec::with_capacity(encoded.len());
        for (coding, file, stamp) in encoded {
            variants.push((coding, self.variant(path, Some(coding), file, stamp, varies).await?));
        }
        Ok(Entry::new(path, identity, variants, compressible, checked_at))
    }

    async fn variant(
        &self,
        path: &str,
        coding: Option<Coding>,
        file: anello::fs::File,
        stamp: FileStamp,
        varies: bool,
    ) -> io::Result<Variant> {
        let is_small =
            stamp.size_bytes <= self.options.max_cached_file_bytes as u64 && self.options.max_cache_bytes > 0;
        let (bytes, stamp) = if is_small { read_whole(&file, stamp).await? } else { (None, stamp) };
        let contents = bytes.map_or(Contents::File(file), |bytes| Contents::Memory(bytes.into()));
        let checked_at = wall_clock();
        let validator = Validator::of(&stamp, coding, checked_at);
        let media_type = self.media_types.of(path);
        let not_modified = self.fields(path, &validator, varies).map_err(io::Error::other)?;
        let mut fields = not_modified.clone();
        let mut add = |name, value: &[u8]| fields.push(name, value).map(drop).map_err(io::Error::other);
        add(FieldName::CONTENT_TYPE, media_type.as_bytes())?;
        add(FieldName::ACCEPT_RANGES, b"bytes")?;
        if let Some(coding) = coding {
            add(FieldName::CONTENT_ENCODING, coding.token().as_bytes())?;
        }
        let (contents, fields) = match contents {
            Contents::Memory(bytes) if bytes.len() <= COPIED_BODY_BYTES => {
                let response = Rc::new(EncodedResponse::new(fields, &bytes));
                let fields = Rc::clone(response.fields());
                (Contents::Encoded(response), fields)
            }
            other => (other, Rc::new(fields)),
        };
        Ok(Variant {
            is_settled: stamp.is_settled(checked_at),
            stamp,
            coding,
            contents,
            validator,
            media_type: media_type.into(),
            fields,
            not_modified_fields: Rc::new(not_modified),
        })
    }

    /// Returns the fields for a 304 response: validators, `Cache-Control`, `Vary`, and those of the operator.
    fn fields(&self, path: &str, validator: &Validator, varies: bool) -> Result<FieldBlock, InvalidField> {
        let mut fields = FieldBlock::default();
        fields.push(FieldName::ETAG, validator.tag.as_str().as_bytes())?;
        if let Some(seconds) = validator.last_modified_seconds {
            fields.push(FieldName::LAST_MODIFIED, HttpDate::from_unix(seconds).as_bytes())?;
        }
        if let Some(value) = self.cache_rules.value_for(path) {
            fields.push(FieldName::CACHE_CONTROL, value.as_bytes())?;
        }
        self.header_rules.push_fields(path, &mut fields)?;
        if varies {
            fields.push(FieldName::VARY, b"Accept-Encoding")?;
        }
        Ok(fields)
    }

    #[inline]
    fn respond(&self, entry: &Entry, head: &Head) -> Response {
        // The request has no fields that affect the response.
        if !head.has_length_of(RequestFields::LENGTHS) {
            return full_response(&entry.identity);
        }
        self.respond_selected(entry, head)
    }

    fn respond_selected(&self, entry: &Entry, head: &Head) -> Response {
        let fields = RequestFields::pick(head.field_bytes());
        #[cfg(feature = "compression")]
        match compress::choose(entry, &fields) {
            Choice::Identity => {}
            Choice::Encoded(coding) => {
                let make_fields = |validator: &Validator| self.fields(&entry.path, validator, true);
                let max_bytes = self.options.max_compress_bytes;
                if let Some(response) = compress::response(entry, &fields, coding, max_bytes, make_fields) {
                    return response;
                }
                if select_variant(entry, &fields).is_none() {
                    let text = "no memory to compress the file, and Accept-Encoding excludes the file itself";
                    return with_vary(entry, text_response(503, text));
                }
            }
            Choice::NotAcceptable => return not_acceptable(entry),
        }
        let Some(variant) = select_variant(entry, &fields) else { return not_acceptable(entry) };
        match evaluate(&fields, &variant.validator) {
            Outcome::Proceed => {}
            Outcome::NotModified => {
                return Response::new(304).with_shared_fields(Rc::clone(&variant.not_modified_fields));
            }
            Outcome::PreconditionFailed => {
                return with_vary(entry, text_response(412, "the file does not satisfy the precondition"));
            }
        }
        match applicable_range(&fields, &variant.validator).filter(|_| head.method() == Method::Get) {
            None => full_response(variant),
            Some(range) => range_response(entry, variant, range),
        }
    }

    async fn spa_fallback_or_missing(&self, is_spa_route: bool, head: &Head) -> Response {
        if let Some(path) = &self.options.spa_fallback_file
            && is_spa_route
            && let Some(entry) = self.configured_file(path, head).await
        {
            return self.respond(&entry, head);
        }
        if let Some(path) = &self.options.not_found_file
            && let Some(entry) = self.configured_file(path, head).await
        {
            let fields = RequestFields::pick(head.field_bytes());
            return error_page(&entry, negotiate(&fields.accept_encoding, entry.codings()), 404);
        }
        text_response(404, "no such file")
    }

    fn log_error(&self, path: &str, error: &io::Error) {
        self.error_log.log(path, error, self.cache.now());
    }

    fn error_response(&self, path: &str, error: &io::Error) -> Response {
        self.log_error(path, error);
        error_response(error)
    }

    async fn configured_file(&self, path: &str, head: &Head) -> Option<Rc<Entry>> {
        let target = format!("/{}", encoded_path(path));
        let resolved = resolve(&target, Dotfiles::Serve).ok()?;
        match self.look_up(&resolved, head).await.inspect_err(|error| self.log_error(path, error)).ok()? {
            FileLookup::Entry(entry) => Some(entry),
            FileLookup::Response(_) | FileLookup::Missing => None,
        }
    }
}

#[cfg(not(feature = "compression"))]
fn compressible(_options: &FileOptions, _media_type: &str, _stamp: &FileStamp) -> super::negotiate::Codings {
    super::negotiate::Codings::NONE
}

/// Returns `true` if the variant for this request is unchanged since the last check. Contents in memory never change.
#[inline]
fn is_unchanged(entry: &Entry, head: &Head) -> bool {
    !entry.has_open_files || revalidate(entry, head)
}

/// Not inlined, because requests for large files are not on the fast path.
#[cold]
fn revalidate(entry: &Entry, head: &Head) -> bool {
    let fields = RequestFields::pick(head.field_bytes());
    select_variant(entry, &fields).unwrap_or(&entry.identity).is_unchanged()
}

fn is_current(cached: &Variant, stamp: &FileStamp) -> bool {
    cached.is_settled && cached.stamp == *stamp
}

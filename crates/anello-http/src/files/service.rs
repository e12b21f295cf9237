//! Answers requests for files.

mod examine;

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::answer::{
    complain, failed, is_forbidden, is_missing, is_short_of_files, part, text, valid, varying, whole,
};
use super::cache::{Cache, Contents, Entry, Known, Variant, now, wall_clock};
use super::cache_control::CacheRules;
use super::conditional::{Outcome, applicable_range, evaluate};
use super::cors::CorsOrigins;
use super::fields::RequestFields;
use super::folder::{Folder, Found};
use super::listing::{CONTENT_SECURITY_POLICY, Format};
use super::listings::Listings;
use super::media_type::MediaTypes;
use super::negotiate::{Choice, Coding, negotiate};
use super::options::{FileOptions, InvalidOption};
use super::path::{TargetPath, may_be_page, resolve};
use super::read::read_whole;
use super::stamp::FileStamp;
use super::stand_in::stand_in;
use super::validator::Validator;
use crate::h1::{EncodedResponse, FieldBlock, FieldName, Head, HttpDate, InvalidField, Method};
use crate::observe::metrics::WorkerMetrics;
use crate::request::Request;
use crate::response::Response;
use crate::server::COPIED_BODY_BYTES;

/// Serves the files of a folder. Each worker has one of its own.
///
/// ```no_run
/// use std::rc::Rc;
///
/// use anello::net::TcpListener;
/// use anello_http::files::{FileOptions, Files};
/// use anello_http::{Request, Server};
///
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// let files = Rc::new(Files::open("public", FileOptions::default())?);
/// let listener = TcpListener::bind("127.0.0.1:8080")?;
/// Server::builder().build().serve(listener, async move |request: Request| files.handle(&request).await).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Files {
    folder: Folder,
    options: FileOptions,
    media_types: MediaTypes,
    cache_rules: CacheRules,
    cors: CorsOrigins,
    has_cors: bool,
    cache: Rc<Cache>,
    listings: Listings,
}

/// Why a folder cannot be served.
#[derive(Debug)]
#[non_exhaustive]
pub enum FilesError {
    /// An option is not as it should be.
    Option(InvalidOption),
    /// The folder cannot be opened.
    Folder(io::Error),
}

impl std::fmt::Display for FilesError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Option(invalid) => invalid.fmt(formatter),
            Self::Folder(error) => {
                write!(
                    formatter,
                    "the folder cannot be served: {error}: it must be a folder that this user may read"
                )
            }
        }
    }
}

impl std::error::Error for FilesError {}

/// What a path was found to lead to.
enum Answer {
    Entry(Rc<Entry>),
    Response(Response),
    Missing,
}

const ALLOW: FieldName<'static> = FieldName::ALLOW;
const ALLOW_ORIGIN: FieldName<'static> = FieldName::constant("Access-Control-Allow-Origin");
const ALLOW_METHODS: FieldName<'static> = FieldName::constant("Access-Control-Allow-Methods");
const ALLOW_HEADERS: FieldName<'static> = FieldName::constant("Access-Control-Allow-Headers");
const EXPOSE_HEADERS: FieldName<'static> = FieldName::constant("Access-Control-Expose-Headers");
const MAX_AGE: FieldName<'static> = FieldName::constant("Access-Control-Max-Age");
const SECURITY_POLICY: FieldName<'static> = FieldName::constant("Content-Security-Policy");
const METHODS: &[u8] = b"GET, HEAD, OPTIONS";

/// What else a script may read besides the fields that the Fetch standard always shows it (`Content-Type`,
/// `Content-Length`, `Last-Modified`, `Cache-Control`): what it needs to ask for parts and to put them together.
const EXPOSED: &[u8] = b"Accept-Ranges, Content-Encoding, Content-Range, ETag";

impl Files {
    /// Opens a folder to be served.
    ///
    /// # Errors
    /// When an option is malformed, or the folder cannot be opened.
    pub fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<Self, FilesError> {
        options.validate().map_err(FilesError::Option)?;
        Ok(Self {
            folder: Folder::open(path.as_ref(), options.symlinks).map_err(FilesError::Folder)?,
            media_types: MediaTypes::new(&options.media_types, &options.default_media_type)
                .map_err(FilesError::Option)?,
            cache_rules: CacheRules::new(&options.cache_control).map_err(FilesError::Option)?,
            cors: CorsOrigins::new(&options.cors_origins).map_err(FilesError::Option)?,
            has_cors: !options.cors_origins.is_empty(),
            cache: Cache::new(options.max_cache_bytes, options.revalidate_interval, options.workers),
            listings: Listings::new(
                options.revalidate_interval,
                options.dotfiles,
                options.max_listing_entries,
            ),
            options,
        })
    }

    /// Counts there what the cache had and what not, and its bytes. The server of the thread may have the same counts.
    #[must_use]
    pub fn with_metrics(self, metrics: Rc<WorkerMetrics>) -> Self {
        self.cache.count_on(metrics);
        self
    }

    /// Memory that the contents of files take, in bytes, about.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Answers a request. Other methods than GET, HEAD and OPTIONS are answered with 405, and those that [`Method`] does not
    /// know with 501.
    pub async fn handle(&self, request: &Request) -> Response {
        let head = request.head();
        let response = match head.method() {
            Method::Get | Method::Head => self.get(head).await,
            Method::Options => self.options(head),
            Method::Other => text(501, "this method is not implemented: GET, HEAD and OPTIONS are"),
            _ => valid(text(405, "this server only reads: GET, HEAD and OPTIONS").field(ALLOW, METHODS)),
        };
        if self.has_cors { self.with_cors(head, response) } else { response }
    }

    #[inline]
    async fn get(&self, head: &Head) -> Response {
        // Nearly always, the path is written as it is known.
        if let Known::Fresh(entry) =
            self.cache.get_by_target(head.target_bytes(), |entry| is_as_it_was(entry, head))
        {
            return self.send(&entry, head);
        }
        // Apart, so that connections are small.
        Box::pin(self.get_by_path(head)).await
    }

    async fn get_by_path(&self, head: &Head) -> Response {
        let path = match resolve(head.target(), self.options.dotfiles) {
            Ok(path) => path,
            Err(refusal) if refusal.status() == 404 => {
                let is_page = may_be_page(head.target(), self.options.dotfiles);
                return self.single_page_or_missing(is_page, head).await;
            }
            Err(refusal) => return text(refusal.status(), &refusal.to_string()),
        };
        let known = self.cache.get(path.relative(), path.is_directory(), |entry| is_as_it_was(entry, head));
        let answer = match known {
            Known::Fresh(entry) => Ok(Answer::Entry(entry)),
            Known::Stale(entry) => {
                let found = self.find(&path, head, Some(Rc::clone(&entry))).await;
                unless_short_of_files(found, &entry)
            }
            Known::No => self.find(&path, head, None).await,
        };
        match answer {
            Ok(Answer::Entry(entry)) => self.send(&entry, head),
            Ok(Answer::Response(response)) => response,
            Ok(Answer::Missing) => self.single_page_or_missing(path.has_no_extension(), head).await,
            Err(error) => failed(&error),
        }
    }

    fn options(&self, head: &Head) -> Response {
        let response = valid(Response::new(204).field(ALLOW, METHODS));
        let asks_first = head.field("access-control-request-method").is_some();
        // Who may not read answers learns nothing of what others may ask.
        if !asks_first || self.cors.answer(head.field("origin")).allow_origin.is_none() {
            return response;
        }
        // What browsers ask before a request that is not plain: fields such as Range are.
        let response = valid(response.field(ALLOW_METHODS, METHODS));
        let response = valid(response.field(MAX_AGE, b"86400"));
        match head.field("access-control-request-headers") {
            Some(names) => response.field(ALLOW_HEADERS, names).unwrap_or_else(|_| Response::new(400)),
            None => response,
        }
    }

    fn with_cors(&self, head: &Head, response: Response) -> Response {
        let answer = self.cors.answer(head.field("origin"));
        let response = match answer.allow_origin {
            Some(origin) => {
                let response = valid(response.field(ALLOW_ORIGIN, origin.as_bytes()));
                valid(response.field(EXPOSE_HEADERS, EXPOSED))
            }
            None => response,
        };
        if answer.varies { valid(response.field(FieldName::VARY, b"Origin")) } else { response }
    }

    // ---- Finding -------------------------------------------------------------------------------------------------

    /// What the path leads to now. `known` is what it led to before.
    async fn find(&self, path: &TargetPath<'_>, head: &Head, known: Option<Rc<Entry>>) -> io::Result<Answer> {
        let (relative, looked_at) = (path.relative(), now());
        let found = match self.look_for(relative).await {
            Ok(found) => found,
            Err(error) if is_missing(&error) => {
                self.cache.remove(relative, path.is_directory(), looked_at);
                return Ok(Answer::Missing);
            }
            Err(error) => return Err(error),
        };
        match found {
            Found::File { .. } if path.is_directory() => Ok(Answer::Missing),
            Found::File { file, stamp } => {
                let entry = self.entry(relative, file, stamp, known, looked_at).await?;
                self.cache.insert(relative, false, &entry);
                Ok(Answer::Entry(entry))
            }
            Found::Folder if path.is_directory() => self.find_in_folder(path, head, known, looked_at).await,
            Found::Folder => {
                let location = path.redirect_location();
                let response = text(301, "this is a folder: its address ends with a slash");
                Ok(Answer::Response(valid(response.field(FieldName::LOCATION, location.as_bytes()))))
            }
            Found::Other => Ok(Answer::Missing),
        }
    }

    async fn find_in_folder(
        &self,
        path: &TargetPath<'_>,
        head: &Head,
        known: Option<Rc<Entry>>,
        looked_at: Duration,
    ) -> io::Result<Answer> {
        for name in &self.options.index_files {
            let relative = match path.relative() {
                "" => name.clone(),
                folder => format!("{folder}/{name}"),
            };
            match self.look_for(&relative).await {
                Ok(Found::File { file, stamp }) => {
                    let entry = self.entry(&relative, file, stamp, known, looked_at).await?;
                    self.cache.insert(path.relative(), true, &entry);
                    return Ok(Answer::Entry(entry));
                }
                Ok(_) => {}
                // It is there, in the place of a list.
                Err(error) if is_forbidden(&error) => return Ok(Answer::Missing),
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.cache.remove(path.relative(), true, looked_at);
        if self.options.listing { Ok(self.list(path, head).await) } else { Ok(Answer::Missing) }
    }

    async fn list(&self, path: &TargetPath<'_>, head: &Head) -> Answer {
        let fields = RequestFields::pick(head.field_bytes());
        let format = Format::wanted(&fields.accept, path.query());
        let mut list = self.listings.list(&self.folder, path.relative(), format).await;
        if list.as_ref().is_err_and(|error| is_short_of_files(error)) && self.cache.close_files().await {
            list = self.listings.list(&self.folder, path.relative(), format).await;
        }
        let list = match list {
            Ok(list) => list,
            Err(error) if is_missing(&error) => return Answer::Missing,
            Err(error) => return Answer::Response(failed(&error)),
        };
        let validator = Validator { tag: list.tag, last_modified_seconds: None };
        let response = match (evaluate(&fields, &validator), format) {
            (Outcome::PreconditionFailed, _) => {
                let response = text(412, "the list is not in the state that the request asks for");
                return Answer::Response(valid(response.field(FieldName::VARY, b"Accept")));
            }
            (Outcome::NotModified, _) => Response::new(304),
            (Outcome::Proceed, Format::Html) => {
                valid(Response::html(list.bytes).field(SECURITY_POLICY, CONTENT_SECURITY_POLICY.as_bytes()))
            }
            (Outcome::Proceed, Format::Json) => Response::json(list.bytes),
        };
        let response = valid(response.field(FieldName::ETAG, list.tag.as_str().as_bytes()));
        let response = valid(response.field(FieldName::VARY, b"Accept"));
        Answer::Response(valid(response.field(FieldName::CACHE_CONTROL, b"no-cache")))
    }

    /// Opens what a path leads to. Without descriptors left, those that the cache holds are closed first.
    async fn look_for(&self, relative: &str) -> io::Result<Found> {
        match self.folder.find(relative).await {
            Err(error) if is_short_of_files(&error) && self.cache.close_files().await => {
                self.folder.find(relative).await
            }
            other => other,
        }
    }

    /// The entry of a file in this state: the one that is known, if nothing has changed.
    async fn entry(
        &self,
        path: &str,
        file: anello::fs::File,
        stamp: FileStamp,
        known: Option<Rc<Entry>>,
        looked_at: Duration,
    ) -> io::Result<Rc<Entry>> {
        let mut coded = Vec::new();
        for coding in self.options.precompressed.iter() {
            let beside = format!("{path}{}", coding.suffix());
            match self.look_for(&beside).await {
                Ok(Found::File { file, stamp }) => coded.push((coding, file, stamp)),
                // Without its variants, the entry would take the place of a whole one.
                Err(error) if is_short_of_files(&error) => return Err(error),
                _ => {}
            }
        }
        if let Some(known) = known
            && *known.path == *path
            && is_same(&known.plain, &stamp)
            && known.coded.len() == coded.len()
            && known.coded.iter().zip(&coded).all(|((_, known), (_, _, stamp))| is_same(known, stamp))
        {
            known.confirm(looked_at);
            return Ok(known);
        }
        let varies = !coded.is_empty();
        let plain = self.variant(path, None, file, stamp, varies).await?;
        let mut variants = Vec::with_capacity(coded.len());
        for (coding, file, stamp) in coded {
            variants.push((coding, self.variant(path, Some(coding), file, stamp, varies).await?));
        }
        Ok(Entry::new(path, plain, variants, looked_at))
    }

    async fn variant(
        &self,
        path: &str,
        coding: Option<Coding>,
        file: anello::fs::File,
        stamp: FileStamp,
        varies: bool,
    ) -> io::Result<Variant> {
        let small =
            stamp.size_bytes <= self.options.max_cached_file_bytes as u64 && self.options.max_cache_bytes > 0;
        let (contents, stamp) =
            if small { read_whole(file, stamp).await? } else { (Contents::File(file), stamp) };
        let looked_at = wall_clock();
        let validator = Validator::of(&stamp, coding, looked_at);
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
                let answer = Rc::new(EncodedResponse::new(fields, &bytes));
                let fields = Rc::clone(answer.fields());
                (Contents::Framed(answer), fields)
            }
            other => (other, Rc::new(fields)),
        };
        Ok(Variant {
            is_settled: stamp.is_settled(looked_at),
            stamp,
            coding,
            contents,
            validator,
            media_type: media_type.into(),
            fields,
            not_modified_fields: Rc::new(not_modified),
        })
    }

    /// The fields that say which state of the file is meant, and for how long.
    fn fields(&self, path: &str, validator: &Validator, varies: bool) -> Result<FieldBlock, InvalidField> {
        let mut fields = FieldBlock::default();
        fields.push(FieldName::ETAG, validator.tag.as_str().as_bytes())?;
        if let Some(seconds) = validator.last_modified_seconds {
            fields.push(FieldName::LAST_MODIFIED, HttpDate::from_unix(seconds).as_bytes())?;
        }
        if let Some(value) = self.cache_rules.value_for(path) {
            fields.push(FieldName::CACHE_CONTROL, value.as_bytes())?;
        }
        if varies {
            fields.push(FieldName::VARY, b"Accept-Encoding")?;
        }
        Ok(fields)
    }

    // ---- Answering -----------------------------------------------------------------------------------------------

    #[inline]
    fn send(&self, entry: &Entry, head: &Head) -> Response {
        // A request that says nothing of how it wants the file.
        if !head.has_length_of(RequestFields::LENGTHS) {
            return whole(&entry.plain);
        }
        self.send_as_wanted(entry, head)
    }

    fn send_as_wanted(&self, entry: &Entry, head: &Head) -> Response {
        let fields = RequestFields::pick(head.field_bytes());
        let Some(variant) = wanted(entry, &fields) else {
            let response = text(406, "the file is not to be had in any encoding that the request accepts");
            return varying(entry, response);
        };
        match evaluate(&fields, &variant.validator) {
            Outcome::Proceed => {}
            Outcome::NotModified => {
                return Response::new(304).with_shared_fields(Rc::clone(&variant.not_modified_fields));
            }
            Outcome::PreconditionFailed => {
                return varying(entry, text(412, "the file is not in the state that the request asks for"));
            }
        }
        match applicable_range(&fields, &variant.validator).filter(|_| head.method() == Method::Get) {
            None => whole(variant),
            Some(range) => part(entry, variant, range),
        }
    }

    async fn single_page_or_missing(&self, is_page: bool, head: &Head) -> Response {
        if let Some(page) = &self.options.spa_fallback_file
            && is_page
            && let Some(entry) = self.own_file(page, head).await
        {
            return self.send(&entry, head);
        }
        self.missing(head).await
    }

    async fn missing(&self, head: &Head) -> Response {
        match &self.options.not_found_file {
            Some(page) => match self.own_file(page, head).await {
                Some(entry) => {
                    let fields = RequestFields::pick(head.field_bytes());
                    stand_in(&entry, negotiate(&fields.accept_encoding, entry.codings()), 404)
                }
                None => text(404, "there is no such file"),
            },
            None => text(404, "there is no such file"),
        }
    }

    /// A file that an option names.
    async fn own_file(&self, page: &str, head: &Head) -> Option<Rc<Entry>> {
        let target = format!("/{}", super::path::encoded_path(page));
        let path = resolve(&target, super::path::Dotfiles::Serve).ok()?;
        let known = match self.cache.get(path.relative(), false, |entry| is_as_it_was(entry, head)) {
            Known::Fresh(entry) => return Some(entry),
            Known::Stale(entry) => Some(entry),
            Known::No => None,
        };
        let found = Box::pin(self.find(&path, head, known.clone())).await;
        let found = match &known {
            Some(entry) => unless_short_of_files(found, entry),
            None => found,
        };
        match found {
            Ok(Answer::Entry(entry)) => Some(entry),
            Ok(_) => None,
            Err(error) => {
                complain(&error);
                None
            }
        }
    }
}

/// The entry that was known where a new look fails for want of descriptors: what is in memory needs none, and what is open
/// says itself whether it is as it was.
fn unless_short_of_files(found: io::Result<Answer>, known: &Rc<Entry>) -> io::Result<Answer> {
    match found {
        Err(error) if is_short_of_files(&error) && known.is_as_it_was() => {
            complain(&error);
            Ok(Answer::Entry(Rc::clone(known)))
        }
        other => other,
    }
}

/// What a request wants of a file, if it can be had.
fn wanted<'e>(entry: &'e Entry, fields: &RequestFields<'_>) -> Option<&'e Variant> {
    match negotiate(&fields.accept_encoding, entry.codings()) {
        Choice::Identity => Some(&entry.plain),
        Choice::Encoded(coding) => Some(entry.variant(coding)),
        Choice::NotAcceptable => None,
    }
}

/// Whether what would be sent to this request is as it was when it was looked at. What is in memory always is.
#[inline]
fn is_as_it_was(entry: &Entry, head: &Head) -> bool {
    !entry.has_open_files || looks_as_it_was(entry, head)
}

/// Apart, because a large file is not sent on the shortest way.
#[cold]
fn looks_as_it_was(entry: &Entry, head: &Head) -> bool {
    let fields = RequestFields::pick(head.field_bytes());
    wanted(entry, &fields).unwrap_or(&entry.plain).is_as_it_was()
}

fn is_same(known: &Variant, stamp: &FileStamp) -> bool {
    known.is_settled && known.stamp == *stamp
}

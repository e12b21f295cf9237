//! Directory listings of one worker, shared between requests.
//!
//! Generating a long listing takes milliseconds, and the result can be several megabytes. A blocking thread generates
//! it, with at most one job per directory and format. A separate task waits for the job, so the job continues if the
//! client that triggered it disconnects. Requests that arrive while the job is running, or within the revalidation
//! interval after its start, receive the same bytes. If a new listing equals the previous one, the previous bytes are
//! reused. The memory of listings that slow clients have not received yet is bounded by [`MAX_LISTING_BYTES`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anello::fs::spawn_file_operation;
use anello::spawn;
use anello::time::Instant;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared, select_all};
use rustix::io::Errno;

use super::document_root::DocumentRoot;
use super::listing::Format;
use super::options::FileOptions;
use super::path::Dotfiles;
use super::validator::EntityTag;

const MAX_CACHED_LISTINGS: usize = 32;
/// Maximum number of listings generated at the same time. Further requests wait.
const MAX_CONCURRENT_LISTINGS: usize = 8;

/// Maximum memory for a worker's listings that are cached or being sent, excluding those that are being generated. Beyond
/// the limit, requests fail with `ENOMEM`, which becomes a 503 response.
const MAX_LISTING_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Listings {
    interval: Duration,
    dotfiles: Dotfiles,
    max_entries: usize,
    /// Cached and pending listings, ordered by start time, oldest first.
    listings: RefCell<VecDeque<Rc<CachedListing>>>,
    /// Memory used by this worker's listings that are cached or being sent.
    bytes: Arc<AtomicUsize>,
    max_bytes: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Page {
    pub bytes: Bytes,
    pub tag: EntityTag,
}

/// A listing that is complete or being generated.
#[derive(Debug)]
struct CachedListing {
    path: Box<str>,
    format: Format,
    /// Start time of the job. Later changes to the directory may be missing from the listing.
    started_at: Instant,
    job: Shared<LocalBoxFuture<'static, Result<Page, Rc<io::Error>>>>,
}

/// Text of a listing. Its size is included in [`Listings::bytes`] until the text is dropped.
struct AccountedText {
    text: String,
    bytes: Arc<AtomicUsize>,
}

impl Listings {
    pub fn new(options: &FileOptions) -> Self {
        Self {
            interval: options.revalidate_interval,
            dotfiles: options.dotfiles,
            max_entries: options.max_listing_entries,
            listings: RefCell::default(),
            bytes: Arc::default(),
            max_bytes: MAX_LISTING_BYTES,
        }
    }

    /// Returns the listing of a directory. Fails with `ENOMEM` if this worker's listings use too much memory.
    pub async fn list(&self, root: &DocumentRoot, path: &str, format: Format) -> Result<Page, Rc<io::Error>> {
        let requested_at = Instant::now();
        loop {
            let mut previous = None;
            if let Some(listing) = self.find_current(path, format) {
                let result = listing.job.clone().await;
                if requested_at.saturating_duration_since(listing.started_at) < self.interval
                    || listing.started_at >= requested_at
                {
                    return result;
                }
                if !self.find_current(path, format).is_some_and(|current| Rc::ptr_eq(&current, &listing)) {
                    // Another task has already started a newer listing.
                    continue;
                }
                previous = result.ok();
            }
            let is_pending = |listing: &&Rc<CachedListing>| !listing.is_complete();
            let job = |listing: &Rc<CachedListing>| listing.job.clone().map(drop);
            let pending: Vec<_> = self.listings.borrow().iter().filter(is_pending).map(job).collect();
            if pending.len() < MAX_CONCURRENT_LISTINGS {
                self.start(root, path, format, previous)?;
            } else {
                select_all(pending).await;
            }
        }
    }

    /// Returns the cached or pending listing, unless it failed. A failure is reported only to the requests that were
    /// waiting for the listing; the next request tries again because the cause may be gone.
    fn find_current(&self, path: &str, format: Format) -> Option<Rc<CachedListing>> {
        let listings = self.listings.borrow();
        let has_failed = |listing: &CachedListing| matches!(listing.job.clone().now_or_never(), Some(Err(_)));
        listings.iter().find(|listing| listing.is_for(path, format) && !has_failed(listing)).map(Rc::clone)
    }

    /// Starts a job. Its listing replaces the cached one.
    fn start(
        &self,
        root: &DocumentRoot,
        path: &str,
        format: Format,
        previous: Option<Page>,
    ) -> Result<(), Rc<io::Error>> {
        let mut listings = self.listings.borrow_mut();
        listings.retain(|listing| !listing.is_for(path, format));
        if listings.len() >= MAX_CACHED_LISTINGS
            && let Some(oldest) = listings.iter().position(|listing| listing.is_complete())
        {
            listings.remove(oldest);
        }
        let is_over_limit = || self.bytes.load(Ordering::Relaxed) > self.max_bytes;
        if is_over_limit() {
            // Evict cached listings first, because some of them may not be in use.
            listings.retain(|listing| !listing.is_complete());
        }
        if is_over_limit() {
            return Err(Rc::new(Errno::NOMEM.into()));
        }
        let started_at = Instant::now();
        let (root, owned_path) = (root.clone(), path.to_owned());
        let (dotfiles, max_entries, bytes) = (self.dotfiles, self.max_entries, Arc::clone(&self.bytes));
        let work = spawn_file_operation(move || {
            let listing = root.list_blocking(&owned_path, dotfiles, max_entries)?;
            let text = match format {
                Format::Html => listing.html(),
                Format::Json => listing.json(),
            };
            Ok(match previous {
                Some(previous) if *previous.bytes == *text.as_bytes() => previous,
                _ => {
                    let tag = EntityTag::from_content(text.as_bytes());
                    Page { bytes: AccountedText::into_bytes(text, bytes), tag }
                }
            })
        });
        // Waits in a separate task, which continues even if no request is waiting for the listing.
        let task = spawn(async move {
            let result = work.await.map_err(io::Error::from).and_then(|result: io::Result<Page>| result);
            result.map_err(Rc::new)
        });
        let job = task.map(|result| result.unwrap_or_else(|error| Err(Rc::new(error.into()))));
        let job = job.boxed_local().shared();
        listings.push_back(Rc::new(CachedListing { path: path.into(), format, started_at, job }));
        Ok(())
    }
}

impl CachedListing {
    fn is_for(&self, path: &str, format: Format) -> bool {
        self.format == format && *self.path == *path
    }

    fn is_complete(&self) -> bool {
        self.job.clone().now_or_never().is_some()
    }
}

impl AccountedText {
    fn into_bytes(text: String, bytes: Arc<AtomicUsize>) -> Bytes {
        bytes.fetch_add(text.capacity(), Ordering::Relaxed);
        Bytes::from_owner(Self { text, bytes })
    }
}

impl AsRef<[u8]> for AccountedText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Drop for AccountedText {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.text.capacity(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    use anello::Runtime;

    use super::*;
    use crate::files::options::Symlinks;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Runs a test with a site that has the directories `a` and `b`, each with a file.
    fn with_listings(interval: Duration, test: impl AsyncFn(&tempfile::TempDir, &DocumentRoot, Listings)) {
        let site = tempfile::tempdir().expect("temporary directory");
        for name in ["a", "b"] {
            fs::create_dir(site.path().join(name)).expect("directory created");
            fs::write(site.path().join(name).join("file"), "text").expect("file written");
        }
        let root = DocumentRoot::open(site.path(), Symlinks::FollowBeneath).expect("document root");
        let options = FileOptions::default().revalidate_interval(interval);
        let listings = Listings::new(&options);
        Runtime::new().expect("runtime").block_on(test(&site, &root, listings));
    }

    fn accounted_bytes(listings: &Listings) -> usize {
        listings.bytes.load(Ordering::Relaxed)
    }

    fn is_pending(request: Pin<&mut impl Future>) -> bool {
        request.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[test]
    fn identical_requests_receive_same_bytes() {
        for (interval, is_cached) in [(HOUR, true), (Duration::ZERO, false)] {
            with_listings(interval, async |site, root, listings| {
                let request =
                    async |path, format| listings.list(root, path, format).await.expect("listing").bytes;
                let first = request("a", Format::Json).await;
                assert!(std::str::from_utf8(&first).expect("UTF-8").contains("\"file\""));
                // Served from the cache, or generated again with the same content.
                assert_eq!(first.as_ptr(), request("a", Format::Json).await.as_ptr());
                assert_ne!(first, request("a", Format::Html).await);
                fs::write(site.path().join("a/new"), "text").expect("file written");
                assert_eq!(first == request("a", Format::Json).await, is_cached);
                assert_eq!(listings.listings.borrow().len(), 2);
            });
        }
    }

    #[test]
    fn listing_is_generated_once_and_survives_cancelled_request() {
        with_listings(HOUR, async |_, root, listings| {
            assert!(is_pending(pin!(listings.list(root, "a", Format::Html))));
            let pending = listings.find_current("a", Format::Html).expect("pending listing");
            let bytes = listings.list(root, "a", Format::Html).await.expect("listing").bytes;
            assert_eq!(pending.job.clone().await.expect("same listing").bytes.as_ptr(), bytes.as_ptr());
        });
    }

    #[test]
    fn concurrent_listings_are_limited() {
        with_listings(HOUR, async |_, root, listings| {
            let paths: Vec<_> =
                (0..MAX_CONCURRENT_LISTINGS * 3).map(|number| format!("a/{}", "./".repeat(number))).collect();
            let mut requests: Vec<_> =
                paths.iter().map(|path| Box::pin(listings.list(root, path, Format::Json))).collect();
            assert!(requests.iter_mut().all(|request| is_pending(request.as_mut())));
            assert_eq!(listings.listings.borrow().len(), MAX_CONCURRENT_LISTINGS);
            for request in requests {
                request.await.expect("listing");
            }
        });
    }

    #[test]
    fn fault_20_unsent_listings_are_bounded_and_release_memory() {
        with_listings(Duration::ZERO, async |site, root, mut listings| {
            listings.max_bytes = 20_000;
            let mut unsent = Vec::new();
            // The content of the directory changes before each request.
            let error = loop {
                fs::write(site.path().join(format!("a/{}", unsent.len())), "text").expect("file written");
                match listings.list(root, "a", Format::Html).await {
                    Ok(page) => unsent.push(page),
                    Err(error) => break error,
                }
                assert!(unsent.len() < 20, "{} bytes", accounted_bytes(&listings));
            };
            assert_eq!(Errno::from_io_error(&error), Some(Errno::NOMEM));
            assert!(unsent.len() > 1);
            unsent.clear();
            listings.list(root, "a", Format::Html).await.expect("listing after memory was released");
            assert!(accounted_bytes(&listings) > 0);
            listings.listings.borrow_mut().clear();
            assert_eq!(accounted_bytes(&listings), 0);
        });
    }

    #[test]
    fn failed_listing_is_reported_to_waiters_and_retried() {
        with_listings(HOUR, async |site, root, listings| {
            let mut first = pin!(listings.list(root, "c", Format::Html));
            assert!(is_pending(first.as_mut()));
            let second = listings.list(root, "c", Format::Html).await.expect_err("missing directory");
            let first = first.await.expect_err("missing directory");
            assert!(Rc::ptr_eq(&first, &second), "{first} {second}");
            fs::create_dir(site.path().join("c")).expect("directory created");
            listings.list(root, "c", Format::Html).await.expect("listing");
        });
    }

    #[test]
    fn cancelled_waiter_is_removed() {
        with_listings(HOUR, async |_, root, listings| {
            for _ in 0..100 {
                assert!(is_pending(pin!(listings.list(root, "a", Format::Html))));
            }
            let pending = listings.find_current("a", Format::Html).expect("pending listing");
            assert_eq!(pending.job.strong_count(), Some(1));
        });
    }
}

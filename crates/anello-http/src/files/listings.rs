//! Directory listings of one worker, shared between requests.
//!
//! Generating a long listing takes milliseconds, and the result can be several megabytes. A blocking thread
//! generates it, with at most one job per directory and format. A separate task waits for the job, so the job
//! continues if the client that triggered it disconnects. Requests that arrive while the job runs, or within the
//! revalidation interval after its start, receive the same bytes. If a new listing equals the previous one, the
//! previous bytes are reused. The memory of listings that slow clients have not received yet is bounded by
//! [`MAX_LISTING_BYTES`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use anello::fs::spawn_blocking;
use anello::spawn;
use bytes::Bytes;
use rustix::io::Errno;
use slab::Slab;

use super::document_root::DocumentRoot;
use super::listing::Format;
use super::path::Dotfiles;
use super::validator::EntityTag;

/// Maximum number of cached listings.
const MAX_CACHED_LISTINGS: usize = 32;

/// Maximum number of listings that are generated concurrently. Further requests wait.
const MAX_CONCURRENT_LISTINGS: usize = 8;

/// Maximum memory of the listings of a worker that are cached or being sent, in bytes. Listings that are being
/// generated are not counted. Beyond the limit, requests fail with `ENOMEM`, which becomes a 503 response.
const MAX_LISTING_BYTES: usize = 64 << 20;

/// Listings of one worker.
#[derive(Debug)]
pub(super) struct Listings {
    interval: Duration,
    dotfiles: Dotfiles,
    max_entries: usize,
    /// Cached and pending listings, ordered by start time, oldest first.
    lists: RefCell<VecDeque<Rc<CachedListing>>>,
    /// Tasks that wait until any pending listing completes.
    completed: Rc<WaitList>,
    /// Memory of all listings of this worker that are cached or being sent, in bytes.
    bytes: Arc<AtomicUsize>,
    max_bytes: usize,
}

/// Rendered listing and its entity tag.
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
    /// Start time of the directory read. Later changes to the directory may be missing from the listing.
    started_at: Instant,
    result: RefCell<Option<Result<Page, Rc<io::Error>>>>,
    waiters: WaitList,
}

/// Wakers of tasks that wait for a condition.
#[derive(Debug, Default)]
struct WaitList(RefCell<Slab<Waker>>);

/// Slot of a task in a [`WaitList`], released on drop.
struct WaitEntry<'a> {
    waiters: &'a WaitList,
    key: Option<usize>,
}

/// Text of a listing, counted in [`Listings::bytes`] until it is dropped.
struct AccountedText {
    text: String,
    bytes: Arc<AtomicUsize>,
}

impl Listings {
    pub fn new(interval: Duration, dotfiles: Dotfiles, max_entries: usize) -> Self {
        Self {
            interval,
            dotfiles,
            max_entries,
            lists: RefCell::default(),
            completed: Rc::default(),
            bytes: Arc::default(),
            max_bytes: MAX_LISTING_BYTES,
        }
    }

    /// Returns the listing of a directory.
    ///
    /// # Errors
    /// Returns the error of reading the directory, or `ENOMEM` if the listings of this worker use too much memory.
    pub async fn list(&self, root: &DocumentRoot, path: &str, format: Format) -> Result<Page, Rc<io::Error>> {
        let requested_at = Instant::now();
        loop {
            let mut previous = None;
            if let Some(list) = self.find_current(path, format) {
                let result = list.result().await;
                if requested_at.saturating_duration_since(list.started_at) < self.interval
                    || list.started_at >= requested_at
                {
                    return result;
                }
                if !self
                    .find_current(path, format)
                    .is_some_and(|find_current| Rc::ptr_eq(&find_current, &list))
                {
                    // Another task has already started a newer listing.
                    continue;
                }
                previous = result.ok();
            }
            if self.is_at_capacity() {
                self.completed.wait_until(|| (!self.is_at_capacity()).then_some(())).await;
            } else {
                self.start(root, path, format, previous)?;
            }
        }
    }

    /// Returns the cached or pending listing, unless it failed. A failure is reported only to the requests that
    /// waited for it; the next request tries again because the cause may be gone.
    fn find_current(&self, path: &str, format: Format) -> Option<Rc<CachedListing>> {
        let lists = self.lists.borrow();
        lists.iter().find(|list| list.is_for(path, format) && !list.is_failed()).map(Rc::clone)
    }

    /// Returns `true` if the maximum number of listings is being generated.
    fn is_at_capacity(&self) -> bool {
        self.lists.borrow().iter().filter(|list| !list.is_complete()).count() >= MAX_CONCURRENT_LISTINGS
    }

    /// Starts to generate a listing, which replaces the cached one.
    fn start(
        &self,
        root: &DocumentRoot,
        path: &str,
        format: Format,
        previous: Option<Page>,
    ) -> Result<(), Rc<io::Error>> {
        let mut lists = self.lists.borrow_mut();
        lists.retain(|list| !list.is_for(path, format));
        if lists.len() >= MAX_CACHED_LISTINGS
            && let Some(oldest) = lists.iter().position(|list| list.is_complete())
        {
            lists.remove(oldest);
        }
        if self.bytes.load(Ordering::Relaxed) > self.max_bytes {
            // Evict cached listings first; some of them may not be in use.
            lists.retain(|list| !list.is_complete());
            if self.bytes.load(Ordering::Relaxed) > self.max_bytes {
                return Err(Rc::new(Errno::NOMEM.into()));
            }
        }
        let list = Rc::new(CachedListing {
            path: path.into(),
            format,
            started_at: Instant::now(),
            result: RefCell::new(None),
            waiters: WaitList::default(),
        });
        lists.push_back(Rc::clone(&list));
        drop(lists);
        let (root, path) = (root.clone(), path.to_owned());
        let (dotfiles, max_entries, bytes) = (self.dotfiles, self.max_entries, Arc::clone(&self.bytes));
        let work = spawn_blocking(move || {
            let listing = root.list_blocking(&path, dotfiles, max_entries)?;
            let text = match format {
                Format::Html => listing.html(),
                Format::Json => listing.json(),
            };
            Ok(match previous {
                Some(previous) if *previous.bytes == *text.as_bytes() => previous,
                _ => {
                    let tag = EntityTag::of_content(text.as_bytes());
                    Page { bytes: AccountedText::into_bytes(text, bytes), tag }
                }
            })
        });
        let completed = Rc::clone(&self.completed);
        let make = async move {
            let result = work.await.map_err(io::Error::from).and_then(|result: io::Result<Page>| result);
            list.result.replace(Some(result.map_err(Rc::new)));
            list.waiters.wake();
            completed.wake();
        };
        spawn(make).detach();
        Ok(())
    }
}

impl CachedListing {
    fn is_for(&self, path: &str, format: Format) -> bool {
        self.format == format && *self.path == *path
    }

    fn is_complete(&self) -> bool {
        self.result.borrow().is_some()
    }

    fn is_failed(&self) -> bool {
        matches!(&*self.result.borrow(), Some(Err(_)))
    }

    async fn result(&self) -> Result<Page, Rc<io::Error>> {
        self.waiters.wait_until(|| self.result.borrow().clone()).await
    }
}

impl WaitList {
    /// Waits until `condition` returns a value. The condition is evaluated immediately and after each
    /// [`wake`](Self::wake).
    async fn wait_until<T>(&self, condition: impl Fn() -> Option<T>) -> T {
        let mut entry = WaitEntry { waiters: self, key: None };
        let waiting = poll_fn(|context| match condition() {
            Some(value) => Poll::Ready(value),
            None => {
                entry.take(context.waker());
                Poll::Pending
            }
        });
        waiting.await
    }

    fn wake(&self) {
        // Clone the wakers so that the list is not borrowed while they run: a waker can execute arbitrary code.
        let wakers: Vec<_> = self.0.borrow().iter().map(|(_, waker)| waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl WaitEntry<'_> {
    fn take(&mut self, waker: &Waker) {
        let mut wakers = self.waiters.0.borrow_mut();
        match self.key.and_then(|key| wakers.get_mut(key)) {
            Some(find_current) => find_current.clone_from(waker),
            None => self.key = Some(wakers.insert(waker.clone())),
        }
    }
}

impl Drop for WaitEntry<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = self.waiters.0.borrow_mut().try_remove(key);
            drop(waker);
        }
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
    use std::pin::pin;
    use std::task::Context;

    use anello::Runtime;

    use super::*;
    use crate::files::options::Symlinks;

    const HOUR: Duration = Duration::from_secs(3600);

    fn with_site(test: impl AsyncFn(&tempfile::TempDir, DocumentRoot)) {
        let site = tempfile::tempdir().expect("a folder");
        for name in ["a", "b"] {
            fs::create_dir(site.path().join(name)).expect("a folder");
            fs::write(site.path().join(name).join("file"), "text").expect("a file");
        }
        let root = DocumentRoot::open(site.path(), Symlinks::FollowBeneath).expect("a folder");
        Runtime::new().expect("a runtime").block_on(test(&site, root));
    }

    fn into_bytes(listings: &Listings) -> usize {
        listings.bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn who_asks_for_the_same_is_sent_the_same_bytes() {
        with_site(async |site, root| {
            for (interval, is_remembered) in [(HOUR, true), (Duration::ZERO, false)] {
                let listings = Listings::new(interval, Dotfiles::Hide, 100);
                let list =
                    async |path, format| listings.list(&root, path, format).await.expect("a list").bytes;
                let first = list("a", Format::Json).await;
                assert!(std::str::from_utf8(&first).expect("text").contains("\"file\""));
                // Served from the cache, or generated again with the same content.
                assert_eq!(first.as_ptr(), list("a", Format::Json).await.as_ptr());
                assert_ne!(first, list("a", Format::Html).await);
                fs::write(site.path().join(format!("a/new-{is_remembered}")), "text").expect("a file");
                assert_eq!(first == list("a", Format::Json).await, is_remembered);
                let count = listings.lists.borrow().len();
                assert_eq!(count, 2);
                drop((first, listings));
            }
        });
    }

    #[test]
    fn a_list_is_made_once_for_all_who_wait_and_when_they_are_gone() {
        with_site(async |_, root| {
            let listings = Listings::new(HOUR, Dotfiles::Hide, 100);
            let mut context = Context::from_waker(Waker::noop());
            {
                let mut gone = pin!(listings.list(&root, "a", Format::Html));
                assert!(gone.as_mut().poll(&mut context).is_pending());
            }
            let begun = listings.find_current("a", Format::Html).expect("it was begun");
            let list = listings.list(&root, "a", Format::Html).await.expect("a list").bytes;
            assert_eq!(begun.result().await.expect("the same").bytes.as_ptr(), list.as_ptr());
        });
    }

    #[test]
    fn no_more_are_made_at_once_than_may_be() {
        with_site(async |_, root| {
            let listings = Listings::new(HOUR, Dotfiles::Hide, 100);
            let paths: Vec<_> =
                (0..MAX_CONCURRENT_LISTINGS * 3).map(|number| format!("a/{}", "./".repeat(number))).collect();
            let mut asked: Vec<_> =
                paths.iter().map(|path| Box::pin(listings.list(&root, path, Format::Json))).collect();
            let mut context = Context::from_waker(Waker::noop());
            for asking in &mut asked {
                assert!(asking.as_mut().poll(&mut context).is_pending());
            }
            assert_eq!(listings.lists.borrow().len(), MAX_CONCURRENT_LISTINGS);
            for asking in asked {
                asking.await.expect("a list");
            }
        });
    }

    #[test]
    fn fault_20_lists_that_are_not_taken_are_bounded_and_their_memory_is_given_back() {
        with_site(async |site, root| {
            let mut listings = Listings::new(Duration::ZERO, Dotfiles::Hide, 100);
            listings.max_bytes = 20_000;
            let mut taken = Vec::new();
            // The content of the directory changes before each request.
            let refused = loop {
                fs::write(site.path().join(format!("a/{}", taken.len())), "text").expect("a file");
                match listings.list(&root, "a", Format::Html).await {
                    Ok(list) => taken.push(list),
                    Err(error) => break error,
                }
                assert!(taken.len() < 20, "{} bytes", into_bytes(&listings));
            };
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOMEM));
            assert!(taken.len() > 1);
            taken.clear();
            listings.list(&root, "a", Format::Html).await.expect("there is room again");
            assert!(into_bytes(&listings) > 0);
            listings.lists.borrow_mut().clear();
            assert_eq!(into_bytes(&listings), 0);
        });
    }

    #[test]
    fn what_cannot_be_listed_is_told_to_who_waits_and_tried_again() {
        with_site(async |site, root| {
            let listings = Listings::new(HOUR, Dotfiles::Hide, 100);
            let mut context = Context::from_waker(Waker::noop());
            let mut first = pin!(listings.list(&root, "c", Format::Html));
            assert!(first.as_mut().poll(&mut context).is_pending());
            let second = listings.list(&root, "c", Format::Html).await.expect_err("no folder");
            let first = first.await.expect_err("no folder");
            assert!(Rc::ptr_eq(&first, &second), "{first} {second}");
            fs::create_dir(site.path().join("c")).expect("a folder");
            listings.list(&root, "c", Format::Html).await.expect("a list");
        });
    }

    #[test]
    fn who_does_not_wait_any_more_leaves_nothing_behind() {
        with_site(async |_, root| {
            let listings = Listings::new(HOUR, Dotfiles::Hide, 100);
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..100 {
                let mut gone = pin!(listings.list(&root, "a", Format::Html));
                assert!(gone.as_mut().poll(&mut context).is_pending());
            }
            let list = listings.find_current("a", Format::Html).expect("it was begun");
            assert_eq!(list.waiters.0.borrow().len(), 0);
        });
    }
}

//! Lists of folders, made once for all who ask at about the same time.
//!
//! A long list takes milliseconds to make and may be megabytes. So it is made by a thread for file operations, one at a time
//! of each folder and form, by a task that goes on when the client that asked first is gone; and who asks meanwhile, or
//! within the interval after it was begun, is sent the same bytes. One that turns out as before is the same bytes as before,
//! too. Lists that clients are slow to take are bounded all the same: see [`MAX_LISTING_BYTES`].

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

/// Most lists that are remembered, and most that are made at once: who asks for one more waits.
const MAX_CACHED_LISTINGS: usize = 32;
const MAX_CONCURRENT_LISTINGS: usize = 8;

/// Most memory of lists that were made for a worker and are remembered or being sent, in bytes, besides those that are being
/// made. Who asks for one more is told to come back.
const MAX_LISTING_BYTES: usize = 64 << 20;

/// The lists of one worker.
#[derive(Debug)]
pub(super) struct Listings {
    interval: Duration,
    dotfiles: Dotfiles,
    max_entries: usize,
    /// The one that was begun last stands last.
    lists: RefCell<VecDeque<Rc<CachedListing>>>,
    /// Who waits for a list to end, whichever.
    completed: Rc<WaitList>,
    /// Of all lists that there are anywhere.
    bytes: Arc<AtomicUsize>,
    max_bytes: usize,
}

/// The content of a list, and what tells it from that of another state.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pub bytes: Bytes,
    pub tag: EntityTag,
}

/// One list, which is made or being made.
#[derive(Debug)]
struct CachedListing {
    path: Box<str>,
    format: Format,
    /// When it was begun: what has happened in the folder since is not in it.
    started_at: Instant,
    result: RefCell<Option<Result<Page, Rc<io::Error>>>>,
    waiters: WaitList,
}

/// Who waits for something.
#[derive(Debug, Default)]
struct WaitList(RefCell<Slab<Waker>>);

/// A place among them, given up when dropped.
struct WaitEntry<'a> {
    waiters: &'a WaitList,
    key: Option<usize>,
}

/// A page of a list, counted as long as it is there.
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

    /// A list of what is in a folder.
    ///
    /// # Errors
    /// When the folder cannot be read; `ENOMEM` when there are too many lists.
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
                    // Somebody else was faster.
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

    /// One that is known, unless it could not be made: that is for those to know who have waited for it, since the cause
    /// may be gone.
    fn find_current(&self, path: &str, format: Format) -> Option<Rc<CachedListing>> {
        let lists = self.lists.borrow();
        lists.iter().find(|list| list.is_for(path, format) && !list.is_failed()).map(Rc::clone)
    }

    /// Whether as many are being made as may be.
    fn is_at_capacity(&self) -> bool {
        self.lists.borrow().iter().filter(|list| !list.is_complete()).count() >= MAX_CONCURRENT_LISTINGS
    }

    /// Begins to make a list, in the place of the one that is known.
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
            // Perhaps it is those that are only remembered.
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
    /// Waits for something: looks now, and at each [`wake`](Self::wake).
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
        // Not borrowed meanwhile: a waker may do anything.
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
                // Remembered, or made anew and found to be the same.
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
            // Another one each time.
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

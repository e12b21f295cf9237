//! Lists of folders, made once for all who ask at about the same time.
//!
//! A long list takes milliseconds to make and may be megabytes. So it is made by a thread for file operations, one at a time
//! of each folder and form, by a task that goes on when the client that asked first is gone; and who asks meanwhile, or
//! within the interval after it was begun, is sent the same bytes. One that turns out as before is the same bytes as before,
//! too. Lists that clients are slow to take are bounded all the same: see [`MOST_BYTES`].

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

use super::folder::Folder;
use super::listing::Format;
use super::path::Dotfiles;
use super::validator::EntityTag;

/// Most lists that are remembered, and most that are made at once: who asks for one more waits.
const MOST_LISTS: usize = 32;
const MOST_MAKING: usize = 8;

/// Most memory of lists that were made for a worker and are remembered or being sent, in bytes, besides those that are being
/// made. Who asks for one more is told to come back.
const MOST_BYTES: usize = 64 << 20;

/// The lists of one worker.
#[derive(Debug)]
pub(super) struct Listings {
    interval: Duration,
    dotfiles: Dotfiles,
    entries_limit: usize,
    /// The one that was begun last stands last.
    lists: RefCell<VecDeque<Rc<List>>>,
    /// Who waits for a list to end, whichever.
    ended: Rc<Waiters>,
    /// Of all lists that there are anywhere.
    bytes: Arc<AtomicUsize>,
    most_bytes: usize,
}

/// The content of a list, and what tells it from that of another state.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pub bytes: Bytes,
    pub tag: EntityTag,
}

/// One list, which is made or being made.
#[derive(Debug)]
struct List {
    path: Box<str>,
    format: Format,
    /// When it was begun: what has happened in the folder since is not in it.
    begun_at: Instant,
    made: RefCell<Option<Result<Page, Rc<io::Error>>>>,
    waiters: Waiters,
}

/// Who waits for something.
#[derive(Debug, Default)]
struct Waiters(RefCell<Slab<Waker>>);

/// A place among them, given up when dropped.
struct Place<'a> {
    waiters: &'a Waiters,
    key: Option<usize>,
}

/// A page of a list, counted as long as it is there.
struct Counted {
    text: String,
    bytes: Arc<AtomicUsize>,
}

impl Listings {
    pub fn new(interval: Duration, dotfiles: Dotfiles, entries_limit: usize) -> Self {
        Self {
            interval,
            dotfiles,
            entries_limit,
            lists: RefCell::default(),
            ended: Rc::default(),
            bytes: Arc::default(),
            most_bytes: MOST_BYTES,
        }
    }

    /// A list of what is in a folder.
    ///
    /// # Errors
    /// When the folder cannot be read; `ENOMEM` when there are too many lists.
    pub async fn list(&self, folder: &Folder, path: &str, format: Format) -> Result<Page, Rc<io::Error>> {
        let asked_at = Instant::now();
        loop {
            let mut before = None;
            if let Some(list) = self.known(path, format) {
                let made = list.made().await;
                if asked_at.saturating_duration_since(list.begun_at) < self.interval
                    || list.begun_at >= asked_at
                {
                    return made;
                }
                if !self.known(path, format).is_some_and(|known| Rc::ptr_eq(&known, &list)) {
                    // Somebody else was faster.
                    continue;
                }
                before = made.ok();
            }
            if self.is_making_most() {
                self.ended.until(|| (!self.is_making_most()).then_some(())).await;
            } else {
                self.begin(folder, path, format, before)?;
            }
        }
    }

    /// One that is known, unless it could not be made: that is for those to know who have waited for it, since the cause
    /// may be gone.
    fn known(&self, path: &str, format: Format) -> Option<Rc<List>> {
        let lists = self.lists.borrow();
        lists.iter().find(|list| list.is_of(path, format) && !list.has_failed()).map(Rc::clone)
    }

    /// Whether as many are being made as may be.
    fn is_making_most(&self) -> bool {
        self.lists.borrow().iter().filter(|list| !list.is_made()).count() >= MOST_MAKING
    }

    /// Begins to make a list, in the place of the one that is known.
    fn begin(
        &self,
        folder: &Folder,
        path: &str,
        format: Format,
        before: Option<Page>,
    ) -> Result<(), Rc<io::Error>> {
        let mut lists = self.lists.borrow_mut();
        lists.retain(|list| !list.is_of(path, format));
        if lists.len() >= MOST_LISTS
            && let Some(oldest) = lists.iter().position(|list| list.is_made())
        {
            lists.remove(oldest);
        }
        if self.bytes.load(Ordering::Relaxed) > self.most_bytes {
            // Perhaps it is those that are only remembered.
            lists.retain(|list| !list.is_made());
            if self.bytes.load(Ordering::Relaxed) > self.most_bytes {
                return Err(Rc::new(Errno::NOMEM.into()));
            }
        }
        let list = Rc::new(List {
            path: path.into(),
            format,
            begun_at: Instant::now(),
            made: RefCell::new(None),
            waiters: Waiters::default(),
        });
        lists.push_back(Rc::clone(&list));
        drop(lists);
        let (folder, path) = (folder.clone(), path.to_owned());
        let (dotfiles, entries_limit, bytes) = (self.dotfiles, self.entries_limit, Arc::clone(&self.bytes));
        let work = spawn_blocking(move || {
            let listing = folder.list_waiting(&path, dotfiles, entries_limit)?;
            let text = match format {
                Format::Html => listing.html(),
                Format::Json => listing.json(),
            };
            Ok(match before {
                Some(before) if *before.bytes == *text.as_bytes() => before,
                _ => {
                    let tag = EntityTag::of_content(text.as_bytes());
                    Page { bytes: Counted::bytes_of(text, bytes), tag }
                }
            })
        });
        let ended = Rc::clone(&self.ended);
        let make = async move {
            let made = work.await.map_err(io::Error::from).and_then(|made: io::Result<Page>| made);
            list.made.replace(Some(made.map_err(Rc::new)));
            list.waiters.wake();
            ended.wake();
        };
        spawn(make).detach();
        Ok(())
    }
}

impl List {
    fn is_of(&self, path: &str, format: Format) -> bool {
        self.format == format && *self.path == *path
    }

    fn is_made(&self) -> bool {
        self.made.borrow().is_some()
    }

    fn has_failed(&self) -> bool {
        matches!(&*self.made.borrow(), Some(Err(_)))
    }

    async fn made(&self) -> Result<Page, Rc<io::Error>> {
        self.waiters.until(|| self.made.borrow().clone()).await
    }
}

impl Waiters {
    /// Waits for something: looks now, and at each [`wake`](Self::wake).
    async fn until<T>(&self, look: impl Fn() -> Option<T>) -> T {
        let mut place = Place { waiters: self, key: None };
        let looking = poll_fn(|context| match look() {
            Some(found) => Poll::Ready(found),
            None => {
                place.take(context.waker());
                Poll::Pending
            }
        });
        looking.await
    }

    fn wake(&self) {
        // Not borrowed meanwhile: a waker may do anything.
        let wakers: Vec<_> = self.0.borrow().iter().map(|(_, waker)| waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Place<'_> {
    fn take(&mut self, waker: &Waker) {
        let mut wakers = self.waiters.0.borrow_mut();
        match self.key.and_then(|key| wakers.get_mut(key)) {
            Some(known) => known.clone_from(waker),
            None => self.key = Some(wakers.insert(waker.clone())),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = self.waiters.0.borrow_mut().try_remove(key);
            drop(waker);
        }
    }
}

impl Counted {
    fn bytes_of(text: String, bytes: Arc<AtomicUsize>) -> Bytes {
        bytes.fetch_add(text.capacity(), Ordering::Relaxed);
        Bytes::from_owner(Self { text, bytes })
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Drop for Counted {
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

    fn with_site(test: impl AsyncFn(&tempfile::TempDir, Folder)) {
        let site = tempfile::tempdir().expect("a folder");
        for name in ["a", "b"] {
            fs::create_dir(site.path().join(name)).expect("a folder");
            fs::write(site.path().join(name).join("file"), "text").expect("a file");
        }
        let folder = Folder::open(site.path(), Symlinks::FollowBeneath).expect("a folder");
        Runtime::new().expect("a runtime").block_on(test(&site, folder));
    }

    fn bytes_of(listings: &Listings) -> usize {
        listings.bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn who_asks_for_the_same_is_sent_the_same_bytes() {
        with_site(async |site, folder| {
            for (interval, is_remembered) in [(HOUR, true), (Duration::ZERO, false)] {
                let listings = Listings::new(interval, Dotfiles::Hide, 100);
                let list =
                    async |path, format| listings.list(&folder, path, format).await.expect("a list").bytes;
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
        with_site(async |_, folder| {
            let listings = Listings::new(HOUR, Dotfiles::Hide, 100);
            let mut context = Context::from_waker(Waker::noop());
            {
                let mut gone = pin!(listings.list(&folder, "a", Format::Html));
                assert!(gone.as_mut().poll(&mut context).is_pending());
            }
            let begun = listings.known("a", Format::Html).expect("it was begun");
            let list = listings.list(&folder, "a", Format::Html).await.expect("a list").bytes;
            assert_eq!(begun.made().await.expect("the same").bytes.as_ptr(), list.as_ptr());
        });
    }

    #[test]
    fn no_more_are_made_at_once_than_may_be() {
        with_site(async |_, folder| {
            let listings = Listings::new(HOUR, Dotfiles::Hide, 100);
            let paths: Vec<_> =
                (0..MOST_MAKING * 3).map(|number| format!("a/{}", "./".repeat(number))).collect();
            let mut asked: Vec<_> =
                paths.iter().map(|path| Box::pin(listings.list(&folder, path, Format::Json))).collect();
            let mut context = Context::from_waker(Waker::noop());
            for asking in &mut asked {
                assert!(asking.as_mut().poll(&mut context).is_pending());
            }
            assert_eq!(listings.lists.borrow().len(), MOST_MAKING);
            for asking in asked {
                asking.await.expect("a list");
            }
        });
    }

    #[test]
    fn fault_20_lists_that_are_not_taken_are_bounded_and_their_memory_is_given_back() {
        with_site(async |site, folder| {
            let mut listings = Listings::new(Duration::ZERO, Dotfiles::Hide, 100);
            listings.most_bytes = 20_000;
            let mut taken = Vec::new();
            // Another one each time.
            let refused = loop {
                fs::write(site.path().join(format!("a/{}", taken.len())), "text").expect("a file");
                match listings.list(&folder, "a", Format::Html).await {
                    Ok(list) => taken.push(list),
                    Err(error) => break error,
                }
                assert!(taken.len() < 20, "{} bytes", bytes_of(&listings));
            };
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::NOMEM));
            assert!(taken.len() > 1);
            taken.clear();
            listings.list(&folder, "a", Format::Html).await.expect("there is room again");
            assert!(bytes_of(&listings) > 0);
            listings.lists.borrow_mut().clear();
            assert_eq!(bytes_of(&listings), 0);
        });
    }

    #[test]
    fn what_cannot_be_listed_is_told_to_who_waits_and_tried_again() {
        with_site(async |site, folder| {
            let listings = Listings::new(HOUR, Dotfiles::Hide, 100);
            let mut context = Context::from_waker(Waker::noop());
            let mut first = pin!(listings.list(&folder, "c", Format::Html));
            assert!(first.as_mut().poll(&mut context).is_pending());
            let second = listings.list(&folder, "c", Format::Html).await.expect_err("no folder");
            let first = first.await.expect_err("no folder");
            assert!(Rc::ptr_eq(&first, &second), "{first} {second}");
            fs::create_dir(site.path().join("c")).expect("a folder");
            listings.list(&folder, "c", Format::Html).await.expect("a list");
        });
    }

    #[test]
    fn who_does_not_wait_any_more_leaves_nothing_behind() {
        with_site(async |_, folder| {
            let listings = Listings::new(HOUR, Dotfiles::Hide, 100);
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..100 {
                let mut gone = pin!(listings.list(&folder, "a", Format::Html));
                assert!(gone.as_mut().poll(&mut context).is_pending());
            }
            let list = listings.known("a", Format::Html).expect("it was begun");
            assert_eq!(list.waiters.0.borrow().len(), 0);
        });
    }
}

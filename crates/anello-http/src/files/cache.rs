//! What is known of files that were asked for: contents of small ones, descriptors of large ones, and the fields of their
//! answers, encoded once. One for each worker.
//!
//! An entry counts as true for an interval; then the path is resolved again. If it leads to a file in the same state, the
//! entry goes on, else it is made anew. Contents are read whole between two looks at the same state, so they are never
//! partly old and partly new; those of a file that was written a moment ago, whose state may not show the next change, are
//! read again at the next look.
//!
//! Of a large file only the descriptor is kept, and who writes to the file changes what is sent. So each answer that it is
//! sent with looks at the open file first (`fstat(2)`), within the interval, too: tag, length and bytes are of one state.
//! A descriptor keeps a removed file on its disk: while there are any, a task looks each second for those that are no longer
//! what they were, or are asked for no more, and closes them.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

use anello::fs::File;
use anello::fs::spawn_blocking;
use anello::spawn;
use anello::time::sleep;
use bytes::Bytes;
use foldhash::fast::RandomState;
use rustix::fs::fstat;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::document_root::stamp;
use super::negotiate::{Coding, Codings};
use super::path::resolve_fast;
use super::stamp::{FileStamp, Timestamp};
use super::validator::Validator;
use crate::h1::{EncodedResponse, FieldBlock};
use crate::observe::metrics::WorkerMetrics;

/// Most entries of a cache, whatever their size.
const MAX_ENTRIES: usize = 4096;

/// Most files of a cache that are open: larger ones, whose contents are not kept. Fewer where the process may not open many.
const MAX_OPEN_FILES: usize = 512;

/// Descriptors that a process and each of its workers need besides connections and files, about.
const PROCESS_DESCRIPTORS: u64 = 24;
const DESCRIPTORS_PER_WORKER: u64 = 10;

/// How often open files are looked at while nobody asks for them, and for how long nobody has asked for those that are
/// closed, unless they count as true for longer.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// What an entry takes besides its contents and its path, about.
const ENTRY_OVERHEAD_BYTES: usize = 1024;

/// A file and its precompressed variants.
#[derive(Debug)]
pub(super) struct Entry {
    /// The path of the file, which for a folder is that of its index file.
    pub path: Box<str>,
    pub identity: Variant,
    pub encoded: Vec<(Coding, Variant)>,
    /// Not all of it is in memory.
    pub has_open_files: bool,
    /// When it was looked at last.
    checked_at: Cell<Duration>,
    /// It was used since it was last looked for something to forget.
    is_used: Cell<bool>,
}

/// One file, and what is sent with it.
#[derive(Debug)]
pub(super) struct Variant {
    pub stamp: FileStamp,
    /// What it is precompressed with.
    pub coding: Option<Coding>,
    /// Whether the state of the file tells every later change.
    pub is_settled: bool,
    pub contents: Contents,
    pub validator: Validator,
    pub media_type: Box<str>,
    /// With the file, and with a part of it.
    pub fields: Rc<FieldBlock>,
    /// Instead of the file.
    pub not_modified_fields: Rc<FieldBlock>,
}

#[derive(Debug)]
pub(super) enum Contents {
    /// With its fields: what fits behind them in one send.
    Encoded(Rc<EncodedResponse>),
    Memory(Bytes),
    File(File),
}

impl Entry {
    /// Of a file that was looked for then, before anything of it was read: a read may take long, and what has come of the
    /// path meanwhile is newer.
    pub fn new(
        path: &str,
        identity: Variant,
        encoded: Vec<(Coding, Variant)>,
        checked_at: Duration,
    ) -> Rc<Self> {
        let (checked_at, is_used) = (Cell::new(checked_at), Cell::new(false));
        let mut entry =
            Self { path: path.into(), identity, encoded, has_open_files: false, checked_at, is_used };
        entry.has_open_files = entry.open_files() > 0;
        Rc::new(entry)
    }

    pub fn codings(&self) -> Codings {
        self.encoded.iter().map(|(coding, _)| *coding).collect()
    }

    pub fn variant(&self, coding: Coding) -> &Variant {
        self.encoded.iter().find(|(known, _)| *known == coding).map_or(&self.identity, |(_, variant)| variant)
    }

    fn variants(&self) -> impl Iterator<Item = &Variant> {
        std::iter::once(&self.identity).chain(self.encoded.iter().map(|(_, variant)| variant))
    }

    fn bytes(&self) -> usize {
        let contents = self.variants().map(|variant| match &variant.contents {
            Contents::Encoded(answer) => answer.body_bytes(),
            Contents::Memory(bytes) => bytes.len(),
            Contents::File(_) => 0,
        });
        ENTRY_OVERHEAD_BYTES + 2 * self.path.len() + contents.sum::<usize>()
    }

    fn files(&self) -> impl Iterator<Item = &File> {
        self.variants().filter_map(|variant| match &variant.contents {
            Contents::File(file) => Some(file),
            Contents::Encoded(_) | Contents::Memory(_) => None,
        })
    }

    fn open_files(&self) -> usize {
        self.files().count()
    }

    /// It was looked for then, and found to be as it was.
    pub fn mark_fresh(&self, checked_at: Duration) {
        self.checked_at.set(self.checked_at.get().max(checked_at));
    }

    /// Whether what is kept of its files is what would be sent; see [`Variant::is_unchanged`].
    pub fn is_unchanged(&self) -> bool {
        self.variants().all(Variant::is_unchanged)
    }

    /// Whether what is kept of it is worth its descriptors.
    fn keeps_files_open(&self, now: Duration, idle_timeout: Duration) -> bool {
        now.saturating_sub(self.checked_at.get()) < idle_timeout && self.is_unchanged()
    }
}

impl Variant {
    /// Whether what would be sent is what the fields tell of. An open file is looked at (`fstat(2)`): writing to it
    /// changes its times, and so does putting another one in its place, by which it loses its name.
    pub fn is_unchanged(&self) -> bool {
        match &self.contents {
            Contents::File(file) => fstat(file).is_ok_and(|stat| stamp(&stat) == self.stamp),
            Contents::Encoded(_) | Contents::Memory(_) => true,
        }
    }
}

/// The entries of one worker, by path. The key of a path is the target of requests that asks for it by nothing but itself,
/// if there is such a target.
#[derive(Debug)]
pub(super) struct Cache {
    max_bytes: usize,
    interval: Duration,
    entries: RefCell<HashMap<Box<[u8]>, Rc<Entry>, RandomState>>,
    /// In the order in which they are looked at for something to forget.
    order: RefCell<VecDeque<Box<[u8]>>>,
    bytes: Cell<usize>,
    open_files: Cell<usize>,
    max_open_files: usize,
    /// Whether a task looks at the open files.
    is_sweeping: Cell<bool>,
    /// Where hits, misses and bytes are counted.
    metrics: OnceCell<Rc<WorkerMetrics>>,
}

/// What a cache knows of a path.
pub(super) enum Lookup {
    Fresh(Rc<Entry>),
    /// To be looked at again.
    Stale(Rc<Entry>),
    Miss,
}

impl Cache {
    /// One of those of so many workers.
    pub fn new(max_bytes: usize, interval: Duration, workers: usize) -> Rc<Self> {
        Rc::new(Self {
            max_bytes,
            interval,
            entries: RefCell::default(),
            order: RefCell::default(),
            bytes: Cell::new(0),
            open_files: Cell::new(0),
            max_open_files: max_open_files(workers),
            is_sweeping: Cell::new(false),
            metrics: OnceCell::new(),
        })
    }

    /// Counts there from now on, unless it counts elsewhere.
    pub fn set_metrics(&self, metrics: Rc<WorkerMetrics>) {
        self.metrics.get_or_init(|| metrics);
    }

    /// Bytes that it holds, about.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// What is known of a path, by the target that asks for it. What counts as true by its age is asked whether it is as it
    /// was, too.
    #[inline]
    pub fn get_by_target(&self, target: &[u8], is_unchanged: impl FnOnce(&Entry) -> bool) -> Lookup {
        let entries = self.entries.borrow();
        let Some(entry) = entries.get(target) else { return Lookup::Miss };
        entry.is_used.set(true);
        if now().saturating_sub(entry.checked_at.get()) < self.interval && is_unchanged(entry) {
            if let Some(metrics) = self.metrics.get() {
                metrics.cache_hit();
            }
            Lookup::Fresh(Rc::clone(entry))
        } else {
            Lookup::Stale(Rc::clone(entry))
        }
    }

    /// What is known of a path, likewise.
    pub fn get(&self, path: &str, is_directory: bool, is_unchanged: impl FnOnce(&Entry) -> bool) -> Lookup {
        self.get_by_target(key(path, is_directory).as_bytes(), is_unchanged)
    }

    /// Keeps an entry, in the place of another one of this path, and forgets others when there are too many. One that was
    /// looked at again and is put back as it was counts as a hit, another one as a miss. What was looked for later stays.
    pub fn insert(self: &Rc<Self>, path: &str, is_directory: bool, entry: &Rc<Entry>) {
        let bytes = entry.bytes();
        if bytes > self.max_bytes {
            return self.remove(path, is_directory, entry.checked_at.get());
        }
        let key: Box<[u8]> = key(path, is_directory).into_bytes().into();
        if self.has_newer(&key, entry.checked_at.get()) {
            if let Some(metrics) = self.metrics.get() {
                metrics.cache_miss();
            }
            return;
        }
        let previous = self.entries.borrow_mut().insert(key.clone(), Rc::clone(entry));
        if let Some(metrics) = self.metrics.get() {
            match &previous {
                Some(previous) if Rc::ptr_eq(previous, entry) => metrics.cache_hit(),
                _ => metrics.cache_miss(),
            }
        }
        self.bytes.set(self.bytes.get() + bytes);
        self.open_files.set(self.open_files.get() + entry.open_files());
        match previous {
            Some(previous) => self.release(previous),
            None => self.order.borrow_mut().push_back(key),
        }
        self.evict();
        self.publish_bytes();
        if self.open_files.get() > 0 && !self.is_sweeping.replace(true) {
            spawn(sweep(Rc::downgrade(self))).detach();
        }
    }

    /// Forgets a path that leads nowhere, as was found by a look that began then.
    pub fn remove(&self, path: &str, is_directory: bool, checked_at: Duration) {
        let key = key(path, is_directory);
        if self.has_newer(key.as_bytes(), checked_at) {
            return;
        }
        let removed = self.entries.borrow_mut().remove(key.as_bytes());
        if let Some(entry) = removed {
            self.release(entry);
            self.publish_bytes();
        }
    }

    fn has_newer(&self, key: &[u8], checked_at: Duration) -> bool {
        self.entries.borrow().get(key).is_some_and(|entry| entry.checked_at.get() > checked_at)
    }

    /// Closes all files, but for those that are being sent; whether there were any.
    pub async fn close_files(&self) -> bool {
        let files = self.remove_where(|entry| entry.has_open_files);
        let had_files = !files.is_empty();
        if had_files && let Err(panic) = spawn_blocking(|| drop(files)).await {
            tracing::error!(%panic, "files were not closed");
        }
        had_files
    }

    /// Forgets what is to be forgotten, and returns what of it is open.
    fn remove_where(&self, should_remove: impl Fn(&Entry) -> bool) -> Vec<File> {
        let mut entries = self.entries.borrow_mut();
        let removed: Vec<_> =
            entries.extract_if(|_, entry| should_remove(entry)).map(|(_, entry)| entry).collect();
        drop(entries);
        removed.iter().for_each(|entry| self.subtract_size(entry));
        self.publish_bytes();
        removed.iter().flat_map(|entry| entry.files()).cloned().collect()
    }

    fn publish_bytes(&self) {
        if let Some(metrics) = self.metrics.get() {
            metrics.set_cache_bytes(self.bytes() as u64);
        }
    }

    fn release(&self, entry: Rc<Entry>) {
        self.subtract_size(&entry);
        // Unless it is in use, or was put back in its own place.
        if Rc::strong_count(&entry) == 1 {
            let files = entry.files().cloned().collect();
            drop(entry);
            close(files);
        }
    }

    fn subtract_size(&self, entry: &Entry) {
        self.bytes.set(self.bytes.get() - entry.bytes());
        self.open_files.set(self.open_files.get() - entry.open_files());
    }

    /// Forgets what was not used since it was last looked at (the clock algorithm).
    fn evict(&self) {
        let mut order = self.order.borrow_mut();
        let mut entries = self.entries.borrow_mut();
        let is_over_limit = |count: usize| {
            count > MAX_ENTRIES
                || self.bytes.get() > self.max_bytes
                || self.open_files.get() > self.max_open_files
        };
        while is_over_limit(order.len())
            && let Some(key) = order.pop_front()
        {
            match entries.get(&key) {
                Some(entry) if entry.is_used.replace(false) => order.push_back(key),
                Some(_) => {
                    if let Some(entry) = entries.remove(&key) {
                        self.release(entry);
                    }
                }
                // It was removed before.
                None => {}
            }
        }
    }
}

/// Looks at the open files now and then, for as long as there are any.
async fn sweep(cache: Weak<Cache>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(cache) = cache.upgrade() else { return };
        let (now, idle_timeout) = (now(), IDLE_TIMEOUT.max(cache.interval.saturating_mul(2)));
        close(cache.remove_where(|entry| entry.has_open_files && !entry.keeps_files_open(now, idle_timeout)));
        if cache.open_files.get() == 0 {
            cache.is_sweeping.set(false);
            return;
        }
    }
}

/// Closes files, if there are any, by a thread for file operations: the end of a removed file's last descriptor frees its
/// space, which takes long where that is much.
fn close(files: Vec<File>) {
    if !files.is_empty() {
        drop(spawn_blocking(|| drop(files)));
    }
}

/// The share of a worker in a quarter of what the process may open besides what it needs for itself: connections need
/// descriptors, too.
fn max_open_files(workers: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let workers = workers.max(1);
    let own = (workers as u64).saturating_mul(DESCRIPTORS_PER_WORKER).saturating_add(PROCESS_DESCRIPTORS);
    let share = usize::try_from(limit.saturating_sub(own) / 4).unwrap_or(usize::MAX) / workers;
    share.clamp(1, MAX_OPEN_FILES)
}

/// The key of a path. One that a target can ask for by itself begins with a slash, as that target; others, with hidden names
/// or bytes that have to be encoded, do not, and targets have to be resolved to find them.
fn key(path: &str, is_directory: bool) -> String {
    let slash = if is_directory && !path.is_empty() { "/" } else { "" };
    let target = format!("/{path}{slash}");
    let leads_to = resolve_fast(&target);
    let is_itself = leads_to.is_some_and(|found| {
        (found.relative(), found.is_directory(), found.query()) == (path, is_directory, None)
    });
    if is_itself { target } else { format!("{path}{slash}") }
}

/// A clock that costs next to nothing (`CLOCK_MONOTONIC_COARSE`): a few milliseconds behind at most.
#[inline]
pub(super) fn now() -> Duration {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The clock that the times of files are of.
pub(super) fn wall_clock() -> Timestamp {
    let time = clock_gettime(ClockId::Realtime);
    Timestamp { seconds: time.tv_sec, nanoseconds: u32::try_from(time.tv_nsec).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::{MetricsOptions, ServerMetrics};

    fn entry(path: &str, bytes: usize) -> Rc<Entry> {
        let stamp = FileStamp::default();
        let identity = Variant {
            stamp,
            coding: None,
            is_settled: true,
            contents: Contents::Memory(Bytes::from(vec![0; bytes])),
            validator: Validator::of(&stamp, None, wall_clock()),
            media_type: "text/plain".into(),
            fields: Rc::default(),
            not_modified_fields: Rc::default(),
        };
        Entry::new(path, identity, Vec::new(), now())
    }

    fn is_known(cache: &Cache, path: &str) -> bool {
        !matches!(cache.get(path, false, |_| true), Lookup::Miss)
    }

    #[test]
    fn what_was_not_used_is_forgotten_first_and_bytes_are_bounded() {
        let cache = Cache::new(10 * 4096, Duration::from_secs(60), 1);
        cache.insert("popular", false, &entry("popular", 1024));
        for number in 0..100 {
            let path = format!("{number}");
            cache.insert(&path, false, &entry(&path, 3000));
            assert!(is_known(&cache, "popular"), "{number}");
            assert!(cache.bytes() <= 10 * 4096, "{}", cache.bytes());
        }
        assert!(!is_known(&cache, "0"));
        cache.insert("too large", false, &entry("too large", 1 << 20));
        assert!(!is_known(&cache, "too large"));
    }

    #[test]
    fn entries_replace_each_other_and_leave_nothing_behind() {
        let cache = Cache::new(1 << 20, Duration::from_secs(60), 1);
        for round in 0..10 {
            cache.insert("a", false, &entry("a", round * 100));
            cache.insert("a", true, &entry("a/index.html", 10));
        }
        cache.remove("a", false, now());
        assert!(!is_known(&cache, "a") && matches!(cache.get("a", true, |_| true), Lookup::Fresh(_)));
        cache.remove("a", true, now());
        assert_eq!((cache.bytes(), cache.open_files.get()), (0, 0));
    }

    #[test]
    fn workers_share_a_quarter_of_the_descriptors() {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        for workers in [0, 1, 8, 200, usize::MAX] {
            let most = max_open_files(workers);
            let together = (most as u64).saturating_mul(workers as u64);
            assert!(most == 1 || together <= limit / 4, "{most} of {workers} workers");
            assert!((1..=MAX_OPEN_FILES).contains(&most));
        }
        assert!(max_open_files(1) > max_open_files(1 << 40));
    }

    #[test]
    fn fault_35_a_look_that_began_earlier_and_took_longer_changes_nothing() {
        let cache = Cache::new(1 << 20, Duration::from_secs(60), 1);
        let at = |milliseconds| now() + Duration::from_millis(milliseconds);
        let (earlier, later) = (at(0), at(100));
        let of = |checked_at| {
            let entry = entry("a", 1);
            entry.mark_fresh(checked_at);
            entry
        };
        let (old, new) = (of(earlier), of(later));
        let is_new =
            || matches!(cache.get("a", false, |_| true), Lookup::Fresh(known) if Rc::ptr_eq(&known, &new));
        cache.insert("a", false, &new);
        let bytes = cache.bytes();
        cache.insert("a", false, &old);
        assert!(is_new() && cache.bytes() == bytes);
        // It had found nothing.
        cache.remove("a", false, earlier);
        assert!(is_new());
        // Of the two that have put it back, one had begun before.
        new.mark_fresh(earlier);
        cache.insert("a", false, &old);
        assert!(is_new());
        cache.remove("a", false, later);
        assert!(!is_known(&cache, "a"));
    }

    fn counts_of(metrics: &ServerMetrics) -> [u64; 3] {
        let mut text = Vec::new();
        metrics.render(None, &mut text);
        let text = String::from_utf8(text).expect("text");
        ["hits_total", "misses_total", "bytes"].map(|name| {
            let line = format!("\nanello_http_cache_{name} ");
            let (_, value) = text.split_once(&line).expect("a sample");
            value.lines().next().expect("a value").parse().expect("a number")
        })
    }

    #[test]
    fn hits_misses_and_bytes_are_counted() {
        let metrics = ServerMetrics::new(MetricsOptions::default());
        for (interval, hits) in [(Duration::from_secs(60), 3), (Duration::ZERO, 1)] {
            let previous = counts_of(&metrics);
            let cache = Cache::new(1 << 20, interval, 1);
            cache.set_metrics(Rc::new(metrics.worker(0).expect("its counts")));
            assert!(!is_known(&cache, "a"));
            let first = entry("a", 1000);
            cache.insert("a", false, &first);
            assert!(is_known(&cache, "a") && is_known(&cache, "a"));
            // Looked at again, and found to be as it was; then changed.
            cache.insert("a", false, &first);
            cache.insert("a", false, &entry("a", 2000));
            cache.insert("too large", false, &entry("too large", 1 << 20));
            let after = counts_of(&metrics);
            assert_eq!([after[0] - previous[0], after[1] - previous[1]], [hits, 2], "{interval:?}");
            assert_eq!(after[2], cache.bytes() as u64);
            cache.remove("a", false, now());
            assert_eq!(counts_of(&metrics)[2], 0);
        }
    }

    #[test]
    fn targets_find_what_they_ask_for_and_nothing_else() {
        let cache = Cache::new(1 << 20, Duration::from_secs(60), 1);
        let paths =
            [("", true), ("a", false), ("a", true), ("a/b.txt", false), ("a?b", false), (".a", false)];
        for (path, is_directory) in paths.into_iter().chain([("a%41", false), ("ä", false), ("a b", true)]) {
            cache.insert(path, is_directory, &entry(&format!("{path} {is_directory}"), 1));
            assert!(matches!(cache.get(path, is_directory, |_| true), Lookup::Fresh(found)
                if *found.path == format!("{path} {is_directory}")));
        }
        let found = |target: &str| match cache.get_by_target(target.as_bytes(), |_| true) {
            Lookup::Fresh(entry) => Some(entry.path.to_string()),
            _ => None,
        };
        for (target, path) in
            [("/", " true"), ("/a", "a false"), ("/a/", "a true"), ("/a/b.txt", "a/b.txt false")]
        {
            assert_eq!(found(target).as_deref(), Some(path));
        }
        // These mean something else, or have to be looked at first.
        for target in ["/a?b", "/.a", "/a%41", "/ä", "/a b/", "", "//", "/a//", "//a", "/b", "*"] {
            assert_eq!(found(target), None, "{target}");
        }
    }

    #[test]
    fn without_an_interval_everything_is_looked_at_again() {
        let cache = Cache::new(1 << 20, Duration::ZERO, 1);
        cache.insert("a", false, &entry("a", 1));
        assert!(matches!(cache.get("a", false, |_| true), Lookup::Stale(_)));
    }

    #[test]
    fn what_is_no_longer_as_it_was_is_looked_at_again_and_is_no_hit() {
        let metrics = ServerMetrics::new(MetricsOptions::default());
        let cache = Cache::new(1 << 20, Duration::from_secs(60), 1);
        cache.set_metrics(Rc::new(metrics.worker(0).expect("its counts")));
        cache.insert("a", false, &entry("a", 1));
        assert!(matches!(cache.get("a", false, |_| false), Lookup::Stale(_)));
        assert_eq!(counts_of(&metrics)[0], 0);
        assert!(is_known(&cache, "a"));
        assert_eq!(counts_of(&metrics)[0], 1);
    }
}

//! File cache of one worker: contents of small files, descriptors of large files, and encoded response fields.
//!
//! An entry is fresh for the revalidation interval. After that, the path is resolved again. If it leads to the same
//! file in the same state, the entry is kept; otherwise it is replaced. Contents are read in full between two
//! `fstat(2)` calls that return the same state, so they never mix two versions of a file. If a file was modified
//! very recently, its timestamps may not reveal the next change; its contents are read again at the next
//! revalidation.
//!
//! For a large file, the cache holds only the descriptor, and a write to the file changes the bytes that are sent. The
//! server therefore calls `fstat(2)` on the open file for every response, even while the entry is fresh, so that the
//! entity tag, the length and the bytes describe the same state. An open descriptor also prevents the kernel from
//! freeing the disk space of a deleted file. While the cache holds descriptors, a task checks them every second and
//! closes the descriptors of changed, deleted or unused files.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::{Duration, UNIX_EPOCH};

use anello::fs::File;
use anello::fs::spawn_file_operation;
use anello::log_event;
use anello::spawn;
use anello::time::{monotonic_now, sleep, system_now};
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

const MAX_ENTRIES: usize = 4096;

/// Maximum number of open files in a cache; lower if the process has a low descriptor limit. Only files that are too
/// large to cache in memory are kept open.
const MAX_OPEN_FILES: usize = 512;
/// Approximate number of descriptors that the process needs, not counting connections, files or workers.
const PROCESS_DESCRIPTORS: u64 = 24;
/// Approximate number of descriptors that each worker needs, not counting connections or files.
const DESCRIPTORS_PER_WORKER: u64 = 10;
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// An entry with open files is evicted if it has not been revalidated for this time, or for twice the revalidation
/// interval if that is longer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Approximate size of an entry, excluding its contents and path.
const ENTRY_OVERHEAD_BYTES: usize = 1024;

#[derive(Debug)]
pub(super) struct Entry {
    /// For a directory, the path of its index file.
    pub path: Box<str>,
    pub identity: Variant,
    pub encoded: Vec<(Coding, Variant)>,
    /// Codings with which the file can be compressed while it is sent.
    pub compressible: Codings,
    pub has_open_files: bool,
    /// Time at which the last check of the path started.
    checked_at: Cell<Duration>,
    /// Reference bit for the clock algorithm: set by every lookup, cleared by [`Cache::evict`].
    is_used: Cell<bool>,
}

#[derive(Debug)]
pub(super) struct Variant {
    pub stamp: FileStamp,
    pub coding: Option<Coding>,
    /// Whether the last change was old enough that any later one alters the timestamps; see [`FileStamp::is_settled`].
    pub is_settled: bool,
    pub contents: Contents,
    pub validator: Validator,
    pub media_type: Box<str>,
    /// Fields for a response with the whole file or with one range.
    pub fields: Rc<FieldBlock>,
    /// Fields for a 304 response.
    pub not_modified_fields: Rc<FieldBlock>,
}

#[derive(Debug)]
pub(super) enum Contents {
    /// The size of the body is at most [`COPIED_BODY_BYTES`](crate::message::COPIED_BODY_BYTES).
    Encoded(Rc<EncodedResponse>),
    Memory(Bytes),
    File(File),
}

impl Entry {
    /// Creates an entry. `checked_at` is the time at which the lookup of the path started, before any read: reading can
    /// take a long time, and a lookup that started later has newer information.
    pub fn new(
        path: &str,
        identity: Variant,
        encoded: Vec<(Coding, Variant)>,
        compressible: Codings,
        checked_at: Duration,
    ) -> Rc<Self> {
        let (checked_at, is_used) = (Cell::new(checked_at), Cell::new(false));
        let (path, has_open_files) = (path.into(), false);
        let mut entry = Self { path, identity, encoded, compressible, has_open_files, checked_at, is_used };
        entry.has_open_files = entry.open_files() > 0;
        Rc::new(entry)
    }

    pub fn codings(&self) -> Codings {
        self.encoded.iter().map(|(coding, _)| *coding).collect()
    }

    pub fn variant(&self, coding: Coding) -> &Variant {
        let encoded = self.encoded.iter().find(|(candidate, _)| *candidate == coding);
        encoded.map_or(&self.identity, |(_, variant)| variant)
    }

    fn variants(&self) -> impl Iterator<Item = &Variant> {
        std::iter::once(&self.identity).chain(self.encoded.iter().map(|(_, variant)| variant))
    }

    fn bytes(&self) -> usize {
        let contents = self.variants().map(|variant| match &variant.contents {
            Contents::Encoded(response) => response.body_bytes(),
            Contents::Memory(bytes) => bytes.len(),
            Contents::File(_) => 0,
        });
        ENTRY_OVERHEAD_BYTES + 2 * self.path.len() + contents.sum::<usize>()
    }

    fn files(&self) -> impl Iterator<Item = &File> {
        self.variants().filter_map(Variant::file)
    }

    fn open_files(&self) -> usize {
        self.files().count()
    }

    /// Records that a lookup that started at `checked_at` found the file unchanged.
    pub fn mark_fresh(&self, checked_at: Duration) {
        self.checked_at.set(self.checked_at.get().max(checked_at));
    }

    pub fn is_unchanged(&self) -> bool {
        self.variants().all(Variant::is_unchanged)
    }
}

impl Variant {
    /// Returns `true` if the contents still match the response fields. Calls `fstat(2)` on an open file: a write
    /// changes its timestamps, and replacing or removing the file changes `st_ctime` because the file loses a link.
    pub fn is_unchanged(&self) -> bool {
        self.file().is_none_or(|file| fstat(file).is_ok_and(|stat| stamp(&stat) == self.stamp))
    }

    fn file(&self) -> Option<&File> {
        if let Contents::File(file) = &self.contents { Some(file) } else { None }
    }
}

/// The entries of one worker, by key (see [`key`]). If a path has a request target that maps to it directly,
/// without decoding, this target is the key. A lookup by target then needs no path resolution.
#[derive(Debug)]
pub(super) struct Cache {
    max_bytes: usize,
    interval: Duration,
    entries: RefCell<HashMap<Box<[u8]>, Rc<Entry>, RandomState>>,
    /// Keys, in the order in which [`evict`](Self::evict) visits them.
    order: RefCell<VecDeque<Box<[u8]>>>,
    pub bytes: Cell<usize>,
    open_files: Cell<usize>,
    max_open_files: usize,
    /// Whether [`sweep`] is running.
    is_sweeping: Cell<bool>,
    metrics: OnceCell<Rc<WorkerMetrics>>,
    /// Whether the runtime is simulated. Set by the first call of [`now`](Self::now).
    is_simulated: OnceCell<bool>,
}

pub(super) enum Lookup {
    Fresh(Rc<Entry>),
    /// The entry must be revalidated before use.
    Stale(Rc<Entry>),
    Miss,
}

impl Cache {
    /// `workers` is the number of workers in the process that have a cache.
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
            is_simulated: OnceCell::new(),
        })
    }

    pub fn set_metrics(&self, metrics: Rc<WorkerMetrics>) {
        self.metrics.get_or_init(|| metrics);
    }

    /// Looks up an entry by request target. The entry is fresh if its last check is more recent than the revalidation
    /// interval and `is_unchanged` returns `true`.
    #[inline]
    pub fn get_by_target(&self, target: &[u8], is_unchanged: impl FnOnce(&Entry) -> bool) -> Lookup {
        let entries = self.entries.borrow();
        let Some(entry) = entries.get(target) else { return Lookup::Miss };
        entry.is_used.set(true);
        if self.now().saturating_sub(entry.checked_at.get()) >= self.interval || !is_unchanged(entry) {
            return Lookup::Stale(Rc::clone(entry));
        }
        self.count(WorkerMetrics::cache_hit);
        Lookup::Fresh(Rc::clone(entry))
    }

    pub fn get(&self, path: &str, is_directory: bool, is_unchanged: impl FnOnce(&Entry) -> bool) -> Lookup {
        self.get_by_target(key(path, is_directory).as_bytes(), is_unchanged)
    }

    /// Inserts an entry, replacing any previous entry for the same path, and evicts other entries if a limit is
    /// exceeded. An entry that was revalidated and is inserted again counts as a hit, any other entry as a miss. An
    /// entry with a later `checked_at` is not replaced.
    pub fn insert(self: &Rc<Self>, path: &str, is_directory: bool, entry: &Rc<Entry>) {
        let bytes = entry.bytes();
        if bytes > self.max_bytes {
            return self.remove(path, is_directory, entry.checked_at.get());
        }
        let key: Box<[u8]> = key(path, is_directory).into_bytes().into();
        if self.has_newer(&key, entry.checked_at.get()) {
            return self.count(WorkerMetrics::cache_miss);
        }
        let previous = self.entries.borrow_mut().insert(key.clone(), Rc::clone(entry));
        let is_revalidated = previous.as_ref().is_some_and(|previous| Rc::ptr_eq(previous, entry));
        self.count(if is_revalidated { WorkerMetrics::cache_hit } else { WorkerMetrics::cache_miss });
        self.bytes.update(|total| total + bytes);
        self.open_files.update(|total| total + entry.open_files());
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

    /// Removes the entry for a path that was not found by a lookup started at `checked_at`. An entry with a later
    /// `checked_at` is kept.
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

    /// Evicts entries with open files and closes the files that no response uses. Returns `true` if any were evicted.
    pub async fn close_files(&self) -> bool {
        let files = self.remove_where(|entry| entry.has_open_files);
        let had_files = !files.is_empty();
        if had_files && let Err(panic) = spawn_file_operation(|| drop(files)).await {
            log_event!(ERROR, %panic, "cannot close cached files: the blocking task panicked");
        }
        had_files
    }

    /// Removes the entries for which `selects` returns `true`, and returns their open files.
    fn remove_where(&self, selects: impl Fn(&Entry) -> bool) -> Vec<File> {
        let removed: Vec<_> =
            self.entries.borrow_mut().extract_if(|_, entry| selects(entry)).map(|(_, entry)| entry).collect();
        removed.iter().for_each(|entry| self.subtract_size(entry));
        self.publish_bytes();
        removed.iter().flat_map(|entry| entry.files()).cloned().collect()
    }

    /// Returns the current time for [`Entry::new`]: that of the virtual clock on a simulated host, otherwise that of a
    /// clock which is cheap to read.
    #[inline]
    pub fn now(&self) -> Duration {
        if *self.is_simulated.get_or_init(is_simulated) { monotonic_now() } else { coarse_now() }
    }

    fn publish_bytes(&self) {
        self.count(|metrics| metrics.set_cache_bytes(self.bytes.get() as u64));
    }

    #[inline]
    fn count(&self, update: impl FnOnce(&WorkerMetrics)) {
        if let Some(metrics) = self.metrics.get() {
            update(metrics);
        }
    }

    fn release(&self, entry: Rc<Entry>) {
        self.subtract_size(&entry);
        // Skip entries that a response is using and entries that have been reinserted.
        if Rc::strong_count(&entry) == 1 {
            let files = entry.files().cloned().collect();
            drop(entry);
            close(files);
        }
    }

    fn subtract_size(&self, entry: &Entry) {
        self.bytes.update(|total| total - entry.bytes());
        self.open_files.update(|total| total - entry.open_files());
    }

    /// Evicts entries that have not been used since the last visit (clock algorithm) until all limits are met.
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
            if entries.get(&key).is_some_and(|entry| entry.is_used.replace(false)) {
                order.push_back(key);
            } else if let Some(entry) = entries.remove(&key) {
                // Otherwise the entry was removed earlier, and only its key was still in the queue.
                self.release(entry);
            }
        }
    }
}

/// Periodically evicts entries with changed or unused open files. Ends when no open files are left.
async fn sweep(cache: Weak<Cache>) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(cache) = cache.upgrade() else { return };
        let (now, idle_timeout) = (cache.now(), IDLE_TIMEOUT.max(cache.interval.saturating_mul(2)));
        let is_idle = |entry: &Entry| now.saturating_sub(entry.checked_at.get()) >= idle_timeout;
        close(cache.remove_where(|entry| entry.has_open_files && (is_idle(entry) || !entry.is_unchanged())));
        if cache.open_files.get() == 0 {
            cache.is_sweeping.set(false);
            return;
        }
    }
}

/// Closes files on a blocking thread. Closing the last descriptor of a deleted file frees its blocks, which can take a
/// long time for a large file.
fn close(files: Vec<File>) {
    if !files.is_empty() {
        drop(spawn_file_operation(|| drop(files)));
    }
}

/// Returns the maximum number of open files per cache. The caches of all workers share a quarter of the descriptors
/// that the process does not need for itself; the rest are left for connections.
fn max_open_files(workers: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let workers = workers.max(1);
    let reserved =
        (workers as u64).saturating_mul(DESCRIPTORS_PER_WORKER).saturating_add(PROCESS_DESCRIPTORS);
    let share = usize::try_from(limit.saturating_sub(reserved) / 4).unwrap_or(usize::MAX) / workers;
    share.clamp(1, MAX_OPEN_FILES)
}

/// Returns the key of a path. If a request target maps to the path without decoding, the key is this target and
/// starts with a slash. Other keys (hidden names, bytes that must be percent-encoded) do not start with a slash, so
/// only a lookup by resolved path can find them.
fn key(path: &str, is_directory: bool) -> String {
    let slash = if is_directory && !path.is_empty() { "/" } else { "" };
    let target = format!("/{path}{slash}");
    let maps_to_path = resolve_fast(&target).is_some_and(|resolved| {
        (resolved.relative(), resolved.is_directory(), resolved.query()) == (path, is_directory, None)
    });
    if maps_to_path { target } else { format!("{path}{slash}") }
}

#[cold]
fn is_simulated() -> bool {
    anello::current_driver().is_some_and(|driver| driver.is_simulated())
}

/// Returns the time of `CLOCK_MONOTONIC_COARSE`, which is cheap to read and at most a few milliseconds behind.
#[inline]
pub(super) fn coarse_now() -> Duration {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the time of the clock that is used for file timestamps, or that of a simulated host.
pub(super) fn wall_clock() -> Timestamp {
    let since_1970 = system_now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanoseconds: since_1970.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::{MetricsOptions, ServerMetrics};

    const MINUTE: Duration = Duration::from_secs(60);

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
        Entry::new(path, identity, Vec::new(), Codings::NONE, coarse_now())
    }

    fn new_cache(interval: Duration) -> Rc<Cache> {
        Cache::new(1 << 20, interval, 1)
    }

    fn is_cached(cache: &Cache, path: &str) -> bool {
        !matches!(cache.get(path, false, |_| true), Lookup::Miss)
    }

    #[test]
    fn unused_entries_are_evicted_first_and_bytes_are_bounded() {
        let cache = Cache::new(10 * 4096, MINUTE, 1);
        cache.insert("popular", false, &entry("popular", 1024));
        for number in 0..100 {
            let path = format!("{number}");
            cache.insert(&path, false, &entry(&path, 3000));
            assert!(is_cached(&cache, "popular"), "{number}");
            assert!(cache.bytes.get() <= 10 * 4096, "{}", cache.bytes.get());
        }
        assert!(!is_cached(&cache, "0"));
        cache.insert("too large", false, &entry("too large", 1 << 20));
        assert!(!is_cached(&cache, "too large"));
    }

    #[test]
    fn replaced_and_removed_entries_release_memory() {
        let cache = new_cache(MINUTE);
        for round in 0..10 {
            cache.insert("a", false, &entry("a", round * 100));
            cache.insert("a", true, &entry("a/index.html", 10));
        }
        cache.remove("a", false, coarse_now());
        assert!(!is_cached(&cache, "a") && matches!(cache.get("a", true, |_| true), Lookup::Fresh(_)));
        cache.remove("a", true, coarse_now());
        assert_eq!((cache.bytes.get(), cache.open_files.get()), (0, 0));
    }

    #[test]
    fn workers_share_quarter_of_descriptor_limit() {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        for workers in [0, 1, 8, 200, usize::MAX] {
            let max_files = max_open_files(workers);
            let total = (max_files as u64).saturating_mul(workers as u64);
            assert!(max_files == 1 || total <= limit / 4, "{max_files} of {workers} workers");
            assert!((1..=MAX_OPEN_FILES).contains(&max_files));
        }
        assert!(max_open_files(1) > max_open_files(1 << 40));
    }

    #[test]
    fn fault_35_earlier_but_slower_lookup_keeps_newer_entry() {
        let cache = new_cache(MINUTE);
        let earlier = coarse_now();
        let later = earlier + Duration::from_millis(100);
        let entry_checked_at = |checked_at| {
            let entry = entry("a", 1);
            entry.mark_fresh(checked_at);
            entry
        };
        let (old, new) = (entry_checked_at(earlier), entry_checked_at(later));
        let is_new =
            || matches!(cache.get("a", false, |_| true), Lookup::Fresh(entry) if Rc::ptr_eq(&entry, &new));
        cache.insert("a", false, &new);
        let bytes = cache.bytes.get();
        cache.insert("a", false, &old);
        assert!(is_new() && cache.bytes.get() == bytes);
        // This lookup found no file, but it started before the current entry was checked.
        cache.remove("a", false, earlier);
        assert!(is_new());
        // Two lookups revalidate the entry; the one that started first finishes last.
        new.mark_fresh(earlier);
        cache.insert("a", false, &old);
        assert!(is_new());
        cache.remove("a", false, later);
        assert!(!is_cached(&cache, "a"));
    }

    fn cache_counts(metrics: &ServerMetrics) -> [u64; 3] {
        let mut text = Vec::new();
        metrics.render(None, &mut text);
        let text = String::from_utf8(text).expect("UTF-8");
        ["hits_total", "misses_total", "bytes"].map(|name| {
            let line = format!("\nanello_http_cache_{name} ");
            let (_, value) = text.split_once(&line).expect("metric in the output");
            value.lines().next().expect("metric value").parse().expect("integer")
        })
    }

    #[test]
    fn metrics_count_hits_misses_and_bytes() {
        let metrics = ServerMetrics::new(MetricsOptions::default());
        for (interval, hits) in [(MINUTE, 3), (Duration::ZERO, 1)] {
            let previous = cache_counts(&metrics);
            let cache = new_cache(interval);
            cache.set_metrics(Rc::new(metrics.worker(0).expect("worker metrics")));
            assert!(!is_cached(&cache, "a"));
            let first = entry("a", 1000);
            cache.insert("a", false, &first);
            assert!(is_cached(&cache, "a") && is_cached(&cache, "a"));
            // The entry is first revalidated without a change, then replaced because the file has changed.
            cache.insert("a", false, &first);
            cache.insert("a", false, &entry("a", 2000));
            cache.insert("too large", false, &entry("too large", 1 << 20));
            let after = cache_counts(&metrics);
            assert_eq!([after[0] - previous[0], after[1] - previous[1]], [hits, 2], "{interval:?}");
            assert_eq!(after[2], cache.bytes.get() as u64);
            cache.remove("a", false, coarse_now());
            assert_eq!(cache_counts(&metrics)[2], 0);
        }
    }

    #[test]
    fn lookup_by_target_finds_only_direct_matches() {
        let cache = new_cache(MINUTE);
        let paths =
            [("", true), ("a", false), ("a", true), ("a/b.txt", false), ("a?b", false), (".a", false)];
        for (path, is_directory) in paths.into_iter().chain([("a%41", false), ("ä", false), ("a b", true)]) {
            cache.insert(path, is_directory, &entry(&format!("{path} {is_directory}"), 1));
            assert!(matches!(cache.get(path, is_directory, |_| true), Lookup::Fresh(entry)
                if *entry.path == format!("{path} {is_directory}")));
        }
        let cached_path = |target: &str| match cache.get_by_target(target.as_bytes(), |_| true) {
            Lookup::Fresh(entry) => Some(entry.path.to_string()),
            _ => None,
        };
        for (target, path) in
            [("/", " true"), ("/a", "a false"), ("/a/", "a true"), ("/a/b.txt", "a/b.txt false")]
        {
            assert_eq!(cached_path(target).as_deref(), Some(path));
        }
        // These targets refer to a different path or must be resolved first.
        for target in ["/a?b", "/.a", "/a%41", "/ä", "/a b/", "", "//", "/a//", "//a", "/b", "*"] {
            assert_eq!(cached_path(target), None, "{target}");
        }
    }

    #[test]
    fn zero_interval_makes_every_entry_stale() {
        let cache = new_cache(Duration::ZERO);
        cache.insert("a", false, &entry("a", 1));
        assert!(matches!(cache.get("a", false, |_| true), Lookup::Stale(_)));
    }

    #[test]
    fn changed_entry_is_stale_and_not_counted_as_hit() {
        let metrics = ServerMetrics::new(MetricsOptions::default());
        let cache = new_cache(MINUTE);
        cache.set_metrics(Rc::new(metrics.worker(0).expect("worker metrics")));
        cache.insert("a", false, &entry("a", 1));
        assert!(matches!(cache.get("a", false, |_| false), Lookup::Stale(_)));
        assert_eq!(cache_counts(&metrics)[0], 0);
        assert!(is_cached(&cache, "a"));
        assert_eq!(cache_counts(&metrics)[0], 1);
    }
}

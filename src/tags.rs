//! Named scopes: whose memory is it. A scope names the allocations a thread makes while it lasts.
use parking_lot::RwLock;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most names; allocations in further scopes count under [`OVERFLOW_NAME`].
pub const TAGS_MAX: usize = 1024;
/// Name under which scopes beyond [`TAGS_MAX`] are counted.
pub const OVERFLOW_NAME: &str = "(other)";

static NAMES: RwLock<Vec<String>> = RwLock::new(Vec::new());

thread_local! {
    static CURRENT: Cell<u16> = const { Cell::new(0) };
}

/// Ends its scope when dropped; made by [`scope`]. Stays on its thread.
#[must_use = "the scope ends when this is dropped"]
#[derive(Debug)]
pub struct Scope {
    before: u16,
    on_this_thread: PhantomData<*const ()>,
}

/// Opens a scope: until the result is dropped, allocations made by this thread count under `name`
/// (those made in a scope opened inside count under that one's name).
///
/// ```
/// # use aquifer::{Allocator, driver::StreamId, driver::sim::Sim};
/// # let device = Sim::builder().capacity(1 << 30).build()?.device(0).unwrap();
/// let allocator = Allocator::new(device)?;
/// let x = {
///     let _scope = aquifer::scope("backbone");
///     allocator.allocate(1000, StreamId(0))?
/// };
/// let tags = allocator.tag_stats();
/// assert_eq!((tags[0].name.as_str(), tags[0].allocated_bytes), ("backbone", 1024));
/// drop(x);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn scope(name: &str) -> Scope {
    let before = CURRENT.replace(tag_of(name));
    Scope { before, on_this_thread: PhantomData }
}

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// The tag of the calling thread's innermost scope; 0 outside all.
#[inline(always)]
pub(crate) fn current() -> u16 {
    CURRENT.get()
}

/// Tag 1 is the overflow name; names get 2 and up.
fn tag_of(name: &str) -> u16 {
    let find = |names: &[String]| names.iter().position(|n| n == name).map(|i| i as u16 + 1);
    if let Some(tag) = find(&NAMES.read()) {
        return tag;
    }
    let mut names = NAMES.write();
    if names.is_empty() {
        names.push(OVERFLOW_NAME.to_string());
    }
    if let Some(tag) = find(&names) {
        return tag;
    }
    if names.len() >= TAGS_MAX {
        return 1;
    }
    names.push(name.to_string());
    names.len() as u16
}

/// What one tag holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagStats {
    /// Name of the scope.
    pub name: String,
    /// Bytes in blocks handed out and not yet given back.
    pub allocated_bytes: u64,
    /// The most of that since the start or the last `reset_peak`.
    pub allocated_bytes_peak: u64,
    /// Number of such blocks.
    pub allocations: u64,
}

#[derive(Default)]
struct TagCount {
    bytes: AtomicU64,
    bytes_peak: AtomicU64,
    allocations: AtomicU64,
}

/// Counts per tag of one device, exact at any time; only tagged allocations pay for them.
#[derive(Default)]
pub(crate) struct TagCounts {
    counts: OnceLock<Box<[TagCount]>>,
}

impl TagCounts {
    fn count(&self, tag: u16) -> &TagCount {
        let all = self.counts.get_or_init(|| (0..=TAGS_MAX).map(|_| TagCount::default()).collect());
        &all[tag as usize]
    }

    pub(crate) fn allocated(&self, tag: u16, bytes: u64) {
        let count = self.count(tag);
        count.allocations.fetch_add(1, Ordering::Relaxed);
        let now = count.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if now > count.bytes_peak.load(Ordering::Relaxed) {
            count.bytes_peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn freed(&self, tag: u16, bytes: u64) {
        let count = self.count(tag);
        count.allocations.fetch_sub(1, Ordering::Relaxed);
        count.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn reset_peak(&self) {
        for count in self.counts.get().into_iter().flatten() {
            count.bytes_peak.store(count.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Tags that hold or have held something, most bytes first, then by name.
    pub(crate) fn stats(&self) -> Vec<TagStats> {
        let names = NAMES.read();
        let counts = self.counts.get().into_iter().flatten().skip(1);
        let mut all: Vec<TagStats> = counts
            .zip(names.iter())
            .map(|(count, name)| TagStats {
                name: name.clone(),
                allocated_bytes: count.bytes.load(Ordering::Relaxed),
                allocated_bytes_peak: count.bytes_peak.load(Ordering::Relaxed),
                allocations: count.allocations.load(Ordering::Relaxed),
            })
            .filter(|t| t.allocated_bytes_peak > 0 || t.allocated_bytes > 0)
            .collect();
        all.sort_by(|a, b| {
            b.allocated_bytes.cmp(&a.allocated_bytes).then_with(|| a.name.cmp(&b.name))
        });
        all
    }
}

//! Pools: which lanes serve which streams, and the end of a pool.
use crate::allocation::{Allocation, TypedAllocation};
use crate::cache::Ask;
use crate::device::Device;
use crate::driver::StreamId;
use crate::error::AllocError;
use crate::front::Front;
use crate::lane::Lane;
use crate::sync::Mutex;
use crate::trim::Trimmed;
use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Slots of the first table of lanes; each further one has eight times as many.
const FIRST_TABLE: usize = 64;
/// Slots looked at in one table.
const PROBES: usize = 8;

/// Lanes by stream: readers take no lock, entries never leave.
struct LaneTable {
    slots: Box<[OnceLock<(StreamId, &'static Lane)>]>,
    next: OnceLock<Box<LaneTable>>,
}

impl LaneTable {
    fn new(slots: usize) -> Self {
        LaneTable { slots: (0..slots).map(|_| OnceLock::new()).collect(), next: OnceLock::new() }
    }

    #[inline(always)]
    fn probes(
        &self,
        stream: StreamId,
    ) -> impl Iterator<Item = &OnceLock<(StreamId, &'static Lane)>> {
        let mask = self.slots.len() - 1;
        let start = (stream.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
        (0..PROBES).map(move |i| &self.slots[(start + i) & mask])
    }

    #[inline(always)]
    fn find(&self, stream: StreamId) -> Option<&'static Lane> {
        for slot in self.probes(stream) {
            let &(key, lane) = slot.get()?;
            if key == stream {
                return Some(lane);
            }
        }
        self.next.get()?.find(stream)
    }

    /// Enters a lane; only under the pool's lock on changes.
    fn enter(&self, stream: StreamId, lane: &'static Lane) {
        for slot in self.probes(stream) {
            if slot.set((stream, lane)).is_ok() {
                return;
            }
        }
        let larger = || Box::new(LaneTable::new(self.slots.len() * 8));
        self.next.get_or_init(larger).enter(stream, lane)
    }
}

/// One pool of a device: its lanes and what they share.
pub(crate) struct PoolCore {
    pub(crate) device: Arc<Device>,
    pub(crate) name: String,
    table: LaneTable,
    /// Taken to make a lane, and to close the pool.
    lanes: Mutex<Vec<&'static Lane>>,
    /// Whether pages of the pool stay where they are.
    pub(crate) keeps_pages: AtomicBool,
}

impl PoolCore {
    pub(crate) fn new(device: Arc<Device>, name: &str) -> Arc<PoolCore> {
        let pool = Arc::new(PoolCore {
            device,
            name: name.to_string(),
            table: LaneTable::new(FIRST_TABLE),
            lanes: Mutex::default(),
            keeps_pages: AtomicBool::new(false),
        });
        if pool.is_forked() {
            return pool;
        }
        let mut pools = pool.device.pools.lock();
        pools.retain(|p| p.strong_count() > 0);
        pools.push(Arc::downgrade(&pool));
        drop(pools);
        pool
    }

    /// Whether this process is a forked child of the device's.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.device.is_forked()
    }

    /// The lane of `stream`.
    ///
    /// # Errors
    /// [`AllocError::Forked`] in a forked child, unless the parent made the lane.
    #[inline(always)]
    pub(crate) fn lane(self: &Arc<Self>, stream: StreamId) -> Result<&'static Lane, AllocError> {
        match self.table.find(stream) {
            Some(lane) => Ok(lane),
            None => self.make_lane(stream),
        }
    }

    #[cold]
    fn make_lane(self: &Arc<Self>, stream: StreamId) -> Result<&'static Lane, AllocError> {
        if self.is_forked() {
            return Err(AllocError::Forked);
        }
        // Before the list is held: who moves pages holds their lock and looks at the list.
        let paging = self.device.paging();
        let mut lanes = self.lanes.lock();
        if let Some(lane) = self.table.find(stream) {
            return Ok(lane);
        }
        let lane = Lane::bind(stream, Front::new(self.clone()), paging);
        self.device.add_lane(lane);
        lanes.push(lane);
        self.table.enter(stream, lane);
        Ok(lane)
    }

    /// Takes a retired lane out of the list; the table goes with the pool.
    pub(crate) fn forget_lane(&self, lane: &'static Lane) {
        self.lanes.lock().retain(|l| !std::ptr::eq(*l, lane));
    }

    /// The lanes there are, oldest first.
    pub(crate) fn lanes(&self) -> SmallVec<[&'static Lane; 16]> {
        SmallVec::from_slice(&self.lanes.lock())
    }
}

/// Keeps a pool open; the last one to go closes it.
pub(crate) struct PoolHandle(pub(crate) Arc<PoolCore>);

impl PoolHandle {
    pub(crate) fn open(pool: Arc<PoolCore>) -> Arc<PoolHandle> {
        pool.device.open_pools.fetch_add(1, Ordering::Relaxed);
        Arc::new(PoolHandle(pool))
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        if !self.0.is_forked() {
            self.0.device.open_pools.fetch_sub(1, Ordering::AcqRel);
            self.0.close();
        }
    }
}

/// A private pool: memory that is never mixed with that of the allocator it was made from, nor with
/// that of other pools. Statistics, cap and out-of-memory handling are the allocator's.
///
/// Cloning is cheap. When the last clone is dropped the idle memory goes back to the driver at once, and
/// the rest as its allocations are freed.
#[derive(Clone)]
pub struct Pool {
    pub(crate) handle: Arc<PoolHandle>,
}

impl Pool {
    pub(crate) fn core(&self) -> &Arc<PoolCore> {
        &self.handle.0
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        &self.core().name
    }

    /// `bytes` of device memory for use on `stream`, aligned to 512 bytes.
    ///
    /// # Errors
    /// As [`crate::Allocator::allocate`].
    #[track_caller]
    pub fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Allocation, AllocError> {
        self.core().allocate(Ask::new(bytes, stream))
    }

    /// As [`Pool::allocate`], at a multiple of `align` (a power of two from 1 to 2 MiB).
    ///
    /// # Errors
    /// As [`crate::Allocator::allocate_aligned`].
    #[track_caller]
    pub fn allocate_aligned(
        &self,
        bytes: u64,
        align: u64,
        stream: StreamId,
    ) -> Result<Allocation, AllocError> {
        self.core().allocate(Ask { align, ..Ask::new(bytes, stream) })
    }

    /// Room for `len` values of type `T`.
    ///
    /// # Errors
    /// As [`crate::Allocator::allocate_typed`].
    #[track_caller]
    pub fn allocate_typed<T>(
        &self,
        len: usize,
        stream: StreamId,
    ) -> Result<TypedAllocation<T>, AllocError> {
        TypedAllocation::new(len, |bytes, align| self.allocate_aligned(bytes, align, stream))
    }

    /// Gives the pool's idle segments back to the driver; see [`crate::Allocator::empty_cache`].
    ///
    /// # Errors
    /// As [`crate::Allocator::empty_cache`].
    pub fn empty_cache(&self) -> Result<Trimmed, AllocError> {
        self.core().empty_cache()
    }

    /// Says that a captured graph uses addresses of this pool: its pages stay where they are, idle or not,
    /// until the pool is gone or this is taken back. Segments never move under a block anyway.
    pub fn keep_pages(&self, keep: bool) {
        self.core().keeps_pages.store(keep, Ordering::Relaxed);
    }

    /// Bytes in blocks that callers hold now.
    pub fn memory_allocated(&self) -> u64 {
        if self.core().is_forked() { 0 } else { self.core().now()[crate::counters::ALLOCATED] }
    }

    /// Bytes the pool holds from the driver now.
    pub fn memory_reserved(&self) -> u64 {
        if self.core().is_forked() { 0 } else { self.core().reserved_bytes() }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.name()).finish_non_exhaustive()
    }
}

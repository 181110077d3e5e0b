//! The front of a lane: freed blocks of exact sizes kept at hand, what is known of each block handed
//! out, and the counters. All that a hit touches; it knows neither heap nor driver.
use crate::counters::Counters;
use crate::driver::StreamId;
use crate::pool::PoolCore;
use aquifer_policies::planned::Planner;
use aquifer_policies::{Band, BlockId, Direct, FreeBlock, Policy};
use std::panic::Location;
use std::sync::Arc;

/// Sizes the cache tells apart at a time, and blocks it keeps of each.
const SETS: usize = 64;
const WAYS: usize = 6;
/// Largest size in the sets, in bytes.
const SET_SIZE_MAX: u64 = 1 << 20;
/// The sets may hold this many bytes, or this share of what the lane has handed out if that is more.
/// With these limits, and flushed before idle memory is touched, the cache raises the peak
/// reserved on none of 15 recorded traces.
const SET_BYTES_FLOOR: u64 = 1 << 20;
const SET_BYTES_SHARE: u64 = 256;

/// Blocks of one size, last in first out.
#[derive(Clone, Copy)]
struct Set {
    size: u64,
    len: u32,
    blocks: [u32; WAYS],
}

/// What became of a block that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Yes,
    /// In place of this one, which goes to the heap.
    Displacing(BlockId),
    No,
}

/// Freed blocks kept unmerged for the next request of exactly their size: small ones by size, and of the
/// larger ones the last, until the next request.
pub(crate) struct Cached {
    sets: [Set; SETS],
    set_bytes: u64,
    last: BlockId,
    /// 0 where there is none.
    last_size: u64,
    pub(crate) enabled: bool,
}

impl Cached {
    pub(crate) fn new(enabled: bool) -> Self {
        Cached {
            sets: [Set { size: 0, len: 0, blocks: [0; WAYS] }; SETS],
            set_bytes: 0,
            last: BlockId(0),
            last_size: 0,
            enabled,
        }
    }

    /// Bytes held.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u64 {
        self.set_bytes + self.last_size
    }

    /// Fibonacci hashing of the size in grains: sizes in an arithmetic row fall into different sets.
    #[inline(always)]
    fn set_of(size: u64) -> usize {
        ((size >> 9).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize
    }

    /// The block of exactly `size` bytes that was freed last.
    #[inline(always)]
    pub(crate) fn pop(&mut self, size: u64) -> Option<BlockId> {
        if size > SET_SIZE_MAX {
            if size != self.last_size {
                return None;
            }
            self.last_size = 0;
            return Some(self.last);
        }
        let set = &mut self.sets[Self::set_of(size)];
        if set.size != size || set.len == 0 {
            return None;
        }
        set.len -= 1;
        self.set_bytes -= size;
        Some(BlockId(set.blocks[set.len as usize % WAYS]))
    }

    /// Keeps block `id` if it can.
    #[inline(always)]
    pub(crate) fn push(&mut self, id: BlockId, size: u64, allocated: u64) -> Kept {
        if size > SET_SIZE_MAX {
            return self.replace_last(id, size);
        }
        let most = SET_BYTES_FLOOR.max(allocated / SET_BYTES_SHARE);
        if !self.enabled || self.set_bytes + size > most {
            return Kept::No;
        }
        let set = &mut self.sets[Self::set_of(size)];
        if set.len == 0 {
            set.size = size;
        } else if set.size != size || set.len as usize == WAYS {
            return Kept::No;
        }
        set.blocks[set.len as usize % WAYS] = id.0;
        set.len += 1;
        self.set_bytes += size;
        Kept::Yes
    }

    #[inline(always)]
    fn replace_last(&mut self, id: BlockId, size: u64) -> Kept {
        if !self.enabled {
            return Kept::No;
        }
        let before = (self.last_size > 0).then_some(self.last);
        (self.last, self.last_size) = (id, size);
        before.map_or(Kept::Yes, Kept::Displacing)
    }

    /// Takes out the last large block.
    #[inline(always)]
    pub(crate) fn take_last(&mut self) -> Option<BlockId> {
        let size = std::mem::take(&mut self.last_size);
        (size > 0).then_some(self.last)
    }

    /// Whether a block of exactly `size` bytes is at hand.
    pub(crate) fn has(&self, size: u64) -> bool {
        let set = &self.sets[Self::set_of(size)];
        if size > SET_SIZE_MAX { size == self.last_size } else { set.size == size && set.len > 0 }
    }

    /// Takes out every block, in a fixed order.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(BlockId)) {
        self.take_last().into_iter().for_each(&mut each);
        if self.set_bytes == 0 {
            return;
        }
        for set in &mut self.sets {
            for id in &set.blocks[..set.len as usize] {
                each(BlockId(*id));
            }
            set.len = 0;
        }
        self.set_bytes = 0;
    }

    /// The blocks held, for an audit.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let last = (self.last_size > 0).then_some(self.last);
        let in_sets = self.sets.iter().flat_map(|s| s.blocks[..s.len as usize].iter());
        in_sets.map(|b| BlockId(*b)).chain(last)
    }
}

/// Where a block that the policy does not have is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// With the heap's free blocks, or not a block at all.
    #[default]
    Heap,
    /// With the caller.
    Out,
    /// In the front cache.
    Cached,
    /// Freed; waits for the heap to come back.
    Deferred,
    /// Freed; waits for events.
    Pending,
}

/// What is known of a block outside the heap's free ones. Half a cache line: a thousand live blocks stay
/// near.
#[derive(Clone, Copy, Default)]
#[repr(align(32))]
pub(crate) struct Held {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Bytes the caller asked for.
    pub(crate) requested: u64,
    pub(crate) tag: u16,
    pub(crate) band: u8,
    /// Whether it may wait in the front cache.
    pub(crate) front: bool,
    pub(crate) whereabouts: Whereabouts,
    /// Whether [`Front::more`] knows more.
    has_more: bool,
}

const _: () = assert!(size_of::<Held>() == 32);

impl Held {
    /// A block just cut from the heap for a request of `band`.
    #[inline(always)]
    pub(crate) fn new(taken: &FreeBlock, band: Band) -> Held {
        // A block with more bytes than its rounded size could not be found by that size again.
        let front = band.front && taken.size == band.size;
        let (address, size) = (taken.address, taken.size);
        Held { address, size, band: band.index, front, ..Held::default() }
    }

    /// Whether a caller holds the block.
    pub(crate) fn is_out(&self) -> bool {
        self.whereabouts == Whereabouts::Out
    }
}

/// What is known of few blocks, or only while somebody wants to know.
#[derive(Clone, Default)]
pub(crate) struct More {
    /// Who asked for it.
    pub(crate) site: Option<&'static Location<'static>>,
    /// Number in the recorded trace; 0 for none.
    pub(crate) serial: u64,
    /// Other streams that use it.
    uses: Vec<StreamId>,
}

/// What became of a block that its caller gave back.
#[derive(Clone, Copy)]
pub(crate) enum TakenBack {
    /// It waits in the front cache.
    Kept,
    /// This block, itself or the one that waited in its place, goes to the heap.
    ToHeap(BlockId),
    /// Nothing yet: it was not out, or there is somebody to tell; see [`Front::take_back_known`].
    NotPlain,
}

/// What is to be told of a block that was given back.
pub(crate) struct Known {
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) tag: u16,
    pub(crate) serial: u64,
    /// Streams whose work the block waits for now, if there are any.
    pub(crate) uses: Vec<StreamId>,
}

/// See the module's page.
pub(crate) struct Front {
    pub(crate) cached: Cached,
    pub(crate) counters: Counters,
    /// Answers [`Policy::band`] only; the policies that place are with the heap.
    banding: Option<Direct>,
    held: Vec<Held>,
    /// By block, as far as anything was ever known; see [`Held::has_more`].
    more: Vec<More>,
    /// Blocks freed while the heap was away.
    pub(crate) deferred: Vec<BlockId>,
    /// Whether requests are recorded.
    pub(crate) recording: bool,
    /// Whether more is to be known of a block than its size: requests are recorded, or their sites kept.
    pub(crate) observed: bool,
    /// Whether cached bytes are capped.
    pub(crate) caps_cached: bool,
    /// Whether frees are marked with events.
    pub(crate) marks: bool,
    /// Says where requests go, under a policy that plans.
    pub(crate) planner: Option<Box<Planner>>,
    /// Whether the planner has a plan that no place was made ready for.
    pub(crate) plan_is_new: bool,
    /// The pool it serves; none while the lane is vacant.
    pub(crate) pool: Option<Arc<PoolCore>>,
}

impl Front {
    /// The front of a lane that serves nobody yet.
    pub(crate) fn vacant() -> Self {
        Front {
            cached: Cached::new(false),
            counters: Counters::default(),
            banding: None,
            held: Vec::new(),
            more: Vec::new(),
            deferred: Vec::new(),
            recording: false,
            observed: false,
            caps_cached: false,
            marks: false,
            planner: None,
            plan_is_new: false,
            pool: None,
        }
    }

    /// The front of a lane that serves `pool`.
    pub(crate) fn new(pool: Arc<PoolCore>) -> Self {
        Front {
            cached: Cached::new(pool.device.front_caches()),
            banding: Some(pool.device.settings.policy()),
            recording: pool.device.is_recording(),
            observed: pool.device.is_recording() || pool.device.settings.sites,
            caps_cached: pool.device.settings.cached_bytes_cap.is_some(),
            marks: pool.device.marks(),
            planner: pool.device.planner(),
            pool: Some(pool),
            ..Front::vacant()
        }
    }

    /// The pool it serves.
    #[inline(always)]
    pub(crate) fn pool(&self) -> &Arc<PoolCore> {
        match &self.pool {
            Some(pool) => pool,
            None => unreachable!("a vacant lane is in no table and nothing of it is out"),
        }
    }

    /// Band and rounded size of a request.
    #[inline(always)]
    pub(crate) fn band(&self, bytes: u64) -> Band {
        match &self.banding {
            Some(policy) => policy.band(bytes),
            None => unreachable!("a vacant lane is in no table and nothing of it is out"),
        }
    }

    /// What is known of block `id`.
    #[inline(always)]
    pub(crate) fn held(&self, id: BlockId) -> &Held {
        &self.held[id.index()]
    }

    /// Hands out block `id`, of which `held` is known, for a request of so many bytes under a tag; whether
    /// a peak has to be settled.
    #[inline(always)]
    pub(crate) fn hand_out(&mut self, id: BlockId, held: Held, requested: u64, tag: u16) -> bool {
        let index = id.index();
        if index >= self.held.len() {
            self.make_place(index);
        }
        self.held[index] = Held { requested, tag, whereabouts: Whereabouts::Out, ..held };
        self.counters.allocated(held.size, requested)
    }

    #[cold]
    fn make_place(&mut self, index: usize) {
        self.held.resize(index + 1, Held::default());
    }

    /// Keeps who asked for block `id`, and its number in the recorded trace.
    pub(crate) fn note(
        &mut self,
        id: BlockId,
        site: Option<&'static Location<'static>>,
        serial: u64,
    ) {
        let more = self.more_mut(id);
        (more.site, more.serial) = (site, serial);
    }

    /// What else is known of block `id`.
    pub(crate) fn more(&self, id: BlockId) -> Option<&More> {
        let has = self.held[id.index()].has_more;
        has.then(|| &self.more[id.index()])
    }

    #[cold]
    fn more_mut(&mut self, id: BlockId) -> &mut More {
        if id.index() >= self.more.len() {
            self.more.resize(self.held.len(), More::default());
        }
        self.held[id.index()].has_more = true;
        &mut self.more[id.index()]
    }

    /// Takes what else is known of block `id`.
    #[cold]
    fn take_more(&mut self, id: BlockId) -> More {
        self.held[id.index()].has_more = false;
        std::mem::take(&mut self.more[id.index()])
    }

    /// Counts block `id` as given back by its caller and keeps it in the front cache if it can.
    #[inline(always)]
    pub(crate) fn take_back(&mut self, id: BlockId) -> TakenBack {
        let Some(held) = self.held.get_mut(id.index()) else { return TakenBack::NotPlain };
        if held.whereabouts != Whereabouts::Out || held.has_more || held.tag != 0 {
            return TakenBack::NotPlain;
        }
        self.counters.freed(held.size, held.requested, false);
        Self::keep_held(held, id, &mut self.cached, &self.counters)
    }

    /// Counts block `id` as given back by its caller; `None` if it was not out.
    #[cold]
    pub(crate) fn take_back_known(&mut self, id: BlockId) -> Option<Known> {
        let held = self.held.get_mut(id.index()).filter(|held| held.is_out())?;
        held.whereabouts = Whereabouts::Deferred;
        let Held { size, requested, tag, has_more, .. } = *held;
        let more = if has_more { self.take_more(id) } else { More::default() };
        let pending = !more.uses.is_empty();
        if pending {
            self.put(id, Whereabouts::Pending);
        }
        self.counters.freed(size, requested, pending);
        let uses = more.uses;
        Some(Known { size, requested, tag, serial: more.serial, uses })
    }

    /// Keeps block `id` in the front cache if it can.
    pub(crate) fn keep(&mut self, id: BlockId) -> TakenBack {
        let held = &mut self.held[id.index()];
        Self::keep_held(held, id, &mut self.cached, &self.counters)
    }

    #[inline(always)]
    fn keep_held(
        held: &mut Held,
        id: BlockId,
        cached: &mut Cached,
        counters: &Counters,
    ) -> TakenBack {
        let kept = if held.front {
            cached.push(id, held.size, counters.allocated_bytes())
        } else {
            Kept::No
        };
        held.whereabouts = match kept {
            Kept::Yes | Kept::Displacing(_) => Whereabouts::Cached,
            Kept::No => Whereabouts::Deferred,
        };
        match kept {
            Kept::Yes => TakenBack::Kept,
            Kept::Displacing(other) => TakenBack::ToHeap(other),
            Kept::No => TakenBack::ToHeap(id),
        }
    }

    /// Says where block `id` is now; its band.
    #[inline(always)]
    pub(crate) fn put(&mut self, id: BlockId, whereabouts: Whereabouts) -> u8 {
        let held = &mut self.held[id.index()];
        held.whereabouts = whereabouts;
        held.band
    }

    /// Notes that `stream` uses block `id`.
    pub(crate) fn add_use(&mut self, id: BlockId, stream: StreamId) {
        let uses = &mut self.more_mut(id).uses;
        if !uses.contains(&stream) {
            uses.push(stream);
        }
    }

    /// Every block outside the heap's free ones.
    pub(crate) fn outside(&self) -> impl Iterator<Item = (BlockId, &Held)> + '_ {
        let all = self.held.iter().enumerate();
        all.filter(|(_, h)| h.whereabouts != Whereabouts::Heap).map(|(i, h)| (BlockId(i as u32), h))
    }
}

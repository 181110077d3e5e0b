//! Out of memory as a value: what was asked, what the memory looked like, what was tried.
use crate::cache::Request;
use crate::counters::{ACTIVE, ALLOCATED, REQUESTED};
use crate::driver::StreamId;
use crate::pool::PoolCore;
use crate::stats::human_bytes;
use crate::tags::TagStats;
use aquifer_policies::GRAIN;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A step of the out-of-memory chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stage {
    /// Idle segments were released because reserved would have passed its slack.
    Slack,
    /// The driver was asked.
    Driver,
    /// All idle segments were released.
    Release,
    /// Idle pages were moved to where the request goes.
    Steal,
    /// Work that may still use idle pages was waited for.
    WaitPages,
    /// The block that had waited longest for another stream was waited for.
    Wait,
}

/// What the steps of the chain gave, in the order they were first tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stages(Vec<StageResult>);

/// What one step of the chain gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageResult {
    /// Which.
    pub stage: Stage,
    /// How often it was tried.
    pub tries: u32,
    /// Bytes it gave in all.
    pub bytes: u64,
}

impl Stages {
    pub(crate) fn note(&mut self, stage: Stage, bytes: u64) {
        match self.0.iter_mut().find(|s| s.stage == stage) {
            Some(result) => {
                result.tries += 1;
                result.bytes += bytes;
            }
            None => self.0.push(StageResult { stage, tries: 1, bytes }),
        }
    }

    /// The steps tried.
    pub fn iter(&self) -> impl Iterator<Item = &StageResult> {
        self.0.iter()
    }
}

/// The facts of an out-of-memory. Sizes in bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct OomReport {
    /// What was asked.
    pub bytes: u64,
    /// Alignment asked.
    pub align: u64,
    /// For which stream.
    pub stream: StreamId,
    /// Memory of the device; `None` where it could not be asked.
    pub device_total: Option<u64>,
    /// What the device could still give.
    pub device_free: Option<u64>,
    /// What is held on the device, but not by this allocator: other processes, contexts, libraries.
    pub held_by_others: Option<u64>,
    /// The most that may be held, if there is a cap.
    pub cap_bytes: Option<u64>,
    /// In blocks handed out.
    pub allocated: u64,
    /// What callers had asked for in these.
    pub requested: u64,
    /// Held from the driver.
    pub reserved: u64,
    /// What `empty_cache` could return to the driver.
    pub releasable: u64,
    /// Freed, but waiting for other streams.
    pub pending: u64,
    /// Largest free block of all streams.
    pub largest_free_block: u64,
    /// Number of free blocks of all streams.
    pub free_blocks: usize,
    /// Bytes in free blocks.
    pub free_block_bytes: u64,
    /// The largest request this stream could be given now; over pages perhaps a little more.
    pub fits_now: u64,
    /// The largest request this stream could be given after an `empty_cache`.
    pub fits_after_trim: u64,
    /// Who holds most, by scope; at most eight.
    pub top_tags: Vec<TagStats>,
    /// What was tried.
    pub stages: Stages,
}

/// Whether and how a request could be served; see [`crate::Allocator::would_fit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// From cached memory, with no driver call.
    Cached,
    /// By more memory from the driver.
    Growing,
    /// After idle segments are released to the driver, or idle pages moved.
    Releasing,
    /// Perhaps, after waiting for blocks that other streams still use.
    Waiting,
    /// Not, unless somebody gives memory back.
    No,
}

impl Fit {
    /// Whether a request would succeed without anybody giving memory back.
    pub fn fits(self) -> bool {
        self < Fit::Waiting
    }
}

/// The free blocks of a pool's lanes, counted.
#[derive(Default)]
struct Free {
    largest: u64,
    /// Of the request's own lane and band.
    largest_own: u64,
    count: usize,
    bytes: u64,
    releasable: u64,
    /// Bytes of a page, over pages.
    page: Option<u64>,
}

impl PoolCore {
    /// The report of a failed `request`.
    pub(crate) fn report(self: &Arc<Self>, request: &Request, stages: Stages) -> OomReport {
        let device = &self.device;
        let info = device.driver.memory_info().ok();
        let now = device.now();
        let free = self.count_free(request);
        let reserved = device.reserved.lock().bytes;
        let device_free = info.map(|i| i.free);
        let free_bytes = device_free.unwrap_or(0);
        let growable = self.growable(free_bytes, 0, &free);
        let growable_after_trim = self.growable(free_bytes, free.releasable, &free);
        let mut top_tags = device.tags.stats();
        top_tags.retain(|tag| tag.allocated_bytes > 0);
        top_tags.truncate(8);
        OomReport {
            bytes: request.ask.bytes,
            align: request.ask.align,
            stream: request.ask.stream,
            device_total: info.map(|i| i.total),
            device_free,
            held_by_others: info.map(|i| i.total.saturating_sub(i.free).saturating_sub(reserved)),
            cap_bytes: info.and_then(|i| device.cap.lock().map(|c| c.limit_bytes(i.total))),
            allocated: now[ALLOCATED],
            requested: now[REQUESTED],
            reserved,
            releasable: free.releasable,
            pending: now[ACTIVE] - now[ALLOCATED],
            largest_free_block: free.largest,
            free_blocks: free.count,
            free_block_bytes: free.bytes,
            fits_now: free.largest_own.max(growable),
            fits_after_trim: free.largest_own.max(growable_after_trim),
            top_tags,
            stages,
        }
    }

    fn count_free(self: &Arc<Self>, request: &Request) -> Free {
        let mut free = Free::default();
        for (lane, mut both) in self.device.boths() {
            let (front, _) = both.parts();
            let keeps_pages = front.pool().keeps_pages.load(Ordering::Relaxed);
            let cached: Vec<u64> = front.cached.blocks().map(|id| front.held(id).size).collect();
            // Other threads go on hitting the front while the heap is walked.
            let books = both.into_heap();
            let in_heap = books.heap.blocks().filter(|b| b.free).map(|b| (b.size, Some(b.band)));
            let own = std::ptr::eq(lane, request.lane);
            for (size, band) in in_heap.chain(cached.into_iter().map(|size| (size, None))) {
                free.count += 1;
                free.bytes += size;
                free.largest = free.largest.max(size);
                if own && band == Some(request.band.index) {
                    free.largest_own = free.largest_own.max(size);
                }
            }
            free.releasable += books.heap.idle_bytes();
            if !keeps_pages {
                free.releasable += books.heap.idle_runs().map(|run| run.bytes).sum::<u64>();
            }
        }
        if let Some(pages) = &self.device.pages {
            let pages = pages.lock();
            free.releasable += pages.bank_bytes();
            free.page = Some(pages.bytes);
        }
        free
    }

    /// Bytes that a request could have of memory that is in no block, where the driver has `device_free`
    /// bytes and gets `released` bytes back first. Idle pages go where they are needed without that, and
    /// whatever the cap.
    fn growable(&self, device_free: u64, released: u64, free: &Free) -> u64 {
        let cap_room = |released| self.device.cap_room_after(released).unwrap_or(0);
        match free.page {
            Some(page) => {
                (device_free.min(cap_room(0)) / page * page).saturating_add(free.releasable)
            }
            None => {
                let bytes = device_free.saturating_add(released).min(cap_room(released));
                bytes / self.device.granularity * self.device.granularity
            }
        }
    }

    /// How a request would be served; nothing changes, but that blocks may be merged.
    pub(crate) fn would_fit(self: &Arc<Self>, request: &Request) -> Fit {
        let fit = self.fit(request);
        if fit <= Fit::Growing {
            return fit;
        }
        self.flush_fronts();
        self.fit(request)
    }

    fn fit(self: &Arc<Self>, request: &Request) -> Fit {
        let size = request.band.size;
        let free = self.count_free(request);
        let fits_own = {
            let mut both = request.lane.twin.both();
            let band = request.band.index;
            let mut blocks = both.parts().1.heap.blocks();
            blocks.any(|b| b.free && b.band == band && fits(b.address, b.size, size, request.align))
        };
        if fits_own {
            return Fit::Cached;
        }
        let device_free = self.device.driver.memory_info().map_or(0, |i| i.free);
        let room = device_free.min(self.device.cap_room().unwrap_or(0));
        let unit = free.page.unwrap_or(self.device.granularity);
        let least = size.next_multiple_of(unit);
        if least <= room {
            Fit::Growing
        } else if least <= self.growable(device_free, free.releasable, &free) {
            Fit::Releasing
        } else if self.device.pending.lock().len() > 0 {
            Fit::Waiting
        } else {
            Fit::No
        }
    }
}

fn fits(address: u64, have: u64, size: u64, align: u64) -> bool {
    let skip = address.wrapping_neg() & (align.max(GRAIN) - 1);
    size <= have && skip <= have - size
}

impl fmt::Display for OomReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = human_bytes;
        write!(
            f,
            "out of memory: {} ({} bytes) asked on stream {:#x}",
            b(self.bytes),
            self.bytes,
            self.stream.0
        )?;
        match (self.device_total, self.device_free, self.held_by_others) {
            (Some(total), Some(free), Some(others)) => write!(
                f,
                "; device: {} total, {} free, {} held by others",
                b(total),
                b(free),
                b(others)
            )?,
            _ => write!(f, "; the device did not say how much it has")?,
        }
        if let Some(cap) = self.cap_bytes {
            write!(f, ", capped at {}", b(cap))?;
        }
        write!(
            f,
            "; allocator: {} reserved, {} allocated, {} releasable by empty_cache, {} waiting for other streams",
            b(self.reserved),
            b(self.allocated),
            b(self.releasable),
            b(self.pending)
        )?;
        write!(
            f,
            "; {} free blocks of {} in all, the largest {}; largest request that fits now {}, after empty_cache {}",
            self.free_blocks,
            b(self.free_block_bytes),
            b(self.largest_free_block),
            b(self.fits_now),
            b(self.fits_after_trim)
        )?;
        if !self.top_tags.is_empty() {
            f.write_str("; held by:")?;
            for (i, tag) in self.top_tags.iter().enumerate() {
                let comma = if i > 0 { "," } else { "" };
                write!(f, "{comma} {} {}", tag.name, b(tag.allocated_bytes))?;
            }
        }
        Ok(())
    }
}

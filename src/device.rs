//! What all pools and streams of one allocator share: the driver, what is reserved, waiting blocks,
//! device-wide peaks, tags, the recorder.
use crate::allocation::RawParts;
use crate::counters::{Counters, DevicePeaks, Flow, GAUGES, Gauges};
use crate::driver::{Capture, Driver, DriverError, StreamId};
use crate::error::AllocError;
use crate::front::Front;
use crate::lane::{Detached, FrontGuard, Lane, LaneGuard, Paging, Room, Shortage};
use crate::pages::Pages;
use crate::pending::Pending;
use crate::pool::PoolCore;
use crate::recorder::Recorder;
use crate::settings::{Cap, CapScope, Settings};
use crate::sync;
use crate::tags::TagCounts;
use aquifer_policies::planned::Planner;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Shards of the table of raw addresses.
const RAW_SHARDS: usize = 16;
/// How often the end of the device tries to give back what the driver refused.
const RELEASES_MAX: u32 = 3;
/// How often a stream's front is tried before its share of the device-wide peak is left with it.
const CALL_IN_TRIES: u32 = 200;

/// Counts that only rise.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) retries: AtomicU64,
    pub(crate) ooms: AtomicU64,
    pub(crate) device_allocations: AtomicU64,
    pub(crate) device_frees: AtomicU64,
    pub(crate) reserved_bytes: AtomicU64,
    pub(crate) released_bytes: AtomicU64,
    pub(crate) host_waits: AtomicU64,
    pub(crate) stream_waits: AtomicU64,
    pub(crate) segments_moved: AtomicU64,
    pub(crate) pages_moved: AtomicU64,
    pub(crate) driver_errors: AtomicU64,
    pub(crate) bad_frees: AtomicU64,
    pub(crate) zero_sizes: AtomicU64,
}

/// Frees in a forked child, in this process.
pub(crate) static FORKED_FREES: AtomicU64 = AtomicU64::new(0);

pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Bytes from the driver, and how many segments they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserved {
    pub(crate) bytes: u64,
    pub(crate) bytes_peak: u64,
    pub(crate) segments: u64,
    pub(crate) segments_peak: u64,
    /// Asked of the driver, not answered yet.
    in_flight: u64,
}

/// See the module's page.
pub(crate) struct Device {
    /// The fork epoch it was made in.
    epoch: u32,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) settings: Settings,
    pub(crate) granularity: u64,
    pub(crate) cap: Mutex<Option<Cap>>,
    pub(crate) reserved: Mutex<Reserved>,
    pub(crate) pending: Mutex<Pending>,
    /// Blocks in `pending`, readable without its lock.
    pub(crate) pending_len: AtomicUsize,
    peaks: sync::Mutex<DevicePeaks>,
    lanes: sync::RwLock<Vec<&'static Lane>>,
    /// Flow and hits of lanes that are gone.
    pub(crate) gone: Mutex<(Counters, [Flow; 2])>,
    pub(crate) pools: Mutex<Vec<Weak<PoolCore>>>,
    pub(crate) tags: TagCounts,
    pub(crate) totals: Totals,
    recording: AtomicBool,
    steps: AtomicU64,
    /// Steps that planners found, which nobody marked.
    steps_found: AtomicU64,
    /// The kind of the present step, if any was marked.
    step_kind: AtomicU64,
    /// Releases that the slack has forced.
    pub(crate) forced: AtomicU64,
    front_stopped: AtomicBool,
    /// Pools that somebody can still ask.
    pub(crate) open_pools: AtomicUsize,
    pub(crate) recorder: Mutex<Option<Recorder>>,
    raw: [Mutex<HashMap<u64, RawParts>>; RAW_SHARDS],
    /// Bytes of a page in new lanes; 0 over segments.
    pub(crate) page_bytes: AtomicU64,
    /// The books of paged backing; none over segments.
    pub(crate) pages: Option<sync::Mutex<Pages>>,
    /// Whether frees are marked with events.
    marks: AtomicBool,
    /// How short memory has come to be.
    shortage: Mutex<Shortage>,
    pub(crate) room: Room,
    /// Segments that the driver did not take back and that no lane can hold any more.
    orphans: Mutex<Vec<Detached>>,
    pub(crate) last_error: Mutex<Option<DriverError>>,
}

impl Device {
    /// Paged where there are `pages`.
    pub(crate) fn new(driver: Arc<dyn Driver>, settings: Settings, pages: Option<Pages>) -> Self {
        let is_tight = pages.is_some() && settings.slack == Some(0.0);
        let shortage = if is_tight { Shortage::Refused } else { Shortage::None };
        Device {
            epoch: crate::fork::epoch(),
            granularity: driver.granularity(),
            driver,
            cap: Mutex::new(settings.cap),
            settings,
            reserved: Mutex::default(),
            pending: Mutex::default(),
            pending_len: AtomicUsize::new(0),
            peaks: sync::Mutex::default(),
            lanes: sync::RwLock::default(),
            gone: Mutex::default(),
            pools: Mutex::default(),
            tags: TagCounts::default(),
            totals: Totals::default(),
            recording: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            steps_found: AtomicU64::new(0),
            step_kind: AtomicU64::new(0),
            forced: AtomicU64::new(0),
            front_stopped: AtomicBool::new(false),
            open_pools: AtomicUsize::new(0),
            recorder: Mutex::new(None),
            raw: Default::default(),
            page_bytes: AtomicU64::new(pages.as_ref().map_or(0, |pages| pages.bytes)),
            pages: pages.map(sync::Mutex::new),
            marks: AtomicBool::new(false),
            shortage: Mutex::new(shortage),
            room: Room::default(),
            orphans: Mutex::default(),
            last_error: Mutex::new(None),
        }
    }

    /// Whether this process is a forked child of the device's: then its locks may be held for ever.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.epoch != crate::fork::epoch()
    }

    /// Every lane, oldest first. It may serve another device by the time it is looked at.
    pub(crate) fn lanes(&self) -> SmallVec<[&'static Lane; 16]> {
        SmallVec::from_slice(&self.lanes.read())
    }

    /// The front of each lane, oldest first and one at a time. Lanes may come and go meanwhile.
    pub(crate) fn fronts(&self) -> impl Iterator<Item = FrontGuard<'static>> + '_ {
        let ours = |pool: &PoolCore| std::ptr::eq(&*pool.device, self);
        self.lanes().into_iter().filter_map(move |lane| lane.front_if(ours))
    }

    /// Front and books of each lane, as [`Device::fronts`].
    pub(crate) fn boths(&self) -> impl Iterator<Item = (&'static Lane, LaneGuard<'static>)> + '_ {
        let ours = |pool: &PoolCore| std::ptr::eq(&*pool.device, self);
        self.lanes().into_iter().filter_map(move |lane| Some((lane, lane.both_if(ours)?)))
    }

    pub(crate) fn add_lane(&self, lane: &'static Lane) {
        self.lanes.write().push(lane);
    }

    /// Forgets a lane whose counters are `last`.
    pub(crate) fn remove_lane(&self, lane: &'static Lane, last: &mut Counters) {
        self.peaks.lock().call_in(last);
        self.lanes.write().retain(|l| !std::ptr::eq(*l, lane));
        let mut gone = self.gone.lock();
        gone.0.front_hits += last.front_hits;
        gone.0.plan_hits += last.plan_hits;
        gone.0.plan_misses += last.plan_misses;
        for (sum, flow) in gone.1.iter_mut().zip(&last.flow) {
            sum.add(flow);
        }
    }

    /// Settles the peaks after `own` passed a limit. Called with that front held; other fronts are only
    /// tried.
    #[cold]
    pub(crate) fn settle_peaks(&self, own: &mut Front, own_lane: &'static Lane) {
        if !own.counters.settle_peaks() {
            return;
        }
        let mut peaks = self.peaks.lock();
        if !peaks.covers(&own.counters) {
            for lane in self.lanes.read().iter().filter(|l| !std::ptr::eq(**l, own_lane)) {
                let tried = (0..CALL_IN_TRIES).find_map(|_| {
                    let front = lane.twin.try_front();
                    if front.is_none() {
                        std::hint::spin_loop();
                    }
                    front
                });
                if let Some(mut front) = tried {
                    peaks.call_in(&mut front.counters);
                }
            }
            peaks.call_in(&mut own.counters);
        }
        peaks.raise(&mut own.counters);
    }

    /// Device-wide peaks.
    pub(crate) fn peaks(&self) -> Gauges {
        self.peaks.lock().peak
    }

    /// Begins all peaks anew.
    pub(crate) fn reset_peak(&self) {
        for mut front in self.fronts() {
            front.counters.reset_peak();
            self.peaks.lock().call_in(&mut front.counters);
        }
        self.peaks.lock().reset();
        self.tags.reset_peak();
        let mut reserved = self.reserved.lock();
        reserved.bytes_peak = reserved.bytes;
        reserved.segments_peak = reserved.segments;
    }

    /// Takes in the blocks that threads left while a front was held.
    pub(crate) fn take_in_returned(&self) {
        self.lanes().into_iter().for_each(crate::cache::take_in_returned);
    }

    /// Sum of all lanes' gauges now.
    pub(crate) fn now(&self) -> Gauges {
        let mut sum = [0; GAUGES];
        for front in self.fronts() {
            sum.iter_mut().zip(front.counters.now()).for_each(|(s, n)| *s += n);
        }
        sum
    }

    /// Whether any stream known here is being captured: then the driver must not be asked about events
    /// or memory.
    pub(crate) fn is_capturing(&self) -> Result<Option<StreamId>, DriverError> {
        let lanes = self.lanes();
        let mut streams: SmallVec<[StreamId; 16]> = lanes.iter().map(|l| l.stream()).collect();
        streams.extend(self.pending.lock().streams());
        streams.sort_unstable();
        streams.dedup();
        for stream in streams {
            match self.driver.capture(stream) {
                Ok(Capture::None) | Err(DriverError::UnknownStream(_)) => {}
                Ok(_) => return Ok(Some(stream)),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Whether lanes may keep freed blocks in their front caches. Not under a cap on cached bytes: a block
    /// kept there hides that its segment is idle. Nor under a plan: there it may be in another's place.
    pub(crate) fn front_caches(&self) -> bool {
        let capped = self.settings.cached_bytes_cap.is_some();
        let plain = self.settings.front && !self.settings.plans;
        plain && !capped && !self.front_stopped.load(Ordering::Relaxed)
    }

    /// Whether frees are marked with events.
    pub(crate) fn marks(&self) -> bool {
        self.marks.load(Ordering::Relaxed)
    }

    /// Whether frees are marked with events from now on.
    pub(crate) fn set_marks(&self, on: bool) {
        if self.marks.swap(on, Ordering::Relaxed) != on {
            for mut front in self.fronts() {
                front.marks = on;
            }
        }
    }

    /// Keeps no more freed blocks in front caches: where memory is to be held tightly, even the few they
    /// keep cost more than they save.
    pub(crate) fn stop_front_caches(&self) {
        if !self.front_stopped.swap(true, Ordering::Relaxed) {
            for mut front in self.fronts() {
                front.cached.enabled = false;
            }
        }
    }

    /// The number of the present step.
    pub(crate) fn step(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// A step begins that nobody marked.
    pub(crate) fn found_step(&self) {
        bump(&self.steps_found);
    }

    /// The number of the present step for what pages may cost, found ones included.
    pub(crate) fn paging_step(&self) -> u64 {
        self.step() + self.steps_found.load(Ordering::Relaxed)
    }

    /// Remembers an error that nobody is there to be told.
    pub(crate) fn note(&self, error: DriverError) {
        bump(&self.totals.driver_errors);
        *self.last_error.lock() = Some(error);
    }

    /// Bytes that may still be had before the cap refuses; [`u64::MAX`] without a cap.
    pub(crate) fn cap_room(&self) -> Result<u64, DriverError> {
        self.cap_room_after(0)
    }

    /// The same if `released` bytes went back to the driver first. More may be held than a cap allows, if
    /// others came to hold it or the cap came later: then what is released makes less room than it has bytes.
    pub(crate) fn cap_room_after(&self, released: u64) -> Result<u64, DriverError> {
        let Some(cap) = *self.cap.lock() else { return Ok(u64::MAX) };
        let info = self.driver.memory_info()?;
        let reserved = self.reserved.lock();
        let held = match cap.scope {
            CapScope::Device => info.total - info.free.min(info.total),
            CapScope::Process => info.held_by_process.unwrap_or(reserved.bytes),
        };
        let limit = cap.limit_bytes(info.total);
        let held = held.saturating_sub(released);
        Ok(limit.saturating_sub(held).saturating_sub(reserved.in_flight))
    }

    /// A segment of `bytes` from the driver, if the cap allows it.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        self.got(bytes, || self.driver.allocate(bytes))
    }

    /// What `get` gets of `bytes` from the driver, if the cap allows it; counted as reserved.
    pub(crate) fn got<T>(
        &self,
        bytes: u64,
        get: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        if self.cap_room()? < bytes {
            return Err(DriverError::OutOfMemory { bytes });
        }
        self.reserved.lock().in_flight += bytes;
        let answer = get();
        let mut reserved = self.reserved.lock();
        reserved.in_flight -= bytes;
        let got = answer?;
        reserved.bytes += bytes;
        reserved.segments += 1;
        reserved.bytes_peak = reserved.bytes_peak.max(reserved.bytes);
        reserved.segments_peak = reserved.segments_peak.max(reserved.segments);
        bump(&self.totals.device_allocations);
        self.totals.reserved_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(got)
    }

    /// `bytes` went back to the driver.
    pub(crate) fn gave_back(&self, bytes: u64) {
        let mut reserved = self.reserved.lock();
        reserved.bytes -= bytes;
        reserved.segments -= 1;
        self.room.forget();
        bump(&self.totals.device_frees);
        self.totals.released_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The books of paged backing.
    pub(crate) fn pages(&self) -> &sync::Mutex<Pages> {
        self.pages.as_ref().expect("only paged lanes come here")
    }

    /// How a new lane begins, over virtual ranges.
    pub(crate) fn paging(&self) -> Option<Paging> {
        self.pages.as_ref()?;
        let page_bytes = self.page_bytes.load(Ordering::Relaxed);
        let shortage = *self.shortage.lock();
        Some(Paging { page_bytes, shortage, room: self.room.clone() })
    }

    /// Tells all lanes that memory has come to be this short; it never ends.
    pub(crate) fn run_short(&self, shortage: Shortage) {
        let mut known = self.shortage.lock();
        if *known >= shortage {
            return;
        }
        *known = shortage;
        drop(known);
        for (_, mut both) in self.boths() {
            let books = both.parts().1;
            books.shortage = books.shortage.max(shortage);
        }
    }

    /// Gives a segment back to the driver; it stays the caller's where that fails.
    pub(crate) fn release(&self, segment: &Detached) -> Result<(), DriverError> {
        self.driver.free(segment.address)?;
        self.gave_back(segment.size);
        Ok(())
    }

    /// Takes over a segment that the driver refused and that has no lane to go to.
    pub(crate) fn adopt(&self, segment: Detached) {
        self.orphans.lock().push(segment);
    }

    /// Bytes in segments that the driver has yet to take back.
    pub(crate) fn orphaned_bytes(&self) -> u64 {
        let paged = self.pages.as_ref().map_or(0, |p| p.lock().outside_bytes());
        self.orphans.lock().iter().map(|s| s.size).sum::<u64>() + paged
    }

    /// Tries again to give back what the driver refused: segments and events. Bytes of the segments.
    pub(crate) fn release_orphans(&self) -> Result<u64, DriverError> {
        let mut bytes = self.release_orphan_pages()?;
        let events = self.pending.lock().retry_releases(&*self.driver);
        loop {
            let Some(segment) = self.orphans.lock().pop() else { return events.map(|()| bytes) };
            if let Err(error) = self.release(&segment) {
                self.adopt(segment);
                return Err(error);
            }
            bytes += segment.size;
        }
    }

    /// The number of the step that begins, which is of this kind.
    pub(crate) fn next_step(&self, kind: u64) -> u64 {
        self.step_kind.store(kind, Ordering::Relaxed);
        self.room.forget();
        self.steps.fetch_add(1, Ordering::Relaxed)
    }

    /// The planner of a new lane, which knows of the present step if it was marked.
    pub(crate) fn planner(&self) -> Option<Box<Planner>> {
        let mut planner = self.settings.plans.then(Box::<Planner>::default)?;
        if self.step() > 0 {
            planner.mark(self.step_kind.load(Ordering::Relaxed));
        }
        Some(planner)
    }

    /// Whether requests are recorded.
    pub(crate) fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Relaxed)
    }

    /// Starts or stops recording; the recorder there was.
    pub(crate) fn set_recorder(&self, recorder: Option<Recorder>) -> Option<Recorder> {
        self.recording.store(recorder.is_some(), Ordering::Relaxed);
        for mut front in self.fronts() {
            front.recording = recorder.is_some();
            front.observed = recorder.is_some() || self.settings.sites;
        }
        std::mem::replace(&mut *self.recorder.lock(), recorder)
    }

    fn raw_shard(&self, address: u64) -> &Mutex<HashMap<u64, RawParts>> {
        &self.raw[(address >> 9) as usize % RAW_SHARDS]
    }

    /// Remembers an allocation by its address.
    pub(crate) fn enter_raw(&self, address: u64, parts: RawParts) {
        self.raw_shard(address).lock().insert(address, parts);
    }

    /// Finds an allocation by its address and forgets it.
    pub(crate) fn take_raw(&self, address: u64) -> Result<RawParts, AllocError> {
        let found = self.raw_shard(address).lock().remove(&address);
        found.ok_or_else(|| AllocError::NotLive { address, inside: self.is_inside(address) })
    }

    /// What is known of a raw address.
    pub(crate) fn peek_raw(&self, address: u64) -> Result<RawParts, AllocError> {
        let found = self.raw_shard(address).lock().get(&address).copied();
        found.ok_or_else(|| AllocError::NotLive { address, inside: self.is_inside(address) })
    }

    fn is_inside(&self, address: u64) -> bool {
        self.boths().any(|(_, mut both)| {
            let mut segments = both.parts().1.heap.segments();
            segments.any(|s| address >= s.address && address - s.address < s.size)
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // Nobody is left to be told of a further failure; the driver's own end takes the memory back.
        for _ in 0..RELEASES_MAX {
            match self.release_orphans() {
                Ok(_) => return,
                Err(error) => self.note(error),
            }
        }
    }
}

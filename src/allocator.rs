//! The allocator as programs use it: built once, cloned freely, asked from any thread.
use crate::allocation::{Allocation, RawParts, TypedAllocation, record_use};
use crate::cache::{Ask, Request};
use crate::counters::{ACTIVE, ALLOCATED, REQUESTED};
use crate::device::Device;
use crate::driver::{Driver, DriverError, HandleFlags, StreamId};
use crate::error::{AllocError, BuildError};
use crate::oom::Fit;
use crate::pages::Pages;
use crate::planned;
use crate::policies::{BANDS_MAX, Direct, GRAIN, Policy, PolicySpec, SIZE_MAX};
use crate::pool::{Pool, PoolCore, PoolHandle};
use crate::recorder::Recorder;
use crate::settings::{Amount, Backing, Cap, Settings};
use crate::stats::Stats;
use crate::tags::TagStats;
use crate::trim::{Among, Trimmed};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A cache of device memory between a program and its driver.
///
/// Cloning is cheap and every clone is the same allocator; all methods may be called from any thread.
/// When the last clone is dropped, idle memory goes back to the driver at once and the rest as its
/// allocations are freed.
///
/// ```
/// use aquifer::{Allocator, driver::StreamId, driver::sim::Sim};
///
/// let device = Sim::builder().capacity(8 << 30).build()?.device(0).unwrap();
/// let allocator = Allocator::new(device)?;
/// let weights = allocator.allocate_typed::<f32>(1 << 20, StreamId(0))?;
/// assert_eq!(allocator.memory_allocated(), 4 << 20);
/// drop(weights);
/// assert_eq!(allocator.memory_allocated(), 0);
/// allocator.empty_cache()?;
/// assert_eq!(allocator.memory_reserved(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Allocator {
    handle: Arc<PoolHandle>,
}

/// Settings of an allocator to be; made by [`Allocator::builder`].
pub struct Builder {
    driver: Arc<dyn Driver>,
    policy: Result<PolicySpec, crate::policies::SpecError>,
    settings: Settings,
    own_policy: bool,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Builder {
    /// Chooses a policy by name and options, as [`PolicySpec::parse`] reads them; `first-fit` unless
    /// said otherwise.
    pub fn policy(mut self, spec: &str) -> Self {
        self.policy = PolicySpec::parse(spec);
        self.own_policy = false;
        self
    }

    /// Chooses a policy of the caller's own; `make` is called for each stream, pool and size band.
    pub fn policy_with(
        mut self,
        name: &str,
        make: impl Fn() -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Self {
        self.settings.make_policy = Arc::new(move || Direct::Other(make()));
        self.settings.policy_name = name.to_string();
        self.settings.plans = false;
        self.own_policy = true;
        self
    }

    /// Whether freed blocks of up to 1 MiB may wait unmerged for a request of the same size; on unless
    /// said otherwise.
    pub fn front_cache(mut self, on: bool) -> Self {
        self.settings.front = on;
        self
    }

    /// Whether idle segments of one stream may serve another, which then waits for the first one's work;
    /// on unless said otherwise.
    pub fn share_streams(mut self, on: bool) -> Self {
        self.settings.share_streams = on;
        self
    }

    /// How far the bytes held from the driver may run above the peak in use, as a fraction of it, before
    /// idle segments are given back, or idle pages moved, rather than more asked for. Unless said otherwise
    /// it is 0.05 over pages; over segments there is none, and idle ones are given back only when the
    /// driver or the cap refuses.
    pub fn slack(mut self, slack: f64) -> Self {
        self.settings.slack = Some(slack);
        self
    }

    /// Where blocks get their memory; [`Backing::Auto`] unless said otherwise.
    pub fn backing(mut self, backing: Backing) -> Self {
        self.settings.backing = backing;
        self
    }

    /// Devices, by number, that may use this device's memory too. Paged backing only: segments follow
    /// the driver's own peer access.
    pub fn peers(mut self, devices: &[u32]) -> Self {
        self.settings.peers = devices.to_vec();
        self
    }

    /// What physical pages must be able to do, beside holding bytes. Paged backing only.
    pub fn handle_flags(mut self, flags: HandleFlags) -> Self {
        self.settings.handle_flags = flags;
        self
    }

    /// Modelled driver time that moving pages may take per step ([`Allocator::mark`]); 15 ms unless said
    /// otherwise. Where a program would need more, slack rises until it does not.
    pub fn step_budget(mut self, budget: Duration) -> Self {
        self.settings.step_budget_ns = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Bounds the memory held; see [`Cap`].
    pub fn cap(mut self, cap: Cap) -> Self {
        self.settings.cap = Some(cap);
        self
    }

    /// Gives idle segments back whenever the bytes held from the driver, but in no caller's block, pass
    /// `bytes`. Blocks between others in use cannot go back, so the bound can be passed by those.
    pub fn cached_bytes_cap(mut self, bytes: u64) -> Self {
        self.settings.cached_bytes_cap = Some(bytes);
        self
    }

    /// Whether each allocation keeps the place in the program that made it; off unless said otherwise.
    pub fn record_sites(mut self, on: bool) -> Self {
        self.settings.sites = on;
        self
    }

    /// Checks the settings and builds the allocator. Asks the driver for nothing but its granularity and page size.
    ///
    /// # Errors
    /// [`BuildError`] says which setting is wrong, and what would be right.
    pub fn build(mut self) -> Result<Allocator, BuildError> {
        if !self.own_policy {
            self.settings = self.settings.with_policy(self.policy?);
        }
        check_settings(&self.settings)?;
        let granularity = self.driver.granularity();
        if !granularity.is_power_of_two() || granularity < GRAIN {
            return Err(BuildError::BadGranularity(granularity));
        }
        let pages = pages_of(&*self.driver, &self.settings)?;
        crate::fork::watch();
        let device = Arc::new(Device::new(self.driver, self.settings, pages));
        Ok(Allocator { handle: PoolHandle::open(PoolCore::new(device, "default")) })
    }
}

/// The books of paged backing, if that is what `settings` mean on this device.
fn pages_of(driver: &dyn Driver, settings: &Settings) -> Result<Option<Pages>, BuildError> {
    let page = match (settings.backing, driver.page_bytes()) {
        (Backing::Segments, _) | (Backing::Auto, None) => return Ok(None),
        (Backing::Auto, _) if !settings.keeps_segments() => return Ok(None),
        (Backing::Paged, None) => return Err(BuildError::NoVirtualMemory),
        (Backing::Auto | Backing::Paged, Some(page)) => page,
    };
    if !page.is_power_of_two() || page < GRAIN {
        return Err(BuildError::BadGranularity(page));
    }
    Ok(Some(Pages::new(page)))
}

fn check_settings(settings: &Settings) -> Result<(), BuildError> {
    if let Some(Cap { amount: Amount::Fraction(x), .. }) = settings.cap
        && !(x > 0.0 && x <= 1.0)
    {
        return Err(BuildError::BadFraction(x));
    }
    if let Some(slack) = settings.slack
        && !(slack >= 0.0 && slack.is_finite())
    {
        return Err(BuildError::BadSlack(slack));
    }
    let policy = settings.policy();
    for size in [1, 512, 513, 1 << 20, (1 << 20) + 1, 20 << 20, 3 << 40, SIZE_MAX] {
        let band = policy.band(size);
        let what = if band.index as usize >= BANDS_MAX {
            format!("puts {size} bytes into band {}, of at most {BANDS_MAX}", band.index)
        } else if band.size < size || band.size % GRAIN != 0 {
            format!("rounds {size} bytes to {}, not to a multiple of {GRAIN} above it", band.size)
        } else {
            continue;
        };
        return Err(BuildError::BadPolicy { policy: settings.policy_name.clone(), what });
    }
    Ok(())
}

impl Allocator {
    /// An allocator over `driver` with the default settings.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(driver: impl Driver + 'static) -> Result<Allocator, BuildError> {
        Allocator::builder(driver).build()
    }

    /// Settings for an allocator over `driver`.
    pub fn builder(driver: impl Driver + 'static) -> Builder {
        Builder {
            driver: Arc::new(driver),
            policy: Ok(PolicySpec::default()),
            settings: Settings::new(PolicySpec::default()),
            own_policy: false,
        }
    }

    #[inline(always)]
    fn pool_core(&self) -> &Arc<PoolCore> {
        &self.handle.0
    }

    fn device(&self) -> &Device {
        &self.pool_core().device
    }

    /// `bytes` of device memory for use on `stream`, aligned to 512 bytes. Zero bytes give an empty
    /// allocation.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] with a report; [`AllocError::TooLarge`] over 2^62 bytes;
    /// [`AllocError::Driver`] where the driver fails for another reason; [`AllocError::Capturing`],
    /// [`AllocError::Forked`], [`AllocError::Policy`] as they say.
    #[inline]
    #[track_caller]
    pub fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Allocation, AllocError> {
        self.pool_core().allocate(Ask::new(bytes, stream))
    }

    /// As [`Allocator::allocate`], at a multiple of `align` (a power of two from 1 to 2 MiB).
    ///
    /// # Errors
    /// As [`Allocator::allocate`], and [`AllocError::BadAlignment`].
    #[inline]
    #[track_caller]
    pub fn allocate_aligned(
        &self,
        bytes: u64,
        align: u64,
        stream: StreamId,
    ) -> Result<Allocation, AllocError> {
        self.pool_core().allocate(Ask { align, ..Ask::new(bytes, stream) })
    }

    /// Room for `len` values of type `T`, aligned for it (and to 512 bytes).
    ///
    /// # Errors
    /// As [`Allocator::allocate`], and [`AllocError::LengthOverflow`].
    #[track_caller]
    pub fn allocate_typed<T>(
        &self,
        len: usize,
        stream: StreamId,
    ) -> Result<TypedAllocation<T>, AllocError> {
        TypedAllocation::new(len, |bytes, align| self.allocate_aligned(bytes, align, stream))
    }

    /// Makes a handle of an address from [`Allocation::into_raw`] again. Address 0 gives an empty
    /// allocation.
    ///
    /// # Errors
    /// [`AllocError::NotLive`] where the address is not such a one (any more); nothing is changed.
    pub fn from_raw(&self, address: u64) -> Result<Allocation, AllocError> {
        self.refuse_forked()?;
        if address == 0 {
            return Ok(Allocation::nothing());
        }
        Ok(Allocation::from_parts(address, self.device().take_raw(address)?))
    }

    /// Frees the memory of an address from [`Allocation::into_raw`]. Address 0 is nothing.
    ///
    /// # Errors
    /// As [`Allocator::from_raw`]: a double free and a foreign address change nothing.
    pub fn free_raw(&self, address: u64) -> Result<(), AllocError> {
        self.from_raw(address).map(drop)
    }

    /// As [`Allocation::record_stream`], for an address from [`Allocation::into_raw`].
    ///
    /// # Errors
    /// As [`Allocator::from_raw`].
    pub fn record_stream_raw(&self, address: u64, stream: StreamId) -> Result<(), AllocError> {
        self.refuse_forked()?;
        if address != 0 {
            let RawParts { lane, block, .. } = self.device().peek_raw(address)?;
            record_use(lane, block, stream);
        }
        Ok(())
    }

    fn refuse_forked(&self) -> Result<(), AllocError> {
        if self.pool_core().is_forked() { Err(AllocError::Forked) } else { Ok(()) }
    }

    /// A private pool on the same device.
    pub fn pool(&self, name: &str) -> Pool {
        Pool { handle: PoolHandle::open(PoolCore::new(self.pool_core().device.clone(), name)) }
    }

    /// Waits for blocks that other streams still use, then gives every idle segment of every pool back to
    /// the driver. The driver may wait for the device in each call.
    ///
    /// # Errors
    /// [`AllocError::Driver`] where the driver refused a segment: it stays in the books, the others are
    /// released. [`AllocError::Capturing`], [`AllocError::Forked`].
    pub fn empty_cache(&self) -> Result<Trimmed, AllocError> {
        self.pool_core().empty(Among::AllPools)
    }

    /// How a request of `bytes` on `stream` would be served now. Nothing is changed, and nothing is
    /// promised: another thread may come first.
    pub fn would_fit(&self, bytes: u64, stream: StreamId) -> Fit {
        if bytes == 0 {
            return Fit::Cached;
        }
        if bytes > SIZE_MAX || self.refuse_forked().is_err() {
            return Fit::No;
        }
        let Ok(lane) = self.pool_core().lane(stream) else { return Fit::No };
        let (band, cached) = {
            let front = lane.twin.front();
            let band = front.band(bytes);
            (band, front.cached.has(band.size))
        };
        let request = Request { lane, ask: Ask::new(bytes, stream), band, align: GRAIN };
        if cached { Fit::Cached } else { self.pool_core().would_fit(&request) }
    }

    /// Changes the bound on memory held; takes effect at the next growth. What is held beyond it already
    /// stays until it is given back.
    ///
    /// # Errors
    /// [`BuildError::BadFraction`].
    pub fn set_cap(&self, cap: Option<Cap>) -> Result<(), BuildError> {
        if let Some(Cap { amount: Amount::Fraction(x), .. }) = cap
            && !(x > 0.0 && x <= 1.0)
        {
            return Err(BuildError::BadFraction(x));
        }
        if !self.pool_core().is_forked() {
            *self.device().cap.lock() = cap;
            self.device().room.forget();
        }
        Ok(())
    }

    /// Says that step `label` begins: policies that learn are told, and a recording is marked. Before the
    /// first mark the policy `planned` looks for steps by itself.
    pub fn mark(&self, label: &str) {
        if self.pool_core().is_forked() {
            return;
        }
        let device = self.device();
        if let Some(recorder) = device.recorder.lock().as_mut() {
            recorder.mark(label);
        }
        let kind = planned::kind_of(label);
        let step = device.next_step(kind);
        for (_, mut both) in device.boths() {
            let (front, books) = both.parts();
            books.mark(step);
            if let Some(planner) = &mut front.planner {
                planner.mark(kind);
            }
        }
        device.make_plans();
    }

    /// Starts recording requests, keeping the newest `events` of them in 24 bytes each. A recording under
    /// way is dropped.
    pub fn start_recording(&self, events: usize) {
        if !self.pool_core().is_forked() {
            self.device().set_recorder(Some(Recorder::new(events)));
        }
    }

    /// Ends the recording.
    pub fn stop_recording(&self) {
        if !self.pool_core().is_forked() {
            self.device().set_recorder(None);
        }
    }

    /// Writes what was recorded as a trace that [`crate::trace::Trace`] reads; the recording goes on.
    ///
    /// # Errors
    /// The writer's; [`io::ErrorKind::NotFound`] where nothing is being recorded, and in a forked child.
    pub fn write_trace(&self, out: &mut dyn io::Write) -> io::Result<()> {
        if self.pool_core().is_forked() {
            return Err(io::Error::new(io::ErrorKind::NotFound, AllocError::Forked));
        }
        let live: Vec<(u64, u64, StreamId)> = self
            .device()
            .boths()
            .flat_map(|(lane, mut both)| {
                let front = &*both.parts().0;
                let out = front.outside().filter(|(_, h)| h.is_out());
                let serial = |id| front.more(id).map_or(0, |more| more.serial);
                out.map(|(id, h)| (serial(id), h.requested, lane.stream())).collect::<Vec<_>>()
            })
            .collect();
        // The writer is the caller's code, and may allocate: it runs with nothing held.
        let mut text = Vec::new();
        match self.device().recorder.lock().as_mut() {
            Some(recorder) => recorder.write_to(&mut text, &live)?,
            None => {
                return Err(io::Error::new(io::ErrorKind::NotFound, "nothing is being recorded"));
            }
        }
        out.write_all(&text)
    }

    /// Everything counted.
    pub fn memory_stats(&self) -> Stats {
        if self.pool_core().is_forked() {
            return Stats::in_forked_child();
        }
        if let Err(error) = self.pool_core().poll_pending() {
            self.device().note(error);
        }
        Stats::of(self.device())
    }

    /// The counts as a table for people.
    pub fn memory_summary(&self) -> String {
        let title = format!("aquifer, policy {}", self.device().settings.policy_name);
        self.memory_stats().summary(&title)
    }

    /// Bytes in blocks handed out now, rounding included.
    pub fn memory_allocated(&self) -> u64 {
        self.gauge(ALLOCATED)
    }

    /// Bytes that callers asked for, of what is handed out now.
    pub fn memory_requested(&self) -> u64 {
        self.gauge(REQUESTED)
    }

    /// Bytes handed out now, or freed and waiting for another stream.
    pub fn memory_active(&self) -> u64 {
        self.gauge(ACTIVE)
    }

    /// Bytes held from the driver now.
    pub fn memory_reserved(&self) -> u64 {
        if self.pool_core().is_forked() { 0 } else { self.device().reserved.lock().bytes }
    }

    /// The old name of [`Allocator::memory_reserved`].
    pub fn memory_cached(&self) -> u64 {
        self.memory_reserved()
    }

    /// Peak of [`Allocator::memory_allocated`] since the start or the last [`Allocator::reset_peak`].
    pub fn max_memory_allocated(&self) -> u64 {
        self.memory_stats().allocated_bytes.peak
    }

    /// Peak of [`Allocator::memory_requested`].
    pub fn max_memory_requested(&self) -> u64 {
        self.memory_stats().requested_bytes.peak
    }

    /// Peak of [`Allocator::memory_active`].
    pub fn max_memory_active(&self) -> u64 {
        self.memory_stats().active_bytes.peak
    }

    /// Peak of [`Allocator::memory_reserved`].
    pub fn max_memory_reserved(&self) -> u64 {
        if self.pool_core().is_forked() { 0 } else { self.device().reserved.lock().bytes_peak }
    }

    /// The old name of [`Allocator::max_memory_reserved`].
    pub fn max_memory_cached(&self) -> u64 {
        self.max_memory_reserved()
    }

    fn gauge(&self, gauge: usize) -> u64 {
        if self.pool_core().is_forked() {
            return 0;
        }
        let device = self.device();
        device.take_in_returned();
        device.now()[gauge]
    }

    /// Begins all peaks anew from what is held now.
    pub fn reset_peak(&self) {
        if !self.pool_core().is_forked() {
            self.device().reset_peak();
        }
    }

    /// What each scope holds, most first; see [`crate::scope`].
    pub fn tag_stats(&self) -> Vec<TagStats> {
        if self.pool_core().is_forked() { Vec::new() } else { self.device().tags.stats() }
    }

    /// Peak bytes handed out on `stream` alone, over all pools; exact with any number of threads.
    pub fn max_memory_allocated_on(&self, stream: StreamId) -> u64 {
        if self.pool_core().is_forked() {
            return 0;
        }
        let lanes = self.device().boths().filter(|(lane, _)| lane.stream() == stream);
        lanes.map(|(_, mut both)| both.parts().0.counters.peak_now(ALLOCATED)).sum()
    }

    /// Live allocations with the place in the program that made each, where
    /// [`Builder::record_sites`] is on: bytes asked for per place, most first.
    pub fn sites(&self) -> Vec<(&'static std::panic::Location<'static>, u64)> {
        if self.pool_core().is_forked() { Vec::new() } else { self.device().sites() }
    }

    /// The last driver error that no call could return (in a drop, or about another stream's blocks).
    pub fn last_driver_error(&self) -> Option<DriverError> {
        if self.pool_core().is_forked() { None } else { *self.device().last_error.lock() }
    }

    /// Name and options of the policy.
    pub fn policy_name(&self) -> &str {
        &self.device().settings.policy_name
    }

    /// Recounts everything from the blocks: tiling, neighbours, every counter. For tests and debugging;
    /// takes time in proportion to the number of blocks.
    ///
    /// # Errors
    /// What does not add up, in words.
    pub fn audit(&self) -> Result<(), String> {
        self.refuse_forked().map_err(|error| error.to_string())?;
        self.device().audit()
    }
}

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator")
            .field("policy", &self.policy_name())
            .field("reserved_bytes", &self.memory_reserved())
            .finish_non_exhaustive()
    }
}

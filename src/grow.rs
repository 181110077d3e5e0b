//! The slow path of the hub: what is tried, and in which order, when a lane has no room.
use crate::allocation::Allocation;
use crate::cache::{Request, take_in_ready};
use crate::counters::ACTIVE;
use crate::device::bump;
use crate::driver::DriverError;
use crate::error::AllocError;
use crate::lane::{Detached, Growth, Want};
use crate::oom::{Stage, Stages};
use crate::pending::WaitFor;
use crate::pool::PoolCore;
use crate::trim::Among;
use aquifer_policies::SIZE_MAX;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A generous segment takes at most this share of what the device has left.
const FREE_SHARE: u64 = 16;
/// Under a slack, each release that was forced by it allows reserved to run 1/96 further, up to 8 %:
/// a program that swings between two phases would else release and ask at every swing. The
/// values were chosen on recorded traces.
const FORCED_PER_ALLOWANCE: f64 = 96.0;
const ALLOWANCE_MAX: f64 = 0.08;

impl PoolCore {
    /// Serves `request` by whatever means there are.
    #[cold]
    pub(crate) fn slow(self: &Arc<Self>, request: &Request) -> Result<Allocation, AllocError> {
        self.poll_noted();
        if let Some(allocation) = self.place(request, request.lane.twin.both())? {
            return Ok(allocation);
        }
        if self.device.pages.is_some() {
            return self.slow_paged(request);
        }
        let _growing = request.lane.growing.lock();
        if let Some(allocation) = self.place(request, request.lane.twin.both())? {
            return Ok(allocation);
        }
        let least = self.least_segment(request);
        let wanted = self.wanted_segment(request, least)?;
        let movable = if self.device.settings.slack.is_some() { 2 * least } else { wanted };
        if self.moved_segment(request, movable)
            && let Some(allocation) = self.place(request, request.lane.twin.both())?
        {
            return Ok(allocation);
        }
        self.refuse_while_capturing(request)?;
        let mut stages = Stages::default();
        if let Some(allocation) = self.grow(request, least, wanted, &mut stages)? {
            return Ok(allocation);
        }
        bump(&self.device.totals.retries);
        self.when_refused(request, least, stages)
    }

    /// Asking for memory would spoil the capture: better an error of our own.
    pub(crate) fn refuse_while_capturing(&self, request: &Request) -> Result<(), AllocError> {
        match self.device.is_capturing()? {
            Some(stream) => Err(AllocError::Capturing { stream, bytes: request.ask.bytes }),
            None => Ok(()),
        }
    }

    /// Moves a segment; an error concerns the other stream, not this request, and is only noted.
    fn moved_segment(&self, request: &Request, most: u64) -> bool {
        self.move_segment(request, most).unwrap_or_else(|error| {
            self.device.note(error);
            false
        })
    }

    /// Releases idle segments; what the driver refuses to take back stays in the books and is noted.
    fn make_room(self: &Arc<Self>, bytes: u64) -> u64 {
        let released = self.release_idle(bytes, Among::AllPools);
        if let Some(error) = released.error {
            self.device.note(error);
        }
        released.released_bytes
    }

    /// Polls; an error concerns blocks that wait, not this request, and is only noted.
    pub(crate) fn poll_noted(&self) {
        if let Err(error) = self.poll_pending() {
            self.device.note(error);
        }
    }

    /// Asks the driver: first for what the policy wants, then for just enough. `None` where it refused
    /// both.
    fn grow(
        self: &Arc<Self>,
        request: &Request,
        least: u64,
        wanted: u64,
        stages: &mut Stages,
    ) -> Result<Option<Allocation>, AllocError> {
        let wanted = wanted.min(self.room_within_slack(least, wanted, stages)).max(least);
        for bytes in [wanted, least] {
            if let Some(allocation) = self.ask_driver(request, bytes, stages)? {
                return Ok(Some(allocation));
            }
            if wanted == least {
                break;
            }
        }
        Ok(None)
    }

    /// Asks the driver for a segment of `bytes` and places `request` in it. `None` where it refused.
    fn ask_driver(
        self: &Arc<Self>,
        request: &Request,
        bytes: u64,
        stages: &mut Stages,
    ) -> Result<Option<Allocation>, AllocError> {
        let address = match self.device.reserve(bytes) {
            Ok(address) => address,
            Err(DriverError::OutOfMemory { .. }) => {
                stages.note(Stage::Driver, 0);
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        stages.note(Stage::Driver, bytes);
        let segment = Detached { address, size: bytes, band: request.band.index };
        self.place_in_new(request, segment)
    }

    /// The smallest segment that can hold the request, in bytes.
    fn least_segment(&self, request: &Request) -> u64 {
        // Segments start at multiples of the granularity (2 MiB at most), or of 2 MiB.
        let aligned = request.align <= self.device.granularity.min(crate::cache::ALIGN_MAX);
        let extra = if aligned { 0 } else { request.align };
        (request.band.size + extra).next_multiple_of(self.device.granularity)
    }

    /// What the policy would like the new segment to be, in bytes; at least `least`.
    fn wanted_segment(&self, request: &Request, least: u64) -> Result<u64, AllocError> {
        let device = &self.device;
        let reserved = device.reserved.lock().bytes;
        // Near the end of the device a generous segment takes what others will need.
        let free = device.driver.memory_info().map_or(0, |info| info.free);
        let room = (free / FREE_SHARE).min(device.cap_room()? / FREE_SHARE);
        let wanted = {
            let mut both = request.lane.twin.both();
            let (front, books) = both.parts();
            let in_use = front.counters.now()[ACTIVE];
            let free = books.heap.reserved_bytes().saturating_sub(in_use);
            let growth = Growth { reserved, free, room };
            let want = Want { band: request.band, align: request.align, fresh: None };
            books.wanted(&want, &growth, &device.settings)
        };
        let bytes = wanted.map_err(|wrong| self.bad_policy(wrong))?;
        // Whatever the policy says, the sum with a granularity is a number.
        Ok(bytes.min(SIZE_MAX).max(least).next_multiple_of(device.granularity))
    }

    /// How many bytes the driver may be asked for under the slack; releases idle segments first where
    /// `least` would pass it.
    fn room_within_slack(self: &Arc<Self>, least: u64, wanted: u64, stages: &mut Stages) -> u64 {
        let device = &self.device;
        let Some(slack) = device.settings.slack else { return u64::MAX };
        let in_use = device.now()[ACTIVE].saturating_add(least);
        let peak = device.peaks()[ACTIVE].max(in_use);
        let forced = device.forced.load(Ordering::Relaxed);
        let allowance = (forced as f64 / FORCED_PER_ALLOWANCE).min(ALLOWANCE_MAX);
        let limit = (peak as f64 * (1.0 + slack + allowance)) as u64;
        // Whatever the slack, the sum with a granularity is a number.
        let limit = limit.min(SIZE_MAX).next_multiple_of(device.granularity);
        let room = || limit.saturating_sub(device.reserved.lock().bytes);
        if wanted.min(room()).max(least) > room() {
            let released = self.make_room(u64::MAX);
            stages.note(Stage::Slack, released);
            if released > 0 {
                device.forced.fetch_add(1, Ordering::Relaxed);
                device.stop_front_caches();
            }
        }
        room()
    }

    /// The out-of-memory chain: release what is idle and ask again; wait for events, search and ask
    /// again; give up with a report.
    fn when_refused(
        self: &Arc<Self>,
        request: &Request,
        least: u64,
        mut stages: Stages,
    ) -> Result<Allocation, AllocError> {
        if self.device.settings.slack.is_some() {
            self.device.stop_front_caches();
        }
        stages.note(Stage::Release, self.make_room(u64::MAX));
        if let Some(allocation) = self.search_and_ask(request, least, &mut stages)? {
            return Ok(allocation);
        }
        while self.wait_for_one()? {
            stages.note(Stage::Wait, 0);
            if let Some(allocation) = self.search_and_ask(request, least, &mut stages)? {
                return Ok(allocation);
            }
        }
        if self.device.settings.plans
            && let Some(allocation) = self.place(&request.in_plan(), request.lane.twin.both())?
        {
            return Ok(allocation);
        }
        bump(&self.device.totals.ooms);
        Err(AllocError::OutOfMemory(Box::new(self.report(request, stages))))
    }

    fn search_and_ask(
        self: &Arc<Self>,
        request: &Request,
        least: u64,
        stages: &mut Stages,
    ) -> Result<Option<Allocation>, AllocError> {
        if let Some(allocation) = self.place(request, request.lane.twin.both())? {
            return Ok(Some(allocation));
        }
        if self.moved_segment(request, u64::MAX)
            && let Some(allocation) = self.place(request, request.lane.twin.both())?
        {
            return Ok(Some(allocation));
        }
        // What became idle meanwhile goes too.
        stages.note(Stage::Release, self.make_room(u64::MAX));
        self.ask_driver(request, least, stages)
    }

    /// Waits for the block that has been waiting longest; false where none waits.
    pub(crate) fn wait_for_one(&self) -> Result<bool, AllocError> {
        let device = &self.device;
        let next = device.pending.lock().next_wait();
        let Some(next) = next else { return Ok(false) };
        if device.is_capturing()?.is_some() {
            return Ok(false);
        }
        bump(&device.totals.host_waits);
        match next {
            WaitFor::Event(event) => match device.driver.wait_event(event) {
                // Another thread has found it over meanwhile.
                Ok(()) | Err(DriverError::UnknownEvent(_)) => {}
                Err(error) => return Err(error.into()),
            },
            WaitFor::Device { before } => {
                device.driver.synchronize()?;
                let ready = device.pending.lock().device_waited(before);
                take_in_ready(ready);
            }
        }
        let before = device.pending.lock().uses();
        if matches!(next, WaitFor::Event(_)) {
            self.poll_pending()?;
            return Ok(device.pending.lock().uses() < before);
        }
        Ok(true)
    }
}

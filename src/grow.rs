//! The slow path of the hub: what is tried, and in which order, when a lane has no room.
use crate::allocation::Allocation;
use crate::cache::{Request, take_in_ready};
use crate::counters::ACTIVE;
use crate::device::bump;
use crate::driver::DriverError;
use crate::error::AllocError;
use crate::lane::{Detached, Want};
use crate::oom::{Stage, Stages};
use crate::pending::WaitFor;
use crate::pool::PoolCore;
use crate::trim::Among;
use std::sync::Arc;

impl PoolCore {
    /// Serves `request` by whatever means there are.
    #[cold]
    pub(crate) fn slow(self: &Arc<Self>, request: &Request) -> Result<Allocation, AllocError> {
        self.poll_noted();
        if let Some(allocation) = self.place(request, request.lane.twin.both())? {
            return Ok(allocation);
        }
        let _growing = request.lane.growing.lock();
        if let Some(allocation) = self.place(request, request.lane.twin.both())? {
            return Ok(allocation);
        }
        if self.moved_segment(request) {
            if let Some(allocation) = self.place(request, request.lane.twin.both())? {
                return Ok(allocation);
            }
        }
        self.refuse_while_capturing(request)?;
        let mut stages = Stages::default();
        if let Some(allocation) = self.grow(request, &mut stages)? {
            return Ok(allocation);
        }
        bump(&self.device.totals.retries);
        self.when_refused(request, stages)
    }

    /// Asks for more memory would spoil the capture: better an error of our own.
    fn refuse_while_capturing(&self, request: &Request) -> Result<(), AllocError> {
        match self.device.is_capturing()? {
            Some(stream) => Err(AllocError::Capturing { stream, bytes: request.ask.bytes }),
            None => Ok(()),
        }
    }

    /// Moves a segment; an error concerns the other stream, not this request, and is only noted.
    fn moved_segment(&self, request: &Request) -> bool {
        self.move_segment(request).unwrap_or_else(|error| {
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
    fn poll_noted(&self) {
        if let Err(error) = self.poll_pending() {
            self.device.note(error);
        }
    }

    /// Asks the driver: first for what the policy wants, then for just enough. `None` where it refused
    /// both.
    fn grow(
        self: &Arc<Self>,
        request: &Request,
        stages: &mut Stages,
    ) -> Result<Option<Allocation>, AllocError> {
        let least = self.least_segment(request);
        let room = self.room_within_slack(least, stages);
        let wanted = self.wanted_segment(request, room)?.max(least);
        for bytes in [wanted, least] {
            match self.device.reserve(bytes) {
                Ok(address) => {
                    stages.note(Stage::Driver, bytes);
                    let segment = Detached { address, size: bytes, band: request.band.index };
                    self.attach(request.lane, segment);
                    let both = request.lane.twin.both();
                    let placed = self.place(request, both)?;
                    return placed.map(Some).ok_or_else(|| self.useless_segment());
                }
                Err(DriverError::OutOfMemory { .. }) => stages.note(Stage::Driver, 0),
                Err(error) => return Err(error.into()),
            }
            if wanted == least {
                break;
            }
        }
        Ok(None)
    }

    fn useless_segment(&self) -> AllocError {
        let policy = self.device.settings.policy_name.clone();
        AllocError::Policy { policy, what: "did not use the segment it asked for" }
    }

    /// The smallest segment that can hold the request, in bytes.
    fn least_segment(&self, request: &Request) -> u64 {
        // Segments start at multiples of the granularity (2 MiB at most), or of 2 MiB.
        let aligned = request.align <= self.device.granularity.min(crate::cache::ALIGN_MAX);
        let extra = if aligned { 0 } else { request.align };
        (request.band.size + extra).next_multiple_of(self.device.granularity)
    }

    /// What the policy would like the new segment to be, in bytes.
    fn wanted_segment(&self, request: &Request, room: u64) -> Result<u64, AllocError> {
        let mut both = request.lane.twin.both();
        let want = Want { band: request.band, align: request.align, room };
        match both.parts().1.wanted(&want, || self.device.settings.policy()) {
            Ok(bytes) => Ok(bytes.next_multiple_of(self.device.granularity)),
            Err(wrong) => {
                drop(both);
                Err(self.bad_policy(wrong))
            }
        }
    }

    /// How many bytes the driver may be asked for; makes room first where slack says so.
    fn room_within_slack(self: &Arc<Self>, least: u64, stages: &mut Stages) -> u64 {
        let Some(slack) = self.device.settings.slack else { return u64::MAX };
        let in_use = self.device.now()[ACTIVE].saturating_add(least);
        let peak = self.device.peaks()[ACTIVE].max(in_use);
        let limit = (peak as f64 * (1.0 + slack)) as u64;
        let reserved = self.device.reserved.lock().bytes;
        let over = reserved.saturating_add(least).saturating_sub(limit);
        if over > 0 {
            stages.note(Stage::Slack, self.make_room(over));
        }
        let reserved = self.device.reserved.lock().bytes;
        limit.saturating_sub(reserved)
    }

    /// The out-of-memory chain: release what is idle and ask again; wait for events, search and ask
    /// again; give up with a report.
    fn when_refused(
        self: &Arc<Self>,
        request: &Request,
        mut stages: Stages,
    ) -> Result<Allocation, AllocError> {
        stages.note(Stage::Release, self.make_room(u64::MAX));
        if let Some(allocation) = self.search_and_ask(request, &mut stages)? {
            return Ok(allocation);
        }
        while self.wait_for_one()? {
            stages.note(Stage::Wait, 0);
            if let Some(allocation) = self.search_and_ask(request, &mut stages)? {
                return Ok(allocation);
            }
        }
        bump(&self.device.totals.ooms);
        Err(AllocError::OutOfMemory(Box::new(self.report(request, stages))))
    }

    fn search_and_ask(
        self: &Arc<Self>,
        request: &Request,
        stages: &mut Stages,
    ) -> Result<Option<Allocation>, AllocError> {
        if let Some(allocation) = self.place(request, request.lane.twin.both())? {
            return Ok(Some(allocation));
        }
        if self.moved_segment(request) {
            if let Some(allocation) = self.place(request, request.lane.twin.both())? {
                return Ok(Some(allocation));
            }
        }
        // Other lanes' caches are flushed by the release; what became idle meanwhile goes too.
        stages.note(Stage::Release, self.make_room(u64::MAX));
        let least = self.least_segment(request);
        match self.device.reserve(least) {
            Ok(address) => {
                stages.note(Stage::Driver, least);
                let segment = Detached { address, size: least, band: request.band.index };
                self.attach(request.lane, segment);
                self.place(request, request.lane.twin.both())
            }
            Err(DriverError::OutOfMemory { .. }) => {
                stages.note(Stage::Driver, 0);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
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
            WaitFor::Device { stream, order } => {
                device.driver.synchronize()?;
                let ready = device.pending.lock().device_waited(stream, order);
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

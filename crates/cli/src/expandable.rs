//! A model of PyTorch's rules for expandable segments, as a baseline beside which ours is judged. It is
//! written from a description of the rules and is not PyTorch; how close it comes is in
//! `tests/expandable.rs`. Knows no trace; the blocks that tile its ranges are in `tiles`.
//!
//! The rules: sizes are rounded to 512 bytes. Requests up to 1 MiB come from a small pool with handles
//! of 2 MiB, others from a large pool with handles of 20 MiB. Each stream has ranges of its own in each
//! pool and never gets another's memory. A request takes the smallest free block that fits, else the
//! lowest place that has room once handles are mapped in it. If the device refuses, all wholly free
//! handles are released and the device is asked once more. The rest of a block is cut off from 512
//! bytes on, and free neighbours merge. A block that other streams used comes back when events on them
//! are over, which is asked at the next request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use aquifer::driver::{Driver, DriverError, EventId, HandleFlags, HandleId, StreamId};

use crate::tiles::{BlockIndex, State, Tiles};

/// Sizes are multiples of this.
const ROUNDING: u64 = 512;
/// The largest request of the small pool.
const SMALL_BYTES_MAX: u64 = 1 << 20;
/// What is mapped at a time, in the small and in the large pool.
const HANDLE_BYTES: [u64; 2] = [2 << 20, 20 << 20];

/// What a request is for.
#[derive(Clone, Copy)]
struct Request {
    bytes: u64,
    stream: StreamId,
    /// 0 the small pool, 1 the large one.
    pool: usize,
}

/// An allocator that follows the rules above.
pub(crate) struct Expandable {
    driver: Arc<dyn Driver>,
    /// Reserved at a time: 9/8 of the device's memory.
    range_bytes: u64,
    pools: [Tiles; 2],
    /// By the address at which each is mapped.
    handles: BTreeMap<u64, HandleId>,
    /// Blocks that wait for events, in the order of their frees, for each stream.
    waiting: BTreeMap<StreamId, VecDeque<(EventId, Held)>>,
    reserved_bytes: u64,
    reserved_bytes_peak: u64,
    driver_error: Option<DriverError>,
}

/// A block handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pool: usize,
    block: BlockIndex,
}

impl Expandable {
    pub(crate) fn new(driver: Arc<dyn Driver>, device_bytes: u64) -> Expandable {
        Expandable {
            driver,
            range_bytes: device_bytes + device_bytes / 8,
            pools: HANDLE_BYTES.map(Tiles::new),
            handles: BTreeMap::new(),
            waiting: BTreeMap::new(),
            reserved_bytes: 0,
            reserved_bytes_peak: 0,
            driver_error: None,
        }
    }

    /// Memory of `bytes` (more than 0) for `stream`.
    ///
    /// # Errors
    /// The driver's; [`DriverError::OutOfMemory`] after all that is idle was released.
    pub(crate) fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Held, DriverError> {
        self.poll()?;
        let bytes = bytes.next_multiple_of(ROUNDING);
        let request = Request { bytes, stream, pool: usize::from(bytes > SMALL_BYTES_MAX) };
        let block = match self.pools[request.pool].best_fit(stream, bytes) {
            Some(block) => block,
            None => match self.grow(request) {
                Err(DriverError::OutOfMemory { .. }) => {
                    self.empty_cache()?;
                    self.grow(request)?
                }
                grown => grown?,
            },
        };
        self.pools[request.pool].take(block, bytes);
        Ok(Held { pool: request.pool, block })
    }

    /// Takes a block back, at once or when the other streams that used it are done. What the driver
    /// refuses is in [`Expandable::driver_error`].
    pub(crate) fn free(&mut self, held: Held) {
        let block = self.pools[held.pool].block_mut(held.block);
        let uses = std::mem::take(&mut block.uses);
        if uses.is_empty() {
            return self.pools[held.pool].give(held.block);
        }
        block.events = uses.len();
        for stream in uses {
            match self.driver.record_event(stream) {
                Ok(event) => self.waiting.entry(stream).or_default().push_back((event, held)),
                Err(error) => self.driver_error = Some(error),
            }
        }
    }

    /// Says that a block is used on `stream` too.
    pub(crate) fn record_stream(&mut self, held: Held, stream: StreamId) {
        let block = self.pools[held.pool].block_mut(held.block);
        if stream != block.stream && !block.uses.contains(&stream) {
            block.uses.push(stream);
        }
    }

    /// The stream for which a block was allocated.
    pub(crate) fn stream(&self, held: Held) -> StreamId {
        self.pools[held.pool].block(held.block).stream
    }

    /// Waits for all blocks that wait for events, then releases every handle that is wholly free.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn empty_cache(&mut self) -> Result<(), DriverError> {
        for (event, held) in Vec::from_iter(self.waiting.values_mut().flat_map(std::mem::take)) {
            self.driver.wait_event(event)?;
            self.passed(event, held)?;
        }
        for pool in [1, 0] {
            for block in self.pools[pool].free_blocks() {
                self.unmap(pool, block)?;
            }
        }
        Ok(())
    }

    /// The most bytes that were mapped.
    pub(crate) fn reserved_bytes_peak(&self) -> u64 {
        self.reserved_bytes_peak
    }

    /// What the driver answered to a call that had nobody to tell.
    pub(crate) fn driver_error(&self) -> Option<DriverError> {
        self.driver_error
    }

    /// Takes back the blocks whose events are over. Of each stream it asks as far as the first that is
    /// not.
    fn poll(&mut self) -> Result<(), DriverError> {
        let mut passed = Vec::new();
        for waiting in self.waiting.values_mut() {
            while let Some(&(event, held)) = waiting.front() {
                if !self.driver.query_event(event)? {
                    break;
                }
                waiting.pop_front();
                passed.push((event, held));
            }
        }
        passed.into_iter().try_for_each(|(event, held)| self.passed(event, held))
    }

    fn passed(&mut self, event: EventId, held: Held) -> Result<(), DriverError> {
        self.driver.release_event(event)?;
        let block = self.pools[held.pool].block_mut(held.block);
        block.events -= 1;
        if block.events == 0 {
            self.pools[held.pool].give(held.block);
        }
        Ok(())
    }

    /// Maps handles at the lowest place with room until a free block there fits. What was mapped before
    /// a refusal stays, as a free block.
    fn grow(&mut self, request: Request) -> Result<BlockIndex, DriverError> {
        let Request { bytes, stream, pool } = request;
        let mut block = match self.pools[pool].place(stream, bytes) {
            Some(block) => block,
            None => self.reserve(request)?,
        };
        if self.pools[pool].block(block).state == State::Unmapped {
            block = self.map(pool, block, bytes)?;
        }
        loop {
            let found = self.pools[pool].block(block);
            let Some(lacking) = bytes.checked_sub(found.bytes).filter(|lacking| *lacking > 0)
            else {
                return Ok(block);
            };
            let next = found.next.expect("a place has room");
            block = self.map(pool, next, lacking)?;
        }
    }

    /// A new range, with nothing mapped in it.
    fn reserve(&mut self, request: Request) -> Result<BlockIndex, DriverError> {
        let bytes = self.range_bytes.next_multiple_of(HANDLE_BYTES[request.pool]);
        if request.bytes > bytes {
            return Err(DriverError::OutOfMemory { bytes: request.bytes });
        }
        let address = self.driver.reserve(bytes)?;
        Ok(self.pools[request.pool].enter_range(address, bytes, request.stream))
    }

    /// Maps handles in an unmapped block, from its beginning on, for `bytes` or all that it has: the
    /// free block that they become with their free neighbours.
    fn map(
        &mut self,
        pool: usize,
        block: BlockIndex,
        bytes: u64,
    ) -> Result<BlockIndex, DriverError> {
        let found = self.pools[pool].block(block);
        let address = found.address;
        let handle_bytes = HANDLE_BYTES[pool];
        let bytes = bytes.min(found.bytes).next_multiple_of(handle_bytes);
        let mut made = Vec::new();
        for _ in 0..bytes / handle_bytes {
            match self.driver.create(handle_bytes, HandleFlags::default()) {
                Ok(handle) => made.push(handle),
                Err(error) => {
                    made.into_iter().try_for_each(|handle| self.driver.release(handle))?;
                    return Err(error);
                }
            }
        }
        for (place, handle) in (address..).step_by(handle_bytes as usize).zip(made) {
            self.driver.map(place, handle)?;
            self.handles.insert(place, handle);
        }
        self.driver.set_access(address, bytes, &[])?;
        self.reserved_bytes += bytes;
        self.reserved_bytes_peak = self.reserved_bytes_peak.max(self.reserved_bytes);
        self.pools[pool].set_mapped(block, bytes);
        Ok(block)
    }

    /// Releases the handles that lie wholly in a free block, and its range if nothing is left mapped
    /// there.
    fn unmap(&mut self, pool: usize, block: BlockIndex) -> Result<(), DriverError> {
        let handle_bytes = HANDLE_BYTES[pool];
        let Some((address, bytes)) = self.pools[pool].whole_handles(block) else { return Ok(()) };
        self.driver.synchronize()?;
        for place in (address..address + bytes).step_by(handle_bytes as usize) {
            self.driver.unmap(place, handle_bytes)?;
            let handle = self.handles.remove(&place).expect("a handle is mapped there");
            self.driver.release(handle)?;
        }
        self.reserved_bytes -= bytes;
        match self.pools[pool].set_unmapped(block, address, bytes) {
            Some(range) => self.driver.unreserve(range),
            None => Ok(()),
        }
    }
}

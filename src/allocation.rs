//! What callers hold: device memory that frees itself.
use crate::cache::free;
use crate::driver::StreamId;
use crate::error::AllocError;
use crate::lane::Lane;
use aquifer_policies::BlockId;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

/// A range of device memory. Dropping it frees it on its stream: work queued there before the drop may
/// still use it, later requests of the same stream may get it at once.
///
/// May be dropped on any thread. Work on *other* streams has to be made known with
/// [`Allocation::record_stream`] first.
#[must_use = "dropping an allocation frees it"]
pub struct Allocation {
    /// None for an allocation of zero bytes.
    lane: Option<&'static Lane>,
    address: u64,
    bytes: u64,
    pub(crate) block: BlockId,
}

/// An [`Allocation`] taken apart, for the table of raw addresses.
#[derive(Clone, Copy)]
pub(crate) struct RawParts {
    pub(crate) lane: &'static Lane,
    pub(crate) block: BlockId,
    pub(crate) bytes: u64,
}

impl Allocation {
    #[inline(always)]
    pub(crate) fn new(lane: &'static Lane, block: BlockId, address: u64, bytes: u64) -> Self {
        Allocation { lane: Some(lane), address, bytes, block }
    }

    /// The allocation of zero bytes: address 0, nothing behind it.
    pub(crate) fn nothing() -> Self {
        Allocation { lane: None, address: 0, bytes: 0, block: BlockId(0) }
    }

    pub(crate) fn from_parts(address: u64, parts: RawParts) -> Self {
        Allocation::new(parts.lane, parts.block, address, parts.bytes)
    }

    /// Device address of the first byte; 0 for an allocation of zero bytes.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes asked for.
    #[inline]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether zero bytes were asked for.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes set aside: [`Allocation::len`] with rounding.
    pub fn block_bytes(&self) -> u64 {
        self.lane.map_or(0, |lane| {
            if lane.is_forked() { self.bytes } else { lane.twin.front().held(self.block).size }
        })
    }

    /// The stream it was allocated for.
    pub fn stream(&self) -> StreamId {
        self.lane.map_or(StreamId(0), Lane::stream)
    }

    /// Makes known that work on `stream` uses the memory: after the drop it is not given to anybody before
    /// the work that `stream` has queued at the drop is done.
    ///
    /// # Errors
    /// [`AllocError::Forked`] in a forked child.
    pub fn record_stream(&self, stream: StreamId) -> Result<(), AllocError> {
        let Some(lane) = self.lane else { return Ok(()) };
        if lane.is_forked() {
            return Err(AllocError::Forked);
        }
        record_use(lane, self.block, stream);
        Ok(())
    }

    /// Gives up the handle and leaves the memory allocated, known by its address;
    /// [`crate::Allocator::from_raw`] makes it a handle again.
    pub fn into_raw(self) -> u64 {
        let this = ManuallyDrop::new(self);
        if let Some(lane) = this.lane.filter(|l| !l.is_forked()) {
            let parts = RawParts { lane, block: this.block, bytes: this.bytes };
            let pool = lane.twin.front().pool().clone();
            pool.device.enter_raw(this.address, parts);
        }
        this.address
    }
}

/// Notes that `stream` uses `block`.
pub(crate) fn record_use(lane: &'static Lane, block: BlockId, stream: StreamId) {
    if stream == lane.stream() {
        return;
    }
    let mut front = lane.twin.front();
    front.add_use(block, stream);
    if front.recording {
        let requested = front.held(block).requested;
        let serial = front.more(block).map_or(0, |more| more.serial);
        if let Some(recorder) = front.pool().device.recorder.lock().as_mut() {
            recorder.used_on(serial, requested, lane.stream(), stream);
        }
    }
}

impl Drop for Allocation {
    #[inline]
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            free(lane, self.block);
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes)
            .field("stream", &self.stream())
            .finish()
    }
}

/// Device memory for `len` values of type `T`, laid out as in host memory. Dropping it frees it.
///
/// The host never touches the values through this: it only keeps length and type with the address.
#[must_use = "dropping an allocation frees it"]
pub struct TypedAllocation<T> {
    memory: Allocation,
    len: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> TypedAllocation<T> {
    pub(crate) fn new(
        len: usize,
        allocate: impl FnOnce(u64, u64) -> Result<Allocation, AllocError>,
    ) -> Result<Self, AllocError> {
        let element_bytes = size_of::<T>();
        let bytes = len
            .checked_mul(element_bytes)
            .ok_or(AllocError::LengthOverflow { len, element_bytes })?;
        let memory = allocate(bytes as u64, align_of::<T>() as u64)?;
        Ok(TypedAllocation { memory, len, of: PhantomData })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Device address of the first value.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// The memory without the type.
    pub fn memory(&self) -> &Allocation {
        &self.memory
    }

    /// Gives up the type and keeps the memory.
    pub fn into_memory(self) -> Allocation {
        self.memory
    }
}

impl<T> fmt::Debug for TypedAllocation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedAllocation")
            .field("type", &std::any::type_name::<T>())
            .field("len", &self.len)
            .field("memory", &self.memory)
            .finish()
    }
}

//! A driver with a budget of bytes. Knows what was allocated through it and nothing of what others hold.
use super::{Capture, Driver, DriverError, EventId, MemoryInfo, StreamId};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Any driver, giving out no more than a budget. The budget may change while memory is held; a budget
/// below what is held takes nothing back and refuses more.
///
/// ```
/// use aquifer::driver::{Driver, DriverError, limited::Limited, sim::Sim};
///
/// let sim = Sim::builder().build()?;
/// let driver = Limited::new(sim.device(0).expect("there is one device"), 2 << 20);
/// let address = driver.allocate(2 << 20)?;
/// assert_eq!(driver.allocate(2 << 20), Err(DriverError::OutOfMemory { bytes: 2 << 20 }));
/// driver.free(address)?;
/// assert_eq!(driver.memory_info()?.free, 2 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Limited<D> {
    inner: D,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    limit_bytes: u64,
    held_bytes: u64,
    /// Bytes of each range, to know what a free gives back.
    ranges: HashMap<u64, u64>,
}

impl<D> Limited<D> {
    /// `inner`, giving out at most `limit_bytes` at a time.
    pub fn new(inner: D, limit_bytes: u64) -> Limited<D> {
        let books = Books { limit_bytes, held_bytes: 0, ranges: HashMap::new() };
        Limited { inner, books: Mutex::new(books) }
    }

    /// The driver inside. Memory allocated there directly is not counted here.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Changes the budget, from the next call on.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.books.lock().limit_bytes = limit_bytes;
    }

    /// The budget, in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.books.lock().limit_bytes
    }

    /// Bytes in ranges allocated here and not freed.
    pub fn held_bytes(&self) -> u64 {
        self.books.lock().held_bytes
    }
}

impl Books {
    fn left_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.held_bytes)
    }

    /// Counts `bytes` as held, before the device is asked: two threads must not both get the last of it.
    fn claim(&mut self, bytes: u64) -> Result<(), DriverError> {
        if bytes > self.left_bytes() {
            return Err(DriverError::OutOfMemory { bytes });
        }
        self.held_bytes += bytes;
        Ok(())
    }
}

impl<D: Driver> Driver for Limited<D> {
    /// Of the device, but no more in total than the budget and no more free than is left of it.
    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        let info = self.inner.memory_info()?;
        let books = self.books.lock();
        let (total, free) = (info.total.min(books.limit_bytes), info.free.min(books.left_bytes()));
        Ok(MemoryInfo { total, free, ..info })
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        if bytes == 0 || !bytes.is_multiple_of(self.granularity()) {
            return self.inner.allocate(bytes);
        }
        self.books.lock().claim(bytes)?;
        let allocated = self.inner.allocate(bytes);
        let mut books = self.books.lock();
        match allocated {
            Ok(address) => drop(books.ranges.insert(address, bytes)),
            Err(_) => books.held_bytes -= bytes,
        }
        allocated
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        // Out of the books first: once the device has it, another thread may get the address again.
        let bytes = self.books.lock().ranges.remove(&address);
        let freed = self.inner.free(address);
        if let Some(bytes) = bytes {
            let mut books = self.books.lock();
            match freed {
                Ok(()) => books.held_bytes -= bytes,
                Err(_) => drop(books.ranges.insert(address, bytes)),
            }
        }
        freed
    }

    fn record_event(&self, stream: StreamId) -> Result<EventId, DriverError> {
        self.inner.record_event(stream)
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        self.inner.query_event(event)
    }

    fn wait_event(&self, event: EventId) -> Result<(), DriverError> {
        self.inner.wait_event(event)
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        self.inner.stream_wait_event(stream, event)
    }

    fn release_event(&self, event: EventId) -> Result<(), DriverError> {
        self.inner.release_event(event)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.inner.synchronize()
    }

    fn capture(&self, stream: StreamId) -> Result<Capture, DriverError> {
        self.inner.capture(stream)
    }
}

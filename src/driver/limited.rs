//! A driver with a budget of bytes. Knows what was asked for through it and nothing of what others hold.
use super::{Capture, Driver, DriverError, EventId, HandleFlags, HandleId, MemoryInfo, StreamId};
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
    /// Bytes of each range and handle, to know what a free or a release gives back.
    held: HashMap<Held, u64>,
}

/// What the device gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Held {
    /// A range, by its address.
    Range(u64),
    /// Physical memory.
    Physical(HandleId),
}

impl<D> Limited<D> {
    /// `inner`, giving out at most `limit_bytes` at a time.
    pub fn new(inner: D, limit_bytes: u64) -> Limited<D> {
        let books = Books { limit_bytes, held_bytes: 0, held: HashMap::new() };
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

    /// Bytes allocated or created here and not given back.
    pub fn held_bytes(&self) -> u64 {
        self.books.lock().held_bytes
    }

    /// Makes a call that gives `bytes`, if the budget has them.
    fn give_out<T: Copy>(
        &self,
        bytes: u64,
        call: impl FnOnce() -> Result<T, DriverError>,
        held: impl FnOnce(T) -> Held,
    ) -> Result<T, DriverError> {
        self.books.lock().claim(bytes)?;
        let given = call();
        let mut books = self.books.lock();
        match given {
            Ok(new) => drop(books.held.insert(held(new), bytes)),
            Err(_) => books.held_bytes -= bytes,
        }
        given
    }

    /// Makes a call that gives `held` back.
    fn take_back(
        &self,
        held: Held,
        call: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        // Out of the books first: once the device has it, another thread may get it again.
        let bytes = self.books.lock().held.remove(&held);
        let taken = call();
        if let Some(bytes) = bytes {
            let mut books = self.books.lock();
            match taken {
                Ok(()) => books.held_bytes -= bytes,
                Err(_) => drop(books.held.insert(held, bytes)),
            }
        }
        taken
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
        self.give_out(bytes, || self.inner.allocate(bytes), Held::Range)
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        self.take_back(Held::Range(address), || self.inner.free(address))
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

    fn page_bytes(&self) -> Option<u64> {
        self.inner.page_bytes()
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        self.inner.reserve(bytes)
    }

    fn unreserve(&self, address: u64) -> Result<(), DriverError> {
        self.inner.unreserve(address)
    }

    fn create(&self, bytes: u64, flags: HandleFlags) -> Result<HandleId, DriverError> {
        if bytes == 0 || !self.page_bytes().is_some_and(|page| bytes.is_multiple_of(page)) {
            return self.inner.create(bytes, flags);
        }
        self.give_out(bytes, || self.inner.create(bytes, flags), Held::Physical)
    }

    fn release(&self, handle: HandleId) -> Result<(), DriverError> {
        self.take_back(Held::Physical(handle), || self.inner.release(handle))
    }

    fn map(&self, address: u64, handle: HandleId) -> Result<(), DriverError> {
        self.inner.map(address, handle)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.inner.unmap(address, bytes)
    }

    fn set_access(&self, address: u64, bytes: u64, peers: &[u32]) -> Result<(), DriverError> {
        self.inner.set_access(address, bytes, peers)
    }
}

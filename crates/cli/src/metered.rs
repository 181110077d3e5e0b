//! A driver that measures the processor time its calls take, so that it can be told from the allocator's.
//! Knows nothing of what the calls do.

use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aquifer::driver::{
    Capture, Driver, DriverError, EventId, HandleFlags, HandleId, MemoryInfo, StreamId,
};

/// The driver `inner`, its calls timed. Time is the wall's, which costs a call least to ask for: a run whose
/// thread was put aside within a call shows too much, and the median of a few runs does not.
///
/// Looking at the clock twice takes longer than some calls. What of that lies outside the two looks is found
/// out once and counted as the call's.
#[derive(Debug)]
pub(crate) struct Metered<D> {
    inner: D,
    ns: AtomicU64,
    /// Of a call's looks at the clock.
    looks_ns: u64,
}

/// Calls that find out what looks at the clock take, and how often they are tried.
const LOOKS: u32 = 512;
const LOOK_TRIES: usize = 9;

/// The part of two looks at the clock that they do not see themselves, at its median.
fn looks_ns() -> u64 {
    static NS: OnceLock<u64> = OnceLock::new();
    *NS.get_or_init(|| {
        let mut tries = [0; LOOK_TRIES];
        for ns in &mut tries {
            let began = Instant::now();
            let seen: Duration = (0..LOOKS).map(|_| black_box(Instant::now()).elapsed()).sum();
            *ns = (began.elapsed().saturating_sub(seen) / LOOKS).as_nanos() as u64;
        }
        tries.sort_unstable();
        tries[LOOK_TRIES / 2]
    })
}

impl<D: Driver> Metered<D> {
    pub(crate) fn new(inner: D) -> Metered<D> {
        Metered { inner, ns: AtomicU64::new(0), looks_ns: looks_ns() }
    }

    /// What all calls up to now took.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_nanos(self.ns.load(Ordering::Relaxed))
    }

    #[inline]
    fn timed<T>(&self, call: impl FnOnce(&D) -> T) -> T {
        let began = Instant::now();
        let result = call(&self.inner);
        let ns = began.elapsed().as_nanos() as u64 + self.looks_ns;
        // Runs have one thread at a time: nobody else adds meanwhile.
        self.ns.store(self.ns.load(Ordering::Relaxed) + ns, Ordering::Relaxed);
        result
    }
}

impl<D: Driver> Driver for Metered<D> {
    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.timed(|inner| inner.memory_info())
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        self.timed(|inner| inner.allocate(bytes))
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        self.timed(|inner| inner.free(address))
    }

    fn record_event(&self, stream: StreamId) -> Result<EventId, DriverError> {
        self.timed(|inner| inner.record_event(stream))
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        self.timed(|inner| inner.query_event(event))
    }

    fn wait_event(&self, event: EventId) -> Result<(), DriverError> {
        self.timed(|inner| inner.wait_event(event))
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        self.timed(|inner| inner.stream_wait_event(stream, event))
    }

    fn release_event(&self, event: EventId) -> Result<(), DriverError> {
        self.timed(|inner| inner.release_event(event))
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.timed(|inner| inner.synchronize())
    }

    fn capture(&self, stream: StreamId) -> Result<Capture, DriverError> {
        self.timed(|inner| inner.capture(stream))
    }

    fn page_bytes(&self) -> Option<u64> {
        self.inner.page_bytes()
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        self.timed(|inner| inner.reserve(bytes))
    }

    fn unreserve(&self, address: u64) -> Result<(), DriverError> {
        self.timed(|inner| inner.unreserve(address))
    }

    fn create(&self, bytes: u64, flags: HandleFlags) -> Result<HandleId, DriverError> {
        self.timed(|inner| inner.create(bytes, flags))
    }

    fn release(&self, handle: HandleId) -> Result<(), DriverError> {
        self.timed(|inner| inner.release(handle))
    }

    fn map(&self, address: u64, handle: HandleId) -> Result<(), DriverError> {
        self.timed(|inner| inner.map(address, handle))
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.timed(|inner| inner.unmap(address, bytes))
    }

    fn set_access(&self, address: u64, bytes: u64, peers: &[u32]) -> Result<(), DriverError> {
        self.timed(|inner| inner.set_access(address, bytes, peers))
    }
}

#[cfg(test)]
mod tests {
    use aquifer::driver::sim::Sim;

    use super::*;

    #[test]
    fn calls_take_the_time_they_take_and_answer_as_before() {
        let device = Sim::builder().build().unwrap().device(0).unwrap();
        let metered = Metered::new(device.clone());
        let began = Instant::now();
        let address = metered.allocate(1 << 21).unwrap();
        assert!(metered.free(address + 1).is_err());
        metered.free(address).unwrap();
        let time = metered.time();
        let unseen = Duration::from_nanos(3 * metered.looks_ns);
        assert!(unseen < time && time <= began.elapsed() + unseen);
        assert_eq!((metered.granularity(), device.counts().total()), (device.granularity(), 3));
    }
}

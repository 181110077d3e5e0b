//! A driver whose calls fail on demand. Knows which calls are to fail, not what they do.
use super::faults::FaultPlan;
use super::{
    Call, Capture, Driver, DriverError, EventId, HandleFlags, HandleId, MemoryInfo, StreamId,
};
use parking_lot::Mutex;

/// Any driver, with planned failures. A call that is to fail never reaches the inner driver.
///
/// ```
/// use aquifer::driver::{Driver, faulty::Faulty, sim::Sim};
///
/// let sim = Sim::builder().build()?;
/// let driver = Faulty::new(sim.device(0).expect("there is one device"));
/// driver.fail_at(1);
/// assert!(driver.allocate(2 << 20).is_err());
/// assert!(driver.allocate(2 << 20).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    plan: Mutex<FaultPlan>,
}

impl<D> Faulty<D> {
    /// `inner`, with no failure planned.
    pub fn new(inner: D) -> Faulty<D> {
        Faulty { inner, plan: Mutex::default() }
    }

    /// The driver inside.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// See [`FaultPlan::fail_at`].
    pub fn fail_at(&self, n: u64) {
        self.plan.lock().fail_at(n);
    }

    /// See [`FaultPlan::fail_call`].
    pub fn fail_call(&self, call: Call, n: u64, error: DriverError) {
        self.plan.lock().fail_call(call, n, error);
    }

    /// See [`FaultPlan::fail_all`].
    pub fn fail_all(&self, call: Call) {
        self.plan.lock().fail_all(call);
    }

    /// See [`FaultPlan::clear`].
    pub fn clear_faults(&self) {
        self.plan.lock().clear();
    }

    /// See [`FaultPlan::calls_made`].
    pub fn calls_made(&self) -> u64 {
        self.plan.lock().calls_made()
    }

    fn check(&self, call: Call) -> Result<(), DriverError> {
        self.plan.lock().check(call)
    }
}

impl<D: Driver> Driver for Faulty<D> {
    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.check(Call::MemoryInfo)?;
        self.inner.memory_info()
    }

    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        self.check(Call::Allocate)?;
        self.inner.allocate(bytes)
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        self.check(Call::Free)?;
        self.inner.free(address)
    }

    fn record_event(&self, stream: StreamId) -> Result<EventId, DriverError> {
        self.check(Call::RecordEvent)?;
        self.inner.record_event(stream)
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        self.check(Call::QueryEvent)?;
        self.inner.query_event(event)
    }

    fn wait_event(&self, event: EventId) -> Result<(), DriverError> {
        self.check(Call::WaitEvent)?;
        self.inner.wait_event(event)
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        self.check(Call::StreamWaitEvent)?;
        self.inner.stream_wait_event(stream, event)
    }

    fn release_event(&self, event: EventId) -> Result<(), DriverError> {
        self.check(Call::ReleaseEvent)?;
        self.inner.release_event(event)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.check(Call::Synchronize)?;
        self.inner.synchronize()
    }

    fn capture(&self, stream: StreamId) -> Result<Capture, DriverError> {
        self.check(Call::Capture)?;
        self.inner.capture(stream)
    }

    fn page_bytes(&self) -> Option<u64> {
        self.inner.page_bytes()
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        self.check(Call::Reserve)?;
        self.inner.reserve(bytes)
    }

    fn unreserve(&self, address: u64) -> Result<(), DriverError> {
        self.check(Call::Unreserve)?;
        self.inner.unreserve(address)
    }

    fn create(&self, bytes: u64, flags: HandleFlags) -> Result<HandleId, DriverError> {
        self.check(Call::Create)?;
        self.inner.create(bytes, flags)
    }

    fn release(&self, handle: HandleId) -> Result<(), DriverError> {
        self.check(Call::ReleaseHandle)?;
        self.inner.release(handle)
    }

    fn map(&self, address: u64, handle: HandleId) -> Result<(), DriverError> {
        self.check(Call::Map)?;
        self.inner.map(address, handle)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.check(Call::Unmap)?;
        self.inner.unmap(address, bytes)
    }

    fn set_access(&self, address: u64, bytes: u64, peers: &[u32]) -> Result<(), DriverError> {
        self.check(Call::SetAccess)?;
        self.inner.set_access(address, bytes, peers)
    }
}

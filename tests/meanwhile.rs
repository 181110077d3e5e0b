//! What another thread may do while a driver call is on its way: nothing is held over it.
use aquifer::driver::sim::{Device, Sim};
use aquifer::driver::{Capture, Driver, DriverError, EventId, MemoryInfo, StreamId};
use aquifer::{Allocator, Backing};
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId(0);

type Meanwhile = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// A device whose next free takes so long that something else is done meanwhile.
struct Slow {
    device: Arc<Device>,
    meanwhile: Meanwhile,
}

impl Driver for Slow {
    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.device.memory_info()
    }

    fn granularity(&self) -> u64 {
        self.device.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        self.device.allocate(bytes)
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        self.device.free(address)
    }

    fn record_event(&self, stream: StreamId) -> Result<EventId, DriverError> {
        self.device.record_event(stream)
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        self.device.query_event(event)
    }

    fn wait_event(&self, event: EventId) -> Result<(), DriverError> {
        self.device.wait_event(event)
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        self.device.stream_wait_event(stream, event)
    }

    fn release_event(&self, event: EventId) -> Result<(), DriverError> {
        self.device.release_event(event)
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.device.synchronize()
    }

    fn capture(&self, stream: StreamId) -> Result<Capture, DriverError> {
        self.device.capture(stream)
    }
}

/// While a first segment goes back, the second one goes too, and one of the other band comes to lie at its
/// address and has its block's number.
#[test]
fn a_segment_at_the_address_of_another_band_is_released_as_its_own() {
    let device = Sim::builder().capacity(64 * MIB).build().unwrap().device(0).unwrap();
    let slow = Arc::new(Slow { device: device.clone(), meanwhile: Mutex::default() });
    let builder = Allocator::builder(slow.clone()).backing(Backing::Segments).front_cache(false);
    let allocator = builder.policy("best-fit:small=4KiB,floor=2MiB").build().unwrap();
    let large = allocator.allocate(20 * MIB, STREAM).unwrap();
    let small = allocator.allocate(1024, STREAM).unwrap();
    let address = small.address();
    drop((large, small));
    let other = allocator.clone();
    *slow.meanwhile.lock().unwrap() = Some(Box::new(move || {
        other.empty_cache().unwrap();
        let medium = other.allocate(2 * MIB, STREAM).unwrap();
        assert_eq!(medium.address(), address, "there is room at the old address");
    }));
    allocator.empty_cache().unwrap();
    allocator.audit().unwrap();
    for bytes in [2 * MIB, 1024] {
        drop(allocator.allocate(bytes, STREAM).unwrap());
        allocator.audit().unwrap();
    }
    allocator.empty_cache().unwrap();
    assert_eq!((allocator.memory_reserved(), device.used_bytes()), (0, 0));
}

//! A driver over the simulated device that keeps vector clocks: which work is done, and after which
//! work the later work of each stream is bound to run. Knows no allocator.
use aquifer::driver::sim::{Device, Span, Work};
use aquifer::driver::{
    Capture, Driver, DriverError, EventId, HandleFlags, HandleId, MemoryInfo, StreamId,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// How many pieces of work of each stream are meant, counted from the stream's start.
pub type Clock = BTreeMap<StreamId, u64>;

/// Raises `clock` to what `other` has.
pub fn join(clock: &mut Clock, other: &Clock) {
    for (&stream, &position) in other {
        let own = clock.entry(stream).or_default();
        *own = position.max(*own);
    }
}

pub struct Ordered {
    device: Arc<Device>,
    /// Locked by work when it completes, with the device locked: so never held across a device call.
    done: Arc<Mutex<Clock>>,
    order: Mutex<Order>,
}

#[derive(Default)]
struct Order {
    queued: Clock,
    /// What each stream's next work is bound to run after.
    after: HashMap<StreamId, Clock>,
    events: HashMap<EventId, Clock>,
    held_bytes: u64,
    held_bytes_peak: u64,
    /// Bytes allocated by address, and bytes created by handle.
    ranges: HashMap<u64, u64>,
    handles: HashMap<HandleId, u64>,
}

impl Order {
    fn take(&mut self, bytes: u64) {
        self.held_bytes += bytes;
        self.held_bytes_peak = self.held_bytes_peak.max(self.held_bytes);
    }
}

impl Ordered {
    pub fn new(device: Arc<Device>) -> Ordered {
        Ordered { device, done: Arc::default(), order: Mutex::default() }
    }

    /// Queues a piece of work on `stream`, and one that touches `span` before it.
    pub fn launch(&self, stream: StreamId, span: Option<Span>) {
        if let Some(span) = span {
            self.device.launch(stream, Work::touch(span)).expect("the stream is open");
        }
        let mut order = self.order.lock().unwrap();
        let position = order.queued.entry(stream).or_default();
        *position += 1;
        let position = *position;
        drop(order);
        let done = self.done.clone();
        let count = move |_: &mut _| {
            done.lock().unwrap().insert(stream, position);
        };
        self.device.launch(stream, Work::run(count)).expect("the stream is open");
    }

    /// How much work `stream` has been given.
    pub fn queued(&self, stream: StreamId) -> u64 {
        self.order.lock().unwrap().queued.get(&stream).copied().unwrap_or(0)
    }

    /// Of `uses`, those that are not done.
    pub fn open(&self, uses: &Clock) -> Clock {
        let done = self.done.lock().unwrap();
        let open =
            |(stream, position): &(&StreamId, &u64)| done.get(stream).unwrap_or(&0) < position;
        uses.iter().filter(open).map(|(&s, &p)| (s, p)).collect()
    }

    /// Of `uses`, those that later work of `stream` may overtake.
    pub fn unordered(&self, uses: &Clock, stream: StreamId) -> Clock {
        let mut open = self.open(uses);
        let order = self.order.lock().unwrap();
        let after = order.after.get(&stream);
        open.retain(|user, position| {
            *user != stream && after.and_then(|a| a.get(user)).is_none_or(|p| *p < *position)
        });
        open
    }

    /// Bytes held from the device, allocated or created, and the most there were since the last reset.
    pub fn held_bytes(&self) -> (u64, u64) {
        let order = self.order.lock().unwrap();
        (order.held_bytes, order.held_bytes_peak)
    }

    pub fn reset_peak(&self) {
        let mut order = self.order.lock().unwrap();
        order.held_bytes_peak = order.held_bytes;
    }
}

impl Driver for Ordered {
    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.device.memory_info()
    }

    fn granularity(&self) -> u64 {
        self.device.granularity()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        let address = self.device.allocate(bytes)?;
        let mut order = self.order.lock().unwrap();
        order.ranges.insert(address, bytes);
        order.take(bytes);
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        let mut order = self.order.lock().unwrap();
        let bytes = order.ranges.remove(&address);
        drop(order);
        let freed = self.device.free(address);
        order = self.order.lock().unwrap();
        match (freed, bytes) {
            (Ok(()), Some(bytes)) => order.held_bytes -= bytes,
            (Err(_), Some(bytes)) => drop(order.ranges.insert(address, bytes)),
            _ => {}
        }
        freed
    }

    fn record_event(&self, stream: StreamId) -> Result<EventId, DriverError> {
        let event = self.device.record_event(stream)?;
        let mut order = self.order.lock().unwrap();
        let mut clock = order.after.get(&stream).cloned().unwrap_or_default();
        clock.insert(stream, order.queued.get(&stream).copied().unwrap_or(0));
        order.events.insert(event, clock);
        Ok(event)
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        self.device.query_event(event)
    }

    fn wait_event(&self, event: EventId) -> Result<(), DriverError> {
        self.device.wait_event(event)
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        self.device.stream_wait_event(stream, event)?;
        let mut order = self.order.lock().unwrap();
        let clock = order.events.get(&event).cloned().unwrap_or_default();
        join(order.after.entry(stream).or_default(), &clock);
        Ok(())
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
    fn page_bytes(&self) -> Option<u64> {
        self.device.page_bytes()
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        self.device.reserve(bytes)
    }

    fn unreserve(&self, address: u64) -> Result<(), DriverError> {
        self.device.unreserve(address)
    }

    fn create(&self, bytes: u64, flags: HandleFlags) -> Result<HandleId, DriverError> {
        let handle = self.device.create(bytes, flags)?;
        let mut order = self.order.lock().unwrap();
        order.handles.insert(handle, bytes);
        order.take(bytes);
        Ok(handle)
    }

    fn release(&self, handle: HandleId) -> Result<(), DriverError> {
        self.device.release(handle)?;
        let mut order = self.order.lock().unwrap();
        // Handles are never given again, so nobody else's is taken out here.
        order.held_bytes -= order.handles.remove(&handle).unwrap_or(0);
        Ok(())
    }

    fn map(&self, address: u64, handle: HandleId) -> Result<(), DriverError> {
        self.device.map(address, handle)
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.device.unmap(address, bytes)
    }

    fn set_access(&self, address: u64, bytes: u64, peers: &[u32]) -> Result<(), DriverError> {
        self.device.set_access(address, bytes, peers)
    }
}

//! A simulated machine with one or more devices.
//!
//! Everything on it is decided by what it is told and by its seed: the same calls give the same
//! addresses, the same order of work and the same clock.
//!
//! ```
//! use aquifer::driver::{Driver, sim::{Sim, Work}};
//!
//! let sim = Sim::builder().capacity(1 << 30).seed(7).build()?;
//! let device = sim.device(0).expect("a machine has at least one device");
//! let address = device.allocate(2 << 20)?;
//!
//! let stream = device.create_stream();
//! device.launch(stream, Work::until(10))?;
//! let event = device.record_event(stream)?;
//! assert!(!device.query_event(event)?);
//! device.advance_to(10);
//! assert!(device.query_event(event)?);
//!
//! device.release_event(event)?;
//! device.free(address)?;
//! assert_eq!(device.peak_used_bytes(), 2 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
mod budget;
mod calls;
mod capture;
mod clock;
mod device;
mod error;
mod events;
mod holes;
#[allow(unsafe_code)]
mod host;
mod mappings;
mod memory;
mod random;
#[allow(unsafe_code)]
mod remap;
mod streams;
mod virtual_memory;
mod work;

pub use capture::Graph;
pub use clock::{CallCounts, Costs};
pub use device::Device;
pub use error::{SimError, Violation};
pub use memory::{Backing, Memory, Span};
pub use virtual_memory::Physical;
pub use work::Work;

use super::faults::FaultPlan;
use super::{EventId, StreamId};
use device::State;
use memory::{Shape, WINDOW_BYTES};
use parking_lot::Mutex;
use std::sync::Arc;
use virtual_memory::{Extent, VirtualMemory};

const DEVICES_MAX: usize = 64;

/// Half of a device's addresses, so that first fit never runs out of them before it runs out of bytes.
const CAPACITY_MAX: u64 = WINDOW_BYTES / 2;

/// A simulated machine. Clones are the same machine.
#[derive(Clone, Debug)]
pub struct Sim {
    devices: Arc<[Arc<Device>]>,
}

impl Sim {
    /// A machine to describe.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Device `index`, from 0 on.
    pub fn device(&self, index: usize) -> Option<Arc<Device>> {
        self.devices.get(index).cloned()
    }

    /// How many devices there are.
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }
}

/// What a [`Sim`] is to be: by default one device of 16 GiB in units of 2 MiB, addresses only, with
/// virtual memory in pages of the same unit and 64 TiB of addresses for it, seed 0, the default
/// [`Costs`], frees that wait, stream ids that are never reused.
#[derive(Clone, Debug)]
pub struct Builder {
    devices: usize,
    shape: Shape,
    virtual_memory: bool,
    page_bytes: Option<u64>,
    address_bytes: u64,
    seed: u64,
    costs: Costs,
    free_waits: bool,
    reuse_stream_ids: bool,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            devices: 1,
            shape: Shape {
                capacity_bytes: 16 << 30,
                granularity: 2 << 20,
                backing: Backing::AddressOnly,
            },
            virtual_memory: true,
            page_bytes: None,
            address_bytes: virtual_memory::WINDOW_BYTES,
            seed: 0,
            costs: Costs::default(),
            free_waits: true,
            reuse_stream_ids: false,
        }
    }
}

impl Builder {
    /// How many devices, 1 to 64, all alike.
    pub fn devices(mut self, devices: usize) -> Builder {
        self.devices = devices;
        self
    }

    /// Bytes of memory of each device, 1 to 2 TiB.
    pub fn capacity(mut self, bytes: u64) -> Builder {
        self.shape.capacity_bytes = bytes;
        self
    }

    /// The unit of allocation in bytes: a power of two, 4 KiB to 1 GiB.
    pub fn granularity(mut self, bytes: u64) -> Builder {
        self.shape.granularity = bytes;
        self
    }

    /// What lies behind addresses.
    pub fn backing(mut self, backing: Backing) -> Builder {
        self.shape.backing = backing;
        self
    }

    /// Without, the calls on virtual memory are unsupported.
    pub fn virtual_memory(mut self, has: bool) -> Builder {
        self.virtual_memory = has;
        self
    }

    /// The unit of virtual memory in bytes: a power of two, 4 KiB to 1 GiB, and no less than the host's
    /// page where there are bytes behind addresses.
    pub fn page_bytes(mut self, bytes: u64) -> Builder {
        self.page_bytes = Some(bytes);
        self
    }

    /// How many addresses can be reserved, 0 to 64 TiB.
    pub fn address_bytes(mut self, bytes: u64) -> Builder {
        self.address_bytes = bytes;
        self
    }

    /// Decides the order in which ready work of different streams completes.
    pub fn seed(mut self, seed: u64) -> Builder {
        self.seed = seed;
        self
    }

    /// What calls cost.
    pub fn costs(mut self, costs: Costs) -> Builder {
        self.costs = costs;
        self
    }

    /// Whether a free waits for all work of the device, as `cudaFree` does. Without, memory freed under
    /// work that touches it shows in [`Device::violations`].
    pub fn free_waits(mut self, waits: bool) -> Builder {
        self.free_waits = waits;
        self
    }

    /// Whether a new stream gets the id of the stream destroyed last, as handles of real drivers may.
    pub fn reuse_stream_ids(mut self, reuse: bool) -> Builder {
        self.reuse_stream_ids = reuse;
        self
    }

    /// The machine.
    ///
    /// # Errors
    /// [`SimError::Devices`], [`SimError::Capacity`], [`SimError::Granularity`],
    /// [`SimError::PageBytes`], [`SimError::AddressBytes`].
    pub fn build(self) -> Result<Sim, SimError> {
        let Shape { capacity_bytes, granularity, .. } = self.shape;
        if self.devices == 0 || self.devices > DEVICES_MAX {
            return Err(SimError::Devices(self.devices));
        }
        if capacity_bytes == 0 || capacity_bytes > CAPACITY_MAX {
            return Err(SimError::Capacity(capacity_bytes));
        }
        let is_unit = |bytes: u64| bytes.is_power_of_two() && (1 << 12..=1 << 30).contains(&bytes);
        if !is_unit(granularity) {
            return Err(SimError::Granularity(granularity));
        }
        let has_bytes = self.shape.backing == Backing::HostBytes;
        let host_page_bytes = remap::page_bytes().filter(|_| has_bytes).unwrap_or(0);
        let is_page = |bytes: u64| is_unit(bytes) && bytes >= host_page_bytes;
        if let Some(bytes) = self.page_bytes.filter(|&bytes| !is_page(bytes)) {
            return Err(SimError::PageBytes(bytes));
        }
        if self.address_bytes > virtual_memory::WINDOW_BYTES {
            return Err(SimError::AddressBytes(self.address_bytes));
        }
        let devices = (0..self.devices).map(|index| Arc::new(self.device(index))).collect();
        Ok(Sim { devices })
    }

    fn device(&self, index: usize) -> Device {
        let place = index as u64 + 1;
        let virtual_memory = self.extent(index).map(VirtualMemory::new);
        let page_bytes = virtual_memory.as_ref().map(VirtualMemory::page_bytes);
        let state = State {
            memory: Memory::new(place * WINDOW_BYTES, self.shape, virtual_memory),
            streams: streams::Streams::new(self.seed ^ random::mix(place), self.reuse_stream_ids),
            events: events::Events::default(),
            captures: capture::Captures::default(),
            clock: clock::Clock::new(self.costs),
            faults: FaultPlan::default(),
        };
        Device {
            index,
            granularity: self.shape.granularity,
            page_bytes,
            free_waits: self.free_waits,
            state: Mutex::new(state),
        }
    }
    /// The virtual memory of device `index`, if it has any.
    fn extent(&self, index: usize) -> Option<Extent> {
        let has_bytes = self.shape.backing == Backing::HostBytes;
        let host_page_bytes = if has_bytes { remap::page_bytes()? } else { 0 };
        let default = self.shape.granularity.max(host_page_bytes);
        self.virtual_memory.then(|| Extent {
            device: index as u32,
            devices: self.devices as u32,
            page_bytes: self.page_bytes.unwrap_or(default),
            address_bytes: self.address_bytes,
            has_bytes,
        })
    }
}

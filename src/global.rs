//! One allocator per device for the whole process: installed once, found from anywhere.
use crate::allocator::Allocator;
use crate::error::BuildError;
use std::sync::OnceLock;

/// Devices there is place for.
pub const DEVICES_MAX: usize = 64;

static INSTALLED: [OnceLock<Allocator>; DEVICES_MAX] = [const { OnceLock::new() }; DEVICES_MAX];

/// Makes `allocator` the one of device number `device`. It stays until the process ends.
///
/// ```
/// use aquifer::{Allocator, driver::StreamId, driver::sim::Sim, global};
///
/// let device = Sim::builder().capacity(1 << 30).build()?.device(0).unwrap();
/// global::install(0, Allocator::new(device)?)?;
/// let x = global::get(0).expect("installed above").allocate(1024, StreamId(0))?;
/// # drop(x);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`BuildError::AlreadyInstalled`] if the device has one: the first to come wins, and `allocator` is
/// dropped. [`BuildError::NoSuchDevice`] from [`DEVICES_MAX`] on.
pub fn install(device: usize, allocator: Allocator) -> Result<(), BuildError> {
    let slot =
        INSTALLED.get(device).ok_or(BuildError::NoSuchDevice { device, most: DEVICES_MAX })?;
    slot.set(allocator).map_err(|_| BuildError::AlreadyInstalled { device })
}

/// The allocator of device number `device`, if one is installed.
pub fn get(device: usize) -> Option<&'static Allocator> {
    INSTALLED.get(device)?.get()
}

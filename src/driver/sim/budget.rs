//! The bytes of one device: how many there are and who holds them. Knows no address.
use crate::driver::{DriverError, MemoryInfo};

/// What is held of a device's memory, in ranges and in handles alike.
#[derive(Debug)]
pub(super) struct Budget {
    capacity_bytes: u64,
    used_bytes: u64,
    used_bytes_peak: u64,
    pub(super) other_use_bytes: u64,
    pub(super) process_overhead_bytes: u64,
}

impl Budget {
    pub(super) fn new(capacity_bytes: u64) -> Budget {
        Budget {
            capacity_bytes,
            used_bytes: 0,
            used_bytes_peak: 0,
            other_use_bytes: 0,
            process_overhead_bytes: 0,
        }
    }

    /// Whether `bytes` are left.
    pub(super) fn require(&self, bytes: u64) -> Result<(), DriverError> {
        (bytes <= self.left_bytes()).then_some(()).ok_or(DriverError::OutOfMemory { bytes })
    }

    /// Counts `bytes`, of which it is known that they are left.
    pub(super) fn take(&mut self, bytes: u64) {
        self.used_bytes += bytes;
        self.used_bytes_peak = self.used_bytes_peak.max(self.used_bytes);
    }

    pub(super) fn give(&mut self, bytes: u64) {
        self.used_bytes -= bytes;
    }

    pub(super) fn info(&self) -> MemoryInfo {
        MemoryInfo {
            total: self.capacity_bytes,
            free: self.left_bytes(),
            held_by_process: Some(self.used_bytes.saturating_add(self.process_overhead_bytes)),
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn used_bytes_peak(&self) -> u64 {
        self.used_bytes_peak
    }

    fn left_bytes(&self) -> u64 {
        self.capacity_bytes
            .saturating_sub(self.used_bytes)
            .saturating_sub(self.other_use_bytes)
            .saturating_sub(self.process_overhead_bytes)
    }
}

//! Tells whether offsets are a packing. Knows nothing of how they were found.

use std::collections::BTreeMap;

use super::{Buffer, PackError};

/// Sweeps over time and returns the height in bytes: one past the highest byte used, 0 if there is none.
///
/// # Errors
///
/// [`PackError::Overlap`] with two buffers that live at the same time and share a byte;
/// [`PackError::TooLarge`] if a buffer ends above 2^64 - 1; [`PackError::Backwards`]. Takes `n log n`
/// steps.
///
/// # Panics
///
/// If there are not as many offsets as buffers.
pub fn check(buffers: &[Buffer], offsets: &[u64]) -> Result<u64, PackError> {
    assert_eq!(buffers.len(), offsets.len(), "each buffer has an offset");
    let mut height = 0;
    // Ends sort before beginnings of the same time.
    let mut events = Vec::new();
    for (at, (buffer, offset)) in buffers.iter().zip(offsets).enumerate() {
        if buffer.lower > buffer.upper {
            return Err(PackError::Backwards { buffer: at });
        }
        if buffer.lower < buffer.upper && buffer.size > 0 {
            height = height.max(offset.checked_add(buffer.size).ok_or(PackError::TooLarge)?);
            events.extend([(buffer.lower, true, at), (buffer.upper, false, at)]);
        }
    }
    events.sort_unstable();
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    for (_, begins, at) in events {
        let (offset, end) = (offsets[at], offsets[at] + buffers[at].size);
        if !begins {
            live.remove(&offset);
            continue;
        }
        // Those that live do not overlap: only the highest that begins below `end` can be in the way.
        if let Some((below, &other)) = live.range(..end).next_back()
            && below + buffers[other].size > offset
        {
            return Err(PackError::Overlap { first: other, second: at });
        }
        live.insert(offset, at);
    }
    Ok(height)
}

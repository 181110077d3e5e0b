//! The lowest packing that an effort can find. Knows capacities to try, not how they are tried.

use super::first_fit::Work;
use super::restarts::Budget;
use super::sections::Instance;
use super::{Buffer, Effort, PackError, Packing};

/// Part of the effort that goes into the lower bound itself, which is often reached; and into each
/// height between.
const SHARES: u64 = 8;

/// The lowest packing found: at the lower bound if the effort lets it, else by halving what lies between
/// the lower bound and what was found. Optimal if its height is [`lower_bound`](super::lower_bound);
/// else it may be or not.
///
/// # Errors
///
/// [`PackError::Backwards`] and [`PackError::TooLarge`]. An effort that ends is none.
pub fn pack_lowest(buffers: &[Buffer], effort: Effort<'_>) -> Result<Packing, PackError> {
    let instance = Instance::new(buffers)?;
    let mut best = instance.fast(0, Work::FULL);
    let mut height = instance.height(&best);
    let share = effort.nodes / SHARES;
    let mut budget = Budget::new(effort);
    // All below is refuted, or was tried in vain.
    let mut low = instance.peak();
    let mut capacity = low;
    while capacity < height && budget.left() > 0 {
        let found = budget.lend(share.max(1), |budget| instance.within(capacity, &best, budget));
        match found {
            Ok(offsets) => (height, best) = (instance.height(&offsets), offsets),
            Err(_) => low = capacity + instance.unit,
        }
        // The middle, in units, below what was found.
        let units = (height.saturating_sub(low) / instance.unit).saturating_sub(1) / 2;
        capacity = low + units * instance.unit;
    }
    Ok(instance.packing(&best, budget.spent()))
}

//! Packs buffers whose lifetimes are known: offsets so that no two that live at the same time
//! overlap, in as little memory as can be. Knows no device, no trace and no clock.
//!
//! The problem is dynamic storage allocation (Garey and Johnson, SR2). [`pack_fast`] is for planning
//! while a program runs, [`pack_within`] and [`pack_lowest`] search, up to a number of nodes that the
//! caller sets: same buffers and effort, same answer. The search was built after the ideas of MiniMalloc
//! (Moffitt, ASPLOS 2023: canonical solutions, sections, dead ends by section) and goes on from there:
//! `search.rs` says how.
//!
//! ```
//! use aquifer_policies::pack::{Buffer, Effort, check, lower_bound, pack_within};
//!
//! let buffers = [
//!     Buffer { lower: 0, upper: 3, size: 4 },
//!     Buffer { lower: 3, upper: 9, size: 4 },
//!     Buffer { lower: 0, upper: 9, size: 4 },
//!     Buffer { lower: 9, upper: 21, size: 4 },
//! ];
//! let packing = pack_within(&buffers, 8, Effort::nodes(1_000))?;
//! assert_eq!(packing.height, lower_bound(&buffers)?);
//! assert_eq!(check(&buffers, &packing.offsets)?, 8);
//! # Ok::<(), aquifer_policies::pack::PackError>(())
//! ```

mod bits;
mod check;
mod error;
mod first_fit;
mod lowest;
mod nogoods;
mod online;
mod random;
mod restarts;
mod scan;
mod search;
mod sections;
mod state;
mod tree;
mod valleys;

use std::ops::ControlFlow;

pub use check::check;
pub use error::PackError;
pub use lowest::pack_lowest;

use first_fit::Work;
use restarts::Budget;
use sections::{Instance, Part};

/// What is to be placed. It lives from `lower` to before `upper`, in any unit of time, and takes
/// `size` bytes. With `lower == upper` or a size of 0 it takes no room and lies at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// When it begins.
    pub lower: u64,
    /// When it is over; at least `lower`.
    pub upper: u64,
    /// Bytes.
    pub size: u64,
}

/// Where buffers lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// Offset of each buffer in bytes, in the order in which they were given. Sums of sizes, and so a
    /// multiple of what divides all sizes.
    pub offsets: Vec<u64>,
    /// Bytes from 0 to the highest end.
    pub height: u64,
    /// Nodes of the search that it took; 0 if none was needed.
    pub nodes: u64,
}

/// How long a search may go on, in nodes. A node takes microseconds with hundreds of buffers.
pub struct Effort<'a> {
    nodes: u64,
    watch: Option<&'a mut dyn FnMut(u64) -> ControlFlow<()>>,
}

impl<'a> Effort<'a> {
    /// At most so many nodes.
    pub fn nodes(nodes: u64) -> Effort<'a> {
        Effort { nodes, watch: None }
    }

    /// Calls `watch` with the nodes so far, every few hundred of them; if it breaks, the search ends as
    /// if its nodes had run out.
    pub fn watched_by(self, watch: &'a mut dyn FnMut(u64) -> ControlFlow<()>) -> Effort<'a> {
        Effort { watch: Some(watch), ..self }
    }
}

/// The most bytes that live at one time: no packing is lower.
///
/// # Errors
///
/// [`PackError::Backwards`] and [`PackError::TooLarge`]. Takes `n log n` steps.
pub fn lower_bound(buffers: &[Buffer]) -> Result<u64, PackError> {
    Instance::new(buffers).map(|instance| instance.peak())
}

/// A good packing without a search: the best of a few greedy orders, within a number of steps that
/// keeps 100,000 buffers under a second or so.
///
/// # Errors
///
/// [`PackError::Backwards`] and [`PackError::TooLarge`].
pub fn pack_fast(buffers: &[Buffer]) -> Result<Packing, PackError> {
    let instance = Instance::new(buffers)?;
    Ok(instance.packing(&instance.fast(0, Work::FULL), 0))
}

/// One of so many bytes that [`pack_quick`] may be above the lower bound and look no further.
const QUICK_SHARE: u64 = 256;

/// Most of the work of [`pack_quick`], in looks of a nanosecond or so: for each buffer and in all.
const QUICK_LOOKS_EACH: u64 = 2_000;
const QUICK_LOOKS: u64 = 20_000_000;

/// What [`pack_fast`] does, for a program that waits for it: content with a 256th above the lower bound,
/// and with two microseconds or so per buffer, 30 ms or so in all. Of more buffers than can be done in
/// that it takes the first greedy order, a microsecond per buffer.
///
/// # Errors
///
/// [`PackError::Backwards`] and [`PackError::TooLarge`].
pub fn pack_quick(buffers: &[Buffer]) -> Result<Packing, PackError> {
    let instance = Instance::new(buffers)?;
    let looks = (buffers.len() as u64 * QUICK_LOOKS_EACH).min(QUICK_LOOKS);
    let enough = instance.peak() / instance.unit;
    let enough = enough.saturating_add(enough / QUICK_SHARE);
    Ok(instance.packing(&instance.fast(enough, Work { looks, ..Work::FULL }), 0))
}

/// A packing of at most `capacity` bytes, or the news that there is none. Tries what [`pack_fast`] does
/// first.
///
/// # Errors
///
/// [`PackError::OverCapacity`] and [`PackError::Exhausted`] are proofs (the second but for a
/// collision of 128-bit hashes); [`PackError::Stopped`] if the effort ended before, which it does at
/// once for more than 16,384 buffers whose lifetimes hang together. [`PackError::Backwards`] and
/// [`PackError::TooLarge`].
pub fn pack_within(
    buffers: &[Buffer],
    capacity: u64,
    effort: Effort<'_>,
) -> Result<Packing, PackError> {
    let instance = Instance::new(buffers)?;
    let fast = instance.fast(capacity / instance.unit, Work::FULL);
    let mut budget = Budget::new(effort);
    let offsets = instance.within(capacity, &fast, &mut budget)?;
    Ok(instance.packing(&offsets, budget.spent()))
}

/// Offsets of each part in units above its base.
type Offsets = Vec<Vec<u64>>;

impl Instance {
    /// Packs without a search, as low as `enough` units if that is easy.
    fn fast(&self, enough: u64, mut work: Work) -> Offsets {
        let enough = |part: &Part| enough.saturating_sub(part.base);
        self.parts.iter().map(|part| first_fit::pack(part, enough(part), &mut work)).collect()
    }

    /// Offsets under a capacity in bytes: of parts for which `known` ones will do those, of others
    /// by a search.
    fn within(
        &self,
        capacity: u64,
        known: &Offsets,
        budget: &mut Budget<'_>,
    ) -> Result<Offsets, PackError> {
        let peak = self.peak();
        if peak > capacity {
            return Err(PackError::OverCapacity { peak, capacity });
        }
        let units = capacity / self.unit;
        let mut offsets = known.clone();
        for (part, offsets) in self.parts.iter().zip(&mut offsets) {
            let above = units - part.base;
            if part.height(offsets) > above {
                *offsets = restarts::solve(part, above, budget)?;
            }
        }
        Ok(offsets)
    }
}

//! Buddy: powers of two at offsets that are multiples of their size. Knows an order of sizes and the
//! rule for new segments.
//!
//! The heap merges all free neighbours, so that a free block is a run of buddies of unlike sizes: they
//! grow from the run's start and shrink to its end. Where a request fits, the first and the last
//! buddy that hold it are compared, and the smaller is cut.
use crate::index::Index;
use crate::size_order::SizeOrder;
use crate::sizing::round_to_grain;
use crate::{Band, Cut, FreeBlock, Freed, Place, Policy, Request, Sizing};

/// Rounds sizes up to powers of two and takes them from the smallest free run that holds one at a
/// multiple of its size, counted from the start of the segment.
///
/// Misses free blocks that are large enough but hold no such position. In a segment that does not
/// start at a multiple of the request's alignment, the alignment alone counts.
#[derive(Debug)]
pub struct Buddy {
    sizing: Sizing,
    free: SizeOrder,
}

impl Buddy {
    /// A policy with no free blocks.
    pub fn new(sizing: Sizing) -> Buddy {
        Buddy { sizing, free: SizeOrder::default() }
    }
}

impl Policy for Buddy {
    #[inline]
    fn band(&self, size: u64) -> Band {
        self.sizing.band(round_to_grain(size).next_power_of_two())
    }

    #[inline]
    fn place(&self, request: &Request) -> Place {
        let run = self.free.smallest(request.size, |run| first_fit(run, request).is_some());
        let place = run.and_then(|run| {
            let skip = smaller_buddy(&run, request).or_else(|| first_fit(&run, request))?;
            Some(Place::Reuse { block: run.id, skip, take: request.size })
        });
        place.unwrap_or_else(|| self.sizing.grow(request))
    }

    #[inline]
    fn taken(&mut self, cut: &Cut) {
        self.free.cut(cut);
    }

    #[inline]
    fn freed(&mut self, freed: &Freed) {
        self.free.merge(freed);
    }

    fn released(&mut self, block: FreeBlock) {
        self.free.remove(&block);
    }
}

/// Bytes from a run's start to its first position for a request, if it has one.
#[inline]
fn first_fit(run: &FreeBlock, request: &Request) -> Option<u64> {
    let skip = if segment_is_aligned(run, request) {
        run.offset.wrapping_neg() & (request.size.max(request.align) - 1)
    } else {
        run.skip_to(request.align)
    };
    (request.size <= run.size && skip <= run.size - request.size).then_some(skip)
}

#[inline]
fn segment_is_aligned(run: &FreeBlock, request: &Request) -> bool {
    (run.address - run.offset) & (request.align - 1) == 0
}

/// Bytes from a run's start to the smaller of its first and its last buddy of at least the request's
/// size. `None` where the last one is no smaller, or the alignment rules.
#[inline]
fn smaller_buddy(run: &FreeBlock, request: &Request) -> Option<u64> {
    if request.align > request.size || !segment_is_aligned(run, request) {
        return None;
    }
    let (start, end) = (run.offset, run.offset + run.size);
    let low = start + first_fit(run, request)?;
    let high = end & !(request.size - 1);
    let last = largest_buddy(high, high - start);
    (last < largest_buddy(low, end - low)).then(|| high - last - start)
}

/// The largest power of two within `room` bytes of which `offset` is a multiple.
#[inline]
fn largest_buddy(offset: u64, room: u64) -> u64 {
    1 << offset.trailing_zeros().min(room.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockId, GRAIN};

    fn skip(offset: u64, size: u64, wanted: u64) -> Option<u64> {
        let mut policy = Buddy::new(Sizing::DEFAULT);
        let block =
            |grains| FreeBlock { id: BlockId(0), address: 0, offset: 0, size: grains * GRAIN };
        let offset = offset * GRAIN;
        let run = FreeBlock { address: (1 << 30) + offset, offset, ..block(size) };
        policy.freed(&Freed::alone(run));
        let size = wanted * GRAIN;
        match policy.place(&Request::new(size, GRAIN)) {
            Place::Reuse { skip, .. } => Some(skip / GRAIN),
            Place::Grow { .. } => None,
        }
    }

    #[test]
    fn the_smaller_of_the_first_and_the_last_buddy_is_cut() {
        assert_eq!(skip(0, 8, 1), Some(0));
        assert_eq!(skip(1, 7, 1), Some(0), "1 | 2 3 | 4..8: the first is single");
        assert_eq!(skip(4, 5, 1), Some(4), "4..8 | 8: the last is single");
        assert_eq!(skip(4, 6, 1), Some(4), "4..8 | 8 9: the lower half of the last");
        assert_eq!(skip(2, 8, 2), Some(0), "2 3 | 4..8 | 8 9: the first of equals");
    }

    #[test]
    fn a_run_without_a_multiple_of_the_size_is_missed() {
        assert_eq!(skip(1, 6, 4), None);
        assert_eq!(skip(1, 7, 4), Some(3));
    }
}

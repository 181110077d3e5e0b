//! Two ends: short-lived blocks at low addresses, long-lived ones at high addresses, so that long
//! lives do not part the space that short ones leave. Knows an order of addresses, how long blocks of
//! a size used to live, and the rule for new segments.
use crate::address_order::AddressOrder;
use crate::bin_set::bin_of;
use crate::index::Index;
use crate::sizing::round_to_grain;
use crate::{Band, BlockId, Cut, FreeBlock, Freed, Place, Policy, Request, Sizing};

/// Takes the front of the lowest free block that fits for sizes whose blocks live shorter than the
/// average, and the end of the highest one for others.
///
/// Lives are counted in placements, apart for each eighth of a doubling of sizes. Blocks in a front
/// cache count as living. Finds a free block whenever one fits. The lower address is preferred only
/// for the short-lived.
#[derive(Debug)]
pub struct TwoEnds {
    sizing: Sizing,
    free: AddressOrder,
    lives: Lives,
}

impl TwoEnds {
    /// A policy with no free blocks, to which all sizes are short-lived.
    pub fn new(sizing: Sizing) -> TwoEnds {
        TwoEnds { sizing, free: AddressOrder::default(), lives: Lives::default() }
    }
}

impl Policy for TwoEnds {
    #[inline]
    fn band(&self, size: u64) -> Band {
        self.sizing.band(round_to_grain(size))
    }

    #[inline]
    fn place(&self, request: &Request) -> Place {
        let spot = if self.lives.are_long(request.size) {
            self.free.highest(request.size, request.align)
        } else {
            self.free.lowest(request.size, request.align)
        };
        match spot {
            Some(spot) => Place::Reuse { block: spot.id, skip: spot.skip, take: request.size },
            None => self.sizing.grow(request),
        }
    }

    #[inline]
    fn taken(&mut self, cut: &Cut) {
        self.free.cut(cut);
        self.lives.begin(cut.taken());
    }

    fn unmapped(&mut self, cut: &Cut) {
        self.free.cut(cut);
    }

    #[inline]
    fn freed(&mut self, freed: &Freed) {
        self.lives.end(freed.freed());
        self.free.merge(freed);
    }

    fn released(&mut self, block: FreeBlock) {
        self.free.remove(&block);
        self.free.prune();
    }
}

/// Ended lives of a class after which older ones count half.
const ENDED_MAX: u64 = 64;

/// How long blocks live, by bin of their size.
#[derive(Debug, Default)]
struct Lives {
    /// Placements so far.
    now: u64,
    /// When each block in use was placed, by id; 0 for others.
    births: Vec<u64>,
    classes: Vec<Class>,
    all: Class,
}

/// The lives of one class of blocks: those that ended, and those under way.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    ended: u64,
    /// Sum of the lengths of the ended lives, in placements.
    ended_length: u64,
    living: u64,
    /// Sum of the births of the living.
    living_births: u64,
}

impl Lives {
    /// Whether blocks of this size live longer than the average of all.
    fn are_long(&self, size: u64) -> bool {
        let class = self.classes.get(bin_of(size));
        class.is_some_and(|class| class.length(self.now) > self.all.length(self.now))
    }

    fn begin(&mut self, block: FreeBlock) {
        self.now += 1;
        let (id, bin) = (block.id.index(), bin_of(block.size));
        if id >= self.births.len() {
            self.births.resize(id + 1, 0);
        }
        if bin >= self.classes.len() {
            self.classes.resize(bin + 1, Class::default());
        }
        self.births[id] = self.now;
        self.classes[bin].begin(self.now);
        self.all.begin(self.now);
    }

    /// Ends the life of a block in use; a new segment, which had none, changes nothing.
    fn end(&mut self, block: FreeBlock) {
        let Some(birth) = self.take_birth(block.id) else { return };
        self.classes[bin_of(block.size)].end(birth, self.now);
        self.all.end(birth, self.now);
    }

    fn take_birth(&mut self, id: BlockId) -> Option<u64> {
        let birth = std::mem::take(self.births.get_mut(id.index())?);
        (birth != 0).then_some(birth)
    }
}

impl Class {
    fn begin(&mut self, now: u64) {
        self.living += 1;
        self.living_births += now;
    }

    fn end(&mut self, birth: u64, now: u64) {
        self.living -= 1;
        self.living_births -= birth;
        self.ended += 1;
        self.ended_length += now - birth;
        if self.ended > ENDED_MAX {
            self.ended /= 2;
            self.ended_length /= 2;
        }
    }

    /// The expected length of a life in placements: the time that all lived, ended or not, for each
    /// life that ended. This is the most likely mean of lengths that are distributed exponentially and
    /// of which some are not known to their end.
    fn length(&self, now: u64) -> u64 {
        let living = self.living.saturating_mul(now).saturating_sub(self.living_births);
        self.ended_length.saturating_add(living) / (self.ended + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GRAIN;

    const SHORT: u64 = 8 * GRAIN;
    const LONG: u64 = 100 * GRAIN;

    /// Places a block in the only free block there is and answers how much was skipped.
    fn place(policy: &mut TwoEnds, free: &mut FreeBlock, id: u32, size: u64) -> u64 {
        let request = Request::new(size, GRAIN);
        let Place::Reuse { skip, .. } = policy.place(&request) else { panic!("there is room") };
        let rest = free.size - size;
        let address = if skip == 0 { free.address + size } else { free.address };
        let rest = FreeBlock { address, size: rest, ..*free };
        let (front_id, taken_id) = (free.id, BlockId(id));
        policy.taken(&Cut { from: *free, skip, take: size, front_id, taken_id });
        *free = rest;
        skip
    }

    #[test]
    fn sizes_that_live_long_move_to_the_high_end() {
        let mut policy = TwoEnds::new(Sizing::DEFAULT);
        let mut free = FreeBlock { id: BlockId(0), address: 0, offset: 0, size: 1 << 20 };
        policy.freed(&Freed::alone(free));
        assert_eq!(place(&mut policy, &mut free, 1, LONG), 0, "nothing is known yet");
        for _ in 0..10 {
            let before = free;
            assert_eq!(place(&mut policy, &mut free, 2, SHORT), 0);
            let (after_size, freed_id) = (free.size, BlockId(2));
            policy.freed(&Freed { after_size, freed_id, ..Freed::alone(before) });
            free = before;
        }
        let end = free.size - LONG;
        assert_eq!(place(&mut policy, &mut free, 3, LONG), end);
        assert_eq!(place(&mut policy, &mut free, 4, SHORT), 0);
    }
}

//! Decisions of the allocator: the words they are made in, the [`Policy`] trait, the policies.
//!
//! A policy knows free blocks of one pool, one stream and one size band. It answers where a request
//! goes and keeps its own index of the free blocks. It knows no driver, no stream, no lock, and it
//! cannot corrupt anything: the heap checks every answer before acting on it.
#![forbid(unsafe_code)]
mod address_order;
mod best_fit;
mod bin_set;
mod bins;
mod buddy;
mod direct;
mod first_fit;
mod growth;
mod index;
mod leaf;
mod never_cache;
pub mod pack;
pub mod planned;
mod size_classes;
mod size_lists;
mod size_order;
mod sizing;
mod spec;
mod two_ends;

pub use best_fit::BestFit;
pub use bins::Bins;
pub use buddy::Buddy;
pub use direct::Direct;
pub use first_fit::FirstFit;
pub use growth::Growth;
pub use never_cache::NeverCache;
pub use size_classes::SizeClasses;
pub use sizing::Sizing;
pub use spec::{NAMES, PolicySpec, SpecError};
pub use two_ends::TwoEnds;

/// A block's handle, dense from 0: ids of vanished blocks are given out again, so that a policy may
/// keep what it knows of a block in a `Vec` indexed by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The id as an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A free range of one segment, as a policy sees it. Two free blocks of one segment never touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeBlock {
    /// Handle.
    pub id: BlockId,
    /// Device address of the first byte, a multiple of 512.
    pub address: u64,
    /// Bytes between the start of the segment and this block.
    pub offset: u64,
    /// Length in bytes, a multiple of 512, never 0.
    pub size: u64,
}

impl FreeBlock {
    /// Address one past the last byte.
    #[inline]
    pub fn end(&self) -> u64 {
        self.address + self.size
    }

    /// The `size` bytes that begin `ahead` bytes in, as block `id`.
    #[inline]
    fn part(&self, id: BlockId, ahead: u64, size: u64) -> FreeBlock {
        FreeBlock { id, address: self.address + ahead, offset: self.offset + ahead, size }
    }

    /// Bytes to skip at the front so that what follows is a multiple of `align` (a power of two).
    #[inline]
    pub fn skip_to(&self, align: u64) -> u64 {
        self.address.wrapping_neg() & (align - 1)
    }

    /// Whether `size` bytes at a multiple of `align` fit.
    #[inline]
    pub fn fits(&self, size: u64, align: u64) -> bool {
        size <= self.size && self.skip_to(align) <= self.size - size
    }
}

/// What a size becomes before it is placed: [`Policy::band`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// Which range of sizes it belongs to, counted from 0, under [`BANDS_MAX`]. Each band has
    /// segments and a policy instance of its own.
    pub index: u8,
    /// The bytes to place: at least what was asked, a multiple of 512.
    pub size: u64,
    /// Whether a freed block of this size may wait in the front cache, unmerged, for the next
    /// request of exactly this size. The front cache sets limits of its own.
    pub front: bool,
}

/// The most bands a policy may use.
pub const BANDS_MAX: usize = 4;

/// The unit of every block: addresses and sizes are multiples of it. In bytes.
pub const GRAIN: u64 = 512;

/// The largest size [`Policy::band`] is asked for, in bytes. Larger requests are refused before.
pub const SIZE_MAX: u64 = 1 << 62;

/// What is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes, already rounded by [`Policy::band`].
    pub size: u64,
    /// Alignment of the address in bytes, a power of two from 512 to 2 MiB.
    pub align: u64,
    /// Bytes that the allocator holds from the driver now, all streams and bands together. This and
    /// what follows matter only to [`Place::Grow`].
    pub reserved: u64,
    /// Bytes of free blocks of this stream.
    pub free: u64,
    /// Bytes a new segment may have at most, if that is at least `size`: how far the allocator is
    /// willing to grow now. [`u64::MAX`] where nothing limits it.
    pub room: u64,
    /// Whether the allocator is to hold little more than is in use, rather than to ask the driver rarely.
    pub frugal: bool,
}

impl Request {
    /// A request with nothing known but its size and alignment, in bytes: unlimited room, no free
    /// blocks, nothing reserved.
    #[inline]
    pub fn new(size: u64, align: u64) -> Request {
        Request { size, align, reserved: 0, free: 0, room: u64::MAX, frugal: false }
    }
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Into a free block: leave `skip` bytes free in front, take the next `take` bytes (at least the
    /// request's size), leave the rest free.
    Reuse {
        /// Which free block.
        block: BlockId,
        /// Bytes left free in front; a multiple of 512.
        skip: u64,
        /// Bytes taken; a multiple of 512, at least the request's size.
        take: u64,
    },
    /// No free block will do: ask the driver for a new segment of this many bytes (the allocator
    /// rounds up to the device's granularity, and asks for less where this much is refused).
    Grow {
        /// Bytes; at least the request's size.
        bytes: u64,
    },
}

/// What became of a free block that a request was cut from.
///
/// Ids: the tail keeps the id of `from`; without a tail the front piece does; without either the
/// taken block does. The other pieces have ids that were not in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The free block as it was.
    pub from: FreeBlock,
    /// Bytes left free in front.
    pub skip: u64,
    /// Bytes taken.
    pub take: u64,
    /// Id of the front piece; means nothing where `skip` is 0.
    pub front_id: BlockId,
    /// Id of the taken block.
    pub taken_id: BlockId,
}

impl Cut {
    /// What was left free in front.
    #[inline]
    pub fn front(&self) -> Option<FreeBlock> {
        (self.skip > 0).then_some(FreeBlock { id: self.front_id, size: self.skip, ..self.from })
    }

    /// What was taken: no longer free.
    #[inline]
    pub fn taken(&self) -> FreeBlock {
        self.from.part(self.taken_id, self.skip, self.take)
    }

    /// What was left free behind.
    #[inline]
    pub fn tail(&self) -> Option<FreeBlock> {
        let before = self.skip + self.take;
        let size = self.from.size - before;
        (size > 0).then_some(self.from.part(self.from.id, before, size))
    }
}

/// A block that became free, with the free neighbours it absorbed.
///
/// Ids: `result` keeps the id of the neighbour behind; without it that of the neighbour in front; without
/// either that of the freed block. The other ids are no longer in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// The free block there is now.
    pub result: FreeBlock,
    /// Bytes of the free neighbour in front that vanished into the result; 0 without one.
    pub before_size: u64,
    /// Bytes of the free neighbour behind that vanished into the result; 0 without one.
    pub after_size: u64,
    /// Id of the neighbour in front; means nothing without one.
    pub before_id: BlockId,
    /// Id of the block that was in use.
    pub freed_id: BlockId,
}

impl Freed {
    /// A new segment, or a block without free neighbours.
    pub fn alone(block: FreeBlock) -> Freed {
        let (before_size, after_size) = (0, 0);
        Freed { result: block, before_size, after_size, before_id: block.id, freed_id: block.id }
    }

    /// The block that was in use, as it was; or the whole of a new segment.
    #[inline]
    pub fn freed(&self) -> FreeBlock {
        let size = self.result.size - self.before_size - self.after_size;
        self.result.part(self.freed_id, self.before_size, size)
    }

    /// The free neighbour in front that vanished into the result.
    #[inline]
    pub fn before(&self) -> Option<FreeBlock> {
        let block = FreeBlock { id: self.before_id, size: self.before_size, ..self.result };
        (self.before_size > 0).then_some(block)
    }

    /// The free neighbour behind that vanished into the result.
    #[inline]
    pub fn after(&self) -> Option<FreeBlock> {
        let ahead = self.result.size - self.after_size;
        (self.after_size > 0).then_some(self.result.part(self.result.id, ahead, self.after_size))
    }
}

/// Decides where requests go. One instance per pool, stream and size band.
///
/// `place` changes nothing, because the driver may still refuse and the heap checks the answer; the
/// three `&mut` verbs tell what really happened. Same calls, same answers: no clock, no hash order, no
/// randomness without a seed. Ties go to the lower address.
pub trait Policy: Send {
    /// The band and the rounded size of a request of `size` bytes (1 to [`SIZE_MAX`]).
    ///
    /// Depends on `size` and on how the policy was made, never on its state: every instance of one
    /// policy gives the same answer.
    fn band(&self, size: u64) -> Band;

    /// Where `request` would go now.
    fn place(&self, request: &Request) -> Place;

    /// A request was cut from a free block.
    fn taken(&mut self, cut: &Cut);

    /// A block became free and merged with its free neighbours; or a new segment came, wholly free.
    fn freed(&mut self, freed: &Freed);

    /// Part of a free block has no memory behind it any more: it is nobody's to place in, though no request
    /// took it. It may come back through [`Policy::freed`].
    fn unmapped(&mut self, cut: &Cut) {
        self.taken(cut);
    }

    /// A wholly free segment left, to the driver or to another stream.
    fn released(&mut self, block: FreeBlock);

    /// Whether `segment`, which has just become wholly free, is worth keeping. Answering `false` sends
    /// it back to the driver at once.
    fn keeps(&self, segment: FreeBlock) -> bool {
        let _ = segment;
        true
    }

    /// The program says that step number `step` begins; for policies that learn.
    fn mark(&mut self, step: u64) {
        let _ = step;
    }
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    #[inline]
    fn band(&self, size: u64) -> Band {
        (**self).band(size)
    }

    #[inline]
    fn place(&self, request: &Request) -> Place {
        (**self).place(request)
    }

    #[inline]
    fn taken(&mut self, cut: &Cut) {
        (**self).taken(cut);
    }

    #[inline]
    fn freed(&mut self, freed: &Freed) {
        (**self).freed(freed);
    }

    fn unmapped(&mut self, cut: &Cut) {
        (**self).unmapped(cut);
    }

    fn released(&mut self, block: FreeBlock) {
        (**self).released(block);
    }

    fn keeps(&self, segment: FreeBlock) -> bool {
        (**self).keeps(segment)
    }

    fn mark(&mut self, step: u64) {
        (**self).mark(step);
    }
}

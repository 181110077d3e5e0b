//! A naive heap that drives one policy and checks every answer. Knows segments, blocks and the id
//! rules of `Cut` and `Freed`; keeps everything in plain lists and searches them from end to end.
use aquifer_policies::{BlockId, Cut, FreeBlock, Freed, GRAIN, Place, Policy, Request};

/// What a policy promises about the free blocks it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finds {
    /// The lowest address that fits.
    Lowest,
    /// The smallest block that fits, at the lowest address among equals.
    Smallest,
    /// Some block, whenever one fits.
    Any,
    /// The smallest block with a fitting position whose offset is a multiple of the size.
    Buddy,
    /// None.
    Nothing,
}

/// What a policy with this name promises.
pub fn promise(name: &str) -> Finds {
    match name {
        "first-fit" => Finds::Lowest,
        "best-fit" | "size-classes" => Finds::Smallest,
        "buddy" => Finds::Buddy,
        "never-cache" => Finds::Nothing,
        _ => Finds::Any,
    }
}

/// A heap of one policy instance.
pub struct Model<P> {
    policy: P,
    finds: Finds,
    segments: Vec<Segment>,
    ids_used: Vec<bool>,
    /// Every answer so far.
    pub answers: Vec<Place>,
}

struct Segment {
    address: u64,
    size: u64,
    /// In order of offset, without gaps; no two free ones in a row.
    blocks: Vec<Block>,
}

#[derive(Clone, Copy)]
struct Block {
    id: BlockId,
    offset: u64,
    size: u64,
    free: bool,
}

impl<P: Policy> Model<P> {
    pub fn new(policy: P, finds: Finds) -> Model<P> {
        Model { policy, finds, segments: vec![], ids_used: vec![], answers: vec![] }
    }

    /// Serves a request, growing by a segment at one of `sites` if the policy asks for it. `None`
    /// where no site has room.
    pub fn allocate(
        &mut self,
        size: u64,
        align: u64,
        room: u64,
        sites: impl IntoIterator<Item = u64>,
    ) -> Result<Option<BlockId>, String> {
        let size = self.policy.band(size).size;
        let reserved = self.reserved();
        let request = Request { reserved, room, ..Request::new(size, align) };
        let mut place = self.ask(&request)?;
        if let Place::Grow { bytes } = place {
            let Some(segment) = self.grow(bytes, sites) else { return Ok(None) };
            place = self.ask(&request)?;
            if let Place::Grow { .. } = place {
                let whole = self.free_block(segment, 0);
                if !whole.fits(size, align) {
                    return Ok(None);
                }
                place = Place::Reuse { block: whole.id, skip: whole.skip_to(align), take: size };
            }
        }
        let Place::Reuse { block, skip, take } = place else { unreachable!() };
        Ok(Some(self.cut(block, skip, take)))
    }

    /// Frees a block and merges it with its free neighbours.
    pub fn free(&mut self, id: BlockId) {
        let (s, b) = self.find(id);
        let freed = self.free_block(s, b);
        let blocks = &self.segments[s].blocks;
        let before = (b > 0 && blocks[b - 1].free).then(|| self.free_block(s, b - 1));
        let after = (b + 1 < blocks.len() && blocks[b + 1].free).then(|| self.free_block(s, b + 1));
        let first = before.unwrap_or(freed);
        let last = after.unwrap_or(freed);
        let id = after.or(before).unwrap_or(freed).id;
        let result = FreeBlock { id, size: last.end() - first.address, ..first };
        let merged = Block { id, offset: result.offset, size: result.size, free: true };
        let from = b - usize::from(before.is_some());
        let to = b + usize::from(after.is_some());
        self.segments[s].blocks.splice(from..=to, [merged]);
        for gone in [before, after, Some(freed)].into_iter().flatten() {
            self.ids_used[gone.id.index()] = gone.id == id;
        }
        let size = |block: Option<FreeBlock>| block.map_or(0, |block| block.size);
        let told = Freed {
            result,
            before_size: size(before),
            after_size: size(after),
            before_id: before.unwrap_or(freed).id,
            freed_id: freed.id,
        };
        assert_eq!((told.freed(), told.before(), told.after()), (freed, before, after));
        self.policy.freed(&told);
        if result.size == self.segments[s].size && !self.policy.keeps(result) {
            self.release(s);
        }
    }

    /// Gives one wholly free segment back, counted from `nth` around; false if there is none.
    pub fn release_one(&mut self, nth: usize) -> bool {
        let count = self.segments.len();
        let whole = |s: &usize| self.segments[*s].blocks.len() == 1 && self.free_block_at(*s);
        let found = (0..count).map(|i| (nth + i) % count).find(whole);
        found.inspect(|&s| self.release(s)).is_some()
    }

    pub fn policy(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Asks twice and checks the answer.
    pub fn ask(&mut self, request: &Request) -> Result<Place, String> {
        let place = self.policy.place(request);
        let again = self.policy.place(request);
        if place != again {
            return Err(format!("{request:?}: first {place:?}, then {again:?}"));
        }
        self.check(request, place).map_err(|why| format!("{request:?}: {place:?}: {why}"))?;
        self.answers.push(place);
        Ok(place)
    }

    fn check(&self, request: &Request, place: Place) -> Result<(), String> {
        let wanted = self.wanted(request);
        match place {
            Place::Grow { bytes } if bytes < request.size => Err("grows by too little".into()),
            Place::Grow { .. } => match wanted {
                Some(block) if self.finds != Finds::Nothing => Err(format!("{block:?} would do")),
                _ => Ok(()),
            },
            Place::Reuse { block, skip, take } => {
                let free = self.all_free().find(|free| free.id == block).ok_or("not free")?;
                let over = skip.checked_add(take).is_none_or(|used| used > free.size);
                let exact = matches!(self.finds, Finds::Lowest | Finds::Smallest | Finds::Buddy);
                match wanted {
                    _ if over => Err(format!("goes beyond {free:?}")),
                    _ if take < request.size => Err("takes too little".into()),
                    _ if skip % GRAIN != 0 || take % GRAIN != 0 => Err("not in grains".into()),
                    _ if (free.address + skip) % request.align != 0 => Err("misaligned".into()),
                    _ if self.finds == Finds::Nothing => Err("promised to find nothing".into()),
                    Some(wanted) if exact && wanted != free => Err(format!("not {wanted:?}")),
                    None if exact => Err("no block was expected to do".into()),
                    _ if self.finds == Finds::Lowest && skip >= request.align => {
                        Err("skips more than it must".into())
                    }
                    _ if self.finds == Finds::Buddy && !buddy_position(&free, skip, request) => {
                        Err("not a multiple of the size".into())
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// The block that should be used; any that fits for policies that promise no particular one.
    fn wanted(&self, request: &Request) -> Option<FreeBlock> {
        let fits = self.all_free().filter(|free| free.fits(request.size, request.align));
        match self.finds {
            Finds::Smallest => fits.min_by_key(|free| (free.size, free.address)),
            Finds::Buddy => {
                let fits = fits.filter(|free| {
                    let skip = buddy_skip(free, request);
                    skip <= free.size && request.size <= free.size - skip
                });
                fits.min_by_key(|free| (free.size, free.address))
            }
            _ => fits.min_by_key(|free| free.address),
        }
    }

    fn grow(&mut self, bytes: u64, sites: impl IntoIterator<Item = u64>) -> Option<usize> {
        let bytes = bytes.next_multiple_of(GRAIN);
        let address = sites.into_iter().find(|&site| {
            let end = site.checked_add(bytes);
            end.is_some_and(|end| {
                self.segments.iter().all(|s| end <= s.address || s.address + s.size <= site)
            })
        })?;
        let id = self.new_id();
        let whole = Block { id, offset: 0, size: bytes, free: true };
        self.segments.push(Segment { address, size: bytes, blocks: vec![whole] });
        let segment = self.segments.len() - 1;
        let result = self.free_block(segment, 0);
        self.policy.freed(&Freed::alone(result));
        Some(segment)
    }

    fn cut(&mut self, block: BlockId, skip: u64, take: u64) -> BlockId {
        let (s, b) = self.find(block);
        let from = self.free_block(s, b);
        let rest = from.size - skip - take;
        let mut old_id = Some(from.id);
        let piece = |id, skip, size| FreeBlock {
            id,
            address: from.address + skip,
            offset: from.offset + skip,
            size,
        };
        let mut next = |model: &mut Self| old_id.take().unwrap_or_else(|| model.new_id());
        let tail = (rest > 0).then(|| piece(next(self), skip + take, rest));
        let front = (skip > 0).then(|| piece(next(self), 0, skip));
        let taken = piece(next(self), skip, take);
        let pieces = [(front, true), (Some(taken), false), (tail, true)].into_iter();
        let pieces = pieces.filter_map(|(piece, free)| {
            piece.map(|piece| Block { id: piece.id, offset: piece.offset, size: piece.size, free })
        });
        self.segments[s].blocks.splice(b..=b, pieces);
        let front_id = front.unwrap_or(from).id;
        let told = Cut { from, skip, take, front_id, taken_id: taken.id };
        assert_eq!((told.front(), told.taken(), told.tail()), (front, taken, tail));
        self.policy.taken(&told);
        taken.id
    }

    fn release(&mut self, segment: usize) {
        let block = self.free_block(segment, 0);
        self.segments.swap_remove(segment);
        self.ids_used[block.id.index()] = false;
        self.policy.released(block);
    }

    fn reserved(&self) -> u64 {
        self.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.size))
    }

    /// The lowest id not in use, so that ids come back soon and often.
    fn new_id(&mut self) -> BlockId {
        let id = self.ids_used.iter().position(|used| !used).unwrap_or(self.ids_used.len());
        if id == self.ids_used.len() {
            self.ids_used.push(false);
        }
        self.ids_used[id] = true;
        BlockId(id as u32)
    }

    fn find(&self, id: BlockId) -> (usize, usize) {
        let place = self.segments.iter().enumerate().find_map(|(s, segment)| {
            Some((s, segment.blocks.iter().position(|block| block.id == id)?))
        });
        place.expect("the id is in use")
    }

    fn free_block(&self, segment: usize, block: usize) -> FreeBlock {
        let address = self.segments[segment].address;
        let Block { id, offset, size, .. } = self.segments[segment].blocks[block];
        FreeBlock { id, address: address + offset, offset, size }
    }

    fn free_block_at(&self, segment: usize) -> bool {
        self.segments[segment].blocks[0].free
    }

    fn all_free(&self) -> impl Iterator<Item = FreeBlock> {
        self.segments.iter().flat_map(|segment| {
            segment.blocks.iter().filter(|block| block.free).map(|block| FreeBlock {
                id: block.id,
                address: segment.address + block.offset,
                offset: block.offset,
                size: block.size,
            })
        })
    }
}

/// Bytes to the first position in a block that a buddy may take: offsets that are multiples of the
/// size, or of the alignment alone where the segment itself is not aligned.
fn buddy_skip(free: &FreeBlock, request: &Request) -> u64 {
    let segment = free.address - free.offset;
    if segment.is_multiple_of(request.align) {
        let step = request.size.max(request.align);
        free.offset.next_multiple_of(step) - free.offset
    } else {
        free.skip_to(request.align)
    }
}

fn buddy_position(free: &FreeBlock, skip: u64, request: &Request) -> bool {
    let segment = free.address - free.offset;
    !segment.is_multiple_of(request.align) || (free.offset + skip).is_multiple_of(request.size)
}

//! A recount of the books, block by block.
use super::{Heap, NONE, Segment, State};

impl Heap {
    /// Checks that blocks tile their segments and that every total equals its recount.
    ///
    /// # Errors
    /// What is broken, in words.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let (mut reserved, mut idle, mut idle_segments, mut blocks) = (0, 0, 0, 0usize);
        let mut ranges = Vec::new();
        for (index, segment) in self.segments.iter().enumerate().filter(|(_, s)| s.size > 0) {
            let seen = self.audit_segment(index as u32)?;
            blocks += seen;
            reserved += self.mapped_bytes(segment.first);
            ranges.push((segment.address, segment.size));
            if seen == 1 && self.blocks[segment.first as usize].state == State::Free {
                idle += segment.size;
                idle_segments += 1;
            }
        }
        ranges.sort_unstable();
        if let Some(w) = ranges.windows(2).find(|w| w[0].0 + w[0].1 > w[1].0) {
            return Err(format!("segments {:#x} and {:#x} overlap", w[0].0, w[1].0));
        }
        let listed = self.ranges.unmapped.iter();
        if listed.clone().any(|&u| self.blocks[u as usize].state != State::Unmapped) {
            return Err("a block that is not unmapped is listed as such".to_string());
        }
        let vacant = self.blocks.iter().filter(|b| b.state == State::Vacant).count();
        if vacant != self.vacant_blocks.len() || vacant + blocks != self.blocks.len() {
            return Err(format!("{blocks} blocks in segments and {vacant} vacant are not all"));
        }
        let counted = (reserved, idle, idle_segments);
        let kept = (self.reserved_bytes, self.idle_bytes, self.idle_segments);
        if counted != kept {
            return Err(format!(
                "reserved, idle, idle segments: counted {counted:?}, kept {kept:?}"
            ));
        }
        Ok(())
    }

    /// Walks one segment; returns its number of blocks.
    fn audit_segment(&self, index: u32) -> Result<usize, String> {
        let segment = self.segments[index as usize];
        let (mut at, mut id, mut prev, mut count) = (segment.address, segment.first, NONE, 0);
        let mut last_free = false;
        while id != NONE {
            let b = self.blocks.get(id as usize).ok_or("a neighbour does not exist")?;
            let free = b.state == State::Free;
            let sound = b.address == at
                && b.size > 0
                && b.prev == prev
                && b.segment == index
                && b.band == segment.band
                && b.state != State::Vacant;
            if !sound {
                return Err(format!("block {id} at {:#x} does not tile its segment", b.address));
            }
            if b.state == State::Unmapped {
                self.audit_unmapped(id)?;
            }
            if free && last_free {
                return Err(format!(
                    "block {id} at {:#x} and the one before are both free",
                    b.address
                ));
            }
            (at, prev, id, last_free) = (at + b.size, id, b.next, free);
            count += 1;
        }
        if at != segment.address + segment.size {
            return Err(format!("segment {:#x} ends at {at:#x}", segment.address));
        }
        Ok(count)
    }

    fn audit_unmapped(&self, id: u32) -> Result<(), String> {
        let b = &self.blocks[id as usize];
        let Segment { address, page, .. } = self.segments[b.segment as usize];
        let whole = [b.address - address, b.size].iter().all(|n| n.is_multiple_of(page.max(1)));
        let merged = self.blocks.get(b.next as usize).is_none_or(|n| n.state != State::Unmapped);
        let listed = self.ranges.unmapped.iter().filter(|&&u| u == id).count();
        if !(whole && merged && listed == 1 && page > 0) {
            return Err(format!("unmapped block {id} at {:#x} is not sound", b.address));
        }
        Ok(())
    }

    fn mapped_bytes(&self, first: u32) -> u64 {
        let (mut id, mut bytes) = (first, 0);
        while let Some(b) = self.blocks.get(id as usize) {
            bytes += if b.state == State::Unmapped { 0 } else { b.size };
            id = b.next;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CutAt, Heap};
    use aquifer_policies::{BlockId, FreeBlock};

    fn cut(heap: &mut Heap, block: BlockId, skip: u64, take: u64) -> aquifer_policies::Cut {
        let at = CutAt { block, skip, take, size: take, align: 512, band: 0 };
        let cut = heap.cut(at).expect("the cut is right");
        heap.audit().expect("sound");
        cut
    }

    #[test]
    fn every_shape_of_cut_and_merge_keeps_the_tiling() {
        let mut heap = Heap::default();
        let whole = heap.add_segment(1 << 21, 1 << 20, 0).result;
        let middle = cut(&mut heap, whole.id, 4096, 512);
        assert_eq!(middle.tail().map(|t| t.id), Some(whole.id));
        let front = middle.front().expect("skipped bytes stay free");
        assert_eq!((front.address, front.size, front.offset), (1 << 21, 4096, 0));
        let all_front = cut(&mut heap, front.id, 0, 4096);
        assert_eq!(all_front.taken_id, front.id);
        let end = middle.tail().map(|t: FreeBlock| (t.id, t.size)).expect("a tail");
        let last = cut(&mut heap, end.0, end.1 - 512, 512);
        assert_eq!(last.front().map(|f| f.id), Some(end.0));
        for id in [all_front.taken_id, last.taken_id, middle.taken_id] {
            heap.free(id);
            heap.audit().expect("sound");
        }
        assert_eq!(heap.idle_bytes(), 1 << 20);
        let (id, _) = heap.idle_segments().next().expect("idle again");
        assert!(heap.remove_segment(id).is_some());
        heap.audit().expect("sound");
        assert_eq!(heap.reserved_bytes(), 0);
    }

    #[test]
    fn a_broken_neighbour_is_found() {
        let mut heap = Heap::default();
        let whole = heap.add_segment(0, 4096, 0).result;
        cut(&mut heap, whole.id, 0, 512);
        heap.blocks[whole.id.index()].address += 512;
        assert!(heap.audit().is_err());
    }
}

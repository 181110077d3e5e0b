//! Which blocks are live while a trace is built: ids of any size to dense slot numbers and back to
//! none. Knows neither operations nor lines, beyond the line number it is told to remember.

use std::collections::HashMap;

use super::op::Slot;

/// What is remembered of a live block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Live {
    pub(super) bytes: u64,
    pub(super) line: u64,
}

/// The live blocks. A freed slot is the next one given, so the slots of equal traces are equal.
///
/// Ids that grow no faster than [`IDS_PER_ALLOC`] an allocation index a table; the first id beyond
/// that freezes the table and further large ids go to a hash map. The memory thus stays in
/// proportion to the number of allocations, whatever the ids.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// Slot + 1 by id, 0 for none.
    table: Vec<u32>,
    map: HashMap<u64, u32>,
    live: Vec<Live>,
    free: Vec<u32>,
    allocs: u64,
}

const IDS_PER_ALLOC: u64 = 8;
const IDS_AT_START: u64 = 4096;

impl Slots {
    /// The most blocks that were ever live together.
    pub(super) fn count(&self) -> u32 {
        self.live.len() as u32
    }

    /// Gives a slot to `id`; the live block that has the id, if one has; or no slot is left.
    #[inline]
    pub(super) fn insert(&mut self, id: u64, live: Live) -> Result<Slot, Refused> {
        let taken = self.entry(id);
        if *taken != 0 {
            let slot = *taken - 1;
            return Err(Refused::Live(self.live[slot as usize]));
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                self.live[slot as usize] = live;
                slot
            }
            None if self.live.len() as u64 >= SLOTS_MAX => {
                self.remove(id);
                return Err(Refused::Full);
            }
            None => {
                self.live.push(live);
                (self.live.len() - 1) as u32
            }
        };
        *self.entry(id) = slot + 1;
        self.allocs += 1;
        Ok(Slot(slot))
    }

    /// The slot of a live block.
    #[inline]
    pub(super) fn get(&self, id: u64) -> Option<Slot> {
        let listed = usize::try_from(id).ok().and_then(|id| self.table.get(id));
        let entry = match listed {
            Some(entry) => *entry,
            None => *self.map.get(&id)?,
        };
        entry.checked_sub(1).map(Slot)
    }

    /// Frees a live block's slot.
    #[inline]
    pub(super) fn remove(&mut self, id: u64) -> Option<(Slot, Live)> {
        let listed = usize::try_from(id).ok().and_then(|id| self.table.get_mut(id));
        let entry = match listed {
            Some(entry) => std::mem::take(entry),
            None => self.map.remove(&id)?,
        };
        let slot = entry.checked_sub(1)?;
        self.free.push(slot);
        Some((Slot(slot), self.live[slot as usize]))
    }

    #[inline]
    fn entry(&mut self, id: u64) -> &mut u32 {
        if id >= self.table.len() as u64 {
            let limit = IDS_AT_START + IDS_PER_ALLOC * self.allocs;
            if id >= limit || !self.map.is_empty() {
                return self.map.entry(id).or_insert(0);
            }
            let ids = ((id + 1).next_power_of_two()).min(limit) as usize;
            self.table.resize(ids, 0);
        }
        &mut self.table[id as usize]
    }
}

const SLOTS_MAX: u64 = u32::MAX as u64;

/// Why an id got no slot.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refused {
    /// A live block has it.
    Live(Live),
    /// Every slot number is in use.
    Full,
}

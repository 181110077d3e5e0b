//! The events of one device: which are live and what each marks. Knows no stream.
use super::EventId;
use super::streams::Point;

/// What an event marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A point in a stream's work.
    Work(Point),
    /// A point in the graph with this number; the host can never ask about it.
    Graph(u64),
}

/// Live events. A slot serves again after its event is released, under another generation, so that a
/// released id is unknown and not someone else's.
#[derive(Debug, Default)]
pub(super) struct Events {
    slots: Vec<Slot>,
    spare: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    mark: Option<Mark>,
}

impl Events {
    pub(super) fn record(&mut self, mark: Mark) -> EventId {
        let index = match self.spare.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Slot { generation: 0, mark: None });
                self.slots.len() as u32 - 1
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.mark = Some(mark);
        EventId(u64::from(slot.generation) << 32 | u64::from(index))
    }

    pub(super) fn mark(&self, event: EventId) -> Option<Mark> {
        let slot = self.slots.get(event.0 as u32 as usize)?;
        slot.mark.filter(|_| u64::from(slot.generation) == event.0 >> 32)
    }

    /// Whether `event` was live.
    pub(super) fn release(&mut self, event: EventId) -> bool {
        if self.mark(event).is_none() {
            return false;
        }
        let index = event.0 as u32;
        let slot = &mut self.slots[index as usize];
        slot.mark = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.spare.push(index);
        true
    }

    pub(super) fn live(&self) -> usize {
        self.slots.len() - self.spare.len()
    }
}

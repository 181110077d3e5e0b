//! Stream capture: which streams record into which graph, and what a finished graph holds. The rules are
//! those of CUDA's global mode, for the whole device. Knows no queue.
use super::work::Work;

/// Work that was recorded, to be launched as often as one likes.
///
/// Its order is the order in which it was recorded, whichever of the captured streams that was on: one
/// of the orders that the graph allows.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(super) number: u64,
    pub(super) work: Vec<Work>,
}

impl Graph {
    /// The number that [`crate::driver::Capture::Active`] gave.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many pieces of work it has.
    pub fn len(&self) -> usize {
        self.work.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }
}

/// The captures of a device that have not ended.
#[derive(Debug, Default)]
pub(super) struct Captures {
    open: Vec<Recording>,
    graphs_made: u64,
}

#[derive(Debug)]
pub(super) struct Recording {
    pub(super) graph: Graph,
    pub(super) spoiled: bool,
    /// Stream slots that record; the first began it.
    slots: Vec<u32>,
}

impl Captures {
    /// Whether any stream records.
    pub(super) fn any(&self) -> bool {
        !self.open.is_empty()
    }

    /// The number of the new graph that `slot`, which records into none, records into.
    pub(super) fn begin(&mut self, slot: u32) -> u64 {
        self.graphs_made += 1;
        let graph = Graph { number: self.graphs_made, work: Vec::new() };
        self.open.push(Recording { graph, spoiled: false, slots: vec![slot] });
        self.graphs_made
    }

    pub(super) fn of(&mut self, slot: u32) -> Option<&mut Recording> {
        self.open.iter_mut().find(|recording| recording.slots.contains(&slot))
    }

    /// Ends what `origin` began, for all its streams.
    pub(super) fn end(&mut self, origin: u32) -> Option<Recording> {
        let at = self.open.iter().position(|recording| recording.slots[0] == origin)?;
        Some(self.open.remove(at))
    }

    /// Makes `slot`, which records into none, record into the open graph `number`; false if it is not
    /// open or is spoiled.
    pub(super) fn join(&mut self, slot: u32, number: u64) -> bool {
        let open = |recording: &&mut Recording| recording.graph.number == number;
        match self.open.iter_mut().find(open) {
            Some(recording) if !recording.spoiled => {
                recording.slots.push(slot);
                true
            }
            _ => false,
        }
    }

    /// Spoils every open capture.
    pub(super) fn spoil_all(&mut self) {
        self.open.iter_mut().for_each(|recording| recording.spoiled = true);
    }
}

//! The queues of one device, their order and the scheduler that completes what is in them. Knows of
//! memory only that work acts on it.
//!
//! Each slot counts what was ever queued on it and what is done, and these counts never go back. So a
//! point in a stream's work is a slot and a position, and it has passed when `done` has reached it:
//! events need no item in a queue, and a slot may serve another stream once it is empty.
//!
//! The slot of a queue that holds items is in exactly one place: `due` if the item at its head waits
//! for a tick, `waiters` of another slot if it waits for that slot's work, `ready` if it waits for the
//! scheduler, `unsettled` if its head has not been looked at.
use super::StreamId;
use super::memory::Memory;
use super::random::Random;
use super::work::{Action, Job, Work};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

const NO_SLOT: u32 = u32::MAX;

/// A point in a stream's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    slot: u32,
    position: u64,
}

/// Work was queued that nothing can ever complete.
#[derive(Debug)]
pub(super) struct Stuck;

#[derive(Debug)]
enum Item {
    Unit,
    Until(u64),
    Wait(Point),
    Job(Box<Job>),
}

#[derive(Debug)]
struct Queue {
    stream: StreamId,
    items: VecDeque<Item>,
    queued: u64,
    done: u64,
    /// Slots whose head waits for this queue, by the position it waits for.
    waiters: BinaryHeap<Reverse<(u64, u32)>>,
    open: bool,
}

/// All streams of a device.
#[derive(Debug)]
pub(super) struct Streams {
    queues: Vec<Queue>,
    slots_spare: Vec<u32>,
    /// The slot of each stream id; [`NO_SLOT`] for destroyed streams.
    slot_of: Vec<u32>,
    ids_spare: Option<Vec<u64>>,
    due: BinaryHeap<Reverse<(u64, u32)>>,
    ready: Vec<u32>,
    unsettled: Vec<u32>,
    pending: u64,
    tick: u64,
    random: Random,
}

impl Streams {
    /// The default stream and no work. `reuse_ids`: new streams get the ids of destroyed ones.
    pub(super) fn new(seed: u64, reuse_ids: bool) -> Streams {
        let mut streams = Streams {
            queues: Vec::new(),
            slots_spare: Vec::new(),
            slot_of: Vec::new(),
            ids_spare: reuse_ids.then(Vec::new),
            due: BinaryHeap::new(),
            ready: Vec::new(),
            unsettled: Vec::new(),
            pending: 0,
            tick: 0,
            random: Random::new(seed),
        };
        streams.create();
        streams
    }

    pub(super) fn create(&mut self) -> StreamId {
        let id = self.ids_spare.as_mut().and_then(Vec::pop).unwrap_or(self.slot_of.len() as u64);
        let stream = StreamId(id);
        let slot = match self.slots_spare.pop() {
            Some(slot) => {
                let queue = &mut self.queues[slot as usize];
                (queue.stream, queue.open) = (stream, true);
                slot
            }
            None => {
                self.queues.push(Queue {
                    stream,
                    items: VecDeque::new(),
                    queued: 0,
                    done: 0,
                    waiters: BinaryHeap::new(),
                    open: true,
                });
                self.queues.len() as u32 - 1
            }
        };
        match self.slot_of.get_mut(id as usize) {
            Some(place) => *place = slot,
            None => self.slot_of.push(slot),
        }
        stream
    }

    /// Closes the stream in `slot`; what is queued still completes.
    pub(super) fn destroy(&mut self, slot: u32) {
        let queue = &mut self.queues[slot as usize];
        queue.open = false;
        let (stream, empty) = (queue.stream, queue.items.is_empty());
        self.slot_of[stream.0 as usize] = NO_SLOT;
        if let Some(ids) = &mut self.ids_spare {
            ids.push(stream.0);
        }
        if empty {
            self.slots_spare.push(slot);
        }
    }

    pub(super) fn slot(&self, stream: StreamId) -> Option<u32> {
        let slot = *self.slot_of.get(usize::try_from(stream.0).ok()?)?;
        (slot != NO_SLOT).then_some(slot)
    }

    pub(super) fn stream(&self, slot: u32) -> StreamId {
        self.queues[slot as usize].stream
    }

    /// The present end of the work in `slot`.
    pub(super) fn end(&self, slot: u32) -> Point {
        Point { slot, position: self.queues[slot as usize].queued }
    }

    pub(super) fn has_passed(&self, point: Point) -> bool {
        self.queues[point.slot as usize].done >= point.position
    }

    pub(super) fn tick(&self) -> u64 {
        self.tick
    }

    /// Items queued and not done, on all streams.
    pub(super) fn pending(&self) -> u64 {
        self.pending
    }

    pub(super) fn launch(&mut self, slot: u32, work: Work, memory: &mut Memory) {
        let item = match (&work.action, work.due) {
            (Action::Nothing, None) => Item::Unit,
            (Action::Nothing, Some(tick)) => Item::Until(tick),
            _ => Item::Job(Box::new(Job::launch(work, self.stream(slot), memory))),
        };
        self.push(slot, item, memory);
    }

    /// Makes later work of `slot` wait for `point`.
    pub(super) fn wait(&mut self, slot: u32, point: Point, memory: &mut Memory) {
        if !self.has_passed(point) {
            self.push(slot, Item::Wait(point), memory);
        }
    }

    /// Completes one ready item, chosen by the seed; false if none is ready.
    pub(super) fn step(&mut self, memory: &mut Memory) -> bool {
        if self.ready.is_empty() {
            return false;
        }
        let chosen = self.random.below(self.ready.len());
        let slot = self.ready.swap_remove(chosen);
        self.complete(slot, memory);
        self.unsettled.push(slot);
        self.settle(memory);
        true
    }

    /// Lets time pass until `tick`, and completes what is due, in the order of the ticks.
    pub(super) fn advance_to(&mut self, tick: u64, memory: &mut Memory) {
        while let Some(&Reverse((due, slot))) = self.due.peek()
            && due <= tick
        {
            self.due.pop();
            self.tick = self.tick.max(due);
            self.unsettled.push(slot);
            self.settle(memory);
        }
        self.tick = self.tick.max(tick);
    }

    /// Completes ready work, and lets time pass only when none is ready, until `point` has passed.
    pub(super) fn run_to(&mut self, point: Point, memory: &mut Memory) -> Result<(), Stuck> {
        while !self.has_passed(point) {
            self.progress(memory)?;
        }
        Ok(())
    }

    /// As [`Streams::run_to`], until nothing is queued.
    pub(super) fn run_all(&mut self, memory: &mut Memory) -> Result<(), Stuck> {
        while self.pending > 0 {
            self.progress(memory)?;
        }
        Ok(())
    }

    fn progress(&mut self, memory: &mut Memory) -> Result<(), Stuck> {
        if !self.step(memory) {
            let &Reverse((due, _)) = self.due.peek().ok_or(Stuck)?;
            self.advance_to(due, memory);
        }
        Ok(())
    }

    fn push(&mut self, slot: u32, item: Item, memory: &mut Memory) {
        let queue = &mut self.queues[slot as usize];
        queue.items.push_back(item);
        queue.queued += 1;
        self.pending += 1;
        if queue.items.len() == 1 {
            self.unsettled.push(slot);
            self.settle(memory);
        }
    }

    /// Completes what need not wait at the head of each unsettled queue, and files the queue under what
    /// its head waits for.
    fn settle(&mut self, memory: &mut Memory) {
        while let Some(slot) = self.unsettled.pop() {
            loop {
                let queue = &self.queues[slot as usize];
                match queue.items.front() {
                    None => {
                        if !queue.open {
                            self.slots_spare.push(slot);
                        }
                        break;
                    }
                    Some(&Item::Wait(point)) if !self.has_passed(point) => {
                        let waiters = &mut self.queues[point.slot as usize].waiters;
                        waiters.push(Reverse((point.position, slot)));
                        break;
                    }
                    Some(Item::Wait(_)) => self.complete(slot, memory),
                    Some(item) => match item.due() {
                        Some(tick) if tick > self.tick => {
                            self.due.push(Reverse((tick, slot)));
                            break;
                        }
                        Some(_) => self.complete(slot, memory),
                        None => {
                            self.ready.push(slot);
                            break;
                        }
                    },
                }
            }
        }
    }

    /// Takes the head off the queue in `slot`, does it, and wakes who waited for it.
    fn complete(&mut self, slot: u32, memory: &mut Memory) {
        let queue = &mut self.queues[slot as usize];
        let item = queue.items.pop_front().expect("only queues with a head are completed");
        queue.done += 1;
        self.pending -= 1;
        while let Some(&Reverse((position, waiter))) = queue.waiters.peek()
            && position <= queue.done
        {
            queue.waiters.pop();
            self.unsettled.push(waiter);
        }
        let stream = queue.stream;
        if let Item::Job(job) = item {
            job.complete(stream, memory);
        }
    }
}

impl Item {
    fn due(&self) -> Option<u64> {
        match self {
            Item::Until(tick) => Some(*tick),
            Item::Job(job) => job.due,
            Item::Unit | Item::Wait(_) => None,
        }
    }
}

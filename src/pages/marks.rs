//! How far each lane's stream is known to have come, in the ticks of the lane's heap.
//!
//! An event recorded when the heap's clock showed `tick` ends all work that was queued before a block
//! with a stamp of at most `tick` was freed.
use crate::driver::{Driver, DriverError, EventId};
use std::collections::{BTreeMap, VecDeque};

/// Which lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneKey(pub(crate) usize);

/// Events of one lane that are kept at most; more for each few frees are worth little then.
const MARKS_MAX: usize = 64;

#[derive(Debug, Default)]
struct LaneMarks {
    /// Not known to be over, oldest first.
    open: VecDeque<Mark>,
    /// All that was freed up to this tick is done with.
    clean: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    event: EventId,
    tick: u64,
    /// Order over all lanes.
    order: u64,
}

/// An event that may be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) lane: LaneKey,
    pub(crate) event: EventId,
    pub(crate) tick: u64,
    pub(crate) order: u64,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    lanes: BTreeMap<LaneKey, LaneMarks>,
    orders: u64,
    /// Events the driver failed to take back.
    unreleased: Vec<EventId>,
}

impl Marks {
    /// The tick up to which the lane's memory is done with.
    pub(crate) fn clean(&self, lane: LaneKey) -> u64 {
        self.lanes.get(&lane).map_or(0, |l| l.clean)
    }

    /// Whether an event at `tick` would say more of the lane than those there are.
    pub(crate) fn wants(&self, lane: LaneKey, tick: u64) -> bool {
        let Some(marks) = self.lanes.get(&lane) else { return tick > 0 };
        let last = marks.open.back().map_or(marks.clean, |m| m.tick);
        tick > last
    }

    /// Whether the lane has as many open events as are kept.
    pub(crate) fn is_full(&self, lane: LaneKey) -> bool {
        self.lanes.get(&lane).is_some_and(|l| l.open.len() >= MARKS_MAX)
    }

    /// `event` was recorded on the lane's stream after its clock had shown `tick`. Where there are too many,
    /// it takes the place of the newest, which says less.
    pub(crate) fn enter(&mut self, lane: LaneKey, event: EventId, tick: u64) {
        self.orders += 1;
        let order = self.orders;
        let open = &mut self.lanes.entry(lane).or_default().open;
        if open.len() >= MARKS_MAX {
            self.unreleased.extend(open.pop_back().map(|m| m.event));
        }
        open.push_back(Mark { event, tick, order });
    }

    /// All work of the lane's stream up to `tick` is known to be over; so are the events up to there, which
    /// need not be asked about.
    pub(crate) fn all_over(&mut self, lane: LaneKey, tick: u64) {
        let marks = self.lanes.entry(lane).or_default();
        marks.clean = marks.clean.max(tick);
        while let Some(mark) = marks.open.front().filter(|mark| mark.tick <= tick) {
            self.unreleased.push(mark.event);
            marks.open.pop_front();
        }
    }

    /// Asks about the oldest events of each lane until one is not over.
    ///
    /// # Errors
    /// The first error met; nothing is lost by it.
    pub(crate) fn poll(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
        let mut result = self.retry_releases(driver);
        for marks in self.lanes.values_mut() {
            while let Some(mark) = marks.open.front() {
                match driver.query_event(mark.event) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        result = result.and(Err(error));
                        break;
                    }
                }
                marks.clean = marks.clean.max(mark.tick);
                self.unreleased.push(mark.event);
                marks.open.pop_front();
            }
        }
        result.and(self.retry_releases(driver))
    }

    /// `open` has been waited for: all up to it is done with.
    pub(crate) fn waited(&mut self, open: &Open) {
        let Some(marks) = self.lanes.get_mut(&open.lane) else { return };
        while let Some(mark) = marks.open.front().filter(|m| m.order <= open.order) {
            marks.clean = marks.clean.max(mark.tick);
            self.unreleased.push(mark.event);
            marks.open.pop_front();
        }
    }

    /// The events not known to be over.
    pub(crate) fn open(&self) -> impl Iterator<Item = Open> + '_ {
        self.lanes.iter().flat_map(|(&lane, marks)| {
            marks.open.iter().map(move |m| {
                let Mark { event, tick, order } = *m;
                Open { lane, event, tick, order }
            })
        })
    }

    /// Forgets a lane.
    pub(crate) fn forget(&mut self, lane: LaneKey) {
        let Some(marks) = self.lanes.remove(&lane) else { return };
        self.unreleased.extend(marks.open.iter().map(|m| m.event));
    }

    /// An event is of no use any more: it goes back to the driver with the next ones.
    pub(crate) fn give_back(&mut self, event: Option<EventId>) {
        self.unreleased.extend(event);
    }

    /// Releases the events that are of no use any more.
    ///
    /// # Errors
    /// What the driver said; the event stays for another try.
    pub(crate) fn retry_releases(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
        while let Some(&event) = self.unreleased.last() {
            match driver.release_event(event) {
                Ok(()) | Err(DriverError::UnknownEvent(_)) => {}
                Err(error) => return Err(error),
            }
            self.unreleased.pop();
        }
        Ok(())
    }
}

//! Blocks that were freed while another stream may still use them, in event order.
//!
//! Each use is an event on the using stream; events of one stream end in order, so only the oldest of
//! each stream is ever asked about. A use whose event could not be recorded (the driver refused, or the
//! stream is being captured) is recorded later: a later event is never too early.
use crate::driver::{Capture, Driver, DriverError, EventId, StreamId};
use crate::lane::Lane;
use aquifer_policies::BlockId;
use std::collections::{BTreeMap, VecDeque};

/// A block and the lane it goes home to.
#[derive(Clone, Copy)]
pub(crate) struct Home {
    pub(crate) lane: &'static Lane,
    pub(crate) block: BlockId,
}

struct Entry {
    home: Home,
    uses_left: u32,
}

struct Use {
    /// None until an event could be recorded.
    event: Option<EventId>,
    entry: u32,
    /// Order of arrival over all streams.
    order: u64,
}

#[derive(Default)]
pub(crate) struct Pending {
    entries: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    queues: BTreeMap<StreamId, VecDeque<Use>>,
    arrivals: u64,
    /// Events the driver failed to take back; tried again at each poll and release.
    unreleased: Vec<EventId>,
}

/// What a poll found.
#[derive(Default)]
pub(crate) struct Polled {
    /// Blocks whose uses are all over.
    pub(crate) ready: Vec<Home>,
    /// The first error met, if any; what it concerned waits for the next poll.
    pub(crate) error: Option<DriverError>,
}

/// What has to be waited for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitFor {
    Event(EventId),
    /// A use that no event can mark any more: only the whole device can be waited for. What arrived
    /// before number `before` is over then.
    Device {
        before: u64,
    },
}

impl Pending {
    /// Number of blocks waiting.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// Number of uses that blocks wait for.
    pub(crate) fn uses(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// Streams that blocks wait for.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.queues.keys().copied()
    }

    /// Enters a block with the uses it waits for.
    pub(crate) fn enter(&mut self, home: Home, uses: &[(StreamId, Option<EventId>)]) {
        let entry = Entry { home, uses_left: uses.len() as u32 };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.entries[id as usize] = Some(entry);
                id
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() as u32 - 1
            }
        };
        for &(stream, event) in uses {
            let order = self.arrivals;
            self.arrivals += 1;
            self.queues.entry(stream).or_default().push_back(Use { event, entry: id, order });
        }
    }

    /// Asks about the oldest use of each stream until one is not over.
    pub(crate) fn poll(&mut self, driver: &dyn Driver) -> Polled {
        let mut polled = Polled { error: self.retry_releases(driver).err(), ..Polled::default() };
        let streams: Vec<StreamId> = self.streams().collect();
        for stream in streams {
            if let Err(error) = self.poll_stream(stream, driver, &mut polled.ready) {
                polled.error.get_or_insert(error);
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        polled
    }

    /// Keeps an event that the driver failed to take back.
    pub(crate) fn keep_unreleased(&mut self, event: EventId) {
        self.unreleased.push(event);
    }

    /// Tries again to release the events that the driver failed to take back.
    pub(crate) fn retry_releases(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
        while let Some(event) = self.unreleased.pop() {
            if let Err(error) = release(driver, event) {
                self.unreleased.push(event);
                return Err(error);
            }
        }
        Ok(())
    }

    fn poll_stream(
        &mut self,
        stream: StreamId,
        driver: &dyn Driver,
        ready: &mut Vec<Home>,
    ) -> Result<(), DriverError> {
        while let Some(queue) = self.queues.get_mut(&stream) {
            if queue.is_empty() {
                return Ok(());
            }
            let event = match first_event(queue) {
                Some(event) => event,
                None => {
                    let Some(event) = record(driver, stream)? else { return Ok(()) };
                    // Recorded after all of them: it is over no earlier than any.
                    queue.back_mut().expect("it has a front").event = Some(event);
                    event
                }
            };
            if !driver.query_event(event)? {
                return Ok(());
            }
            self.event_over(stream, event, ready);
            if let Err(error) = release(driver, event) {
                self.unreleased.push(event);
                return Err(error);
            }
        }
        Ok(())
    }

    /// `event` of `stream` is over, and with it all uses up to the one that has it.
    fn event_over(&mut self, stream: StreamId, event: EventId, ready: &mut Vec<Home>) {
        let mut last = false;
        while !last {
            let queue = self.queues.get_mut(&stream).expect("an event has a use");
            let over = queue.pop_front().expect("an event has a use");
            last = over.event == Some(event);
            ready.extend(self.use_over(over.entry));
        }
    }

    fn use_over(&mut self, id: u32) -> Option<Home> {
        let slot = &mut self.entries[id as usize];
        let entry = slot.as_mut().expect("an entry outlives its uses");
        entry.uses_left -= 1;
        if entry.uses_left > 0 {
            return None;
        }
        let home = entry.home;
        *slot = None;
        self.vacant.push(id);
        Some(home)
    }

    /// What ends the use that arrived first of all.
    pub(crate) fn next_wait(&self) -> Option<WaitFor> {
        let first = |queue: &&VecDeque<Use>| queue.front().map(|u| u.order);
        let oldest = self.queues.values().filter(|q| !q.is_empty()).min_by_key(first)?;
        Some(match first_event(oldest) {
            Some(event) => WaitFor::Event(event),
            None => WaitFor::Device { before: self.arrivals },
        })
    }

    /// The whole device has been waited for: uses without an event that arrived before number `before`
    /// are over.
    pub(crate) fn device_waited(&mut self, before: u64) -> Vec<Home> {
        let mut ready = Vec::new();
        let mut over = Vec::new();
        for queue in self.queues.values_mut() {
            while queue.front().is_some_and(|u| u.event.is_none() && u.order < before) {
                over.extend(queue.pop_front().map(|u| u.entry));
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        over.into_iter().for_each(|entry| ready.extend(self.use_over(entry)));
        ready
    }
}

/// The first event of a queue. It ends all uses before its own too: they were freed before it was
/// recorded.
fn first_event(queue: &VecDeque<Use>) -> Option<EventId> {
    queue.iter().find_map(|u| u.event)
}

/// An event the driver does not know any more is as good as released.
fn release(driver: &dyn Driver, event: EventId) -> Result<(), DriverError> {
    match driver.release_event(event) {
        Err(DriverError::UnknownEvent(_)) => Ok(()),
        other => other,
    }
}

/// Records an event on `stream`; `None` where it is being captured or is gone (then it is for
/// [`WaitFor::Device`]).
pub(crate) fn record(
    driver: &dyn Driver,
    stream: StreamId,
) -> Result<Option<EventId>, DriverError> {
    match driver.capture(stream) {
        Ok(Capture::None) => {}
        Ok(_) | Err(DriverError::UnknownStream(_)) => return Ok(None),
        Err(error) => return Err(error),
    }
    match driver.record_event(stream) {
        Ok(event) => Ok(Some(event)),
        Err(DriverError::UnknownStream(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

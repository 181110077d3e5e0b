//! Blocks freed while another thread held the lane's front: left in a queue, taken in by whoever holds
//! the front next. It knows neither front nor heap.
use crate::sync::{AtomicBool, Ordering, fence};
use aquifer_policies::BlockId;
use crossbeam_queue::SegQueue;

/// See the module's page.
pub(crate) struct Returned {
    queue: SegQueue<BlockId>,
    /// Readable without touching the queue; set after each push.
    any: AtomicBool,
    /// Whether the lane goes when its last block comes back.
    closing: AtomicBool,
}

impl Returned {
    pub(crate) fn new() -> Self {
        Returned {
            queue: SegQueue::new(),
            any: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        }
    }

    /// Says that the lane is to go: from now on nobody leaves a block without seeing that it is taken in.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Makes the queue one of a lane that stays.
    pub(crate) fn reopen(&self) {
        self.closing.store(false, Ordering::Relaxed);
    }

    /// Whether the lane goes when its last block comes back.
    #[inline(always)]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Leaves a block for whoever comes next; whether that is the caller, because the lane is closing or
    /// because `is_free` finds that its front is not held any more.
    ///
    /// The fence pairs with the one of [`Returned::close`]: either the closer finds the block in the
    /// queue, or this thread sees that the lane is closing.
    pub(crate) fn leave(&self, id: BlockId, is_free: impl FnOnce() -> bool) -> bool {
        self.queue.push(id);
        self.any.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.is_closing() || is_free()
    }

    /// Whether blocks wait in the queue.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Whether whoever frees a block has more to do here.
    #[inline(always)]
    pub(crate) fn calls(&self) -> bool {
        self.any() | self.is_closing()
    }

    /// A block that waited in the queue.
    #[cold]
    pub(crate) fn next(&self) -> Option<BlockId> {
        if let id @ Some(_) = self.queue.pop() {
            return id;
        }
        // Whoever pushes between these two says so again.
        self.any.swap(false, Ordering::AcqRel);
        let late = self.queue.pop();
        if late.is_some() {
            self.any.store(true, Ordering::Release);
        }
        late
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::Twin;
    use loom::sync::Arc;
    use loom::thread;

    struct Lane {
        twin: Twin<u32, u32>,
        returned: Returned,
    }

    impl Lane {
        fn new() -> Arc<Lane> {
            Arc::new(Lane { twin: Twin::new(0, 0), returned: Returned::new() })
        }

        fn take_in(&self) -> Vec<u32> {
            std::iter::from_fn(|| self.returned.next()).map(|id| id.0).collect()
        }

        fn leave(&self, id: u32) -> Vec<u32> {
            let is_mine = self.returned.leave(BlockId(id), || self.twin.try_front().is_some());
            if is_mine { self.take_in() } else { Vec::new() }
        }
    }

    #[test]
    fn loom_a_block_left_while_the_front_is_held_is_found_once() {
        loom::model(|| {
            let lane = Lane::new();
            let other = lane.clone();
            let leaver = thread::spawn(move || other.leave(0));
            let front = lane.twin.try_front();
            let mut found = if lane.returned.any() { lane.take_in() } else { Vec::new() };
            drop(front);
            found.extend(leaver.join().expect("no panic"));
            assert!(found == [0] || lane.returned.any(), "a block waits and nobody is told");
            found.extend(lane.take_in());
            assert_eq!(found, [0]);
        });
    }

    #[test]
    fn loom_two_leavers_lose_no_block() {
        loom::model(|| {
            let lane = Lane::new();
            let leavers = [0, 1].map(|id| {
                let lane = lane.clone();
                thread::spawn(move || lane.leave(id))
            });
            let mut found: Vec<u32> =
                leavers.into_iter().flat_map(|l| l.join().expect("no panic")).collect();
            assert!(found.len() == 2 || lane.returned.any(), "a block waits and nobody is told");
            found.extend(lane.take_in());
            found.sort_unstable();
            assert_eq!(found, [0, 1]);
        });
    }

    #[test]
    fn loom_a_closing_lane_strands_no_block() {
        loom::model(|| {
            let lane = Lane::new();
            let other = lane.clone();
            let leaver = thread::spawn(move || other.leave(7));
            let front = lane.twin.try_front();
            lane.returned.close();
            drop(front);
            let mut found = lane.take_in();
            found.extend(leaver.join().expect("no panic"));
            assert_eq!(found, [7], "the closer or the leaver takes it in");
        });
    }
}

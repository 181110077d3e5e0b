//! An allocator on a simulated device beside a naive model: what programs do goes to both, and after
//! each thing done everything that can be asked is compared.
#![allow(dead_code, reason = "each test binary uses a part")]
macro_rules! ensure {
    ($claim:expr, $($text:tt)+) => {
        if !$claim {
            return Err(format!($($text)+));
        }
    };
}

mod blocks;
mod checks;
pub mod ops;
pub mod ordered;

use aquifer::driver::faulty::Faulty;
use aquifer::driver::sim::{Device, Sim, Span};
use aquifer::driver::{EventId, StreamId};
use aquifer::{AllocError, Allocation, Allocator, Backing, Cap, Pool};
pub use ops::Op;
use ordered::{Clock, Ordered};
use std::sync::Arc;

/// What an allocator and its device are made with.
#[derive(Clone, Debug)]
pub struct Setup {
    pub policy: &'static str,
    pub paged: bool,
    pub front: bool,
    pub share_streams: bool,
    pub slack: Option<f64>,
    pub cached_bytes_cap: Option<u64>,
    pub capacity: u64,
    pub granularity: u64,
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            policy: "first-fit",
            paged: true,
            front: true,
            share_streams: true,
            slack: None,
            cached_bytes_cap: None,
            capacity: 128 << 20,
            granularity: 2 << 20,
            seed: 0,
        }
    }
}

/// How a live block is held.
enum Grip {
    Handle(Allocation),
    Raw(u64),
}

/// A block in a caller's hands.
struct Live {
    grip: Grip,
    pool: usize,
    home: StreamId,
    span: Span,
    requested: u64,
    used_on: Vec<StreamId>,
    /// Work of earlier owners that may not be done.
    inherited: Clock,
}

/// Bytes that somebody gave back, and the work that may still use them.
struct Left {
    span: Span,
    uses: Clock,
}

/// A block that was given back while other streams were known to use it.
struct Waiting {
    bytes: u64,
    events: Vec<EventId>,
    /// A stream of the uses is gone: no event can say when it is over.
    unmarked: bool,
}

/// Sums that the allocator must agree with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub allocated: u64,
    pub requested: u64,
    pub active: u64,
    pub blocks: u64,
}

impl Sums {
    fn raise(&mut self, now: &Sums) {
        self.allocated = self.allocated.max(now.allocated);
        self.requested = self.requested.max(now.requested);
        self.active = self.active.max(now.active);
        self.blocks = self.blocks.max(now.blocks);
    }
}

/// See the module's page.
pub struct Checked {
    setup: Setup,
    pub device: Arc<Device>,
    pub driver: Arc<Ordered>,
    pub faults: Arc<Faulty<Arc<Ordered>>>,
    pub allocator: Allocator,
    /// Closed ones stay as `None`, so that each pool has its number for good.
    pools: Vec<Option<Pool>>,
    streams: Vec<StreamId>,
    live: Vec<Live>,
    left: Vec<Left>,
    waiting: Vec<Waiting>,
    /// The stream being captured. It is given no work: what is captured never runs here.
    captured: Option<StreamId>,
    cap: Option<u64>,
    other_use: u64,
    peak: Sums,
    freed_raw: Vec<u64>,
    /// Whether driver failures are planned: then they may show.
    pub may_fail: bool,
    /// Added to what the model says is allocated: a lie that the checks must find.
    pub lie_bytes: u64,
    pub counts: Counts,
}

/// What happened, to see that a run was worth its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub ops: u64,
    pub allocated: u64,
    pub out_of_memory: u64,
    pub driver_errors: u64,
    pub reused_from_other_work: u64,
}

impl Checked {
    pub fn new(setup: &Setup) -> Checked {
        let sim = Sim::builder()
            .capacity(setup.capacity)
            .granularity(setup.granularity)
            .seed(setup.seed)
            .build()
            .expect("the suite's own device");
        let device = sim.device(0).expect("there is one device");
        let driver = Arc::new(Ordered::new(device.clone()));
        let faults = Arc::new(Faulty::new(driver.clone()));
        let mut builder = Allocator::builder(faults.clone())
            .policy(setup.policy)
            .backing(if setup.paged { Backing::Paged } else { Backing::Segments })
            .front_cache(setup.front)
            .share_streams(setup.share_streams);
        if let Some(slack) = setup.slack {
            builder = builder.slack(slack);
        }
        if let Some(bytes) = setup.cached_bytes_cap {
            builder = builder.cached_bytes_cap(bytes);
        }
        let allocator = builder.build().expect("the suite's own settings");
        let streams = vec![StreamId(0), device.create_stream(), device.create_stream()];
        Checked {
            setup: setup.clone(),
            device,
            driver,
            faults,
            pools: vec![None, Some(allocator.pool("one"))],
            allocator,
            streams,
            live: Vec::new(),
            left: Vec::new(),
            waiting: Vec::new(),
            captured: None,
            cap: None,
            other_use: 0,
            peak: Sums::default(),
            freed_raw: Vec::new(),
            may_fail: false,
            lie_bytes: 0,
            counts: Counts::default(),
        }
    }

    /// Does `op` and checks everything.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn apply(&mut self, op: &Op) -> Result<(), String> {
        self.counts.ops += 1;
        self.act(op).and_then(|()| self.check()).map_err(|what| format!("{op:?}: {what}"))
    }

    fn act(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Allocate { pool, stream, bytes, align } => {
                return self.allocate(pool, stream, bytes, align);
            }
            Op::Free { nth } => {
                if let Some(at) = pick(&self.live, nth) {
                    return self.free(at);
                }
            }
            Op::Record { nth, stream } => return self.record(nth, stream),
            Op::Launch { stream, nth } => self.launch(stream, nth),
            Op::Step { pieces } => {
                let _ran = (0..=pieces).take_while(|_| self.device.step()).count();
            }
            Op::Finish => self.device.run_all(),
            Op::EmptyCache => return self.empty_cache(),
            Op::TrimPool { pool } => {
                if let Some(Some(pool)) = pick(&self.pools, pool).map(|at| self.pools[at].clone()) {
                    self.tolerate(pool.empty_cache().map(drop))?;
                }
            }
            Op::Cap { bytes } => {
                self.cap = bytes;
                self.allocator.set_cap(bytes.map(Cap::bytes)).map_err(|e| e.to_string())?;
            }
            Op::OtherUse { bytes } => {
                self.other_use = bytes;
                self.device.set_other_use(bytes);
            }
            Op::OpenPool => self.pools.push(Some(self.allocator.pool("another"))),
            Op::ClosePool { pool } => {
                if let Some(at) = pick(&self.pools, pool) {
                    self.pools[at] = None;
                }
            }
            Op::OpenStream => self.streams.push(self.device.create_stream()),
            Op::CloseStream { stream } => self.close_stream(stream),
            Op::ResetPeak => {
                self.allocator.reset_peak();
                self.driver.reset_peak();
                self.peak = Sums { active: self.allocator.memory_active(), ..self.sums() };
            }
            Op::Stats => return self.check_stats(),
            Op::IntoRaw { nth } => self.turn_into_raw(nth),
            Op::BadFrees { nth } => return self.bad_frees(nth),
            Op::Mark => self.allocator.mark("step"),
            Op::Capture { stream } => return self.toggle_capture(stream),
        }
        Ok(())
    }

    fn toggle_capture(&mut self, stream: u8) -> Result<(), String> {
        match self.captured.take() {
            Some(stream) => {
                let ended = self.device.end_capture(stream).map(drop);
                ended.map_err(|error| format!("a capture was spoiled: {error}"))
            }
            None => {
                let stream = self.streams[stream as usize % self.streams.len()];
                // The allocator asks only about streams it knows.
                let _fit = self.allocator.would_fit(1, stream);
                self.captured = Some(stream);
                self.device.begin_capture(stream).map(drop).map_err(|error| error.to_string())
            }
        }
    }

    /// An error that a planned driver failure explains is none, nor is a refusal during a capture.
    fn tolerate(&mut self, result: Result<(), AllocError>) -> Result<(), String> {
        match result {
            Err(AllocError::Driver(_)) if self.may_fail => {
                self.counts.driver_errors += 1;
                Ok(())
            }
            Err(AllocError::Capturing { .. }) if self.captured.is_some() => Ok(()),
            other => other.map_err(|error| error.to_string()),
        }
    }

    fn close_stream(&mut self, stream: u8) {
        // The default stream cannot be closed; two others always stay.
        if self.streams.len() > 3 {
            let at = 1 + stream as usize % (self.streams.len() - 1);
            if self.captured == Some(self.streams[at]) {
                return;
            }
            let stream = self.streams.remove(at);
            self.device.destroy_stream(stream).expect("the stream was open");
        }
    }

    fn launch(&mut self, stream: u8, nth: u8) {
        let stream = self.streams[stream as usize % self.streams.len()];
        if self.captured == Some(stream) {
            return;
        }
        let block = pick(&self.live, nth).map(|at| &self.live[at]);
        let may = block.filter(|b| b.home == stream || b.used_on.contains(&stream));
        self.driver.launch(stream, may.map(|b| b.span));
    }

    fn turn_into_raw(&mut self, nth: u8) {
        let Some(at) = pick(&self.live, nth) else { return };
        let live = self.live.remove(at);
        let grip = match live.grip {
            Grip::Handle(allocation) => Grip::Raw(allocation.into_raw()),
            raw => raw,
        };
        self.live.insert(at, Live { grip, ..live });
    }
}

/// Which of `from` is meant by `nth`, if there is any.
fn pick<T>(from: &[T], nth: u8) -> Option<usize> {
    (!from.is_empty()).then(|| nth as usize % from.len())
}

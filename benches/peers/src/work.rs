//! The work, the same for every subject, timed in CPU time of the calling thread.
use crate::Subject;
use aquifer::trace::Op;
use std::hint::black_box;

/// What a run of some work took.
pub struct Outcome {
    /// CPU ns for each pair or operation.
    pub ns_each: f64,
}

/// Work that any subject can do.
pub trait Run {
    fn name(&self) -> &'static str;
    fn pairs(&mut self, bytes: u64) -> Outcome;
    fn mix(&mut self, mix: &Mix) -> Outcome;
    fn replay(&mut self, trace: &Trace) -> Outcome;
}

/// CPU time of the calling thread in ns.
pub fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A thousand live blocks with sizes spread evenly in the logarithm, and which to replace by what.
pub struct Mix {
    start: Vec<u64>,
    replace: Vec<(usize, u64)>,
}

impl Mix {
    pub fn new(top: u64) -> Self {
        let mut state = 0x2545_F491_4F6C_DD1Du64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let (low, high) = (512f64.ln(), (top as f64).ln());
        let size =
            |r: u64| (low + (r >> 11) as f64 / (1u64 << 53) as f64 * (high - low)).exp() as u64;
        let start = (0..1000).map(|_| size(next())).collect();
        let replace = (0..100_000).map(|_| ((next() % 1000) as usize, size(next()))).collect();
        Mix { start, replace }
    }
}

/// A trace with its blocks numbered by slot.
pub struct Trace {
    pub name: String,
    ops: Vec<Step>,
    slots: usize,
}

enum Step {
    Allocate(u32, u64),
    Free(u32),
}

impl Trace {
    pub fn load(path: &str) -> Self {
        let trace =
            aquifer::trace::Trace::read(std::path::Path::new(path)).expect("a readable trace");
        let ops = trace
            .ops()
            .filter_map(|op| match op {
                Op::Alloc { slot, bytes, .. } => Some(Step::Allocate(slot.0, bytes.max(1))),
                Op::Free { slot } => Some(Step::Free(slot.0)),
                _ => None,
            })
            .collect();
        let name = path.rsplit('/').next().unwrap_or(path).replace(".trace.gz", "");
        Trace { name, ops, slots: trace.slots() }
    }
}

impl<S: Subject> Run for S {
    fn name(&self) -> &'static str {
        Subject::name(self)
    }

    fn pairs(&mut self, bytes: u64) -> Outcome {
        const PAIRS: u64 = 200_000;
        let start = cpu_ns();
        for _ in 0..PAIRS {
            let block = black_box(self.allocate(black_box(bytes)));
            self.free(block);
        }
        Outcome { ns_each: (cpu_ns() - start) as f64 / PAIRS as f64 }
    }

    fn mix(&mut self, mix: &Mix) -> Outcome {
        let mut live: Vec<Option<S::Block>> =
            mix.start.iter().map(|&b| Some(self.allocate(b))).collect();
        let start = cpu_ns();
        for &(at, bytes) in &mix.replace {
            if let Some(block) = live[at].take() {
                self.free(block);
            }
            live[at] = Some(self.allocate(bytes));
        }
        let ns = cpu_ns() - start;
        live.into_iter().flatten().for_each(|b| self.free(b));
        Outcome { ns_each: ns as f64 / mix.replace.len() as f64 }
    }

    fn replay(&mut self, trace: &Trace) -> Outcome {
        let mut live: Vec<Option<S::Block>> = Vec::new();
        live.resize_with(trace.slots, || None);
        let start = cpu_ns();
        for step in &trace.ops {
            match *step {
                Step::Allocate(slot, bytes) => live[slot as usize] = Some(self.allocate(bytes)),
                Step::Free(slot) => {
                    if let Some(block) = live[slot as usize].take() {
                        self.free(block);
                    }
                }
            }
        }
        let ns = cpu_ns() - start;
        live.into_iter().flatten().for_each(|b| self.free(b));
        Outcome { ns_each: ns as f64 / trace.ops.len() as f64 }
    }
}

//! The same work on aquifer and on pure sub-allocators (offsets only: no lock, no streams, no driver, no
//! statistics), in interleaved rounds of one process, in CPU time of the calling thread.
//!
//! `cargo run --release [--features vma] -- [TRACE...]`. The ratio to read is the last column of each
//! row: the median of ours over the median of offset-allocator's in the same run. Segments are never given
//! back here, as a sub-allocator's range is not; over pages the time of the simulated driver that maps and
//! unmaps them is in the figures.
mod ours;
mod peers;
mod work;

use aquifer::Backing;
use work::{Mix, Run, Trace};

/// One allocator under test.
pub trait Subject {
    /// A live block.
    type Block;
    /// Name in the table.
    fn name(&self) -> &'static str;
    /// Allocates, or panics: the work fits by construction.
    fn allocate(&mut self, bytes: u64) -> Self::Block;
    /// Frees.
    fn free(&mut self, block: Self::Block);
}

/// The first round warms up and is not counted.
const ROUNDS: usize = 9;

/// Median ns of each subject, in the order of [`subjects`].
type Medians = Vec<(&'static str, f64)>;

fn main() {
    let traces: Vec<Trace> = std::env::args().skip(1).map(|p| Trace::load(&p)).collect();
    println!(
        "{:<34} {:>14} {:>12} {:>12} {:>8}",
        "work", "subject", "median ns", "min ns", "ratio"
    );
    for (name, bytes) in
        [("512 B", 512), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("20 MiB", 20 << 20)]
    {
        compare(&format!("allocate+free {name}"), |subject| subject.pairs(bytes));
    }
    for (name, top) in [("1 MiB", 1u64 << 20), ("64 MiB", 64 << 20)] {
        let mix = Mix::new(top);
        compare(&format!("1,000 live, 512 B - {name}"), |subject| subject.mix(&mix));
    }
    let replays: Vec<Medians> =
        traces.iter().map(|trace| compare(&trace.name, |subject| subject.replay(trace))).collect();
    geometric_means(&replays);
    two_threads();
}

fn subjects() -> Vec<Box<dyn Run>> {
    vec![
        Box::new(peers::Offset::new()),
        Box::new(ours::Ours::new("first-fit", true, Backing::Segments, "first-fit")),
        Box::new(ours::Ours::new("first-fit", false, Backing::Segments, "ff, no front")),
        Box::new(ours::Ours::new("bins", true, Backing::Segments, "bins")),
        Box::new(ours::Ours::new("first-fit", true, Backing::Paged, "ff, pages")),
        Box::new(ours::Ours::new("bins", true, Backing::Paged, "bins, pages")),
        #[cfg(feature = "vma")]
        Box::new(peers::Vma::new()),
    ]
}

/// Prints a row for each subject; `work` answers the ns of each of its steps.
fn compare(name: &str, work: impl Fn(&mut dyn Run) -> f64) -> Medians {
    let mut subjects = subjects();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); subjects.len()];
    for round in 0..ROUNDS {
        for (subject, times) in subjects.iter_mut().zip(&mut times) {
            let ns = work(&mut **subject);
            if round > 0 {
                times.push(ns);
            }
        }
    }
    let base = median(&times[0]);
    let rows = subjects.iter().zip(&times).map(|(subject, times)| {
        let (middle, least) = (median(times), times.iter().copied().fold(f64::MAX, f64::min));
        let ratio = middle / base;
        println!("{name:<34} {:>14} {middle:>12.1} {least:>12.1} {ratio:>8.2}", subject.name());
        (subject.name(), middle)
    });
    rows.collect()
}

fn geometric_means(replays: &[Medians]) {
    let Some(first) = replays.first() else { return };
    let mean = |at: usize| {
        let sum: f64 = replays.iter().map(|medians| medians[at].1.ln()).sum();
        (sum / replays.len() as f64).exp()
    };
    for (at, (name, _)) in first.iter().enumerate() {
        let (ns, ratio) = (mean(at), mean(at) / mean(0));
        println!("{:<34} {name:>14} {ns:>12.1} {:>12} {ratio:>8.2}", "replays, geometric mean", "");
    }
}

/// CPU time per pair of two threads on two streams against one thread alone.
fn two_threads() {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        one.push(ours::threads(1));
        two.push(ours::threads(2));
    }
    for (name, times) in [("1 thread", &one), ("2 threads, 2 streams", &two)] {
        let (ns, ratio) = (median(times), median(times) / median(&one));
        let work = format!("allocate+free 64 KiB, {name}");
        println!("{work:<34} {:>14} {ns:>12.1} {:>12} {ratio:>8.2}", "first-fit", "");
    }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

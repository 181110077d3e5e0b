//! The same work on aquifer and on pure sub-allocators (offsets only: no lock, no streams, no driver, no
//! statistics), in interleaved rounds of one process, in CPU time of the calling thread.
//!
//! `cargo run --release [--features vma] -- [TRACE...]`. The ratio to read is the last column of each
//! row: the median of ours over the median of offset-allocator's in the same run.
mod ours;
mod peers;
mod work;

use work::{Mix, Outcome, Trace};

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

const ROUNDS: usize = 9;

fn main() {
    let traces: Vec<Trace> = std::env::args().skip(1).map(|p| Trace::load(&p)).collect();
    println!(
        "{:<34} {:>14} {:>12} {:>12} {:>8}",
        "work", "subject", "median ns", "min ns", "ratio"
    );
    for (name, bytes) in [
        ("pair 512 B", 512),
        ("pair 64 KiB", 64 << 10),
        ("pair 1 MiB", 1 << 20),
        ("pair 20 MiB", 20 << 20),
    ] {
        compare(name, "pair", |subject, _| subject.pairs(bytes));
    }
    for (name, top) in
        [("1,000 live, 512 B - 1 MiB", 1u64 << 20), ("1,000 live, 512 B - 64 MiB", 64 << 20)]
    {
        let mix = Mix::new(top);
        compare(name, "free+allocate", |subject, _| subject.mix(&mix));
    }
    for trace in &traces {
        compare(&trace.name, "op", |subject, _| subject.replay(trace));
    }
    if !traces.is_empty() {
        geometric_means();
    }
    two_threads();
}

use std::sync::Mutex;
static REPLAYS: Mutex<Vec<(&'static str, f64)>> = Mutex::new(Vec::new());

fn compare(name: &str, _per: &str, work: impl Fn(&mut dyn work::Run, usize) -> Outcome) {
    let mut subjects = subjects();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); subjects.len()];
    for round in 0..ROUNDS {
        for (subject, times) in subjects.iter_mut().zip(&mut times) {
            let outcome = work(&mut **subject, round);
            if round > 0 {
                times.push(outcome.ns_each);
            }
        }
    }
    let base = median(&times[0]);
    for (subject, times) in subjects.iter().zip(&times) {
        let (mid, min) = (median(times), times.iter().copied().fold(f64::MAX, f64::min));
        println!("{name:<34} {:>14} {mid:>12.1} {min:>12.1} {:>8.2}", subject.name(), mid / base);
        if _per == "op" {
            REPLAYS.lock().unwrap().push((subject.name(), mid));
        }
    }
}

fn geometric_means() {
    let all = REPLAYS.lock().unwrap();
    let mut names: Vec<&str> = Vec::new();
    all.iter().for_each(|r| {
        if !names.contains(&r.0) {
            names.push(r.0)
        }
    });
    let mean = |name: &str| {
        let of: Vec<f64> = all.iter().filter(|r| r.0 == name).map(|r| r.1.ln()).collect();
        (of.iter().sum::<f64>() / of.len() as f64).exp()
    };
    let base = mean(names[0]);
    for name in names {
        let m = mean(name);
        println!(
            "{:<34} {name:>14} {m:>12.1} {:>12} {:>8.2}",
            "geometric mean of replays",
            "",
            m / base
        );
    }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn subjects() -> Vec<Box<dyn work::Run>> {
    let mut all: Vec<Box<dyn work::Run>> = vec![
        Box::new(peers::Offset::new()),
        Box::new(ours::Ours::new("first-fit", true, "first-fit")),
        Box::new(ours::Ours::new("first-fit", false, "ff, no front")),
    ];
    if aquifer::policies::NAMES.contains(&"bins") {
        all.push(Box::new(ours::Ours::new("bins", true, "bins")));
    }
    #[cfg(feature = "vma")]
    all.push(Box::new(peers::Vma::new()));
    all
}

/// CPU time per pair of two threads on two streams against one thread alone.
fn two_threads() {
    let mut one = Vec::new();
    let mut two = Vec::new();
    for _ in 0..ROUNDS {
        one.push(ours::threads(1));
        two.push(ours::threads(2));
    }
    let (one, two) = (median(&one), median(&two));
    println!("{:<34} {:>14} {one:>12.1}", "pair 64 KiB, 1 thread", "first-fit");
    println!(
        "{:<34} {:>14} {two:>12.1} {:>12} {:>8.2}",
        "pair 64 KiB, 2 threads, 2 streams",
        "first-fit",
        "",
        two / one
    );
}

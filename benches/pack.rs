//! What does planning a recorded step cost: `pack_fast` on the buffers of one training step, and how near
//! to the most that live at one time does it come?
//!
//! Expected: under a millisecond where the lower bound is reached at once, else as long as it goes on
//! trying, up to half a second; heights from the bound itself to some percent above it. The buffers are those
//! between two marks in the middle of a bundled run, lifetimes counted in requests and cut at the ends of
//! the step, sizes rounded up to 512 bytes. The heights are printed first. It does not show how far the
//! bound is from the optimum.
//!
//! `cargo bench --features compress --bench pack`
use aquifer::policies::pack::{Buffer, lower_bound, pack_fast};
use aquifer::trace::{Op, Trace};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;

const TRACES: [&str; 3] = ["resnet50-b64-fp32", "netvlad-triplet-fp32", "yolov5s-b16-640-amp"];

/// The buffers that live in the trace's middle step.
fn step(trace: &Trace) -> Vec<Buffer> {
    let ops: Vec<Op> = trace.ops().collect();
    let marks: Vec<usize> =
        (0..ops.len()).filter(|at| matches!(ops[*at], Op::Mark { .. })).collect();
    let middle = marks.len() / 2;
    let (begin, end) = (marks[middle - 1] as u64, marks[middle] as u64);
    let mut buffers: Vec<Buffer> = Vec::new();
    let mut live: Vec<Option<usize>> = vec![None; trace.slots()];
    for (at, op) in ops.iter().enumerate() {
        match *op {
            Op::Alloc { slot, bytes, .. } => {
                live[slot.index()] = Some(buffers.len());
                let size = bytes.next_multiple_of(512);
                buffers.push(Buffer { lower: at as u64, upper: end, size });
            }
            Op::Free { slot } => {
                if let Some(freed) = live[slot.index()].take() {
                    buffers[freed].upper = at as u64;
                }
            }
            _ => {}
        }
    }
    let clip = |time: u64| time.clamp(begin, end);
    let clipped =
        buffers.iter().map(|b| Buffer { lower: clip(b.lower), upper: clip(b.upper), ..*b });
    clipped.filter(|buffer| buffer.lower < buffer.upper).collect()
}

fn plans(c: &mut Criterion) {
    let mut group = c.benchmark_group("pack_fast");
    for name in TRACES {
        let path = format!("{}/traces/{name}.trace.gz", env!("CARGO_MANIFEST_DIR"));
        let buffers = step(&Trace::read(path).expect("a bundled trace is right"));
        let height = pack_fast(&buffers).expect("the sizes add up").height;
        let bound = lower_bound(&buffers).expect("the sizes add up");
        let ratio = height as f64 / bound as f64;
        println!("{name}: {} buffers, height / most live {ratio:.4}", buffers.len());
        group.bench_function(name, |b| b.iter(|| pack_fast(black_box(&buffers))));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = plans
}
criterion_main!(benches);

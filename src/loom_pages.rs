//! Two threads over one set of pages, in every order of their steps that loom comes to: no block lies on a
//! page that was taken from under it, and what fits is served.
#![cfg(all(test, loom))]

use crate::driver::StreamId;
use crate::driver::sim::{Device, Sim, Span};
use crate::{Allocation, Allocator, Backing};
use loom::thread;
use std::sync::Arc;

const PAGE: u64 = 2 << 20;
/// Bytes of a thread's stack: loom's own are too small for a search through the heap.
const STACK: usize = 1 << 18;
/// How often a thread may be put aside where it need not be.
const PREEMPTIONS: usize = 3;

/// Runs `threads` in all orders on a device of so many pages, whose first stream has `idle` pages free that
/// all work is done with; the allocator is looked over when they have ended.
fn model(pages: u64, idle: u64, threads: [fn(&Allocator, StreamId) -> Vec<Allocation>; 2]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = 100_000;
    builder.check(move || {
        let main = thread::Builder::new().stack_size(STACK).spawn(move || {
            let device = Sim::builder().capacity(pages * PAGE).build().unwrap().device(0).unwrap();
            let streams = [StreamId(0), device.create_stream()];
            let allocator =
                Allocator::builder(device.clone()).backing(Backing::Paged).build().unwrap();
            // One block each, so that they stay apart.
            let idle: Vec<_> = (0..idle).map(|_| allocator.allocate(PAGE, streams[0])).collect();
            drop(idle);
            device.run_all();
            let allocator = Arc::new(allocator);
            let running: Vec<_> = (0..2)
                .map(|n| {
                    let (allocator, thread) = (allocator.clone(), threads[n]);
                    let run = move || thread(&allocator, streams[n]);
                    thread::Builder::new().stack_size(STACK).spawn(run).unwrap()
                })
                .collect();
            let live: Vec<Allocation> =
                running.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
            look_over(&allocator, &device, &live);
            drop(live);
            look_over(&allocator, &device, &[]);
        });
        main.unwrap().join().expect("no panic");
    });
}

fn look_over(allocator: &Allocator, device: &Device, live: &[Allocation]) {
    allocator.audit().expect("the books are sound");
    let mut spans: Vec<Span> =
        live.iter().map(|m| Span { address: m.address(), bytes: m.len() }).collect();
    spans.sort_by_key(|span| span.address);
    for span in &spans {
        assert!(device.is_accessible(*span, 0), "no memory under {span:?}");
    }
    for pair in spans.windows(2) {
        assert!(pair[0].address + pair[0].bytes <= pair[1].address, "{pair:?} overlap");
    }
}

fn one(allocator: &Allocator, stream: StreamId) -> Vec<Allocation> {
    vec![allocator.allocate(PAGE, stream).expect("there is a page for it")]
}

fn one_and_back(allocator: &Allocator, stream: StreamId) -> Vec<Allocation> {
    drop(one(allocator, stream));
    Vec::new()
}

fn emptied(allocator: &Allocator, _: StreamId) -> Vec<Allocation> {
    allocator.empty_cache().expect("nothing is captured");
    Vec::new()
}

/// One takes the idle page by a hit, the other steals it or has a new one; both are served.
#[test]
fn loom_a_page_is_hit_or_stolen() {
    model(2, 1, [one, one]);
}

/// The last page goes from a thread that frees it to one that waits for nothing but that.
#[test]
fn loom_a_page_is_freed_while_it_is_looked_for() {
    model(2, 2, [one_and_back, one]);
}

/// The cache is emptied while one of its pages is hit and the other lacks.
#[test]
fn loom_the_cache_is_emptied_while_a_page_is_hit() {
    model(2, 2, [one, emptied]);
}

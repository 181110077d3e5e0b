//! A policy of one's own, worst fit: each request takes the largest free block, so that what is left is
//! large too. `cargo run --example own_policy`
use aquifer::Allocator;
use aquifer::driver::{StreamId, sim::Sim};
use aquifer::policies::{Band, BlockId, Cut, FreeBlock, Freed, GRAIN, Place, Policy, Request};
use std::collections::BTreeMap;

#[derive(Default)]
struct WorstFit {
    free: BTreeMap<BlockId, FreeBlock>,
}

impl Policy for WorstFit {
    fn band(&self, size: u64) -> Band {
        Band { index: 0, size: size.next_multiple_of(GRAIN), front: true }
    }

    fn place(&self, request: &Request) -> Place {
        let fits = self.free.values().filter(|block| block.fits(request.size, request.align));
        // The largest; of equals the one at the lowest address.
        match fits.max_by_key(|block| (block.size, std::cmp::Reverse(block.address))) {
            Some(b) => {
                Place::Reuse { block: b.id, skip: b.skip_to(request.align), take: request.size }
            }
            None => Place::Grow { bytes: request.size.max(64 << 20) },
        }
    }

    fn taken(&mut self, cut: &Cut) {
        self.free.remove(&cut.from.id);
        self.free.extend([cut.front(), cut.tail()].into_iter().flatten().map(|b| (b.id, b)));
    }

    fn freed(&mut self, freed: &Freed) {
        for gone in [freed.before(), freed.after()].into_iter().flatten() {
            self.free.remove(&gone.id);
        }
        self.free.insert(freed.result.id, freed.result);
    }

    fn released(&mut self, block: FreeBlock) {
        self.free.remove(&block.id);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Sim::builder().capacity(8 << 30).build()?.device(0).expect("there is one");
    let make = || -> Box<dyn Policy> { Box::new(WorstFit::default()) };
    let allocator = Allocator::builder(device).policy_with("worst-fit", make).build()?;
    let sizes = (1..200u64).map(|i| i * i * 7919 % (5 << 20) + 1);
    let blocks = sizes.map(|bytes| allocator.allocate(bytes, StreamId(0)));
    let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
    let kept: Vec<_> = blocks.into_iter().step_by(2).collect();
    println!("{} blocks kept\n{}", kept.len(), allocator.memory_summary());
    Ok(())
}

//! One suite over every policy: random lists of operations and hand-made cases on a model heap that
//! checks each answer against all free blocks there are.
mod model;

use aquifer_policies::{
    BANDS_MAX, BlockId, GRAIN, NAMES, Place, Policy, PolicySpec, Request, SIZE_MAX,
};
use model::{Finds, Model, promise};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Variants beside the defaults.
const VARIANTS: &[&str] = &[
    "first-fit:small=0,grow=0.5,floor=64KiB,small-floor=64KiB",
    "best-fit:grow=0,floor=512,small-floor=512",
    "size-classes:steps=16,small=4KiB",
    "size-classes:steps=1",
    "bins:small=64KiB",
];

fn specs() -> impl Iterator<Item = PolicySpec> {
    let texts = NAMES.iter().chain(VARIANTS);
    texts.map(|text| PolicySpec::parse(text).expect("the suite's own spec"))
}

fn model(spec: &PolicySpec) -> Model<Box<dyn Policy>> {
    Model::new(spec.build(), promise(spec.name()))
}

#[derive(Clone, Debug)]
enum Op {
    Allocate { size: u64, align: u64, room: u64, site: u64 },
    Free { nth: usize },
    Release { nth: usize },
    Mark,
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => (0u32..16, any::<u64>()).prop_map(|(bits, low)| 512 + low % (1 << (9 + bits))),
        4 => prop::sample::select(vec![512, 1000, 4096, 6 << 10, 1 << 16, 1 << 20, 5 << 20]),
        1 => (1u64..=64).prop_map(|gib| gib << 30),
        1 => (0u32..=62, any::<u64>()).prop_map(|(bits, low)| ((1 << bits) | (low % (1 << bits))).min(SIZE_MAX)),
    ]
}

fn ops(count: usize) -> impl Strategy<Value = Vec<Op>> {
    let align = prop_oneof![5 => Just(9u32), 2 => 10u32..=21];
    let room = prop_oneof![4 => Just(u64::MAX), 1 => Just(0), 1 => 0u64..1 << 30];
    let op = prop_oneof![
        10 => (sizes(), align, room, any::<u64>())
            .prop_map(|(size, align, room, site)| Op::Allocate { size, align: 1 << align, room, site }),
        8 => any::<usize>().prop_map(|nth| Op::Free { nth }),
        1 => any::<usize>().prop_map(|nth| Op::Release { nth }),
        1 => Just(Op::Mark),
    ];
    prop::collection::vec(op, 1..count)
}

/// Addresses to try for a new segment: near each other or anywhere, mostly multiples of 2 MiB.
fn sites(seed: u64) -> impl Iterator<Item = u64> {
    (0..64u64).map(move |try_| {
        let mixed = (seed ^ try_).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let reach = [1 << 30, 1 << 37, 1 << 47, u64::MAX][(seed % 4) as usize];
        let step = if seed % 16 < 13 { 2 << 20 } else { GRAIN };
        mixed % reach / step * step
    })
}

/// Runs a list of operations, then frees and releases everything, and answers what was answered.
fn run(spec: &PolicySpec, ops: &[Op]) -> Result<Vec<Place>, String> {
    let mut model = model(spec);
    let mut live: Vec<BlockId> = vec![];
    for (step, op) in ops.iter().enumerate() {
        match *op {
            Op::Allocate { size, align, room, site } => {
                live.extend(model.allocate(size, align, room, sites(site))?);
            }
            Op::Free { .. } if live.is_empty() => {}
            Op::Free { nth } => model.free(live.swap_remove(nth % live.len())),
            Op::Release { nth } => drop(model.release_one(nth)),
            Op::Mark => model.policy().mark(step as u64),
        }
    }
    live.into_iter().for_each(|block| model.free(block));
    while model.release_one(0) {}
    match model.ask(&request(GRAIN))? {
        Place::Grow { .. } => Ok(model.answers),
        place => Err(format!("nothing is free, but {place:?}")),
    }
}

fn request(size: u64) -> Request {
    Request::new(size, GRAIN)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn random_operations_get_right_answers_twice(ops in ops(300)) {
        for spec in specs() {
            let first = run(&spec, &ops).map_err(|why| TestCaseError::fail(format!("{spec}: {why}")))?;
            prop_assert_eq!(&first, &run(&spec, &ops).unwrap(), "{} is not deterministic", spec);
        }
    }

    #[test]
    fn bands_round_up_to_grains_alike_in_every_instance(size in 1..=SIZE_MAX, bits in 0u32..62) {
        for size in [size, (size >> bits).max(1), GRAIN, SIZE_MAX] {
            for spec in specs() {
                let policy = spec.build();
                let band = policy.band(size);
                prop_assert!(band.size >= size && band.size.is_multiple_of(GRAIN));
                prop_assert!(band.size <= SIZE_MAX && (band.index as usize) < BANDS_MAX);
                prop_assert_eq!(policy.band(band.size).size, band.size, "{} rounds twice", spec);
                prop_assert_eq!(policy.band(band.size).index, band.index);
                prop_assert_eq!(spec.build().band(size), band);
                prop_assert_eq!(band.front, spec.name() != "never-cache");
            }
        }
    }
}

/// A short pseudo-random sequence that is the same everywhere.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn hundreds_of_blocks_stay_found() {
    for spec in specs().take(NAMES.len()).filter(|spec| promise(spec.name()) != Finds::Nothing) {
        let mut model = model(&spec);
        let mut sequence = Sequence(7);
        let allocate = |model: &mut Model<_>, sequence: &mut Sequence| {
            let bits = 9 + sequence.below(6);
            let size = GRAIN + sequence.below(1 << bits);
            let align = GRAIN << (sequence.below(40) / 36 * 3);
            let site = (1 + model.answers.len() as u64) << 28;
            model.allocate(size, align, u64::MAX, [site]).unwrap().expect("there is room")
        };
        let mut live: Vec<_> = (0..900).map(|_| allocate(&mut model, &mut sequence)).collect();
        for round in 0..4 {
            for _ in 0..400 {
                let nth = sequence.below(live.len() as u64) as usize;
                model.free(live.swap_remove(nth));
            }
            for _ in 0..[250, 600, 50, 700][round] {
                live.push(allocate(&mut model, &mut sequence));
            }
        }
        live.into_iter().for_each(|block| model.free(block));
        while model.release_one(0) {}
        assert!(matches!(model.ask(&request(GRAIN)), Ok(Place::Grow { .. })), "{spec}");
    }
}

#[test]
fn hundreds_of_equal_blocks_stay_found() {
    for spec in specs().filter(|spec| promise(spec.name()) != Finds::Nothing) {
        let mut model = model(&spec);
        let allocate = |model: &mut Model<_>, grains: u64, align| {
            let site = (1 + model.answers.len() as u64) << 28;
            model.allocate(grains * GRAIN, align, u64::MAX, [site]).unwrap().expect("there is room")
        };
        let blocks: Vec<_> = (0..400).map(|_| allocate(&mut model, 128, GRAIN)).collect();
        blocks.iter().step_by(2).for_each(|&block| model.free(block));
        let mut live: Vec<_> = blocks.into_iter().skip(1).step_by(2).collect();
        for i in 0..100 {
            live.push(allocate(&mut model, [128, 127, 100, 129, 64][i % 5], GRAIN << (i % 12)));
            model.free(live.swap_remove(i * 7 % live.len()));
            live.push(allocate(&mut model, 128, GRAIN));
        }
        live.into_iter().for_each(|block| model.free(block));
        while model.release_one(0) {}
        assert!(matches!(model.ask(&request(GRAIN)), Ok(Place::Grow { .. })), "{spec}");
    }
}

#[test]
fn a_freed_block_is_found_again_at_every_size() {
    for spec in specs().filter(|spec| promise(spec.name()) != Finds::Nothing) {
        for bits in 0..=62 {
            for size in [(1 << bits) - 1, 1 << bits, (1 << bits) + 1] {
                if !(1..=SIZE_MAX).contains(&size) {
                    continue;
                }
                let mut model = model(&spec);
                let block = model.allocate(size, GRAIN, 0, [1 << 62]).unwrap().unwrap();
                model.free(block);
                let size = model.policy().band(size).size;
                let place = model.ask(&request(size)).unwrap();
                assert!(matches!(place, Place::Reuse { .. }), "{spec}: {size}: {place:?}");
            }
        }
    }
}

#[test]
fn blocks_beyond_a_tebibyte_are_compared_exactly() {
    const TIB: u64 = 1 << 40;
    for spec in specs() {
        let mut model = model(&spec);
        let sizes = [3 * TIB, 2 * TIB, TIB - GRAIN, 512 << 30, TIB, 4096];
        let blocks: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, &size)| {
                let site = (i as u64 + 1) << 50;
                model.allocate(size, GRAIN, 0, [site]).unwrap().unwrap()
            })
            .collect();
        blocks.iter().for_each(|block| model.free(*block));
        for size in [TIB, TIB + GRAIN, 2 * TIB, 5 * TIB / 2, 3 * TIB, 4 * TIB, TIB - GRAIN, 512] {
            let size = model.policy().band(size).size;
            for align in [GRAIN, 2 << 20] {
                model.ask(&Request { align, ..request(size) }).unwrap();
            }
        }
        let again = model.allocate(5 * TIB / 2, 4096, 0, [9 << 50]).unwrap().unwrap();
        model.allocate(TIB, 2 << 20, 0, [10 << 50]).unwrap().unwrap();
        model.free(again);
        model.ask(&request(2 * TIB)).unwrap();
    }
}

/// A policy whose answers are twisted on the way out.
struct Wrong<F> {
    inner: Box<dyn Policy>,
    twist: F,
}

impl<F: Fn(Place) -> Place + Send> Policy for Wrong<F> {
    fn band(&self, size: u64) -> aquifer_policies::Band {
        self.inner.band(size)
    }
    fn place(&self, request: &Request) -> Place {
        (self.twist)(self.inner.place(request))
    }
    fn taken(&mut self, cut: &aquifer_policies::Cut) {
        self.inner.taken(cut);
    }
    fn freed(&mut self, freed: &aquifer_policies::Freed) {
        self.inner.freed(freed);
    }
    fn released(&mut self, block: aquifer_policies::FreeBlock) {
        self.inner.released(block);
    }
}

/// Allocates two blocks, frees the first and asks for it again; answers the model's complaint.
fn complaint(finds: Finds, twist: impl Fn(Place) -> Place + Send) -> String {
    let inner = PolicySpec::parse("first-fit").unwrap().build();
    let mut model = Model::new(Wrong { inner, twist }, finds);
    let outcome = (|| {
        let first = model.allocate(4096, GRAIN, u64::MAX, sites(0))?;
        model.allocate(4096, GRAIN, u64::MAX, sites(0))?;
        model.free(first.ok_or("no room")?);
        model.allocate(8192, 4096, u64::MAX, sites(0))
    })();
    outcome.err().unwrap_or_default()
}

type Change = fn(&mut BlockId, &mut u64, &mut u64);

/// The canary: the suite must notice each kind of wrong answer.
#[test]
fn wrong_answers_are_noticed() {
    assert_eq!(complaint(Finds::Lowest, |place| place), "");
    let twist = |change: Change| {
        move |place| match place {
            Place::Reuse { mut block, mut skip, mut take } => {
                change(&mut block, &mut skip, &mut take);
                Place::Reuse { block, skip, take }
            }
            grow => grow,
        }
    };
    let faults: [(&str, Change); 6] = [
        ("not free", |block, _, _| block.0 += 1),
        ("goes beyond", |_, skip, _| *skip = 20 << 20),
        ("goes beyond", |_, skip, _| *skip = u64::MAX),
        ("takes too little", |_, _, take| *take -= GRAIN),
        ("not in grains", |_, _, take| *take += 1),
        ("misaligned", |_, skip, _| *skip += GRAIN),
    ];
    for (why, change) in faults {
        let complaint = complaint(Finds::Any, twist(change));
        assert!(complaint.contains(why), "{why}: {complaint}");
    }
    let small = complaint(Finds::Any, |_| Place::Grow { bytes: GRAIN });
    assert!(small.contains("too little"), "{small}");
    let blind = complaint(Finds::Any, |_| Place::Grow { bytes: 1 << 30 });
    assert!(blind.contains("would do"), "{blind}");
    let calls = std::sync::atomic::AtomicU64::new(1);
    let fickle = complaint(Finds::Any, move |_| Place::Grow {
        bytes: (1 << 30) + calls.fetch_add(GRAIN, std::sync::atomic::Ordering::Relaxed),
    });
    assert!(fickle.contains("then"), "{fickle}");
}

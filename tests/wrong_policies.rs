//! Policies of the user's own that are wrong: an error, never an overlap, and nothing is lost. They are
//! also the canary: a model that is lied to must say so.
mod checked;

use aquifer::driver::StreamId;
use aquifer::driver::sim::{Device, Sim};
use aquifer::policies::{
    Band, BlockId, Cut, FreeBlock, Freed, GRAIN, Place, Policy, PolicySpec, Request,
};
use aquifer::{AllocError, Allocation, Allocator};
use checked::{Checked, Counts, Op, Setup, ops::program};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;
const STREAM: StreamId = StreamId(0);

/// First fit, with answers changed on their way out.
struct Changed<P, B> {
    inner: Box<dyn Policy>,
    place: P,
    band: B,
    keeps: bool,
}

impl<P, B> Policy for Changed<P, B>
where
    P: Fn(&Request, Place) -> Place + Send,
    B: Fn(Band, u64) -> Band + Send,
{
    fn band(&self, size: u64) -> Band {
        (self.band)(self.inner.band(size), size)
    }

    fn place(&self, request: &Request) -> Place {
        (self.place)(request, self.inner.place(request))
    }

    fn taken(&mut self, cut: &Cut) {
        self.inner.taken(cut);
    }

    fn freed(&mut self, freed: &Freed) {
        self.inner.freed(freed);
    }

    fn released(&mut self, block: FreeBlock) {
        self.inner.released(block);
    }

    fn keeps(&self, _: FreeBlock) -> bool {
        self.keeps
    }
}

fn device() -> Arc<Device> {
    Sim::builder().capacity(256 * MIB).build().unwrap().device(0).unwrap()
}

fn with_policy<P, B>(device: &Arc<Device>, place: P, band: B) -> Allocator
where
    P: Fn(&Request, Place) -> Place + Send + Sync + Clone + 'static,
    B: Fn(Band, u64) -> Band + Send + Sync + Clone + 'static,
{
    let make = move || -> Box<dyn Policy> {
        let inner = PolicySpec::default().build();
        Box::new(Changed { inner, place: place.clone(), band: band.clone(), keeps: true })
    };
    Allocator::builder(device.clone()).policy_with("wrong", make).build().unwrap()
}

/// Allocates with a policy that is right `right` times and then wrong; what came of it.
fn wrong_after(right: u64, wrong: fn(Place) -> Place) -> (Vec<AllocError>, Vec<Allocation>) {
    let device = device();
    let asked = Arc::new(AtomicU64::new(0));
    let place = move |_: &Request, place| match place {
        Place::Grow { .. } => place,
        reuse if asked.fetch_add(1, Ordering::Relaxed) < right => reuse,
        reuse => wrong(reuse),
    };
    let allocator = with_policy(&device, place, |band, _| band);
    let (mut errors, mut memory) = (Vec::new(), Vec::<Allocation>::new());
    for i in 0..20 {
        match allocator.allocate_aligned(600 + i, 4096, STREAM) {
            Ok(block) => {
                let apart = |other: &Allocation| {
                    other.address() + other.len() <= block.address()
                        || block.address() + block.len() <= other.address()
                };
                assert!(memory.iter().all(apart), "a range was given twice");
                memory.push(block);
            }
            Err(error) => errors.push(error),
        }
        allocator.audit().unwrap();
    }
    (errors, memory)
}

#[test]
fn each_wrong_answer_is_an_error_that_names_the_policy() {
    type Twist = fn(Place) -> Place;
    let wrongs: [(&str, Twist); 6] = [
        ("not free", |p| change(p, |_, skip, take| (BlockId(u32::MAX), skip, take))),
        ("not free", |p| change(p, |_, skip, take| (BlockId(0), skip, take)).used()),
        ("no multiple of 512", |p| change(p, |b, skip, take| (b, skip + 1, take))),
        ("fewer bytes", |p| change(p, |b, skip, take| (b, skip, take - GRAIN))),
        ("more bytes", |p| change(p, |b, skip, _| (b, skip, 1 << 60))),
        ("not aligned", |p| change(p, |b, skip, take| (b, skip + GRAIN, take))),
    ];
    for (text, wrong) in wrongs {
        let (errors, memory) = wrong_after(3, wrong);
        assert!(!errors.is_empty() && !memory.is_empty(), "{text}");
        for error in errors {
            let AllocError::Policy { policy, what } = &error else { panic!("{text}: {error}") };
            assert!(policy == "wrong" && what.contains(text), "{text}: {error}");
        }
    }
}

fn change(place: Place, how: fn(BlockId, u64, u64) -> (BlockId, u64, u64)) -> Place {
    let Place::Reuse { block, skip, take } = place else { return place };
    let (block, skip, take) = how(block, skip, take);
    Place::Reuse { block, skip, take }
}

/// Names a block that is surely handed out: the first taken of a fresh heap has id 1.
trait Used {
    fn used(self) -> Place;
}

impl Used for Place {
    fn used(self) -> Place {
        change(self, |_, _, take| (BlockId(1), 0, take))
    }
}

#[test]
fn a_band_smaller_than_the_request_never_gives_less_memory() {
    let small = |band: Band, size| if size == 777 { Band { size: GRAIN, ..band } } else { band };
    let odd = |band: Band, size| if size == 777 { Band { size: 1000, ..band } } else { band };
    let far = |band: Band, size| if size == 777 { Band { index: 200, ..band } } else { band };
    let huge = |band: Band, size| if size == 777 { Band { size: !511, ..band } } else { band };
    let bands: [fn(Band, u64) -> Band; 4] = [small, odd, far, huge];
    for band in bands {
        let device = device();
        let allocator = with_policy(&device, |_, place| place, band);
        drop(allocator.allocate(512, STREAM).unwrap());
        for align in [1, MIB] {
            match allocator.allocate_aligned(777, align, STREAM) {
                Ok(memory) => panic!("{} bytes for 777", memory.block_bytes()),
                Err(AllocError::Policy { .. } | AllocError::OutOfMemory(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        allocator.audit().unwrap();
    }
}

#[test]
fn a_segment_of_any_size_may_be_asked_for() {
    for bytes in [0, 1, 513, MIB + 1, 1 << 63, u64::MAX - 1, u64::MAX] {
        let device = device();
        let place = move |_: &Request, place| match place {
            Place::Grow { .. } => Place::Grow { bytes },
            reuse => reuse,
        };
        let allocator = with_policy(&device, place, |band, _| band);
        match allocator.allocate(3000, STREAM) {
            Ok(memory) => assert!(memory.block_bytes() >= 3000),
            Err(error) => assert!(matches!(error, AllocError::Policy { .. }), "{error}"),
        }
        allocator.audit().unwrap();
        allocator.empty_cache().unwrap();
        drop(allocator);
        assert_eq!(device.used_bytes(), 0);
    }
}

#[test]
fn a_policy_that_turns_wrong_while_it_keeps_nothing_loses_nothing() {
    let device = device();
    let asked = Arc::new(AtomicU64::new(0));
    let make = move || -> Box<dyn Policy> {
        let asked = asked.clone();
        let place = move |_: &Request, place| {
            let turned = asked.fetch_add(1, Ordering::Relaxed) > 6;
            if turned { change(place, |b, skip, take| (b, skip + 1, take)) } else { place }
        };
        let inner = PolicySpec::default().build();
        Box::new(Changed { inner, place, band: |band, _| band, keeps: false })
    };
    let allocator = Allocator::builder(device.clone()).policy_with("wrong", make).build().unwrap();
    for i in 0..40 {
        let held = [allocator.allocate(700, STREAM), allocator.allocate(3 * MIB + i, STREAM)];
        drop(held);
        allocator.audit().unwrap();
        assert_eq!(allocator.memory_reserved(), device.used_bytes());
    }
    drop(allocator);
    assert_eq!(device.used_bytes(), 0);
}

#[test]
fn canary_a_model_that_is_lied_to_says_so() {
    let mut checked = Checked::new(&Setup::default());
    checked.apply(&Op::Allocate { pool: 0, stream: 0, bytes: 1, align: 1 }).unwrap();
    checked.lie_bytes = 512;
    let what = checked.apply(&Op::Mark).unwrap_err();
    assert_eq!(what, "Mark: 512 bytes allocated, not 1024");
}

#[test]
fn canary_reuse_that_waits_for_nobody_is_seen() {
    let mut checked = Checked::new(&Setup { front: false, ..Setup::default() });
    let allocate = Op::Allocate { pool: 0, stream: 1, bytes: MIB, align: 1 };
    checked.apply(&allocate).unwrap();
    checked.apply(&Op::Launch { stream: 2, nth: 255 }).unwrap();
    // The model knows of a use on stream 2 that the allocator was never told of.
    checked.secret_use(0, 2);
    checked.apply(&Op::Free { nth: 0 }).unwrap();
    let what = checked.apply(&allocate).unwrap_err();
    assert!(what.contains("before work"), "{what}");
}

#[test]
fn canary_memory_that_is_not_given_back_is_seen() {
    let checked = Checked::new(&Setup::default());
    let device = checked.device.clone();
    aquifer::driver::Driver::allocate(&*device, 2 * MIB).unwrap();
    let what = checked.end(false).unwrap_err();
    assert_eq!(what, "2097152 bytes were not given back");
}

/// Random programs reach what they are meant to reach.
#[test]
fn canary_programs_run_out_of_memory_and_reuse_under_work() {
    let mut sum = Counts::default();
    for seed in 0..40 {
        let mut checked = Checked::new(&Setup { capacity: 24 << 20, seed, ..Setup::default() });
        program(seed, 100).iter().try_for_each(|op| checked.apply(op)).unwrap();
        let counts = checked.end(seed % 2 == 0).unwrap();
        sum.allocated += counts.allocated;
        sum.out_of_memory += counts.out_of_memory;
        sum.reused_from_other_work += counts.reused_from_other_work;
    }
    assert!(sum.allocated > 500, "{sum:?}");
    assert!(sum.out_of_memory > 20, "{sum:?}");
    assert!(sum.reused_from_other_work > 5, "{sum:?}");
}

//! The planner, driven by a toy allocator: what it serves, when, and what it leaves alone.
mod toy;

use aquifer_policies::BlockId;
use aquifer_policies::planned::Planner;
use proptest::prelude::*;
use toy::*;

#[test]
fn a_step_is_planned_early_in_its_second_time() {
    let (mut toy, acts) = (Toy::default(), step(50, 1));
    assert_eq!(served(&toy.step(KIND, &acts)), 0);
    let second = toy.step(KIND, &acts);
    // It is known after 16 requests, of which the next has a place.
    assert_eq!(served(&second), asks(&acts) - 16);
    let third = toy.step(KIND, &acts);
    assert_eq!(served(&third), asks(&acts));
    assert_eq!(toy.step(KIND, &acts), third);
    assert_eq!(&second[16..], &third[16..]);
    assert_eq!(toy.planner.counts().taken, 0);
}

#[test]
fn a_plan_for_another_sequence_is_followed_from_the_next_step_on() {
    let (mut toy, acts) = (Toy::default(), step(50, 1));
    // The first step does more, as where optimizers get their state.
    let more: Vec<Act> = (0..8).map(|n| Act::Ask(512 * n + 512)).collect();
    toy.step(KIND, &[&acts[..], &more].concat());
    toy.step(KIND, &acts);
    assert_eq!(served(&toy.step(KIND, &acts)), asks(&acts));
    assert_eq!(toy.planner.counts().plans, 2, "one for each sequence");
}

#[test]
fn a_family_seen_once_is_found_from_the_plan_of_another() {
    let mut toy = Toy::default();
    let (often, rare) = (step(80, 1), step(80, 2));
    (0..3).for_each(|_| drop(toy.step(KIND, &often)));
    toy.step(KIND, &rare);
    toy.step(KIND, &often);
    let hits = served(&toy.step(KIND, &rare));
    assert!(hits + 24 >= asks(&rare), "{hits} of {}", asks(&rare));
    assert_eq!(served(&toy.step(KIND, &often)), asks(&often));
}

#[test]
fn several_families_have_a_plan_each() {
    let mut toy = Toy::default();
    let shapes: Vec<_> = (0..6).map(|seed| step(30 + seed as usize, seed)).collect();
    for _ in 0..2 {
        shapes.iter().for_each(|acts| drop(toy.step(KIND, acts)));
    }
    assert_eq!(toy.planner.counts().families, 6);
    let round = |toy: &mut Toy| -> Vec<_> { shapes.iter().map(|a| toy.step(KIND, a)).collect() };
    let third = round(&mut toy);
    let total: usize = shapes.iter().map(|acts| asks(acts)).sum();
    let hits: usize = third.iter().map(|offsets| served(offsets)).sum();
    assert!(hits * 100 >= total * 95, "{hits} of {total}");
    assert_eq!(round(&mut toy), third);
}

#[test]
fn a_deviation_at_any_position_costs_a_few_places_only() {
    let acts = step(40, 3);
    for leaves_out in [true, false] {
        for at in 0..asks(&acts) {
            let mut toy = Toy::default();
            (0..3).for_each(|_| drop(toy.step(KIND, &acts)));
            let other = deviates_at(&acts, at, leaves_out);
            let hits = served(&toy.step(KIND, &other));
            assert!(hits + 6 >= asks(&other), "{hits} of {} at {at}", asks(&other));
            assert_eq!(served(&toy.step(KIND, &acts)), asks(&acts));
        }
    }
}

/// A step that asks for four more blocks at its end, which live on for `steps` steps and are freed when
/// the last of them has come `at` layers far. What was served of the four in each of a few steps, and of
/// the rest.
fn carrying(steps: usize, at: usize) -> Vec<(usize, usize)> {
    let (mut toy, acts) = (Toy::default(), step(40, 4));
    let cut = acts.iter().position(|act| *act == Act::Free(2 * at)).unwrap();
    let mut kept: Vec<Vec<BlockId>> = Vec::new();
    let one = |_| {
        toy.planner.mark(KIND);
        let mut run = Run::default();
        toy.go_on(&mut run, &acts[..cut]);
        if kept.len() == steps {
            kept.remove(0).into_iter().for_each(|id| toy.free(id));
        }
        toy.go_on(&mut run, &acts[cut..]);
        toy.go_on(&mut run, &[4096, 8192, 512, 512].map(Act::Ask));
        kept.push(run.blocks.into_iter().flatten().collect());
        let (rest, four) = run.offsets.split_at(run.offsets.len() - 4);
        (served(four), served(rest))
    };
    (0..8).map(one).collect()
}

#[test]
fn what_lives_into_the_next_step_gets_a_place() {
    let all = asks(&step(40, 4));
    for at in [0, 6, 20, 39] {
        let last = carrying(1, at).split_off(3);
        assert_eq!(last, vec![(4, all); 5], "freed after {at} layers");
    }
}

#[test]
fn what_outlives_the_next_step_gets_no_place() {
    let all = asks(&step(40, 4));
    let last = carrying(2, 10).split_off(2);
    assert_eq!(last, vec![(0, all); 6]);
}

#[test]
fn a_step_of_too_many_requests_is_not_recorded() {
    let mut toy = Toy::default();
    for _ in 0..4 {
        toy.planner.mark(KIND);
        for n in 0..(1 << 18) + 10 {
            let (id, offset) = toy.ask(512 * (1 + n % 1000));
            assert_eq!(offset, None);
            toy.free(id);
        }
    }
    toy.planner.mark(KIND);
    assert_eq!((toy.planner.has_job(), toy.planner.counts().families), (false, 0));
}

/// How many requests of the last `last` of `count` unmarked steps are served, in a hundred.
fn share_unmarked(count: usize, last: usize, mut acts_of: impl FnMut(usize) -> Vec<Act>) -> usize {
    let mut toy = Toy::default();
    let (mut hits, mut asked) = (0, 0);
    for n in 0..count {
        let acts = acts_of(n);
        let offsets = toy.step_unmarked(&acts);
        if n + last >= count {
            hits += served(&offsets);
            asked += asks(&acts);
        }
    }
    hits * 100 / asked
}

#[test]
fn unmarked_steps_are_found() {
    for layers in [22, 60, 300, 3_000, 20_000] {
        let acts = step(layers, 5);
        assert_eq!(share_unmarked(8, 2, |_| acts.clone()), 100, "{layers} layers");
    }
}

#[test]
fn tickets_tell_where_a_found_step_begins() {
    let (mut toy, acts) = (Toy::default(), step(60, 5));
    (0..8).for_each(|_| drop(toy.step_unmarked(&acts)));
    // The one that goes on is not over.
    assert!(toy.begun >= 4);
    assert_eq!(toy.begun, toy.planner.counts().steps + 1);
    let before = toy.begun;
    (0..4).for_each(|_| drop(toy.step(KIND, &acts)));
    assert_eq!(toy.begun, before, "marked steps are known to who marks them");
}

#[test]
fn unmarked_steps_that_deviate_are_found() {
    for seed in 0..20 {
        let (acts, mut random) = (step(200, seed), Random(seed));
        let deviating = |_| with_deviations(&acts, 6, &mut random);
        let share = share_unmarked(24, 10, deviating);
        assert!(share >= 94, "{share} % with seed {seed}");
        let mut random = Random(seed);
        let shifted = |_| {
            let at = random.below(590) as usize;
            let acts = deviates_at(&acts, at, true);
            deviates_at(&acts, random.below(590) as usize, false)
        };
        let share = share_unmarked(24, 10, shifted);
        assert!(share >= 90, "{share} % with seed {seed}, shifted");
    }
}

#[test]
fn unmarked_training_and_validation_are_found() {
    let (train, val) = (step(80, 7), step(30, 8));
    for (trains, vals) in [(1, 1), (6, 5), (10, 3), (4, 12)] {
        let acts_of = |n: usize| match n % (trains + vals) {
            at if at < trains => train.clone(),
            _ => val.clone(),
        };
        let rounds = 8.max(48 / (trains + vals));
        let share = share_unmarked(rounds * (trains + vals), 2 * (trains + vals), acts_of);
        assert!(share >= 85, "{share} % of {trains} to {vals}");
    }
}

#[test]
fn nothing_is_found_in_random_requests() {
    let (mut toy, mut random, mut live) = (Toy::default(), Random(9), Vec::new());
    for _ in 0..400_000 {
        let (id, offset) = toy.ask((1 + random.below(50)) * 512);
        assert_eq!(offset, None);
        live.push(id);
        if live.len() > 40 {
            let at = random.below(40) as usize;
            toy.free(live.swap_remove(at));
        }
    }
    assert_eq!(toy.planner.counts().steps, 0);
}

#[test]
fn nothing_is_found_where_every_repeat_keeps_its_memory() {
    let (mut toy, acts) = (Toy::default(), step(60, 10));
    for _ in 0..20 {
        // Nothing is ever freed.
        let asks = acts.iter().filter(|act| matches!(act, Act::Ask(_)));
        asks.for_each(|act| drop(toy.run(&[*act])));
    }
    assert_eq!(toy.planner.counts().steps, 0);
}

#[test]
fn nothing_is_found_after_a_mark() {
    let (mut toy, acts) = (Toy::default(), step(60, 11));
    toy.planner.mark(KIND);
    for _ in 0..20 {
        assert_eq!(served(&toy.step_unmarked(&acts)), 0);
    }
    assert_eq!(toy.planner.counts().steps, 0);
}

#[test]
fn marks_take_over_from_what_was_found() {
    let (mut toy, acts) = (Toy::default(), step(60, 12));
    (0..8).for_each(|_| drop(toy.step_unmarked(&acts)));
    assert_eq!(served(&toy.step(KIND, &acts)), 0, "no marked step has come yet");
    assert_eq!(served(&toy.step(KIND, &acts)), asks(&acts) - 16);
    assert_eq!(served(&toy.step(KIND, &acts)), asks(&acts));
}

#[test]
fn one_size_over_and_over_costs_nothing_and_is_no_step() {
    let mut toy = Toy::default();
    for _ in 0..10_000 {
        let (id, _) = toy.ask(512);
        toy.free(id);
    }
    assert_eq!(toy.planner.counts().steps, 0);
}

#[test]
fn sizes_near_the_largest_are_no_trouble() {
    for marks in [true, false] {
        let mut planner = Planner::new();
        for n in 0..12u64 {
            if marks {
                planner.mark(KIND);
            }
            for at in 0..100u64 {
                let ticket = planner.request(u64::MAX - (at * at) % 91);
                let id = BlockId(at as u32);
                planner.placed(ticket, id, false);
                if (at + n) % 9 > 0 {
                    planner.freed(id);
                }
            }
            while let Some(job) = planner.job() {
                planner.adopt(job.pack());
            }
        }
    }
}

/// What the property test does with a planner.
#[derive(Clone, Debug)]
enum Deed {
    /// Step of a shape, with so many deviations, marked or not.
    Step(u64, usize, bool),
    /// The same, but some blocks are kept for later.
    Keep(u64),
    Mark(u64),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        8 => (0..3u64, 0..4usize, any::<bool>()).prop_map(|(s, d, m)| Deed::Step(s, d, m)),
        1 => (0..3u64).prop_map(Deed::Keep),
        1 => (0..3u64).prop_map(Deed::Mark),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The toy itself asserts that places end within the height; here also that live ones never overlap,
    /// which it refuses, and that nothing is lost in the counts.
    #[test]
    fn places_lie_within_the_height_and_apart(
        marks in any::<bool>(),
        seed in 0..1000u64,
        deeds in prop::collection::vec(deed(), 1..40),
    ) {
        let (mut toy, mut random, mut kept) = (Toy::default(), Random(seed), Vec::new());
        let mut asked = 0;
        for deed in deeds {
            match deed {
                Deed::Step(shape, deviations, mark) => {
                    let acts = with_deviations(&step(30, shape), deviations, &mut random);
                    asked += asks(&acts) as u64;
                    if marks && mark {
                        toy.planner.mark(shape);
                    }
                    toy.step_unmarked(&acts);
                }
                Deed::Keep(shape) => {
                    let acts: Vec<Act> = step(30, shape).into_iter().take(70).collect();
                    asked += asks(&acts) as u64;
                    kept.extend(toy.run(&acts).1);
                }
                Deed::Mark(kind) if marks => toy.planner.mark(kind),
                Deed::Mark(_) => kept.drain(..).for_each(|id| toy.free(id)),
            }
            prop_assert!(toy.is_apart());
        }
        let counts = toy.planner.counts();
        prop_assert_eq!(counts.planned + counts.online, asked);
    }

    /// A program of equal steps, whose blocks live for less than a step, but beyond its end: all are
    /// served, so that no two offsets can be in each other's way.
    #[test]
    fn equal_steps_are_served_whole(
        requests in prop::collection::vec((1..200u64, 1..200usize), 40..160),
    ) {
        let (mut toy, length) = (Toy::default(), requests.len());
        let mut ends: Vec<Vec<BlockId>> = vec![Vec::new(); 2 * length];
        let mut addresses = Vec::new();
        for n in 0..6 {
            toy.planner.mark(KIND);
            let mut step = Vec::new();
            for (at, (size, life)) in requests.iter().enumerate() {
                let now = (n % 2) * length + at;
                std::mem::take(&mut ends[now]).into_iter().for_each(|id| toy.free(id));
                let (id, offset) = toy.ask(size * 512);
                ends[(now + 1 + life % (length - 1)) % (2 * length)].push(id);
                step.push(offset);
            }
            addresses.push(step);
        }
        prop_assert_eq!(served(&addresses[4]), length);
        prop_assert_eq!(&addresses[4], &addresses[5]);
        prop_assert!(toy.is_apart());
    }
}

//! Random programs on every policy and setting against a naive model.
mod checked;

use aquifer::policies::NAMES;
use checked::{Checked, Counts, Op, Setup, ops::size_of};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn setups() -> impl Strategy<Value = Setup> {
    (
        prop::sample::select(NAMES.to_vec()),
        any::<[bool; 2]>(),
        prop_oneof![3 => Just(true), 1 => Just(false)],
        prop::sample::select(vec![None, None, Some(0.0), Some(0.25)]),
        prop_oneof![4 => Just(None), 1 => (0u64..32).prop_map(|mib| Some(mib << 20))],
        prop::sample::select(vec![8u64, 24, 64, 200]),
        prop::sample::select(vec![2u64 << 20, 2 << 20, 64 << 10, 4 << 10, 32 << 20]),
        any::<u64>(),
    )
        .prop_map(
            |(
                policy,
                [paged, front],
                share_streams,
                slack,
                cached_bytes_cap,
                mib,
                granularity,
                seed,
            )| {
                let capacity = mib << 20;
                // As small a page would only take long.
                let granularity = if paged { granularity.max(64 << 10) } else { granularity };
                Setup {
                    policy,
                    paged,
                    front,
                    share_streams,
                    slack,
                    cached_bytes_cap,
                    capacity,
                    granularity,
                    seed,
                }
            },
        )
}

fn op() -> impl Strategy<Value = Op> {
    let (nth, stream, pool) = (any::<u8>(), any::<u8>(), any::<u8>());
    let size = (any::<u8>(), any::<u16>()).prop_map(|(kind, low)| size_of(kind, low));
    let align = prop_oneof![4 => Just(1u64), 1 => (0u32..=21).prop_map(|bits| 1 << bits)];
    prop_oneof![
        30 => (pool, stream, size, align).prop_map(
            |(pool, stream, bytes, align)| Op::Allocate { pool, stream, bytes, align }),
        22 => nth.prop_map(|nth| Op::Free { nth }),
        5 => (nth, stream).prop_map(|(nth, stream)| Op::Record { nth, stream }),
        7 => (stream, nth).prop_map(|(stream, nth)| Op::Launch { stream, nth }),
        4 => (0u8..4).prop_map(|pieces| Op::Step { pieces }),
        1 => Just(Op::Finish),
        2 => Just(Op::EmptyCache),
        1 => pool.prop_map(|pool| Op::TrimPool { pool }),
        2 => prop_oneof![Just(None), (0u64..128).prop_map(Some)]
            .prop_map(|mib| Op::Cap { bytes: mib.map(|mib| mib << 20) }),
        2 => (0u64..64).prop_map(|mib| Op::OtherUse { bytes: mib << 20 }),
        1 => Just(Op::OpenPool),
        1 => pool.prop_map(|pool| Op::ClosePool { pool }),
        1 => Just(Op::OpenStream),
        1 => stream.prop_map(|stream| Op::CloseStream { stream }),
        1 => Just(Op::ResetPeak),
        3 => Just(Op::Stats),
        2 => nth.prop_map(|nth| Op::IntoRaw { nth }),
        1 => nth.prop_map(|nth| Op::BadFrees { nth }),
        1 => Just(Op::Mark),
        2 => any::<u8>().prop_map(|stream| Op::Capture { stream }),
    ]
}

fn run(setup: &Setup, ops: &[Op], blocks_last: bool) -> Result<Counts, String> {
    let mut checked = Checked::new(setup);
    ops.iter().try_for_each(|op| checked.apply(op))?;
    checked.end(blocks_last)
}

/// As many programs as the environment asks for, others each time; by default the same few, so that a
/// change and its tests stand or fall together.
fn config() -> ProptestConfig {
    let usual = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return usual;
    }
    ProptestConfig { cases: 1500, rng_seed: RngSeed::Fixed(1), ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn programs_agree_with_the_model(
        setup in setups(),
        ops in prop::collection::vec(op(), 1..150),
        blocks_last: bool,
    ) {
        run(&setup, &ops, blocks_last).map_err(TestCaseError::fail)?;
    }
}

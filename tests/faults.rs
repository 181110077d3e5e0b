//! Programs in which one driver call fails, in every place: nothing is lost, nothing is given twice.
mod checked;

use aquifer::driver::{Call, DriverError};
use aquifer::policies::NAMES;
use checked::{Checked, Counts, Op, Setup, ops::program};

const OPS: usize = 60;

/// Settings unlike each other, a policy for each, and a small device so that memory runs out.
fn setups() -> impl Iterator<Item = Setup> {
    NAMES.iter().enumerate().map(|(i, policy)| Setup {
        policy,
        paged: i % 4 != 1,
        front: i % 2 == 0,
        share_streams: i % 4 != 3,
        slack: [None, Some(0.0), None, Some(0.25)][i % 4],
        cached_bytes_cap: (i % 3 == 2).then_some(4 << 20),
        capacity: [24 << 20, 32 << 20, 200 << 20, 24 << 20][i % 4],
        granularity: [2 << 20, 64 << 10, 2 << 20, 1 << 20][i % 4],
        seed: i as u64,
    })
}

fn run(setup: &Setup, ops: &[Op], plan: impl Fn(&Checked)) -> Result<(Counts, u64), String> {
    let mut checked = Checked::new(setup);
    checked.may_fail = true;
    plan(&checked);
    let faults = checked.faults.clone();
    ops.iter().try_for_each(|op| checked.apply(op))?;
    let calls = faults.calls_made();
    drop(faults);
    checked.end(setup.seed % 2 == 1).map(|counts| (counts, calls))
}

/// Runs each program once without a failure and then once for each call it made and two more.
fn fail_each(programs: u64, plan: impl Fn(&Checked, u64)) -> u64 {
    let mut runs = 0;
    for setup in setups() {
        for seed in 0..programs {
            let ops = program(seed * 97 + setup.seed, OPS);
            let (_, calls) = run(&setup, &ops, |_| {}).expect("no call fails");
            for n in 1..=calls + 2 {
                if let Err(what) = run(&setup, &ops, |checked| plan(checked, n)) {
                    panic!("call {n} of {calls}, program {seed}, {setup:?}: {what}\n{ops:?}");
                }
                runs += 1;
            }
        }
    }
    runs
}

#[test]
fn one_failing_call_loses_nothing_wherever_it_is() {
    let runs = fail_each(6, |checked, n| checked.faults.fail_at(n));
    println!("{runs} runs");
    assert!(runs > 2_000, "{runs} runs");
}

#[test]
fn a_device_that_refuses_memory_once_loses_nothing() {
    let refusal = DriverError::OutOfMemory { bytes: 1 };
    let runs = fail_each(1, |checked, n| checked.faults.fail_call(Call::Allocate, n, refusal));
    assert!(runs > 100, "{runs} runs");
}

#[test]
fn a_call_that_fails_for_a_while_loses_nothing() {
    for setup in setups() {
        for call in Call::ALL {
            let mut checked = Checked::new(&setup);
            checked.may_fail = true;
            for (n, op) in program(setup.seed, 3 * OPS).iter().enumerate() {
                match n {
                    OPS => checked.faults.fail_all(call),
                    _ if n == 2 * OPS => checked.faults.clear_faults(),
                    _ => {}
                }
                if let Err(what) = checked.apply(op) {
                    panic!("{call} fails, thing {n}, {setup:?}: {what}");
                }
            }
            let ended = checked.end(setup.seed % 2 == 1);
            ended.unwrap_or_else(|what| panic!("{call} failed, {setup:?}: {what}"));
        }
    }
}

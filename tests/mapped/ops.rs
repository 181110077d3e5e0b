//! Random things to do with virtual memory, right and wrong ones.
use super::{CAPACITY_PAGES, DEVICES};
use proptest::prelude::*;

/// Some neighbouring mappings, with pages more or less at both ends.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub first: usize,
    pub mappings: usize,
    pub skew: (i8, i8),
}

#[derive(Clone, Debug)]
pub enum Op {
    Reserve {
        pages: u64,
    },
    Unreserve {
        choice: usize,
    },
    Create {
        pages: u64,
    },
    Release {
        choice: usize,
    },
    /// At some page of a range, or else at its first free one.
    Map {
        range: usize,
        page: Option<u64>,
        handle: usize,
    },
    /// Creates, maps at the first free page and opens.
    Grow {
        range: usize,
        pages: u64,
    },
    Unmap(Run),
    SetAccess {
        run: Run,
        peer: Option<u32>,
    },
    Allocate {
        pages: u64,
    },
    OtherUse {
        pages: u64,
    },
    Write {
        choice: usize,
        page: u64,
        tag: u8,
    },
    Touch(Run),
    Finish,
    FailNext,
}

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let skew = prop_oneof![5 => Just(0i8), 1 => -1i8..=1];
    let run = (any::<usize>(), 1usize..5, (skew.clone(), skew))
        .prop_map(|(first, mappings, skew)| Run { first, mappings, skew });
    let op = prop_oneof![
        3 => (0u64..20).prop_map(|pages| Op::Reserve { pages }),
        1 => any::<usize>().prop_map(|choice| Op::Unreserve { choice }),
        3 => (0u64..5).prop_map(|pages| Op::Create { pages }),
        3 => any::<usize>().prop_map(|choice| Op::Release { choice }),
        8 => (any::<usize>(), prop_oneof![Just(None), (0u64..24).prop_map(Some)], any::<usize>())
            .prop_map(|(range, page, handle)| Op::Map { range, page, handle }),
        10 => (any::<usize>(), 1u64..4).prop_map(|(range, pages)| Op::Grow { range, pages }),
        4 => run.clone().prop_map(Op::Unmap),
        6 => (run.clone(), prop_oneof![4 => Just(None), 1 => (0..=DEVICES).prop_map(Some)])
            .prop_map(|(run, peer)| Op::SetAccess { run, peer }),
        1 => (1u64..3).prop_map(|pages| Op::Allocate { pages }),
        1 => prop_oneof![2 => Just(0), 1 => 0u64..CAPACITY_PAGES].prop_map(|pages| Op::OtherUse { pages }),
        4 => (any::<usize>(), any::<u64>(), any::<u8>())
            .prop_map(|(choice, page, tag)| Op::Write { choice, page, tag }),
        6 => run.prop_map(Op::Touch),
        1 => Just(Op::Finish),
        1 => Just(Op::FailNext),
    ];
    prop::collection::vec(op, 1..120)
}

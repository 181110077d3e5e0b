//! What a program may do to an allocator, and how to read such programs from bytes.

/// One thing done. Numbers name pools, streams and blocks modulo how many there are.
#[derive(Clone, Debug)]
pub enum Op {
    Allocate {
        pool: u8,
        stream: u8,
        bytes: u64,
        align: u64,
    },
    Free {
        nth: u8,
    },
    /// Lets another stream use a block.
    Record {
        nth: u8,
        stream: u8,
    },
    /// Queues work on a stream; it touches a block that the stream may use, if the one named is such.
    Launch {
        stream: u8,
        nth: u8,
    },
    /// Completes pieces of work, chosen by the device's seed.
    Step {
        pieces: u8,
    },
    /// Completes all work.
    Finish,
    EmptyCache,
    TrimPool {
        pool: u8,
    },
    Cap {
        bytes: Option<u64>,
    },
    OtherUse {
        bytes: u64,
    },
    OpenPool,
    ClosePool {
        pool: u8,
    },
    OpenStream,
    CloseStream {
        stream: u8,
    },
    ResetPeak,
    /// Reads the counts, which polls.
    Stats,
    /// Turns a block into an address; frees go by address then.
    IntoRaw {
        nth: u8,
    },
    /// Frees an address again, and one that was never given.
    BadFrees {
        nth: u8,
    },
    Mark,
    /// Begins to capture a stream, or ends the capture under way.
    Capture {
        stream: u8,
    },
}

const MIB: u64 = 1 << 20;

/// A size that is likely to meet an edge: near a multiple of a power of two, or round.
pub fn size_of(kind: u8, low: u16) -> u64 {
    let low = u64::from(low);
    match kind % 8 {
        0 | 1 => low % 4096,
        2 => (512 << (low % 13)) + low % 3 - 1,
        3 => MIB + low % 1025 - 512,
        4 => (low % 64 + 1) * 65_537,
        5 => low % 9 * MIB + 1,
        6 => (low % 16) << 20,
        _ => low % 80 * MIB,
    }
}

/// Bytes as a stream of choices; zeros after the end.
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    pub fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// A program of `count` things to do, chosen by `seed`.
pub fn program(mut seed: u64, count: usize) -> Vec<Op> {
    let mut bytes = Vec::with_capacity(count * 8);
    for _ in 0..count {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend((mixed ^ (mixed >> 31)).to_le_bytes());
    }
    let mut choices = Choices(&bytes);
    (0..count).map(|_| Op::read(&mut choices)).collect()
}

impl Op {
    pub fn read(from: &mut Choices) -> Op {
        match from.next() % 40 {
            0..=14 => Op::Allocate {
                pool: from.next(),
                stream: from.next(),
                bytes: size_of(from.next(), u16::from_le_bytes([from.next(), from.next()])),
                align: 1 << (from.next() % 22).saturating_sub(from.next() % 22),
            },
            15..=22 => Op::Free { nth: from.next() },
            23 | 24 => Op::Record { nth: from.next(), stream: from.next() },
            25 | 26 => Op::Launch { stream: from.next(), nth: from.next() },
            27 => Op::Step { pieces: from.next() % 4 },
            28 => Op::Finish,
            29 => Op::EmptyCache,
            30 => Op::TrimPool { pool: from.next() },
            31 => match from.next() {
                low @ 0..=127 => Op::Cap { bytes: Some(u64::from(low) * MIB) },
                _ => Op::Cap { bytes: None },
            },
            32 => Op::OtherUse { bytes: u64::from(from.next() % 64) * MIB },
            33 => Op::OpenPool,
            34 => Op::ClosePool { pool: from.next() },
            35 => Op::OpenStream,
            36 => Op::CloseStream { stream: from.next() },
            37 => Op::ResetPeak,
            38 => Op::Stats,
            _ => match from.next() % 5 {
                0 => Op::IntoRaw { nth: from.next() },
                1 => Op::BadFrees { nth: from.next() },
                2 => Op::Mark,
                _ => Op::Capture { stream: from.next() },
            },
        }
    }
}

//! One operation of a trace: the view a reader of the trace gets, and its 16 packed bytes. Knows
//! nothing of lines or files.

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The number as an index into a slice.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index! {
    /// The number of a live block, dense: below [`Trace::slots`](super::Trace::slots), and given
    /// again after the block's free.
    Slot
}
index! {
    /// An index into [`Trace::streams`](super::Trace::streams).
    StreamIndex
}
index! {
    /// An index into [`Trace::labels`](super::Trace::labels).
    LabelIndex
}
index! {
    /// An index into [`Trace::threads`](super::Trace::threads).
    ThreadIndex
}

/// One operation of a trace, in the order the program made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A block was allocated.
    Alloc {
        /// The block's number until its free.
        slot: Slot,
        /// The bytes asked for, 0 to [`BYTES_MAX`](super::BYTES_MAX).
        bytes: u64,
        /// The stream it was allocated on.
        stream: StreamIndex,
    },
    /// A live block was freed.
    Free {
        /// The block.
        slot: Slot,
    },
    /// A live block is used on a further stream.
    RecordStream {
        /// The block.
        slot: Slot,
        /// The further stream.
        stream: StreamIndex,
    },
    /// A step or phase begins.
    Mark {
        /// Its label.
        label: LabelIndex,
    },
    /// The program gave its cached memory back to the device.
    EmptyCache,
    /// The operations that follow belong to this thread.
    Thread {
        /// The thread.
        thread: ThreadIndex,
    },
}

/// An [`Op`] in 16 bytes: the verb stands in the top three bits of `verb_stream`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packed {
    bytes: u64,
    number: u32,
    verb_stream: u32,
}

const _: () = assert!(size_of::<Packed>() == 16);

const STREAM_BITS: u32 = 29;
const ALLOC: u32 = 0;
const FREE: u32 = 1;
const RECORD_STREAM: u32 = 2;
const MARK: u32 = 3;
const EMPTY_CACHE: u32 = 4;
const THREAD: u32 = 5;

impl Packed {
    /// The most streams whose indices fit in the packed form.
    pub(super) const STREAMS_MAX: u32 = 1 << STREAM_BITS;

    #[inline]
    pub(super) fn new(op: Op) -> Packed {
        let (verb, bytes, number, stream) = match op {
            Op::Alloc { slot, bytes, stream } => (ALLOC, bytes, slot.0, stream.0),
            Op::Free { slot } => (FREE, 0, slot.0, 0),
            Op::RecordStream { slot, stream } => (RECORD_STREAM, 0, slot.0, stream.0),
            Op::Mark { label } => (MARK, 0, label.0, 0),
            Op::EmptyCache => (EMPTY_CACHE, 0, 0, 0),
            Op::Thread { thread } => (THREAD, 0, thread.0, 0),
        };
        debug_assert!(stream < Self::STREAMS_MAX);
        Packed { bytes, number, verb_stream: verb << STREAM_BITS | stream }
    }

    #[inline]
    pub(super) fn op(self) -> Op {
        let slot = Slot(self.number);
        let stream = StreamIndex(self.verb_stream & (Self::STREAMS_MAX - 1));
        match self.verb_stream >> STREAM_BITS {
            ALLOC => Op::Alloc { slot, bytes: self.bytes, stream },
            FREE => Op::Free { slot },
            RECORD_STREAM => Op::RecordStream { slot, stream },
            MARK => Op::Mark { label: LabelIndex(self.number) },
            EMPTY_CACHE => Op::EmptyCache,
            _ => Op::Thread { thread: ThreadIndex(self.number) },
        }
    }
}

//! The sub-allocators compared with: one range of 80 GiB handed out in units of 512 bytes.
use crate::Subject;

const CAPACITY: u64 = 80 << 30;
const UNIT: u64 = 512;

pub struct Offset(offset_allocator::Allocator<u32>);

impl Offset {
    pub fn new() -> Self {
        Offset(offset_allocator::Allocator::with_max_allocs((CAPACITY / UNIT) as u32, 1 << 16))
    }
}

impl Subject for Offset {
    type Block = offset_allocator::Allocation<u32>;

    fn name(&self) -> &'static str {
        "offset-alloc"
    }

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Self::Block {
        self.0.allocate(bytes.div_ceil(UNIT) as u32).expect("it fits")
    }

    #[inline]
    fn free(&mut self, block: Self::Block) {
        self.0.free(block);
    }
}

#[cfg(feature = "vma")]
pub use vma::Vma;

#[cfg(feature = "vma")]
mod vma {
    use super::{CAPACITY, Subject, UNIT};
    use vk_mem::{
        VirtualAllocation, VirtualAllocationCreateFlags, VirtualAllocationCreateInfo, VirtualBlock,
        VirtualBlockCreateFlags, VirtualBlockCreateInfo,
    };

    pub struct Vma(VirtualBlock);

    impl Vma {
        pub fn new() -> Self {
            let info = VirtualBlockCreateInfo {
                size: CAPACITY,
                flags: VirtualBlockCreateFlags::empty(),
                allocation_callbacks: None,
            };
            Vma(VirtualBlock::new(info).expect("a block"))
        }
    }

    impl Subject for Vma {
        type Block = VirtualAllocation;

        fn name(&self) -> &'static str {
            "vma"
        }

        #[inline]
        fn allocate(&mut self, bytes: u64) -> VirtualAllocation {
            let info = VirtualAllocationCreateInfo {
                size: bytes.div_ceil(UNIT) * UNIT,
                alignment: UNIT,
                user_data: 0,
                flags: VirtualAllocationCreateFlags::empty(),
            };
            // SAFETY: every block is freed once, before the virtual block goes.
            unsafe { self.0.allocate(info) }.expect("it fits").0
        }

        #[inline]
        fn free(&mut self, mut block: VirtualAllocation) {
            // SAFETY: the block came from this virtual block and is freed once.
            unsafe { self.0.free(&mut block) };
        }
    }
}

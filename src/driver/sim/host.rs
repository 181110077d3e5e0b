//! Host bytes behind an allocated range of device memory. Knows neither addresses nor who uses the bytes.
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Where the bytes start in host memory is a multiple of this: a page, more than any type asks for.
const ALIGNMENT: usize = 4096;

/// Zeroed host memory, given back on drop.
///
/// Held as a raw pointer and not as a box, so that pointers handed out stay valid while this moves.
#[derive(Debug)]
pub(super) struct HostBytes {
    block: NonNull<u8>,
    layout: Layout,
    /// From the start of `block` to the first aligned byte.
    skip: usize,
    bytes: usize,
}

// SAFETY: the block has one owner and is plain memory, bound to no thread.
unsafe impl Send for HostBytes {}

impl HostBytes {
    /// `bytes` zeros, or nothing if the host has no memory for them. The host spends memory only on
    /// what is touched: the block is longer instead of more aligned, because an allocator must write
    /// zeros itself where it cannot use `calloc`.
    pub(super) fn zeroed(bytes: u64) -> Option<HostBytes> {
        let bytes = usize::try_from(bytes).ok()?;
        let layout = Layout::from_size_align(bytes.checked_add(ALIGNMENT)?, 1).ok()?;
        // SAFETY: the layout has at least ALIGNMENT bytes, so it is not empty.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = block.as_ptr().addr().next_multiple_of(ALIGNMENT) - block.as_ptr().addr();
        Some(HostBytes { block, layout, skip, bytes })
    }

    /// The first byte.
    pub(super) fn pointer(&self) -> *mut u8 {
        self.block.as_ptr().wrapping_add(self.skip)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes lie at `pointer`, since skip < ALIGNMENT and the block has
        // bytes + ALIGNMENT; the borrow of self keeps them, and no `&mut` into them exists meanwhile.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.bytes) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and the borrow of self is unique.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.bytes) }
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        // SAFETY: `block` came from the global allocator with this layout and is given back once.
        unsafe { dealloc(self.block.as_ptr(), self.layout) }
    }
}

//! Tells a forked child from its parent without a system call.
//!
//! Device memory of the parent is not the child's to give back, and a lock that another thread held at
//! the fork stays held for ever in the child; so each lane remembers the epoch it was made in.
use std::sync::atomic::{AtomicU32, Ordering};

static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Counts the forks between the first allocator's process and this one.
#[inline(always)]
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

/// Makes forked children count; called when an allocator is built.
#[cfg(unix)]
#[allow(unsafe_code)]
pub(crate) fn watch() {
    extern "C" fn child() {
        EPOCH.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only touches an atomic, which is allowed in a forked child. A failure
        // (no memory for the handler's record) leaves forks undetected, and nothing else.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(child)) };
    });
}

/// There is no fork here.
#[cfg(not(unix))]
pub(crate) fn watch() {}

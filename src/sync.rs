//! The one door to what loom sees: atomics, cells and the locks that are held while a lane's is taken. And
//! the two-part lock of a lane.
//!
//! [`Twin`] guards two values: a *front* that short operations touch and a *heap* behind it. The front
//! is taken with one atomic exchange and given back with one store, and that is all a hit costs. Who holds
//! the front may use the heap too, as long as nobody has taken the heap away; taking it away
//! ([`Both::into_heap`]) lets long work go on in the heap while other threads keep hitting the front.
//! Neither part is ever held across a driver call or a caller's code.
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};

#[cfg(loom)]
pub(crate) use locks::{Mutex, RwLock};
#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, RwLock};

use std::ops::{Deref, DerefMut};

/// Loom's locks with the calls of `parking_lot`'s.
#[cfg(loom)]
mod locks {
    use loom::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("a model ends with its first panic")
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Mutex::new(T::default())
        }
    }

    pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("a model ends with its first panic")
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("a model ends with its first panic")
        }
    }

    impl<T: Default> Default for RwLock<T> {
        fn default() -> Self {
            RwLock(loom::sync::RwLock::new(T::default()))
        }
    }
}

#[cfg(not(loom))]
struct Cell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> Cell<T> {
    fn new(value: T) -> Self {
        Cell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    fn pointer(&self) -> *mut T {
        self.0.get()
    }
}

#[cfg(loom)]
struct Cell<T>(loom::cell::UnsafeCell<T>);

#[cfg(loom)]
impl<T> Cell<T> {
    fn new(value: T) -> Self {
        Cell(loom::cell::UnsafeCell::new(value))
    }

    /// Tells loom of a write access now; two threads that could both be here are reported.
    fn pointer(&self) -> *mut T {
        self.0.with_mut(|p| p)
    }
}

/// Spins a little, then lets other threads run.
struct Patience(u32);

impl Patience {
    const SPINS: u32 = 64;

    fn wait(&mut self) {
        self.0 += 1;
        #[cfg(loom)]
        loom::thread::yield_now();
        #[cfg(not(loom))]
        if self.0 < Self::SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

/// A front and the heap behind it; see the module's page.
pub(crate) struct Twin<F, H> {
    front_held: AtomicBool,
    /// Set only by a holder of the front; cleared by whoever has the heap alone.
    heap_away: AtomicBool,
    front: Cell<F>,
    heap: Cell<H>,
}

// SAFETY: `front` is reached only through a guard that owns `front_held`, `heap` only through a guard
// that owns `front_held` while `heap_away` is clear, or that set `heap_away`; so at most one thread
// reaches each at a time.
unsafe impl<F: Send, H: Send> Sync for Twin<F, H> {}

impl<F, H> Twin<F, H> {
    pub(crate) fn new(front: F, heap: H) -> Self {
        Twin {
            front_held: AtomicBool::new(false),
            heap_away: AtomicBool::new(false),
            front: Cell::new(front),
            heap: Cell::new(heap),
        }
    }

    /// The front, if nobody holds it.
    #[inline(always)]
    pub(crate) fn try_front(&self) -> Option<Front<'_, F, H>> {
        let taken =
            self.front_held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Front { twin: self })
    }

    /// The front; waits for the short operation of whoever holds it.
    #[inline(always)]
    pub(crate) fn front(&self) -> Front<'_, F, H> {
        match self.try_front() {
            Some(front) => front,
            None => self.front_contended(),
        }
    }

    #[cold]
    fn front_contended(&self) -> Front<'_, F, H> {
        let mut patience = Patience(0);
        loop {
            #[cfg(not(loom))]
            while self.front_held.load(Ordering::Relaxed) {
                patience.wait();
            }
            if let Some(front) = self.try_front() {
                return front;
            }
            patience.wait();
        }
    }

    /// Front and heap; waits for long work in the heap to end.
    pub(crate) fn both(&self) -> Both<'_, F, H> {
        let mut patience = Patience(0);
        loop {
            match self.front().into_both() {
                Ok(both) => return both,
                Err(front) => drop(front),
            }
            patience.wait();
        }
    }

    /// Front and heap, if they can be had within a few tries.
    pub(crate) fn try_both(&self) -> Option<Both<'_, F, H>> {
        let mut patience = Patience(0);
        for _ in 0..if cfg!(loom) { 1 } else { Patience::SPINS + 8 } {
            if let Some(front) = self.try_front() {
                return front.into_both().ok();
            }
            patience.wait();
        }
        None
    }
}

/// Holds the front.
pub(crate) struct Front<'a, F, H> {
    twin: &'a Twin<F, H>,
}

impl<'a, F, H> Front<'a, F, H> {
    /// The heap as well, unless it is away.
    #[inline(always)]
    pub(crate) fn into_both(self) -> Result<Both<'a, F, H>, Self> {
        if self.twin.heap_away.load(Ordering::Acquire) {
            return Err(self);
        }
        Ok(Both { front: self })
    }
}

impl<F, H> Deref for Front<'_, F, H> {
    type Target = F;

    #[inline(always)]
    fn deref(&self) -> &F {
        // SAFETY: this guard owns `front_held`, so no other thread reaches the front.
        unsafe { &*self.twin.front.pointer() }
    }
}

impl<F, H> DerefMut for Front<'_, F, H> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut F {
        // SAFETY: this guard owns `front_held` and is borrowed mutably.
        unsafe { &mut *self.twin.front.pointer() }
    }
}

impl<F, H> Drop for Front<'_, F, H> {
    #[inline(always)]
    fn drop(&mut self) {
        self.twin.front_held.store(false, Ordering::Release);
    }
}

/// Holds the front and the heap.
pub(crate) struct Both<'a, F, H> {
    front: Front<'a, F, H>,
}

impl<'a, F, H> Both<'a, F, H> {
    /// The two parts.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut F, &mut H) {
        let twin = self.front.twin;
        // SAFETY: the front is owned by `self.front`, borrowed mutably.
        let front = unsafe { &mut *twin.front.pointer() };
        // SAFETY: the front is owned and `heap_away` was clear when this guard was made; only a holder
        // of the front can set it.
        let heap = unsafe { &mut *twin.heap.pointer() };
        (front, heap)
    }

    /// Gives the front back and keeps the heap, for work that takes long.
    pub(crate) fn into_heap(self) -> Heap<'a, F, H> {
        let twin = self.front.twin;
        twin.heap_away.store(true, Ordering::Relaxed);
        drop(self);
        Heap { twin }
    }
}

/// Holds the heap alone.
pub(crate) struct Heap<'a, F, H> {
    twin: &'a Twin<F, H>,
}

impl<F, H> Deref for Heap<'_, F, H> {
    type Target = H;

    fn deref(&self) -> &H {
        // SAFETY: this guard set `heap_away`, and nobody reaches the heap while it is set.
        unsafe { &*self.twin.heap.pointer() }
    }
}

impl<F, H> Drop for Heap<'_, F, H> {
    fn drop(&mut self) {
        self.twin.heap_away.store(false, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_front_and_heap_are_reached_by_one_thread_at_a_time() {
        loom::model(|| {
            let twin = Arc::new(Twin::new(0u32, 0u32));
            let other = twin.clone();
            let second = thread::spawn(move || {
                *other.front() += 1;
                *other.both().parts().1 += 1;
            });
            *twin.both().parts().1 += 1;
            second.join().expect("no panic");
            assert_eq!(twin.both().parts(), (&mut 1, &mut 2));
        });
    }

    #[test]
    fn loom_a_heap_that_is_away_is_reached_by_nobody_else() {
        loom::model(|| {
            let twin = Arc::new(Twin::new(0u32, 0u32));
            let other = twin.clone();
            let long = thread::spawn(move || {
                let Some(mut both) = other.try_both() else { return 0 };
                *both.parts().1 += 1;
                let heap = both.into_heap();
                assert_eq!(*heap % 2, 1);
                1
            });
            let mut done = 0;
            if let Some(front) = twin.try_front() {
                if let Ok(mut both) = front.into_both() {
                    *both.parts().1 += 2;
                    done = 2;
                }
            }
            done += long.join().expect("no panic");
            assert_eq!(*twin.both().parts().1, done);
        });
    }

    #[test]
    fn loom_hit_goes_on_while_the_heap_is_away() {
        loom::model(|| {
            let twin = Arc::new(Twin::new(0u32, 0u32));
            let heap = twin.both().into_heap();
            let other = twin.clone();
            let hit = thread::spawn(move || {
                let mut front = other.front();
                *front += 1;
                assert!(front.into_both().is_err());
            });
            hit.join().expect("no panic");
            assert_eq!(*heap, 0);
            drop(heap);
            assert_eq!(twin.both().parts(), (&mut 1, &mut 0));
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_held_front_is_not_had_by_trying() {
        let twin = Twin::new(1, 2);
        let front = twin.front();
        assert!(twin.try_front().is_none());
        assert!(twin.try_both().is_none());
        drop(front);
        assert_eq!(twin.try_both().expect("nobody holds it").parts(), (&mut 1, &mut 2));
    }

    #[test]
    fn two_threads_lose_no_count() {
        let twin = Twin::new(0u64, 0u64);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    for i in 0..20_000 {
                        *twin.front() += 1;
                        if i % 16 == 0 {
                            *twin.both().parts().1 += 1;
                        }
                    }
                });
            }
        });
        assert_eq!(twin.both().parts(), (&mut 40_000, &mut 2_500));
    }
}

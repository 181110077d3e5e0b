//! The newest requests: how large each was and how much was in use before it. Knows request numbers, no
//! block.

/// Requests remembered: a power of two, 16 bytes each.
pub(super) const CAPACITY: u64 = 1 << 17;

/// Sums when a request came. They wrap, so only differences mean anything.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// Bytes asked for before.
    asked: u64,
    /// Bytes in use before.
    in_use: u64,
}

/// The last [`CAPACITY`] requests. Numbers count from the first of all; others than those held give `None`.
#[derive(Debug, Default)]
pub(super) struct Ring {
    points: Vec<Point>,
    /// Requests so far, which is the number of the next.
    pub(super) next: u64,
    asked: u64,
    in_use: u64,
}

impl Ring {
    /// One more request, of `size` bytes.
    #[inline]
    pub(super) fn push(&mut self, size: u64) {
        let point = Point { asked: self.asked, in_use: self.in_use };
        match self.points.get_mut((self.next % CAPACITY) as usize) {
            Some(oldest) => *oldest = point,
            None => self.points.push(point),
        }
        self.next += 1;
        self.asked = self.asked.wrapping_add(size);
        self.in_use = self.in_use.wrapping_add(size);
    }

    /// Request `number` was freed. One that is no longer held stays in use for ever, as far as is known here.
    #[inline]
    pub(super) fn freed(&mut self, number: u64) {
        let size = self.size(number).unwrap_or(0);
        self.in_use = self.in_use.wrapping_sub(size);
    }

    #[inline]
    fn point(&self, number: u64) -> Option<&Point> {
        let is_held = self.next.wrapping_sub(number).wrapping_sub(1) < CAPACITY;
        self.points.get((number % CAPACITY) as usize).filter(|_| is_held)
    }

    /// Bytes of a request.
    #[inline]
    pub(super) fn size(&self, number: u64) -> Option<u64> {
        let before = self.point(number)?.asked;
        let after = self.point(number.wrapping_add(1)).map_or(self.asked, |point| point.asked);
        Some(after.wrapping_sub(before))
    }

    /// Bytes asked for from request `from` on up to request `to`, that one left out.
    pub(super) fn asked(&self, from: u64, to: u64) -> Option<u64> {
        Some(self.point(to)?.asked.wrapping_sub(self.point(from)?.asked))
    }

    /// How many bytes more were in use before request `to` than before request `from`; less than zero if
    /// fewer were.
    pub(super) fn growth(&self, from: u64, to: u64) -> Option<i64> {
        Some(self.point(to)?.in_use.wrapping_sub(self.point(from)?.in_use) as i64)
    }
}

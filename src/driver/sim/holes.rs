//! The free address ranges of a device, in the order of their addresses. Knows nothing of budgets or of
//! what lies between the holes.

/// Holes in a chunk, at most.
const CHUNK_LEN_MAX: usize = 64;

/// Free ranges, no two touching, as a sorted list cut into chunks.
///
/// Taking looks at the longest hole of each chunk in turn and then into one chunk, so its time grows
/// with the chunks, but they are read as one array: twenty thousand scattered holes are some four
/// hundred numbers. A treap with subtree maxima was slower at 2,000, 20,000 and 300,000 holes.
#[derive(Debug, Default)]
pub(super) struct Holes {
    chunks: Vec<Vec<Hole>>,
    /// Of each chunk, where its first hole starts.
    starts: Vec<u64>,
    /// Of each chunk, the bytes of its longest hole.
    bytes_max: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Hole {
    start: u64,
    bytes: u64,
}

impl Hole {
    fn end(self) -> u64 {
        self.start + self.bytes
    }
}

impl Holes {
    /// One hole of `bytes` at `start`.
    pub(super) fn new(start: u64, bytes: u64) -> Holes {
        let mut holes = Holes::default();
        holes.give(start, bytes);
        holes
    }

    /// Takes `bytes` from the front of the lowest hole that has them.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let at = self.bytes_max.iter().position(|&longest| longest >= bytes)?;
        let chunk = &mut self.chunks[at];
        let index = chunk.iter().position(|hole| hole.bytes >= bytes)?;
        let hole = &mut chunk[index];
        let start = hole.start;
        if hole.bytes == bytes {
            chunk.remove(index);
            self.shrunk(at);
        } else {
            *hole = Hole { start: start + bytes, bytes: hole.bytes - bytes };
            self.changed(at);
        }
        Some(start)
    }

    /// Makes `bytes` at `start` free again, as one hole with the holes it touches.
    pub(super) fn give(&mut self, start: u64, bytes: u64) {
        let given = Hole { start, bytes };
        if self.chunks.is_empty() {
            self.insert_chunk(0, vec![given]);
            return;
        }
        // The chunk of the hole below, if there is one; the hole above is here too, or first in the next.
        let at = self.starts.partition_point(|&first| first < start).saturating_sub(1);
        let index = self.chunks[at].partition_point(|hole| hole.start < start);
        let (above_at, above_index) =
            if index < self.chunks[at].len() { (at, index) } else { (at + 1, 0) };
        let above = self.chunks.get(above_at).map(|chunk| chunk[above_index]);
        let touches_above = above.is_some_and(|above| given.end() == above.start);
        let touches_below = index > 0 && self.chunks[at][index - 1].end() == start;
        match (touches_below, touches_above) {
            (true, true) => {
                let above = self.chunks[above_at].remove(above_index);
                self.chunks[at][index - 1].bytes += bytes + above.bytes;
                self.changed(at);
                self.shrunk(above_at);
            }
            (true, false) => {
                self.chunks[at][index - 1].bytes += bytes;
                self.changed(at);
            }
            (false, true) => {
                let above = &mut self.chunks[above_at][above_index];
                *above = Hole { start, bytes: bytes + above.bytes };
                self.changed(above_at);
            }
            (false, false) => {
                self.chunks[at].insert(index, given);
                self.grown(at);
            }
        }
    }

    /// Looks again at chunk `at`, which has holes.
    fn changed(&mut self, at: usize) {
        let chunk = &self.chunks[at];
        self.starts[at] = chunk[0].start;
        self.bytes_max[at] = chunk.iter().map(|hole| hole.bytes).max().unwrap_or(0);
    }

    /// Cuts chunk `at` in two if it is too long.
    fn grown(&mut self, at: usize) {
        if self.chunks[at].len() > CHUNK_LEN_MAX {
            let upper = self.chunks[at].split_off(CHUNK_LEN_MAX / 2);
            self.insert_chunk(at + 1, upper);
        }
        self.changed(at);
    }

    /// Joins chunk `at` with the one above if the two are short, and drops it if it is empty.
    fn shrunk(&mut self, at: usize) {
        let above_len = self.chunks.get(at + 1).map_or(CHUNK_LEN_MAX, Vec::len);
        if self.chunks[at].len() + above_len <= CHUNK_LEN_MAX / 2 {
            let above = self.remove_chunk(at + 1);
            self.chunks[at].extend(above);
        }
        if self.chunks[at].is_empty() {
            self.remove_chunk(at);
        } else {
            self.changed(at);
        }
    }

    fn insert_chunk(&mut self, at: usize, chunk: Vec<Hole>) {
        self.chunks.insert(at, chunk);
        self.starts.insert(at, 0);
        self.bytes_max.insert(at, 0);
        self.changed(at);
    }

    fn remove_chunk(&mut self, at: usize) -> Vec<Hole> {
        self.starts.remove(at);
        self.bytes_max.remove(at);
        self.chunks.remove(at)
    }
}

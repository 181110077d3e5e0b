//! The free address ranges of a device: a tree by address in which each node knows the longest hole
//! below it. Knows nothing of budgets or of what lies between the holes.

const NONE: u32 = u32::MAX;

/// Free ranges, no two touching. Taking and giving cost O(log n) expected.
///
/// A treap: a search tree by `start`, a heap by `priority`. Priorities come from a counter, so equal
/// calls build equal trees.
#[derive(Debug)]
pub(super) struct Holes {
    nodes: Vec<Node>,
    spare: Vec<u32>,
    root: u32,
    priorities: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    start: u64,
    bytes: u64,
    /// The longest hole in this subtree.
    bytes_max: u64,
    priority: u64,
    left: u32,
    right: u32,
}

#[derive(Clone, Copy)]
struct Hole {
    start: u64,
    bytes: u64,
}

impl Holes {
    /// One hole of `bytes` at `start`.
    pub(super) fn new(start: u64, bytes: u64) -> Holes {
        let mut holes = Holes { nodes: Vec::new(), spare: Vec::new(), root: NONE, priorities: 0 };
        holes.insert(Hole { start, bytes });
        holes
    }

    /// Takes `bytes` from the front of the lowest hole that has them.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        if self.bytes_max(self.root) < bytes {
            return None;
        }
        let (root, start) = self.take_below(self.root, bytes);
        self.root = root;
        Some(start)
    }

    /// Makes `bytes` at `start` free again, as one hole with the holes it touches.
    pub(super) fn give(&mut self, start: u64, bytes: u64) {
        let (before, after) = self.neighbours(start);
        let before = before.filter(|hole| hole.start + hole.bytes == start);
        let after = after.filter(|hole| start + bytes == hole.start);
        match (before, after) {
            (Some(before), Some(after)) => {
                self.root = self.remove_below(self.root, after.start);
                let bytes = before.bytes + bytes + after.bytes;
                self.resize_below(self.root, before.start, Hole { start: before.start, bytes });
            }
            (Some(before), None) => {
                let bytes = before.bytes + bytes;
                self.resize_below(self.root, before.start, Hole { start: before.start, bytes });
            }
            (None, Some(after)) => {
                let bytes = bytes + after.bytes;
                self.resize_below(self.root, after.start, Hole { start, bytes });
            }
            (None, None) => self.insert(Hole { start, bytes }),
        }
    }

    fn bytes_max(&self, at: u32) -> u64 {
        if at == NONE { 0 } else { self.nodes[at as usize].bytes_max }
    }

    fn node(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    /// Recomputes what `at` knows of its subtree.
    fn pull(&mut self, at: u32) {
        let node = self.nodes[at as usize];
        let below = self.bytes_max(node.left).max(self.bytes_max(node.right));
        self.node(at).bytes_max = node.bytes.max(below);
    }

    /// Holes below and above `start`, which is in none.
    fn neighbours(&self, start: u64) -> (Option<Hole>, Option<Hole>) {
        let (mut before, mut after) = (None, None);
        let mut at = self.root;
        while at != NONE {
            let node = self.nodes[at as usize];
            let hole = Hole { start: node.start, bytes: node.bytes };
            if node.start < start {
                before = Some(hole);
                at = node.right;
            } else {
                after = Some(hole);
                at = node.left;
            }
        }
        (before, after)
    }

    /// The subtree's new root and the address taken. Its longest hole has `bytes`.
    fn take_below(&mut self, at: u32, bytes: u64) -> (u32, u64) {
        let node = self.nodes[at as usize];
        let taken = if self.bytes_max(node.left) >= bytes {
            let (left, taken) = self.take_below(node.left, bytes);
            self.node(at).left = left;
            taken
        } else if node.bytes == bytes {
            self.spare.push(at);
            return (self.merge(node.left, node.right), node.start);
        } else if node.bytes > bytes {
            self.node(at).start += bytes;
            self.node(at).bytes -= bytes;
            node.start
        } else {
            let (right, taken) = self.take_below(node.right, bytes);
            self.node(at).right = right;
            taken
        };
        self.pull(at);
        (at, taken)
    }

    /// Gives the hole at `start` other edges that keep its place in the order.
    fn resize_below(&mut self, at: u32, start: u64, hole: Hole) {
        let node = self.nodes[at as usize];
        match start.cmp(&node.start) {
            std::cmp::Ordering::Less => self.resize_below(node.left, start, hole),
            std::cmp::Ordering::Greater => self.resize_below(node.right, start, hole),
            std::cmp::Ordering::Equal => {
                self.node(at).start = hole.start;
                self.node(at).bytes = hole.bytes;
            }
        }
        self.pull(at);
    }

    /// The subtree's new root once the hole at `start` is gone.
    fn remove_below(&mut self, at: u32, start: u64) -> u32 {
        let node = self.nodes[at as usize];
        match start.cmp(&node.start) {
            std::cmp::Ordering::Less => {
                let left = self.remove_below(node.left, start);
                self.node(at).left = left;
            }
            std::cmp::Ordering::Greater => {
                let right = self.remove_below(node.right, start);
                self.node(at).right = right;
            }
            std::cmp::Ordering::Equal => {
                self.spare.push(at);
                return self.merge(node.left, node.right);
            }
        }
        self.pull(at);
        at
    }

    fn insert(&mut self, hole: Hole) {
        self.priorities += 1;
        let node = Node {
            start: hole.start,
            bytes: hole.bytes,
            bytes_max: hole.bytes,
            priority: super::random::mix(self.priorities),
            left: NONE,
            right: NONE,
        };
        let at = match self.spare.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.root = self.insert_below(self.root, at);
    }

    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        let (node, added) = (self.nodes[at as usize], self.nodes[new as usize]);
        if added.priority > node.priority {
            let (left, right) = self.split(at, added.start);
            self.node(new).left = left;
            self.node(new).right = right;
            self.pull(new);
            return new;
        }
        if added.start < node.start {
            let left = self.insert_below(node.left, new);
            self.node(at).left = left;
        } else {
            let right = self.insert_below(node.right, new);
            self.node(at).right = right;
        }
        self.pull(at);
        at
    }

    /// The subtree's holes below `start`, and the others.
    fn split(&mut self, at: u32, start: u64) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let node = self.nodes[at as usize];
        if node.start < start {
            let (left, right) = self.split(node.right, start);
            self.node(at).right = left;
            self.pull(at);
            (at, right)
        } else {
            let (left, right) = self.split(node.left, start);
            self.node(at).left = right;
            self.pull(at);
            (left, at)
        }
    }

    /// One tree of two; all of `left` lies below all of `right`.
    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE || right == NONE {
            return left.min(right);
        }
        let (lower, upper) = (self.nodes[left as usize], self.nodes[right as usize]);
        if lower.priority > upper.priority {
            let merged = self.merge(lower.right, right);
            self.node(left).right = merged;
            self.pull(left);
            left
        } else {
            let merged = self.merge(left, upper.left);
            self.node(right).left = merged;
            self.pull(right);
            right
        }
    }
}

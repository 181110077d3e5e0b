//! States of the search that are known to have no solution. Knows their hashes only.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::random::Random;

/// A state: the buffers left and the floors of their sections, as a hash of 128 bits. Two of a
/// million states share one with a chance of 2^-89.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u128);

/// Makes keys and keeps those of failed states, with the run of sections to blame.
pub(super) struct Nogoods {
    buffers: Vec<u128>,
    floors: Vec<u128>,
    states: HashMap<Key, (u32, u32), BuildHasherDefault<DefaultHasher>>,
}

/// More states than this are forgotten all at once: about 64 MiB.
const STATES_MAX: usize = 1 << 20;

/// A key being made.
pub(super) struct Making<'a> {
    nogoods: &'a Nogoods,
    hash: u128,
}

impl Nogoods {
    pub(super) fn new(buffers: usize, sections: usize) -> Nogoods {
        let mut random = Random(0);
        let mut draw = |count| (0..count).map(|_| random.wide()).collect();
        Nogoods { buffers: draw(buffers), floors: draw(sections), states: HashMap::default() }
    }

    pub(super) fn key(&self) -> Making<'_> {
        Making { nogoods: self, hash: 0 }
    }

    pub(super) fn find(&self, key: Key) -> Option<(usize, usize)> {
        self.states.get(&key).map(|blame| (blame.0 as usize, blame.1 as usize))
    }

    pub(super) fn insert(&mut self, key: Key, blame: (usize, usize)) {
        if self.states.len() >= STATES_MAX {
            self.states.clear();
        }
        self.states.insert(key, (blame.0 as u32, blame.1 as u32));
    }
}

impl Making<'_> {
    pub(super) fn buffer(&mut self, buffer: usize) {
        self.hash ^= self.nogoods.buffers[buffer];
    }

    pub(super) fn floor(&mut self, section: usize, floor: u64) {
        let product = (u128::from(floor) + 1).wrapping_mul(self.nogoods.floors[section] | 1);
        self.hash = self.hash.wrapping_add(product ^ product >> 61);
    }

    pub(super) fn done(self) -> Key {
        Key(self.hash)
    }
}

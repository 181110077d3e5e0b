//! The labels in a ring of events: each text once, counted by the events that bear it, so that a
//! program that numbers its steps does not use the table up. Knows nothing of the events.

use std::collections::HashMap;

use super::{clean_label, cut};

/// Texts by number.
#[derive(Debug, Default)]
pub(super) struct Labels {
    entries: Vec<Entry>,
    numbers: HashMap<Box<str>, u32>,
    /// Entries whose count is 0.
    unused: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    text: Box<str>,
    events: u64,
}

const LABELS_MAX: usize = 4096;
const TEXT_BYTES_MAX: usize = 128;

/// The number of a label that found no room.
const NO_ROOM: u32 = u32::MAX;

impl Labels {
    /// The number of a text, borne by one event more.
    pub(super) fn take(&mut self, text: &str) -> u32 {
        let text = clean_label(text);
        let text = cut(&text, TEXT_BYTES_MAX);
        if let Some(&number) = self.numbers.get(text) {
            self.entries[number as usize].events += 1;
            return number;
        }
        let entry = Entry { text: text.into(), events: 1 };
        let number = match self.unused.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                number
            }
            None if self.entries.len() == LABELS_MAX => return NO_ROOM,
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.numbers.insert(text.into(), number);
        number
    }

    /// Takes note that an event which bore the label is gone.
    pub(super) fn give_back(&mut self, number: u32) {
        let Some(entry) = self.entries.get_mut(number as usize) else { return };
        entry.events -= 1;
        if entry.events == 0 {
            self.numbers.remove(&entry.text);
            self.unused.push(number);
        }
    }

    /// The text of a number; `-` for a label that found no room.
    pub(super) fn text(&self, number: u32) -> &str {
        self.entries.get(number as usize).map_or("-", |entry| &entry.text)
    }
}

//! What can be queued on a stream, and what it does when it completes. Knows no queue.
use super::StreamId;
use super::error::Violation;
use super::memory::{Memory, Span, Use};
use std::fmt;
use std::sync::Arc;

/// Work for a stream.
///
/// Work completes after the earlier work of its stream. Without a tick it then waits for the scheduler
/// to pick it; with one ([`Work::not_before`]) it completes by itself when the device's tick is there.
///
/// Work that names memory says a [`Violation`] if the bytes are not inside one live range when it is
/// launched, or if that range is gone when it completes.
#[derive(Clone, Debug)]
pub struct Work {
    pub(super) due: Option<u64>,
    pub(super) action: Action,
}

#[derive(Clone)]
pub(super) enum Action {
    Nothing,
    Touch(Span),
    Fill(Span, u8),
    Check(Span, u8),
    Copy(Span, u64),
    Run(Arc<dyn Fn(&mut Memory) + Send + Sync>),
}

impl Work {
    /// Work that does nothing.
    pub fn unit() -> Work {
        Work { due: None, action: Action::Nothing }
    }

    /// Work that does nothing, and is done when the device's tick is `tick`. The cheapest kind.
    pub fn until(tick: u64) -> Work {
        Work::unit().not_before(tick)
    }

    /// Work that only checks that `span` is live.
    pub fn touch(span: Span) -> Work {
        Work { due: None, action: Action::Touch(span) }
    }

    /// Work that sets each byte of `span`; without bytes, [`Work::touch`].
    pub fn fill(span: Span, byte: u8) -> Work {
        Work { due: None, action: Action::Fill(span, byte) }
    }

    /// Work that expects each byte of `span` to be `byte`; without bytes, [`Work::touch`].
    pub fn check(span: Span, byte: u8) -> Work {
        Work { due: None, action: Action::Check(span, byte) }
    }

    /// Work that copies `from` to `to`; without bytes, a [`Work::touch`] of both.
    pub fn copy(from: Span, to: u64) -> Work {
        Work { due: None, action: Action::Copy(from, to) }
    }

    /// Work of the caller's own. It runs with the device locked, so it must not call the device; it
    /// runs again for each launch of a graph that it was captured in.
    pub fn run(f: impl Fn(&mut Memory) + Send + Sync + 'static) -> Work {
        Work { due: None, action: Action::Run(Arc::new(f)) }
    }

    /// The same work, completing by itself once the device's tick is `tick`.
    pub fn not_before(self, tick: u64) -> Work {
        Work { due: Some(tick), ..self }
    }
}

/// Launched work that acts on memory.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) due: Option<u64>,
    action: Action,
    uses: [Option<Use>; 2],
}

impl Job {
    /// Takes hold of the memory of `action`.
    pub(super) fn launch(work: Work, stream: StreamId, memory: &mut Memory) -> Job {
        let uses = work.action.spans().map(|span| span.and_then(|span| hold(span, stream, memory)));
        Job { due: work.due, action: work.action, uses }
    }

    /// Does the work, if the memory it was launched on is still there.
    pub(super) fn complete(self, stream: StreamId, memory: &mut Memory) {
        let mut live = true;
        for (held, span) in self.uses.into_iter().zip(self.action.spans()) {
            let Some(span) = span else { continue };
            match held {
                Some(held) if memory.let_go(held) => {}
                Some(_) => {
                    live = false;
                    memory.violations.push(Violation::DeadAtCompletion { stream, span });
                }
                None => live = false,
            }
        }
        if live {
            self.action.perform(stream, memory);
        }
    }
}

impl Action {
    fn spans(&self) -> [Option<Span>; 2] {
        match *self {
            Action::Nothing | Action::Run(_) => [None, None],
            Action::Touch(span) | Action::Fill(span, _) | Action::Check(span, _) => {
                [Some(span), None]
            }
            Action::Copy(from, to) => [Some(from), Some(Span { address: to, bytes: from.bytes })],
        }
    }

    fn perform(&self, stream: StreamId, memory: &mut Memory) {
        let live = "the range is live and has bytes";
        match self {
            Action::Nothing | Action::Touch(_) => {}
            Action::Run(f) => f(memory),
            _ if !memory.has_bytes() => {}
            Action::Fill(span, byte) => memory.fill(*span, *byte).expect(live),
            Action::Copy(from, to) => memory.copy(*from, *to).expect(live),
            Action::Check(span, expected) => {
                let bytes = memory.slice(*span).expect(live);
                if let Some(at) = bytes.iter().position(|byte| byte != expected) {
                    let address = span.address + at as u64;
                    let (expected, found) = (*expected, bytes[at]);
                    let wrong = Violation::WrongByte { stream, address, expected, found };
                    memory.violations.push(wrong);
                }
            }
        }
    }
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Nothing => f.write_str("unit"),
            Action::Touch(span) => write!(f, "touch {span}"),
            Action::Fill(span, byte) => write!(f, "fill {span} with {byte:#04x}"),
            Action::Check(span, byte) => write!(f, "check {span} for {byte:#04x}"),
            Action::Copy(from, to) => write!(f, "copy {from} to {to:#x}"),
            Action::Run(_) => f.write_str("run"),
        }
    }
}

fn hold(span: Span, stream: StreamId, memory: &mut Memory) -> Option<Use> {
    let held = memory.hold(span);
    if held.is_none() {
        memory.violations.push(Violation::DeadAtLaunch { stream, span });
    }
    held
}

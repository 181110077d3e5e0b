//! A policy whose calls need no look-up at run time, for the two that serve most. Knows which they are,
//! decides nothing itself.
use crate::{Band, Bins, Cut, FirstFit, FreeBlock, Freed, Place, Policy, Request};

/// A policy made by [`PolicySpec::build_direct`](crate::PolicySpec::build_direct), or a user's own.
///
/// The compiler sees through the first two: on the way of every request, that is worth the match.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each stream, and a box costs a look-up"
)]
#[repr(u8)]
pub enum Direct {
    /// See [`FirstFit`].
    FirstFit(FirstFit),
    /// See [`Bins`].
    Bins(Bins),
    /// Any other.
    Other(Box<dyn Policy>),
}

macro_rules! whichever {
    ($direct:expr, $policy:ident => $call:expr) => {
        match $direct {
            Direct::FirstFit($policy) => $call,
            Direct::Bins($policy) => $call,
            Direct::Other($policy) => $call,
        }
    };
}

impl Policy for Direct {
    #[inline(always)]
    fn band(&self, size: u64) -> Band {
        match self {
            Direct::FirstFit(policy) => policy.band(size),
            Direct::Bins(policy) => policy.band(size),
            // The answer of a call lies in memory; taken apart, those of the other two need not.
            Direct::Other(policy) => {
                let Band { index, size, front } = policy.band(size);
                Band { index, size, front }
            }
        }
    }

    fn place(&self, request: &Request) -> Place {
        whichever!(self, policy => policy.place(request))
    }

    fn taken(&mut self, cut: &Cut) {
        whichever!(self, policy => policy.taken(cut))
    }

    fn freed(&mut self, freed: &Freed) {
        whichever!(self, policy => policy.freed(freed))
    }

    fn unmapped(&mut self, cut: &Cut) {
        whichever!(self, policy => policy.unmapped(cut))
    }

    fn released(&mut self, block: FreeBlock) {
        whichever!(self, policy => policy.released(block))
    }

    fn keeps(&self, segment: FreeBlock) -> bool {
        whichever!(self, policy => policy.keeps(segment))
    }

    fn mark(&mut self, step: u64) {
        whichever!(self, policy => policy.mark(step))
    }
}

//! How an allocator was asked to behave; plain data, checked when the allocator is built.
use crate::policies::{Direct, PolicySpec};
use std::fmt;
use std::sync::Arc;

/// What counts against a cap, and how much may.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cap {
    pub(crate) amount: Amount,
    pub(crate) scope: CapScope,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Amount {
    Bytes(u64),
    /// Of the device's total.
    Fraction(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CapScope {
    Process,
    Device,
}

impl Cap {
    /// At most this many bytes held by this process: what the allocator has reserved and, where the
    /// device can tell, what else the process holds (context, libraries).
    pub fn bytes(bytes: u64) -> Cap {
        Cap { amount: Amount::Bytes(bytes), scope: CapScope::Process }
    }

    /// At most this fraction (over 0, at most 1) of the device's total held by this process, counted as
    /// for [`Cap::bytes`]. Two processes with 0.5 each both get their half.
    pub fn fraction(fraction: f64) -> Cap {
        Cap { amount: Amount::Fraction(fraction), scope: CapScope::Process }
    }

    /// Counts whatever anybody holds on the device, other processes included: the allocator stops
    /// growing while the device as a whole is that full.
    pub fn of_whole_device(self) -> Cap {
        Cap { scope: CapScope::Device, ..self }
    }

    pub(crate) fn limit_bytes(&self, total: u64) -> u64 {
        match self.amount {
            Amount::Bytes(bytes) => bytes,
            Amount::Fraction(fraction) => (total as f64 * fraction) as u64,
        }
    }
}

/// Makes one instance of the policy.
pub(crate) type MakePolicy = Arc<dyn Fn() -> Direct + Send + Sync>;

/// See the module's page.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) make_policy: MakePolicy,
    pub(crate) policy_name: String,
    pub(crate) front: bool,
    pub(crate) share_streams: bool,
    pub(crate) sites: bool,
    /// How far reserved may run above the peak in use before idle segments are released first; `None`
    /// for as far as the device allows.
    pub(crate) slack: Option<f64>,
    pub(crate) cached_bytes_cap: Option<u64>,
    pub(crate) cap: Option<Cap>,
}

impl Settings {
    pub(crate) fn policy(&self) -> Direct {
        (self.make_policy)()
    }

    pub(crate) fn by_spec(spec: PolicySpec) -> (MakePolicy, String) {
        let name = spec.to_string();
        (Arc::new(move || spec.build_direct()), name)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("policy", &self.policy_name)
            .field("front", &self.front)
            .field("share_streams", &self.share_streams)
            .field("slack", &self.slack)
            .field("cached_bytes_cap", &self.cached_bytes_cap)
            .field("cap", &self.cap)
            .finish_non_exhaustive()
    }
}

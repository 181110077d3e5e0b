//! How an allocator was asked to behave; plain data, checked when the allocator is built.
use crate::driver::HandleFlags;
use crate::policies::{BlockId, Direct, FreeBlock, Policy, PolicySpec};
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

/// Where blocks get their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// [`Backing::Paged`] where the device can do it and the policy keeps idle memory at all,
    /// [`Backing::Segments`] elsewhere.
    #[default]
    Auto,
    /// Segments, each got from the driver with one call and given back whole.
    Segments,
    /// Virtual ranges whose pages get memory when a block needs them, and lose it to other places while
    /// no block does.
    Paged,
}

/// Modelled driver time that moving pages may take in a step, in nanoseconds.
const STEP_BUDGET_NS: u64 = 15_000_000;

/// Makes one instance of the policy.
pub(crate) type MakePolicy = Arc<dyn Fn() -> Direct + Send + Sync>;

/// See the module's page.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) make_policy: MakePolicy,
    pub(crate) policy_name: String,
    /// Whether requests go where a plan of the step says, before the policy is asked.
    pub(crate) plans: bool,
    pub(crate) front: bool,
    pub(crate) share_streams: bool,
    pub(crate) sites: bool,
    /// How far reserved may run above the peak in use before idle segments are released first; `None`
    /// for as far as the device allows.
    pub(crate) slack: Option<f64>,
    pub(crate) cached_bytes_cap: Option<u64>,
    pub(crate) cap: Option<Cap>,
    pub(crate) backing: Backing,
    /// Devices that may use the memory beside its own.
    pub(crate) peers: Vec<u32>,
    pub(crate) handle_flags: HandleFlags,
    /// Modelled driver time that moving pages may take in a step, in nanoseconds.
    pub(crate) step_budget_ns: u64,
}

impl Settings {
    pub(crate) fn policy(&self) -> Direct {
        (self.make_policy)()
    }

    /// Whether the policy keeps idle segments.
    pub(crate) fn keeps_segments(&self) -> bool {
        let (id, address, offset, size) = (BlockId(0), 1 << 30, 0, 1 << 30);
        self.policy().keeps(FreeBlock { id, address, offset, size })
    }

    /// What holds unless told otherwise.
    pub(crate) fn new(spec: PolicySpec) -> Settings {
        Settings {
            policy_name: spec.to_string(),
            plans: spec.plans(),
            make_policy: Arc::new(move || spec.build_direct()),
            front: true,
            share_streams: true,
            sites: false,
            slack: None,
            cached_bytes_cap: None,
            cap: None,
            backing: Backing::Auto,
            peers: Vec::new(),
            handle_flags: HandleFlags::default(),
            step_budget_ns: STEP_BUDGET_NS,
        }
    }

    /// The same with the policy that `spec` names.
    pub(crate) fn with_policy(self, spec: PolicySpec) -> Settings {
        let Settings { make_policy, policy_name, plans, .. } = Settings::new(spec);
        Settings { make_policy, policy_name, plans, ..self }
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
            .field("backing", &self.backing)
            .finish_non_exhaustive()
    }
}

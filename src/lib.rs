//! aquifer: a caching device allocator with pluggable policies, and a simulated device to run it on.
//!
//! A policy decides, the heap keeps the books, the driver acts, one hub calls the three.
#![deny(unsafe_code)]

mod allocation;
mod allocator;
mod audit;
mod cache;
mod counters;
mod device;
pub mod driver;
mod error;
mod fork;
mod front;
pub mod global;
mod grow;
mod heap;
mod lane;
mod oom;
mod pending;
mod pool;
mod recorder;
mod settings;
mod stats;
#[allow(unsafe_code)]
mod sync;
mod tags;
pub mod trace;
mod trim;

pub use allocation::{Allocation, TypedAllocation};
pub use allocator::{Allocator, Builder};
pub use aquifer_policies as policies;
pub use error::{AllocError, BuildError};
pub use oom::{Fit, OomReport, Stage, StageResult, Stages};
pub use pool::Pool;
pub use settings::Cap;
pub use stats::{Stat, Stats};
pub use tags::{OVERFLOW_NAME, Scope, TAGS_MAX, TagStats, scope};
pub use trim::Trimmed;

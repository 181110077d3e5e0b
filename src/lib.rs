//! aquifer: a caching device allocator with pluggable policies.
pub mod driver;
pub mod trace;
pub use aquifer_policies as policies;

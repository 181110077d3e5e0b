//! A caching device-memory allocator for GPU programs, with pluggable policies, and a simulated device
//! to run it on.
//!
//! A policy decides, the heap keeps the books, the driver acts, one hub calls the three.
//!
//! ```
//! use aquifer::{AllocError, Allocator, driver::StreamId, driver::sim::Sim};
//!
//! let device = Sim::builder().capacity(1 << 30).build()?.device(0).unwrap();
//! let allocator = Allocator::builder(device).policy("best-fit").build()?;
//!
//! let first = allocator.allocate(100 << 20, StreamId(0))?;
//! let address = first.address();
//! let asked = allocator.memory_stats().num_device_alloc;
//! drop(first);
//! let second = allocator.allocate(100 << 20, StreamId(0))?;
//! assert_eq!(second.address(), address); // cached: the driver is not asked again
//! assert_eq!(allocator.memory_stats().num_device_alloc, asked);
//!
//! match allocator.allocate(1 << 30, StreamId(0)) {
//!     Err(AllocError::OutOfMemory(report)) => assert!(report.fits_now < 1 << 30),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to look
//!
//! | for | see |
//! |---|---|
//! | allocating, statistics, recording | [`Allocator`] |
//! | settings | [`Builder`], [`Cap`] |
//! | what is allocated | [`Allocation`], [`TypedAllocation`] |
//! | memory apart from other memory | [`Pool`] |
//! | one allocator for the whole process | [`global`] |
//! | whose memory it is | [`scope`], [`TagStats`] |
//! | what went wrong | [`AllocError`], [`OomReport`] |
//! | where requests go | [`policies`] |
//! | a device, simulated or your own | [`driver`] |
//! | recorded programs | [`trace`] |
//!
//! # Features
//!
//! `compress`: traces may be gzip or zstd.
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
mod loom_pages;
mod oom;
mod paged;
mod pages;
mod pending;
mod planned;
mod pool;
mod recorder;
mod returned;
mod settings;
mod stats;
mod steal;
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
pub use settings::{Backing, Cap};
pub use stats::{Stat, Stats};
pub use tags::{OVERFLOW_NAME, Scope, TAGS_MAX, TagStats, scope};
pub use trim::Trimmed;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

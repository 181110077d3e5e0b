//! What a run asks of an allocator, and the two that can be run: ours, and the model of expandable
//! segments. Knows no trace.

use std::fmt;
use std::sync::Arc;

use aquifer::driver::{Driver, DriverError, StreamId};
use aquifer::{AllocError, Allocation, Allocator, Backing};

use crate::engine::{EngineError, Setup};
use crate::expandable::{Expandable, Held};

/// The name of the backing that is the model of expandable segments.
pub(crate) const EXPANDABLE: &str = "expandable";

/// The backings by name.
pub(crate) const BACKINGS: &[&str] = &["paged", "segments", EXPANDABLE];

/// How many requests were served where a plan says, and how many elsewhere, by an allocator that plans.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planned {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// An allocator under a run.
pub(crate) trait Subject: Send + Sized {
    /// A block handed out.
    type Block: Send;
    type Error: fmt::Display + Send;

    /// An allocator on the driver of a new device of `capacity_bytes`.
    fn new(
        setup: &Setup,
        driver: Arc<dyn Driver>,
        capacity_bytes: u64,
    ) -> Result<Self, EngineError>;
    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Self::Block, Self::Error>;
    fn free(&mut self, block: Self::Block);
    fn record_stream(&mut self, block: &Self::Block, stream: StreamId) -> Result<(), Self::Error>;
    fn mark(&mut self, label: &str);
    fn empty_cache(&mut self) -> Result<(), Self::Error>;

    /// The stream of a block; none for a block of no bytes, which nothing can use.
    fn stream_of(&self, block: &Self::Block) -> Option<StreamId>;
    fn peak_reserved_bytes(&self) -> u64;

    /// What came of its plans so far; nothing of one that does not plan.
    fn planned(&self) -> Planned {
        Planned::default()
    }

    /// Whether an error says that there was no memory.
    fn is_oom(error: &Self::Error) -> bool;

    /// What went wrong in a call that could not tell.
    fn hidden_error(&self) -> Option<Self::Error>;
}

impl Subject for Allocator {
    type Block = Allocation;
    type Error = AllocError;

    fn new(setup: &Setup, driver: Arc<dyn Driver>, _: u64) -> Result<Allocator, EngineError> {
        let backing = if setup.backing == "segments" { Backing::Segments } else { Backing::Paged };
        let mut builder = Allocator::builder(driver).policy(&setup.policy).backing(backing);
        if let Some(slack) = setup.slack {
            builder = builder.slack(slack);
        }
        builder.build().map_err(|error| EngineError::BadSetup(error.to_string()))
    }

    #[inline]
    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Allocation, AllocError> {
        Allocator::allocate(self, bytes, stream)
    }

    #[inline]
    fn free(&mut self, block: Allocation) {
        drop(block);
    }

    fn record_stream(&mut self, block: &Allocation, stream: StreamId) -> Result<(), AllocError> {
        block.record_stream(stream)
    }

    fn mark(&mut self, label: &str) {
        Allocator::mark(self, label);
    }

    fn empty_cache(&mut self) -> Result<(), AllocError> {
        Allocator::empty_cache(self).map(drop)
    }

    fn stream_of(&self, block: &Allocation) -> Option<StreamId> {
        (!block.is_empty()).then(|| block.stream())
    }

    fn peak_reserved_bytes(&self) -> u64 {
        self.max_memory_reserved()
    }

    fn planned(&self) -> Planned {
        let stats = self.memory_stats();
        Planned { hits: stats.plan_hits, misses: stats.plan_misses }
    }

    fn is_oom(error: &AllocError) -> bool {
        error.oom().is_some()
    }

    fn hidden_error(&self) -> Option<AllocError> {
        self.last_driver_error().map(AllocError::from)
    }
}

impl Subject for Expandable {
    /// None has no bytes.
    type Block = Option<Held>;
    type Error = DriverError;

    fn new(
        setup: &Setup,
        driver: Arc<dyn Driver>,
        capacity_bytes: u64,
    ) -> Result<Expandable, EngineError> {
        if setup.slack.is_some() {
            return Err(EngineError::BadSetup(format!(
                "backing `{EXPANDABLE}` gives memory back by its own rules: it takes no slack"
            )));
        }
        Ok(Expandable::new(driver, capacity_bytes))
    }

    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<Option<Held>, DriverError> {
        (bytes > 0).then(|| Expandable::allocate(self, bytes, stream)).transpose()
    }

    fn free(&mut self, block: Option<Held>) {
        if let Some(held) = block {
            Expandable::free(self, held);
        }
    }

    fn record_stream(&mut self, block: &Option<Held>, stream: StreamId) -> Result<(), DriverError> {
        if let Some(held) = block {
            Expandable::record_stream(self, *held, stream);
        }
        Ok(())
    }

    fn mark(&mut self, _: &str) {}

    fn empty_cache(&mut self) -> Result<(), DriverError> {
        Expandable::empty_cache(self)
    }

    fn stream_of(&self, block: &Option<Held>) -> Option<StreamId> {
        block.map(|held| self.stream(held))
    }

    fn peak_reserved_bytes(&self) -> u64 {
        self.reserved_bytes_peak()
    }

    fn is_oom(error: &DriverError) -> bool {
        matches!(error, DriverError::OutOfMemory { .. })
    }

    fn hidden_error(&self) -> Option<DriverError> {
        self.driver_error()
    }
}

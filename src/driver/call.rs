//! The names of the driver's calls. Knows nothing of what they do.
use std::fmt;

/// Which call of the driver, for errors, logs, fault plans and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Call {
    /// [`super::Driver::memory_info`]
    MemoryInfo,
    /// [`super::Driver::allocate`]
    Allocate,
    /// [`super::Driver::free`]
    Free,
    /// [`super::Driver::record_event`]
    RecordEvent,
    /// [`super::Driver::query_event`]
    QueryEvent,
    /// [`super::Driver::wait_event`]
    WaitEvent,
    /// [`super::Driver::stream_wait_event`]
    StreamWaitEvent,
    /// [`super::Driver::release_event`]
    ReleaseEvent,
    /// [`super::Driver::synchronize`]
    Synchronize,
    /// [`super::Driver::capture`]
    Capture,
    /// [`super::Driver::reserve`]
    Reserve,
    /// [`super::Driver::unreserve`]
    Unreserve,
    /// [`super::Driver::create`]
    Create,
    /// [`super::Driver::release`]
    ReleaseHandle,
    /// [`super::Driver::map`]
    Map,
    /// [`super::Driver::unmap`]
    Unmap,
    /// [`super::Driver::set_access`]
    SetAccess,
}

impl Call {
    /// Every call, in the order of [`Call::index`].
    pub const ALL: [Call; 17] = [
        Call::MemoryInfo,
        Call::Allocate,
        Call::Free,
        Call::RecordEvent,
        Call::QueryEvent,
        Call::WaitEvent,
        Call::StreamWaitEvent,
        Call::ReleaseEvent,
        Call::Synchronize,
        Call::Capture,
        Call::Reserve,
        Call::Unreserve,
        Call::Create,
        Call::ReleaseHandle,
        Call::Map,
        Call::Unmap,
        Call::SetAccess,
    ];

    /// Position in [`Call::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The name used in logs and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Call::MemoryInfo => "memory_info",
            Call::Allocate => "allocate",
            Call::Free => "free",
            Call::RecordEvent => "record_event",
            Call::QueryEvent => "query_event",
            Call::WaitEvent => "wait_event",
            Call::StreamWaitEvent => "stream_wait_event",
            Call::ReleaseEvent => "release_event",
            Call::Synchronize => "synchronize",
            Call::Capture => "capture",
            Call::Reserve => "reserve",
            Call::Unreserve => "unreserve",
            Call::Create => "create",
            Call::ReleaseHandle => "release_handle",
            Call::Map => "map",
            Call::Unmap => "unmap",
            Call::SetAccess => "set_access",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

//! The driver trait of a simulated device: what each call checks, waits for and changes.
use super::device::{Device, State};
use super::error::Violation;
use super::events::Mark;
use super::memory::Span;
use super::streams::{Point, Stuck};
use super::virtual_memory::VirtualMemory;
use crate::driver::{
    Call, Capture, Driver, DriverError, EventId, HandleFlags, HandleId, MemoryInfo, StreamId,
};

/// The code of a wait that can never end: CUDA's `CUDA_ERROR_LAUNCH_TIMEOUT`.
const STUCK_CODE: i32 = 702;

impl Driver for Device {
    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.call(Call::MemoryInfo, |state| Ok(state.memory.budget.info()))
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        self.call(Call::Allocate, |state| {
            state.refuse_in_capture(Call::Allocate)?;
            let address = state.memory.allocate(bytes)?;
            state.clock.spend(state.clock.costs.allocate_bytes_ns(bytes));
            Ok(address)
        })
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        self.call(Call::Free, |state| {
            state.refuse_in_capture(Call::Free)?;
            // An unknown address must not wait; without work the memory itself finds it unknown.
            if self.free_waits && state.streams.pending() > 0 {
                state.memory.require_start(address)?;
                state.wait_for_all(Call::Free)?;
            }
            state.memory.free(address)
        })
    }

    fn record_event(&self, stream: StreamId) -> Result<EventId, DriverError> {
        self.call(Call::RecordEvent, |state| {
            let slot = state.known_slot(stream)?;
            let mark = match state.captures.of(slot) {
                None => Mark::Work(state.streams.end(slot)),
                Some(recording) if recording.spoiled => {
                    return Err(DriverError::Capturing(Call::RecordEvent));
                }
                Some(recording) => Mark::Graph(recording.graph.number),
            };
            Ok(state.events.record(mark))
        })
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        self.call(Call::QueryEvent, |state| {
            let point = state.host_point(event, Call::QueryEvent)?;
            Ok(state.streams.has_passed(point))
        })
    }

    fn wait_event(&self, event: EventId) -> Result<(), DriverError> {
        self.call(Call::WaitEvent, |state| {
            let point = state.host_point(event, Call::WaitEvent)?;
            if state.streams.has_passed(point) {
                return Ok(());
            }
            state.wait(Call::WaitEvent, |state| state.streams.run_to(point, &mut state.memory))
        })
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        self.call(Call::StreamWaitEvent, |state| state.stream_wait_event(stream, event))
    }

    fn release_event(&self, event: EventId) -> Result<(), DriverError> {
        self.call(Call::ReleaseEvent, |state| {
            let known = state.events.release(event);
            known.then_some(()).ok_or(DriverError::UnknownEvent(event))
        })
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.call(Call::Synchronize, |state| {
            state.refuse_in_capture(Call::Synchronize)?;
            state.wait_for_all(Call::Synchronize)
        })
    }

    fn capture(&self, stream: StreamId) -> Result<Capture, DriverError> {
        self.call(Call::Capture, |state| {
            let slot = state.known_slot(stream)?;
            Ok(match state.captures.of(slot) {
                None => Capture::None,
                Some(recording) if recording.spoiled => Capture::Invalidated,
                Some(recording) => Capture::Active(recording.graph.number),
            })
        })
    }

    fn page_bytes(&self) -> Option<u64> {
        self.page_bytes
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        self.strict_call(Call::Reserve, |state| state.virtual_memory(Call::Reserve)?.reserve(bytes))
    }

    fn unreserve(&self, address: u64) -> Result<(), DriverError> {
        self.strict_call(Call::Unreserve, |state| {
            state.refuse_in_capture(Call::Unreserve)?;
            state.virtual_memory(Call::Unreserve)?.unreserve(address)
        })
    }

    fn create(&self, bytes: u64, flags: HandleFlags) -> Result<HandleId, DriverError> {
        self.strict_call(Call::Create, |state| state.memory.create(bytes, flags))
    }

    fn release(&self, handle: HandleId) -> Result<(), DriverError> {
        self.strict_call(Call::ReleaseHandle, |state| {
            state.refuse_in_capture(Call::ReleaseHandle)?;
            state.memory.release(handle)
        })
    }

    fn map(&self, address: u64, handle: HandleId) -> Result<(), DriverError> {
        self.strict_call(Call::Map, |state| state.virtual_memory(Call::Map)?.map(address, handle))
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.strict_call(Call::Unmap, |state| {
            state.refuse_in_capture(Call::Unmap)?;
            let mappings = state.memory.unmap(Span { address, bytes })?;
            state.clock.spend(state.clock.costs.mappings_ns(mappings));
            Ok(())
        })
    }

    fn set_access(&self, address: u64, bytes: u64, peers: &[u32]) -> Result<(), DriverError> {
        self.strict_call(Call::SetAccess, |state| {
            let span = Span { address, bytes };
            let mappings = state.virtual_memory(Call::SetAccess)?.set_access(span, peers)?;
            state.clock.spend(state.clock.costs.mappings_ns(mappings));
            Ok(())
        })
    }
}

impl Device {
    /// Counts `call`, lets it cost its time, and does it unless it is to fail.
    fn call<T>(
        &self,
        call: Call,
        act: impl FnOnce(&mut State) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let state = &mut *self.lock();
        state.clock.count_made(call);
        let result = match state.faults.check(call) {
            Ok(()) => act(state),
            Err(planned) => Err(planned),
        };
        if result.is_err() {
            state.clock.count_failed(call);
        }
        result
    }

    /// As [`Device::call`], and a refusal of what breaks the contract is a violation too: a caller that
    /// ignores the error does not hide its mistake.
    fn strict_call<T>(
        &self,
        call: Call,
        act: impl FnOnce(&mut State) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        self.call(call, |state| {
            let result = act(state);
            if let Err(
                error @ (DriverError::InvalidValue(_)
                | DriverError::UnknownAddress(_)
                | DriverError::UnknownHandle(_)),
            ) = result
            {
                state.memory.violations.push(Violation::Refused { call, error });
            }
            result
        })
    }
}

impl State {
    fn known_slot(&self, stream: StreamId) -> Result<u32, DriverError> {
        self.streams.slot(stream).ok_or(DriverError::UnknownStream(stream))
    }

    fn virtual_memory(&mut self, call: Call) -> Result<&mut VirtualMemory, DriverError> {
        self.memory.virtual_memory.as_mut().ok_or(DriverError::Unsupported(call))
    }

    fn mark(&self, event: EventId) -> Result<Mark, DriverError> {
        self.events.mark(event).ok_or(DriverError::UnknownEvent(event))
    }

    /// `call` is illegal while any stream is being captured, and spoils the captures.
    fn refuse_in_capture(&mut self, call: Call) -> Result<(), DriverError> {
        if self.captures.any() {
            self.captures.spoil_all();
            return Err(DriverError::Capturing(call));
        }
        Ok(())
    }

    /// What `event` marks, for a call in which the host asks about it.
    fn host_point(&mut self, event: EventId, call: Call) -> Result<Point, DriverError> {
        let mark = self.mark(event)?;
        self.refuse_in_capture(call)?;
        match mark {
            Mark::Work(point) => Ok(point),
            Mark::Graph(_) => Err(DriverError::Capturing(call)),
        }
    }

    fn stream_wait_event(&mut self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        let slot = self.known_slot(stream)?;
        let mark = self.mark(event)?;
        let illegal = DriverError::Capturing(Call::StreamWaitEvent);
        match (mark, self.captures.of(slot)) {
            (Mark::Work(point), None) => {
                self.streams.wait(slot, point, &mut self.memory);
                Ok(())
            }
            (Mark::Graph(number), None) => {
                self.captures.join(slot, number).then_some(()).ok_or(illegal)
            }
            // Both record into the graph, whose order of recording keeps the wait.
            (Mark::Graph(number), Some(own)) if own.graph.number == number && !own.spoiled => {
                Ok(())
            }
            (_, Some(own)) => {
                own.spoiled = true;
                Err(illegal)
            }
        }
    }

    fn wait_for_all(&mut self, call: Call) -> Result<(), DriverError> {
        if self.streams.pending() == 0 {
            return Ok(());
        }
        self.wait(call, |state| state.streams.run_all(&mut state.memory))
    }

    /// Counts a wait of the host and has it.
    fn wait(
        &mut self,
        call: Call,
        run: impl FnOnce(&mut State) -> Result<(), Stuck>,
    ) -> Result<(), DriverError> {
        let tick = self.streams.tick();
        let ran = run(self);
        self.clock.counts.host_waits += 1;
        self.clock.counts.host_wait_ticks += self.streams.tick() - tick;
        ran.map_err(|Stuck| DriverError::Failed { call, code: STUCK_CODE })
    }
}

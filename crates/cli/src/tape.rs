//! A driver that keeps what a device answers, and then answers so again without doing anything: an
//! allocator over it takes the way that it took over the device, and its time is its own.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aquifer::driver::{
    Call, Capture, Driver, DriverError, EventId, HandleFlags, HandleId, MemoryInfo, StreamId,
};

/// The answers of a driver in the order of its calls.
#[derive(Debug)]
pub(crate) struct Tape {
    granularity: u64,
    page_bytes: Option<u64>,
    answers: Vec<Answer>,
}

/// What a call answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    Done,
    Address(u64),
    Event(EventId),
    Handle(HandleId),
    IsDone(bool),
    Capture(Capture),
    Info(MemoryInfo),
    Refused(DriverError),
}

/// A value that calls return, as an answer and back; none from an answer to a call of another kind.
trait Answered: Copy {
    fn into_answer(self) -> Answer;
    fn from_answer(answer: Answer) -> Option<Self>;
}

macro_rules! answered {
    ($($type:ty: $kind:ident),*) => {$(
        impl Answered for $type {
            fn into_answer(self) -> Answer {
                Answer::$kind(self)
            }

            #[inline]
            fn from_answer(answer: Answer) -> Option<Self> {
                if let Answer::$kind(value) = answer { Some(value) } else { None }
            }
        }
    )*};
}

answered!(u64: Address, EventId: Event, HandleId: Handle, bool: IsDone, Capture: Capture, MemoryInfo: Info);

impl Answered for () {
    fn into_answer(self) -> Answer {
        Answer::Done
    }

    #[inline]
    fn from_answer(answer: Answer) -> Option<()> {
        matches!(answer, Answer::Done).then_some(())
    }
}

/// A driver that records a tape or plays one; calls come one at a time, from any thread.
#[derive(Debug)]
pub(crate) enum Taped<D> {
    /// A device and its answers up to now.
    Recording { device: D, answers: Mutex<Vec<Answer>> },
    /// A tape, the answer that is next, and whether a call came that was not on it.
    Playing { tape: Arc<Tape>, next: AtomicUsize, is_astray: AtomicBool },
}

impl<D: Driver> Taped<D> {
    pub(crate) fn recording(device: D) -> Taped<D> {
        Taped::Recording { device, answers: Mutex::default() }
    }

    pub(crate) fn playing(tape: Arc<Tape>) -> Taped<D> {
        Taped::Playing { tape, next: AtomicUsize::new(0), is_astray: AtomicBool::new(false) }
    }

    /// What was recorded, or is played.
    pub(crate) fn tape(&self) -> Arc<Tape> {
        match self {
            Taped::Recording { device, answers } => Arc::new(Tape {
                granularity: device.granularity(),
                page_bytes: device.page_bytes(),
                answers: mem::take(&mut *answers.lock().unwrap_or_else(PoisonError::into_inner)),
            }),
            Taped::Playing { tape, .. } => tape.clone(),
        }
    }

    /// Whether a call came of another kind than the tape has, or more of them.
    pub(crate) fn is_astray(&self) -> bool {
        match self {
            Taped::Recording { .. } => false,
            Taped::Playing { is_astray, .. } => is_astray.load(Ordering::Relaxed),
        }
    }

    #[inline]
    fn answer<T: Answered>(
        &self,
        call: Call,
        ask: impl FnOnce(&D) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        match self {
            Taped::Recording { device, answers } => {
                let result = ask(device);
                let answer = result.map_or_else(Answer::Refused, T::into_answer);
                answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
                result
            }
            Taped::Playing { tape, next, is_astray } => {
                let at = next.load(Ordering::Relaxed);
                next.store(at + 1, Ordering::Relaxed);
                let answer = tape.answers.get(at).copied();
                if let Some(Answer::Refused(error)) = answer {
                    return Err(error);
                }
                answer.and_then(T::from_answer).ok_or_else(|| {
                    is_astray.store(true, Ordering::Relaxed);
                    DriverError::InvalidValue(call)
                })
            }
        }
    }
}

impl<D: Driver> Driver for Taped<D> {
    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.answer(Call::MemoryInfo, |device| device.memory_info())
    }

    fn granularity(&self) -> u64 {
        match self {
            Taped::Recording { device, .. } => device.granularity(),
            Taped::Playing { tape, .. } => tape.granularity,
        }
    }

    fn allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        self.answer(Call::Allocate, |device| device.allocate(bytes))
    }

    fn free(&self, address: u64) -> Result<(), DriverError> {
        self.answer(Call::Free, |device| device.free(address))
    }

    fn record_event(&self, stream: StreamId) -> Result<EventId, DriverError> {
        self.answer(Call::RecordEvent, |device| device.record_event(stream))
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        self.answer(Call::QueryEvent, |device| device.query_event(event))
    }

    fn wait_event(&self, event: EventId) -> Result<(), DriverError> {
        self.answer(Call::WaitEvent, |device| device.wait_event(event))
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        self.answer(Call::StreamWaitEvent, |device| device.stream_wait_event(stream, event))
    }

    fn release_event(&self, event: EventId) -> Result<(), DriverError> {
        self.answer(Call::ReleaseEvent, |device| device.release_event(event))
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.answer(Call::Synchronize, |device| device.synchronize())
    }

    fn capture(&self, stream: StreamId) -> Result<Capture, DriverError> {
        self.answer(Call::Capture, |device| device.capture(stream))
    }

    fn page_bytes(&self) -> Option<u64> {
        match self {
            Taped::Recording { device, .. } => device.page_bytes(),
            Taped::Playing { tape, .. } => tape.page_bytes,
        }
    }

    fn reserve(&self, bytes: u64) -> Result<u64, DriverError> {
        self.answer(Call::Reserve, |device| device.reserve(bytes))
    }

    fn unreserve(&self, address: u64) -> Result<(), DriverError> {
        self.answer(Call::Unreserve, |device| device.unreserve(address))
    }

    fn create(&self, bytes: u64, flags: HandleFlags) -> Result<HandleId, DriverError> {
        self.answer(Call::Create, |device| device.create(bytes, flags))
    }

    fn release(&self, handle: HandleId) -> Result<(), DriverError> {
        self.answer(Call::ReleaseHandle, |device| device.release(handle))
    }

    fn map(&self, address: u64, handle: HandleId) -> Result<(), DriverError> {
        self.answer(Call::Map, |device| device.map(address, handle))
    }

    fn unmap(&self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.answer(Call::Unmap, |device| device.unmap(address, bytes))
    }

    fn set_access(&self, address: u64, bytes: u64, peers: &[u32]) -> Result<(), DriverError> {
        self.answer(Call::SetAccess, |device| device.set_access(address, bytes, peers))
    }
}

#[cfg(test)]
mod tests {
    use aquifer::driver::sim::{Device, Sim};

    use super::*;

    fn asked<D: Driver>(driver: &D) -> Vec<String> {
        let page = driver.page_bytes().unwrap();
        let event = driver.record_event(StreamId(0));
        let range = driver.reserve(2 * page);
        let handle = driver.create(page, HandleFlags::default());
        let (address, page_handle) = (range.unwrap(), handle.unwrap());
        vec![
            format!("{:?}", driver.memory_info()),
            format!("{:?}", driver.allocate(page)),
            format!("{:?}", driver.free(1)),
            format!("{event:?} {:?}", driver.query_event(event.unwrap())),
            format!("{:?}", driver.capture(StreamId(0))),
            format!("{range:?} {handle:?} {:?}", driver.map(address, page_handle)),
            format!("{:?}", driver.set_access(address, page, &[])),
            format!("{:?}", driver.granularity()),
        ]
    }

    #[test]
    fn a_tape_answers_as_the_device_did() {
        let device = Sim::builder().granularity(1 << 16).build().unwrap().device(0).unwrap();
        let recording = Taped::recording(device.clone());
        let answers = asked(&recording);
        let playing = Taped::<Arc<Device>>::playing(recording.tape());
        let before = device.counts().total();
        assert_eq!(asked(&playing), answers);
        assert_eq!((device.counts().total(), playing.is_astray()), (before, false));
    }

    #[test]
    fn a_call_that_is_not_on_the_tape_is_refused() {
        let device = Sim::builder().build().unwrap().device(0).unwrap();
        let recording = Taped::recording(device);
        recording.synchronize().unwrap();
        let tape = recording.tape();
        let another = Taped::<Arc<Device>>::playing(tape.clone());
        assert_eq!(another.memory_info(), Err(DriverError::InvalidValue(Call::MemoryInfo)));
        assert!(another.is_astray());
        let one_more = Taped::<Arc<Device>>::playing(tape);
        assert_eq!(one_more.synchronize(), Ok(()));
        assert!(!one_more.is_astray());
        assert!(one_more.synchronize().is_err() && one_more.is_astray());
    }
}

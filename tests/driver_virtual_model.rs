//! Random programs on the simulated device's virtual memory against a naive model.
mod mapped;

use aquifer::driver::faults::FAULT_CODE;
use aquifer::driver::sim::{Backing, Device, Sim, SimError, Span, Violation, Work};
use aquifer::driver::{Call, Driver, DriverError, HandleFlags, HandleId, StreamId};
use mapped::ops::{Op, Run, ops};
use mapped::{ADDRESS_PAGES, CAPACITY_PAGES, DEVICES, Handle, Mapping, Model, end, is_in, overlap};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};
use std::fmt::Debug;
use std::sync::Arc;

const STREAM: StreamId = StreamId(0);

/// A device and what it should be.
struct Pair {
    device: Arc<Device>,
    model: Model,
    has_bytes: bool,
    mappings_made: u64,
    peak_bytes: u64,
    violations: Vec<Violation>,
    fails_next: bool,
    /// What the program came to.
    seen: Seen,
}

/// How often each outcome was met.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    successes: [u64; Call::ALL.len()],
    contract_errors: [u64; Call::ALL.len()],
    out_of_memory: u64,
    planned: u64,
    /// Work on more than one mapping.
    long_runs: u64,
    unmapped_in_use: u64,
    dead_at_completion: u64,
}

impl Seen {
    fn add(&mut self, pair: &Pair) {
        let other = pair.seen;
        for call in Call::ALL.map(Call::index) {
            self.successes[call] += other.successes[call];
            self.contract_errors[call] += other.contract_errors[call];
        }
        self.out_of_memory += other.out_of_memory;
        self.planned += other.planned;
        self.long_runs += other.long_runs;
        for violation in &pair.violations {
            match violation {
                Violation::UnmappedInUse { .. } => self.unmapped_in_use += 1,
                Violation::DeadAtCompletion { .. } => self.dead_at_completion += 1,
                _ => {}
            }
        }
    }
}

impl Pair {
    fn new(page: u64, backing: Backing) -> Pair {
        let builder = Sim::builder().devices(DEVICES as usize).capacity(CAPACITY_PAGES * page);
        let builder = builder.granularity(page).address_bytes(ADDRESS_PAGES * page);
        let device = builder.backing(backing).build().unwrap().device(0).unwrap();
        let start = device.reserve(page).unwrap();
        device.unreserve(start).unwrap();
        Pair {
            device,
            model: Model { page, start, ..Model::default() },
            has_bytes: backing == Backing::HostBytes,
            mappings_made: 0,
            peak_bytes: 0,
            violations: Vec::new(),
            fails_next: false,
            seen: Seen::default(),
        }
    }

    fn span_of(&self, run: Run) -> Span {
        let count = self.model.mappings.len();
        if count == 0 {
            return Span { address: self.model.start, bytes: self.model.page };
        }
        let first = run.first % count;
        let last = (first + run.mappings - 1).min(count - 1);
        let skewed =
            |at: u64, pages: i8| at.wrapping_add_signed(i64::from(pages) * self.model.page as i64);
        let address = skewed(self.model.mappings[first].span.address, run.skew.0);
        let end = skewed(end(self.model.mappings[last].span), run.skew.1);
        Span { address, bytes: end.saturating_sub(address) }
    }

    /// What the call must answer: `right`, unless it is planned to fail. A broken contract is noted.
    fn expect<T: Debug + PartialEq>(
        &mut self,
        call: Call,
        right: Result<T, DriverError>,
        answer: Result<T, DriverError>,
    ) -> Result<bool, TestCaseError> {
        if std::mem::take(&mut self.fails_next) {
            self.seen.planned += 1;
            prop_assert_eq!(answer, Err(DriverError::Failed { call, code: FAULT_CODE }));
            return Ok(false);
        }
        match &right {
            Ok(_) => self.seen.successes[call.index()] += 1,
            Err(DriverError::OutOfMemory { .. }) => self.seen.out_of_memory += 1,
            Err(error) => {
                self.seen.contract_errors[call.index()] += 1;
                self.violations.push(Violation::Refused { call, error: *error });
            }
        }
        prop_assert_eq!(&answer, &right);
        Ok(right.is_ok())
    }

    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Reserve { pages } => self.reserve(pages * self.model.page)?,
            Op::Unreserve { choice } => self.unreserve(choice)?,
            Op::Create { pages } => self.create(pages * self.model.page)?,
            Op::Release { choice } => self.release(choice)?,
            Op::Map { range, page, handle } => self.map(range, page, handle)?,
            Op::Grow { range, pages } => {
                self.create(pages * self.model.page)?;
                self.map(range, None, self.model.handles.len().saturating_sub(1))?;
                let last = self.model.mappings.iter().max_by_key(|mapping| mapping.number);
                if let Some(span) = last.map(|mapping| mapping.span) {
                    self.set_access(span, None)?;
                }
            }
            Op::Unmap(run) => self.unmap(self.span_of(run))?,
            Op::SetAccess { run, peer } => self.set_access(self.span_of(run), peer)?,
            Op::Allocate { pages } => {
                let bytes = pages * self.model.page;
                let has = bytes <= self.model.left_bytes();
                let right = has.then_some(()).ok_or(DriverError::OutOfMemory { bytes });
                let answer = self.device.allocate(bytes).map(drop);
                if self.expect(Call::Allocate, right, answer)? {
                    self.model.allocated_bytes += bytes;
                }
            }
            Op::OtherUse { pages } => {
                self.model.other_use_bytes = pages * self.model.page;
                self.device.set_other_use(self.model.other_use_bytes);
            }
            Op::Write { choice, page, tag } => self.write(choice, page, tag)?,
            Op::Touch(run) => self.touch(self.span_of(run)),
            Op::Finish => self.finish(),
            Op::FailNext if !self.fails_next => {
                self.fails_next = true;
                self.device.fail_at(1);
            }
            Op::FailNext => {}
        }
        self.peak_bytes = self.peak_bytes.max(self.model.used_bytes());
        self.check()
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), TestCaseError> {
        let invalid = DriverError::InvalidValue(Call::Reserve);
        let gap = self.model.gap(bytes).ok_or(DriverError::OutOfMemory { bytes });
        let right = if bytes == 0 { Err(invalid) } else { gap };
        let answer = self.device.reserve(bytes);
        if self.expect(Call::Reserve, right, answer)? {
            self.model.ranges.push(Span { address: answer.unwrap(), bytes });
        }
        Ok(())
    }

    fn unreserve(&mut self, choice: usize) -> Result<(), TestCaseError> {
        let at = choice % self.model.ranges.len().max(1);
        let range = self.model.ranges.get(at).copied();
        let address = range.map_or(choice as u64, |range| range.address);
        let in_use = |range| self.model.mappings.iter().any(|mapping| overlap(mapping.span, range));
        let right = match range {
            None => Err(DriverError::UnknownAddress(address)),
            Some(range) if in_use(range) => Err(DriverError::InvalidValue(Call::Unreserve)),
            Some(_) => Ok(()),
        };
        let answer = self.device.unreserve(address);
        if self.expect(Call::Unreserve, right, answer)? {
            self.model.ranges.remove(at);
        }
        Ok(())
    }

    fn create(&mut self, bytes: u64) -> Result<(), TestCaseError> {
        let right = match bytes {
            0 => Err(DriverError::InvalidValue(Call::Create)),
            _ if bytes > self.model.left_bytes() => Err(DriverError::OutOfMemory { bytes }),
            _ => Ok(()),
        };
        let answer = self.device.create(bytes, HandleFlags::default());
        if self.expect(Call::Create, right, answer.map(drop))? {
            let id = answer.unwrap();
            prop_assert!(self.model.handles.iter().all(|handle| handle.id != id));
            let tags = vec![0; (bytes / self.model.page) as usize];
            self.model.handles.push(Handle { id, bytes, tags });
        }
        Ok(())
    }

    fn release(&mut self, choice: usize) -> Result<(), TestCaseError> {
        let at = choice % self.model.handles.len().max(1);
        let id = self.model.handles.get(at).map_or(HandleId(choice as u64), |handle| handle.id);
        let right = match self.model.handles.get(at) {
            None => Err(DriverError::UnknownHandle(id)),
            Some(_) if self.model.mappings.iter().any(|mapping| mapping.handle == id) => {
                Err(DriverError::InvalidValue(Call::ReleaseHandle))
            }
            Some(_) => Ok(()),
        };
        let answer = self.device.release(id);
        if self.expect(Call::ReleaseHandle, right, answer)? {
            self.model.handles.remove(at);
        }
        Ok(())
    }

    fn map(&mut self, range: usize, page: Option<u64>, handle: usize) -> Result<(), TestCaseError> {
        let range = self.model.ranges.get(range % self.model.ranges.len().max(1));
        let start = range.map_or(self.model.start, |range| range.address);
        let page = page.unwrap_or_else(|| self.model.first_free_page(start));
        let address = start + page * self.model.page;
        let handle = self.model.handles.get(handle % self.model.handles.len().max(1));
        let (id, bytes) = handle.map_or((HandleId(0), 0), |handle| (handle.id, handle.bytes));
        let span = Span { address, bytes };
        let is_free = !self.model.mappings.iter().any(|mapping| overlap(mapping.span, span));
        let right = match handle {
            None => Err(DriverError::UnknownHandle(id)),
            Some(_) if self.model.in_one_range(span) && is_free => Ok(()),
            Some(_) => Err(DriverError::InvalidValue(Call::Map)),
        };
        let answer = self.device.map(address, id);
        if self.expect(Call::Map, right, answer)? {
            self.mappings_made += 1;
            let (number, let_in) = (self.mappings_made, [false; DEVICES as usize]);
            self.model.mappings.push(Mapping { number, span, handle: id, let_in });
            self.model.mappings.sort_by_key(|mapping| mapping.span.address);
        }
        Ok(())
    }

    fn unmap(&mut self, span: Span) -> Result<(), TestCaseError> {
        let tiles = self.model.tiles(span);
        let right = tiles.as_ref().map(|_| ()).ok_or(DriverError::InvalidValue(Call::Unmap));
        let answer = self.device.unmap(span.address, span.bytes);
        if self.expect(Call::Unmap, right, answer)? {
            for gone in tiles.unwrap_or_default() {
                let users =
                    self.model.queued.iter().filter(|(_, held)| held.contains(&gone.number));
                let uses = users.count() as u64;
                if uses > 0 {
                    self.violations.push(Violation::UnmappedInUse { span: gone.span, uses });
                }
                self.model.mappings.retain(|mapping| mapping.number != gone.number);
            }
        }
        Ok(())
    }

    fn set_access(&mut self, span: Span, peer: Option<u32>) -> Result<(), TestCaseError> {
        let tiles = self.model.tiles(span).filter(|_| peer.is_none_or(|peer| peer < DEVICES));
        let right = tiles.as_ref().map(|_| ()).ok_or(DriverError::InvalidValue(Call::SetAccess));
        let answer = self.device.set_access(span.address, span.bytes, peer.as_slice());
        if self.expect(Call::SetAccess, right, answer)? {
            for mapping in
                self.model.mappings.iter_mut().filter(|mapping| is_in(mapping.span, span))
            {
                mapping.let_in[0] = true;
                peer.iter().for_each(|&peer| mapping.let_in[peer as usize] = true);
            }
        }
        Ok(())
    }

    /// Writes a page of a mapping.
    fn write(&mut self, choice: usize, page: u64, tag: u8) -> Result<(), TestCaseError> {
        let mapping = self.model.mappings.get(choice % self.model.mappings.len().max(1));
        let Some(mapping) = mapping.filter(|_| self.has_bytes) else { return Ok(()) };
        let page = page % (mapping.span.bytes / self.model.page);
        let first = mapping.span.address + page * self.model.page;
        for address in [first, first + self.model.page - 1] {
            let refused = SimError::OutOfBounds(Span { address, bytes: 1 });
            let right = mapping.let_in[0].then_some(()).ok_or(refused);
            prop_assert_eq!(self.device.write(address, &[tag]), right);
        }
        if mapping.let_in[0] {
            let handle = self.model.handles.iter_mut().find(|handle| handle.id == mapping.handle);
            handle.unwrap().tags[page as usize] = tag;
        }
        Ok(())
    }

    fn touch(&mut self, span: Span) {
        if span.bytes == 0 {
            return;
        }
        self.device.launch(STREAM, Work::touch(span)).unwrap();
        match self.model.accessible(span, 0) {
            Some(held) => {
                self.seen.long_runs += u64::from(held.len() > 1);
                self.model.queued.push((span, held));
            }
            None => self.violations.push(Violation::DeadAtLaunch { stream: STREAM, span }),
        }
    }

    fn finish(&mut self) {
        self.device.run_all();
        for (span, held) in std::mem::take(&mut self.model.queued) {
            let lives = |number: &u64| self.model.mappings.iter().any(|m| m.number == *number);
            if !held.iter().all(lives) {
                self.violations.push(Violation::DeadAtCompletion { stream: STREAM, span });
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let device = &self.device;
        let mapped: Vec<_> = self.model.mappings.iter().map(|m| (m.span, m.handle)).collect();
        prop_assert_eq!(device.mappings(), mapped);
        prop_assert_eq!(device.live_handles(), self.model.handles.len());
        let reserved: u64 = self.model.ranges.iter().map(|range| range.bytes).sum();
        prop_assert_eq!(device.reserved_address_bytes(), reserved);
        prop_assert_eq!(device.used_bytes(), self.model.used_bytes());
        prop_assert_eq!(device.peak_used_bytes(), self.peak_bytes);
        prop_assert_eq!(device.violations(), self.violations.clone());
        if !self.fails_next {
            prop_assert_eq!(device.memory_info().unwrap().free, self.model.left_bytes());
        }
        for mapping in &self.model.mappings {
            let let_in = [0, 1].map(|peer| device.is_accessible(mapping.span, peer));
            prop_assert_eq!(let_in, mapping.let_in);
            self.check_bytes(mapping)?;
        }
        Ok(())
    }

    /// Each page of a mapping has the bytes of its handle, or cannot be read.
    fn check_bytes(&self, mapping: &Mapping) -> Result<(), TestCaseError> {
        let handle = self.model.handles.iter().find(|handle| handle.id == mapping.handle).unwrap();
        for (page, tag) in handle.tags.iter().enumerate().filter(|_| self.has_bytes) {
            let first = mapping.span.address + page as u64 * self.model.page;
            for address in [first, first + self.model.page - 1] {
                let mut byte = [0];
                let answer = self.device.read(address, &mut byte).map(|()| byte[0]);
                let refused = SimError::OutOfBounds(Span { address, bytes: 1 });
                prop_assert_eq!(answer, mapping.let_in[0].then_some(*tag).ok_or(refused));
            }
        }
        Ok(())
    }
}

fn config() -> ProptestConfig {
    let usual = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return usual;
    }
    ProptestConfig { cases: 300, rng_seed: RngSeed::Fixed(1), ..usual }
}

fn run(page: u64, backing: Backing, ops: &[Op]) -> Result<Pair, TestCaseError> {
    let mut pair = Pair::new(page, backing);
    ops.iter().try_for_each(|op| pair.apply(op))?;
    Ok(pair)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn programs_agree_with_the_model(
        page in prop::sample::select(vec![64u64 << 10, 2 << 20, 16 << 20]),
        ops in ops(),
    ) {
        run(page, Backing::AddressOnly, &ops)?;
    }

    #[test]
    fn programs_with_bytes_agree_with_the_model(
        page in prop::sample::select(vec![64u64 << 10, 2 << 20, 16 << 20]),
        ops in ops(),
    ) {
        if cfg!(target_os = "linux") {
            run(page, Backing::HostBytes, &ops)?;
        }
    }
}

/// The programs above would say little if they never came to some outcome.
#[test]
fn programs_come_to_every_outcome() {
    let mut runner = TestRunner::deterministic();
    let mut seen = Seen::default();
    for _ in 0..200 {
        let ops = ops().new_tree(&mut runner).expect("nothing is filtered").current();
        seen.add(&run(64 << 10, Backing::AddressOnly, &ops).unwrap());
    }
    println!("{seen:?}");
    let virtual_calls = Call::ALL.into_iter().skip_while(|call| *call != Call::Reserve);
    for call in virtual_calls {
        assert!(seen.successes[call.index()] > 20, "{call} succeeded too seldom");
        assert!(seen.contract_errors[call.index()] > 20, "{call} was refused too seldom");
    }
    let rest = [seen.out_of_memory, seen.planned, seen.long_runs, seen.unmapped_in_use];
    assert!(rest.into_iter().chain([seen.dead_at_completion]).all(|count| count > 20));
}

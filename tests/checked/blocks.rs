//! Blocks come and go: the same request to the allocator and to the model.
use super::ordered::{Clock, join};
use super::{Checked, Grip, Left, Live, Sums, Waiting, pick};
use aquifer::driver::sim::Span;
use aquifer::driver::{Driver, StreamId};
use aquifer::policies::{GRAIN, PolicySpec};
use aquifer::{AllocError, Allocation, OomReport};

/// What was asked.
struct Asked {
    pool: usize,
    stream: StreamId,
    bytes: u64,
    align: u64,
}

fn end(span: Span) -> u64 {
    span.address + span.bytes
}

fn overlap(a: Span, b: Span) -> bool {
    a.address < end(b) && b.address < end(a)
}

impl Checked {
    pub(super) fn allocate(
        &mut self,
        pool: u8,
        stream: u8,
        bytes: u64,
        align: u64,
    ) -> Result<(), String> {
        // A closed pool means the allocator's own, number 0.
        let open = pick(&self.pools, pool).filter(|&at| self.pools[at].is_some());
        let pool = open.unwrap_or(0);
        let stream = self.streams[stream as usize % self.streams.len()];
        let asked = Asked { pool, stream, bytes, align };
        let answer = match &self.pools[pool] {
            Some(pool) => pool.allocate_aligned(bytes, align, stream),
            None => self.allocator.allocate_aligned(bytes, align, stream),
        };
        match answer {
            Ok(allocation) => self.enter(allocation, asked),
            Err(AllocError::OutOfMemory(report)) => {
                self.counts.out_of_memory += 1;
                self.check_report(&report, &asked)
            }
            Err(error) => self.tolerate(Err(error)),
        }
    }

    fn enter(&mut self, allocation: Allocation, asked: Asked) -> Result<(), String> {
        let span = Span { address: allocation.address(), bytes: allocation.block_bytes() };
        if asked.bytes == 0 {
            ensure!(span.address == 0 && span.bytes == 0, "zero bytes gave {span}");
            return Ok(());
        }
        let Asked { pool, stream, bytes, align } = asked;
        ensure!(
            span.bytes >= bytes && span.bytes.is_multiple_of(GRAIN),
            "{bytes} bytes gave {span}"
        );
        let aligned = span.address.is_multiple_of(align.max(GRAIN));
        ensure!(aligned, "{span} is not at a multiple of {align}");
        if let Some(other) = self.live.iter().find(|l| overlap(l.span, span)) {
            return Err(format!("{span} overlaps the live {}", other.span));
        }
        let inherited = self.take_over(span, stream)?;
        let grip = Grip::Handle(allocation);
        let used_on = Vec::new();
        self.live.push(Live {
            grip,
            pool,
            home: stream,
            span,
            requested: bytes,
            used_on,
            inherited,
        });
        self.counts.allocated += 1;
        let now = Sums { active: self.allocator.memory_active(), ..self.sums() };
        self.peak.raise(&now);
        Ok(())
    }

    /// Whatever may still use `span` must be done, or run before the later work of `stream`.
    fn take_over(&mut self, span: Span, stream: StreamId) -> Result<Clock, String> {
        let mut inherited = Clock::new();
        let mut kept = Vec::new();
        for left in std::mem::take(&mut self.left) {
            if !overlap(left.span, span) {
                kept.push(left);
                continue;
            }
            let early = self.driver.unordered(&left.uses, stream);
            ensure!(
                early.is_empty(),
                "{span} was given to stream {} before work {early:?} on {} was done",
                stream.0,
                left.span
            );
            join(&mut inherited, &self.driver.open(&left.uses));
            let front = span.address.saturating_sub(left.span.address);
            let behind = end(left.span).saturating_sub(end(span));
            for (address, bytes) in [(left.span.address, front), (end(span), behind)] {
                if bytes > 0 {
                    let span = Span { address, bytes };
                    kept.push(Left { span, uses: left.uses.clone() });
                }
            }
        }
        self.left = kept;
        self.counts.reused_from_other_work += u64::from(!inherited.is_empty());
        Ok(inherited)
    }

    pub(super) fn free(&mut self, at: usize) -> Result<(), String> {
        let live = self.live.swap_remove(at);
        let mut uses = live.inherited;
        let mut waiting = Waiting { bytes: live.span.bytes, events: Vec::new(), unmarked: false };
        for &stream in live.used_on.iter().chain([&live.home]) {
            join(&mut uses, &Clock::from([(stream, self.driver.queued(stream))]));
        }
        for &stream in &live.used_on {
            if self.captured == Some(stream) {
                // An event in the graph: nobody may ask about it.
                waiting.unmarked = true;
                continue;
            }
            match self.device.record_event(stream) {
                Ok(event) => waiting.events.push(event),
                Err(_) => waiting.unmarked = true,
            }
        }
        if !live.used_on.is_empty() {
            self.waiting.push(waiting);
        }
        self.left.push(Left { span: live.span, uses });
        match live.grip {
            Grip::Handle(allocation) => drop(allocation),
            Grip::Raw(address) => {
                self.freed_raw.push(address);
                self.allocator.free_raw(address).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    pub(super) fn record(&mut self, nth: u8, stream: u8) -> Result<(), String> {
        let stream = self.streams[stream as usize % self.streams.len()];
        let Some(at) = pick(&self.live, nth) else { return Ok(()) };
        let live = &mut self.live[at];
        if stream != live.home && !live.used_on.contains(&stream) {
            live.used_on.push(stream);
        }
        let recorded = match &live.grip {
            Grip::Handle(allocation) => allocation.record_stream(stream),
            Grip::Raw(address) => self.allocator.record_stream_raw(*address, stream),
        };
        recorded.map_err(|e| e.to_string())
    }

    /// Tells the model alone that a stream uses a block.
    pub fn secret_use(&mut self, nth: usize, stream: usize) {
        self.live[nth].used_on.push(self.streams[stream]);
    }

    /// Frees of what is not live change nothing and say so.
    pub(super) fn bad_frees(&mut self, nth: u8) -> Result<(), String> {
        let again = pick(&self.freed_raw, nth).map(|at| self.freed_raw[at]);
        let raw = |address: &u64| {
            self.live.iter().any(|l| matches!(l.grip, Grip::Raw(a) if a == *address))
        };
        let handles = self.live.iter().find(|l| matches!(l.grip, Grip::Handle(_)));
        let candidates = [again, Some(12_345), handles.map(|l| l.span.address)];
        for address in candidates.into_iter().flatten().filter(|a| !raw(a)) {
            let answer = self.allocator.free_raw(address);
            let refused =
                matches!(answer, Err(AllocError::NotLive { address: a, .. }) if a == address);
            ensure!(refused, "freeing {address:#x}, which is not live, gave {answer:?}");
        }
        Ok(())
    }

    pub(super) fn empty_cache(&mut self) -> Result<(), String> {
        match self.allocator.empty_cache() {
            Ok(trimmed) => {
                self.check_waiting_is_over()?;
                let reserved = self.driver.held_bytes().0;
                ensure!(
                    trimmed.reserved_bytes == reserved,
                    "empty_cache says {} bytes are reserved, they are {reserved}",
                    trimmed.reserved_bytes
                );
                let mapped = self.device.mappings().into_iter().map(|(span, _)| span);
                for range in self.device.live_ranges().into_iter().chain(mapped) {
                    let used = self.live.iter().any(|l| overlap(l.span, range));
                    ensure!(used, "empty_cache left {range}, in which nothing is live");
                }
                Ok(())
            }
            Err(error) => self.tolerate(Err(error)),
        }
    }

    fn check_waiting_is_over(&mut self) -> Result<(), String> {
        let active = self.allocator.memory_active();
        let allocated = self.sums().allocated;
        ensure!(
            active == allocated,
            "{active} bytes active after all waits, {allocated} allocated"
        );
        self.forget_waiting(|_| true);
        Ok(())
    }

    /// Forgets what waits no longer.
    pub(super) fn forget_waiting(&mut self, is_over: impl Fn(&Waiting) -> bool) {
        for waiting in self.waiting.extract_if(.., |w| is_over(w)) {
            for event in waiting.events {
                self.device.release_event(event).expect("the model's own event");
            }
        }
    }

    /// Out of memory is only said when it is true, with true figures.
    fn check_report(&mut self, report: &OomReport, asked: &Asked) -> Result<(), String> {
        let sums = self.sums();
        let (held, _) = self.driver.held_bytes();
        ensure!(
            (report.allocated, report.requested, report.reserved)
                == (sums.allocated, sums.requested, held),
            "the report says {report:?} where {sums:?} and {held} bytes are held"
        );
        if self.may_fail {
            return Ok(());
        }
        self.check_waiting_is_over()?;
        ensure!(report.pending == 0, "out of memory with {} waiting", report.pending);
        let releasable = if self.setup.paged { 0 } else { report.releasable };
        ensure!(releasable == 0, "out of memory with {} releasable", report.releasable);
        let spec = PolicySpec::parse(self.setup.policy).expect("the suite's own policy");
        let band = spec.build().band(asked.bytes);
        let finds = ["first-fit", "best-fit"].iter().any(|p| self.setup.policy.starts_with(p));
        let refuses = report.fits_now < band.size;
        ensure!(refuses || asked.align > GRAIN || !finds, "{report:?} says it fits");
        let least = band.size.next_multiple_of(self.setup.granularity);
        if self.setup.paged {
            return self.check_pages_are_short(least, held);
        }
        let info = self.device.memory_info().map_err(|e| e.to_string())?;
        let capped = self.cap.map_or(u64::MAX, |cap| cap.saturating_sub(held));
        ensure!(
            asked.align > self.setup.granularity || least > info.free.min(capped),
            "out of memory for {} bytes with {} free and {capped} under the cap",
            asked.bytes,
            info.free
        );
        let hole = self.largest_hole(asked.pool, asked.stream, band.index, asked.align);
        ensure!(
            !finds || hole < band.size,
            "out of memory for {} bytes beside a hole of {hole}",
            asked.bytes
        );
        Ok(())
    }

    /// Over pages, memory is out only if all idle pages and all that the device has are too few.
    fn check_pages_are_short(&self, least: u64, held: u64) -> Result<(), String> {
        let info = self.device.memory_info().map_err(|e| e.to_string())?;
        let capped = self.cap.map_or(u64::MAX, |cap| cap.saturating_sub(held));
        let page = self.setup.granularity;
        let idle = held / page - self.pages_in_use();
        let more = info.free.min(capped) / page;
        ensure!(
            (idle + more) * page < least,
            "out of memory for {least} bytes with {idle} idle pages and {more} to be had"
        );
        Ok(())
    }

    /// The largest aligned hole in segments where a block of that pool, stream and band is live.
    fn largest_hole(&self, pool: usize, stream: StreamId, band: u8, align: u64) -> u64 {
        let policy = PolicySpec::parse(self.setup.policy).expect("the suite's own policy").build();
        let mut largest = 0;
        for range in self.device.live_ranges() {
            let mut inside: Vec<&Live> =
                self.live.iter().filter(|l| overlap(l.span, range)).collect();
            let own = |l: &&Live| {
                (l.pool, l.home, policy.band(l.requested).index) == (pool, stream, band)
            };
            if !inside.first().is_some_and(own) {
                continue;
            }
            inside.sort_by_key(|l| l.span.address);
            let starts = [range.address].into_iter().chain(inside.iter().map(|l| end(l.span)));
            let ends = inside.iter().map(|l| l.span.address).chain([end(range)]);
            for (start, end) in starts.zip(ends) {
                let start = start.next_multiple_of(align.max(GRAIN));
                largest = largest.max(end.saturating_sub(start));
            }
        }
        largest
    }
}

//! What the allocator has counted, under PyTorch's key names where the meaning is the same, and the
//! table people read.
use crate::counters::{ACTIVE, ACTIVE_BLOCKS, ALLOCATED, ALLOCATIONS, Flow, Gauges, REQUESTED};
use crate::device::{Device, FORKED_FREES};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// A quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The most there was since the start or the last `reset_peak`.
    pub peak: u64,
    /// All that came since the start.
    pub allocated: u64,
    /// All that went since the start.
    pub freed: u64,
}

/// Everything counted, at one moment.
///
/// Peaks are exact per stream, and exact for the device while one thread allocates. While several do,
/// the peaks of the device are never too low; they are too high by at most what those streams have freed
/// since their own peaks whose threads were stopped in the middle of a request just then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes in blocks handed out.
    pub allocated_bytes: Stat,
    /// Bytes callers asked for: `allocated_bytes` without rounding.
    pub requested_bytes: Stat,
    /// Bytes in blocks handed out, or freed and waiting for another stream.
    pub active_bytes: Stat,
    /// Bytes held from the driver.
    pub reserved_bytes: Stat,
    /// Number of blocks handed out.
    pub allocations: Stat,
    /// Number of blocks handed out or waiting.
    pub active_blocks: Stat,
    /// Number of segments, or of physical pages, held from the driver.
    pub segments: Stat,
    /// Blocks of up to 1 MiB: bytes now, total, freed (no peak is kept).
    pub small_allocated_bytes: Stat,
    /// Blocks over 1 MiB: bytes now, total, freed (no peak is kept).
    pub large_allocated_bytes: Stat,
    /// Bytes that no caller has, in segments where a caller has others.
    pub inactive_split_bytes: u64,
    /// Bytes of freed blocks in the front caches.
    pub front_cached_bytes: u64,
    /// Requests served by the front caches.
    pub front_hits: u64,
    /// Requests served where a plan of the step says, under the policy `planned`.
    pub plan_hits: u64,
    /// Requests that policy served elsewhere: no plan yet, none for that request, or its place was taken.
    pub plan_misses: u64,
    /// Times the driver refused and memory had to be made free first.
    pub num_alloc_retries: u64,
    /// Requests that failed for want of memory.
    pub num_ooms: u64,
    /// Segments or pages asked of the driver with success.
    pub num_device_alloc: u64,
    /// Segments or pages given back to the driver.
    pub num_device_free: u64,
    /// Times a thread waited for the device.
    pub num_host_waits: u64,
    /// Times a stream was made to wait for another, to take over its idle memory.
    pub num_stream_waits: u64,
    /// Idle segments moved from one stream to another.
    pub num_segments_moved: u64,
    /// Idle pages moved to another place.
    pub num_pages_moved: u64,
    /// Driver errors that no call could return.
    pub num_driver_errors: u64,
    /// Frees of what was not live; nothing was done.
    pub num_bad_frees: u64,
    /// Requests of zero bytes.
    pub num_zero_sizes: u64,
    /// Frees in this process, a forked child, of its parent's blocks; nothing was done.
    pub num_forked_frees: u64,
    /// Blocks waiting for another stream.
    pub pending_blocks: u64,
}

fn load(counter: &std::sync::atomic::AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Stats {
    /// All that a forked child has: the frees that came to nothing.
    pub(crate) fn in_forked_child() -> Stats {
        Stats { num_forked_frees: load(&FORKED_FREES), ..Stats::default() }
    }

    /// Counts of a whole device.
    pub(crate) fn of(device: &Device) -> Stats {
        let mut stats = Stats::default();
        let (mut now, mut flow): (Gauges, [Flow; 2]) = Default::default();
        let mut idle = 0;
        device.take_in_returned();
        for (_, mut both) in device.boths() {
            let (front, books) = both.parts();
            now.iter_mut().zip(front.counters.now()).for_each(|(s, n)| *s += n);
            flow.iter_mut().zip(&front.counters.flow).for_each(|(s, f)| s.add(f));
            stats.front_hits += front.counters.front_hits;
            stats.plan_hits += front.counters.plan_hits;
            stats.plan_misses += front.counters.plan_misses;
            stats.front_cached_bytes += front.cached.bytes();
            idle += books.heap.idle_bytes();
        }
        let gone = device.gone.lock();
        flow.iter_mut().zip(&gone.1).for_each(|(s, f)| s.add(f));
        stats.front_hits += gone.0.front_hits;
        stats.plan_hits += gone.0.plan_hits;
        stats.plan_misses += gone.0.plan_misses;
        drop(gone);
        stats.fill_gauges(&now, &device.peaks(), &flow);
        stats.fill_totals(device);
        stats.inactive_split_bytes =
            stats.reserved_bytes.current.saturating_sub(stats.active_bytes.current + idle);
        stats
    }

    fn fill_gauges(&mut self, now: &Gauges, peak: &Gauges, flow: &[Flow; 2]) {
        let mut all = flow[0];
        all.add(&flow[1]);
        let stat = |gauge: usize, allocated, freed| Stat {
            current: now[gauge],
            peak: peak[gauge].max(now[gauge]),
            allocated,
            freed,
        };
        self.allocated_bytes = stat(ALLOCATED, all.allocated_bytes, all.freed_bytes);
        self.requested_bytes = stat(REQUESTED, all.requested_bytes, all.freed_requested_bytes);
        let still_active = now[ACTIVE] - now[ALLOCATED];
        self.active_bytes = stat(ACTIVE, all.allocated_bytes, all.freed_bytes - still_active);
        self.allocations = stat(ALLOCATIONS, all.allocations, all.frees);
        let waiting = now[ACTIVE_BLOCKS] - now[ALLOCATIONS];
        self.active_blocks = stat(ACTIVE_BLOCKS, all.allocations, all.frees - waiting);
        self.pending_blocks = waiting;
        let part = |f: &Flow| Stat {
            current: f.allocated_bytes - f.freed_bytes,
            peak: 0,
            allocated: f.allocated_bytes,
            freed: f.freed_bytes,
        };
        self.small_allocated_bytes = part(&flow[0]);
        self.large_allocated_bytes = part(&flow[1]);
    }

    fn fill_totals(&mut self, device: &Device) {
        let totals = &device.totals;
        let reserved = *device.reserved.lock();
        self.reserved_bytes = Stat {
            current: reserved.bytes,
            peak: reserved.bytes_peak,
            allocated: load(&totals.reserved_bytes),
            freed: load(&totals.released_bytes),
        };
        self.num_device_alloc = load(&totals.device_allocations);
        self.num_device_free = load(&totals.device_frees);
        self.segments = Stat {
            current: reserved.segments,
            peak: reserved.segments_peak,
            allocated: self.num_device_alloc,
            freed: self.num_device_free,
        };
        self.num_alloc_retries = load(&totals.retries);
        self.num_ooms = load(&totals.ooms);
        self.num_host_waits = load(&totals.host_waits);
        self.num_stream_waits = load(&totals.stream_waits);
        self.num_segments_moved = load(&totals.segments_moved);
        self.num_pages_moved = load(&totals.pages_moved);
        self.num_driver_errors = load(&totals.driver_errors);
        self.num_bad_frees = load(&totals.bad_frees);
        self.num_zero_sizes = load(&totals.zero_sizes);
        self.num_forked_frees = load(&FORKED_FREES);
    }

    /// The counts under PyTorch's `memory_stats` key names. A key is there only where it means what it
    /// means there; counts PyTorch does not have begin with `aquifer.`.
    pub fn to_map(&self) -> BTreeMap<String, u64> {
        let mut map = BTreeMap::new();
        let mut put = |name: &str, stat: &Stat| {
            map.insert(format!("{name}.all.current"), stat.current);
            map.insert(format!("{name}.all.peak"), stat.peak);
            map.insert(format!("{name}.all.allocated"), stat.allocated);
            map.insert(format!("{name}.all.freed"), stat.freed);
        };
        put("allocation", &self.allocations);
        put("segment", &self.segments);
        put("active", &self.active_blocks);
        put("allocated_bytes", &self.allocated_bytes);
        put("reserved_bytes", &self.reserved_bytes);
        put("active_bytes", &self.active_bytes);
        put("requested_bytes", &self.requested_bytes);
        for (pool, stat) in
            [("small", &self.small_allocated_bytes), ("large", &self.large_allocated_bytes)]
        {
            map.insert(format!("allocated_bytes.{pool}_pool.current"), stat.current);
            map.insert(format!("allocated_bytes.{pool}_pool.allocated"), stat.allocated);
            map.insert(format!("allocated_bytes.{pool}_pool.freed"), stat.freed);
        }
        for (key, value) in [
            ("inactive_split_bytes.all.current", self.inactive_split_bytes),
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
            ("aquifer.front_hits", self.front_hits),
            ("aquifer.plan_hits", self.plan_hits),
            ("aquifer.plan_misses", self.plan_misses),
            ("aquifer.front_cached_bytes", self.front_cached_bytes),
            ("aquifer.host_waits", self.num_host_waits),
            ("aquifer.stream_waits", self.num_stream_waits),
            ("aquifer.segments_moved", self.num_segments_moved),
            ("aquifer.pages_moved", self.num_pages_moved),
            ("aquifer.driver_errors", self.num_driver_errors),
            ("aquifer.bad_frees", self.num_bad_frees),
            ("aquifer.zero_sizes", self.num_zero_sizes),
            ("aquifer.forked_frees", self.num_forked_frees),
            ("aquifer.pending_blocks", self.pending_blocks),
        ] {
            map.insert(key.to_string(), value);
        }
        map
    }

    /// The table of `memory_summary`.
    pub(crate) fn summary(&self, title: &str) -> String {
        let mut out = String::new();
        let rule = format!("|{}|\n", "-".repeat(74));
        let _ = write!(out, "{rule}| {title:<72} |\n{rule}");
        let _ = writeln!(
            out,
            "| {:<18} | {:>10} | {:>10} | {:>10} | {:>12} |",
            "", "now", "peak", "total", "given back"
        );
        out += &rule;
        let bytes = [
            ("allocated", &self.allocated_bytes),
            ("requested", &self.requested_bytes),
            ("active", &self.active_bytes),
            ("reserved", &self.reserved_bytes),
        ];
        for (name, s) in bytes {
            let cells = [s.current, s.peak, s.allocated, s.freed].map(human_bytes);
            row(&mut out, name, &cells);
        }
        out += &rule;
        let counts = [
            ("allocations", &self.allocations),
            ("active blocks", &self.active_blocks),
            ("segments", &self.segments),
        ];
        for (name, s) in counts {
            row(&mut out, name, &[s.current, s.peak, s.allocated, s.freed].map(|n| n.to_string()));
        }
        out += &rule;
        let mut line = |text: String| {
            let _ = writeln!(out, "| {text:<72} |");
        };
        line(format!(
            "fragmentation {:.1} % of reserved; {} free beside blocks in use",
            100.0 * self.fragmentation(),
            human_bytes(self.inactive_split_bytes)
        ));
        line(format!(
            "front cache: {} hits, {} kept",
            self.front_hits,
            human_bytes(self.front_cached_bytes)
        ));
        if self.plan_hits + self.plan_misses > 0 {
            line(format!(
                "plan: {} requests at its places, {} elsewhere",
                self.plan_hits, self.plan_misses
            ));
        }
        line(format!(
            "out of memory {}, retries {}, host waits {}, driver errors {}",
            self.num_ooms, self.num_alloc_retries, self.num_host_waits, self.num_driver_errors
        ));
        out += rule.trim_end();
        out
    }

    /// 1 - peak allocated / peak reserved: the share of what was held from the driver that the program
    /// never used at once. 0 where nothing was reserved.
    pub fn fragmentation(&self) -> f64 {
        if self.reserved_bytes.peak == 0 {
            return 0.0;
        }
        1.0 - self.allocated_bytes.peak as f64 / self.reserved_bytes.peak as f64
    }
}

fn row(out: &mut String, name: &str, cells: &[String; 4]) {
    let [a, b, c, d] = cells;
    let _ = writeln!(out, "| {name:<18} | {a:>10} | {b:>10} | {c:>10} | {d:>12} |");
}

/// `1536` as `1.50 KiB`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (63 - bytes.leading_zeros()) as usize / 10;
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    format!("{value:.2} {}", UNITS[power - 1])
}

//! What driver calls cost and how often they were made. Knows no device.
use crate::driver::Call;

const KINDS: usize = Call::ALL.len();

/// The time each kind of call takes the calling thread, in nanoseconds, waiting for work not included.
///
/// | call | low | default | high | where from |
/// |---|---|---|---|---|
/// | memory_info | 4,900 | 10,000 | 12,500 | mean 4.85 us (pytorch#174625), 10 us (MatX#863), 7.5 to 12.5 us on B300 (sglang#25225, which also tells of 8 ms in one container) |
/// | allocate | 10,000 | 15,000 | 50,000 | cudaMalloc 10.6 min, 13.9 median (bpftime#506); about 50 us flat on GPUs of 2009-11 (U. Virginia, memory_management_overhead) |
/// | allocate, per GiB | 0 | 30,000 | 30,000,000 | 32 ms for cudaMalloc + cudaFree of 1 GiB on GH200 (vortex#7815); the default is a guess between |
/// | free | 10,000 | 25,000 | 50,000 | 14.0 us for malloc + launch + free (Cytnx#850); cudaFree 22 min, 46.7 median (bpftime#506) |
/// | record_event | 250 | 500 | 1,600 | without timing 0.25 us (NVTX#3), 0.47 us with a query (parsec#576); 1.6 us mean on Volta (pytorch-gpu-benchmark#6) |
/// | query_event | 200 | 300 | 500 | part of 0.47 us for record + query (parsec#576) |
/// | wait_event | 300 | 300 | 5,000 | idle stream synchronisation 0.30 us (CUDA.jl#2162); high: assumed |
/// | stream_wait_event | 250 | 500 | 1,600 | no figure found; taken as record_event |
/// | release_event | 200 | 300 | 500 | no figure found; taken as query_event |
/// | synchronize | 300 | 300 | 5,000 | as wait_event |
/// | capture | 200 | 500 | 550 | no figure found; cudaGetDevice 0.51 us, cudaSetDevice 0.55 us (pytorch-gpu-benchmark#6) |
/// | reserve | 9,000 | 15,000 | 19,000 | cuMemAddressReserve of 8 GB: 19 us on an A100, 9 us on another GPU (bench_vmm, see below) |
/// | unreserve | 9,000 | 15,000 | 19,000 | no figure found; taken as reserve |
/// | create | 7,600 | 40,000 | 195,000 | cuMemCreate of 2 MiB: median 195 us on the A100, mean 7.6 us on the other (bench_vmm); nobody says where the factor of 25 comes from, the default is the geometric middle |
/// | release_handle | 5,000 | 20,000 | 50,000 | no figure found; a guess |
/// | map | 1,050 | 1,500 | 5,000 | cuMemMap of 2 MiB: mean 1.45 us, 99th percentile 5 us; 1.05 us (bench_vmm) |
/// | unmap | 11,500 | 25,000 | 39,000 | cuMemUnmap of 2 MiB: mean 25.6 us, 99th percentile 39 us; 11.5 us (bench_vmm) |
/// | set_access | 20,800 | 36,000 | 60,000 | cuMemSetAccess of 2 MiB: mean 36.0 us; 20.8 us, 99th percentile 60 us (bench_vmm) |
/// | unmap and set_access, per mapping after the first | 0 | 1,500 | 36,000 | mapping ten handles takes ten times as long as one (PyTorch's note on expandable segments), which does not say of which call; low: the note is about map alone, high: each costs what the first does |
///
/// bench_vmm is `nccl/gpu/shm/bench_vmm` of magnate3/linux-riscv-dev. Each number of its calls is of one
/// handle; bytes are taken not to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    call_ns: [u64; KINDS],
    allocate_ns_per_gib: u64,
    mapping_ns: u64,
}

/// Low, default and high, in the order of [`Call::ALL`].
const NS: [[u64; 3]; KINDS] = [
    [4_900, 10_000, 12_500],
    [10_000, 15_000, 50_000],
    [10_000, 25_000, 50_000],
    [250, 500, 1_600],
    [200, 300, 500],
    [300, 300, 5_000],
    [250, 500, 1_600],
    [200, 300, 500],
    [300, 300, 5_000],
    [200, 500, 550],
    [9_000, 15_000, 19_000],
    [9_000, 15_000, 19_000],
    [7_600, 40_000, 195_000],
    [5_000, 20_000, 50_000],
    [1_050, 1_500, 5_000],
    [11_500, 25_000, 39_000],
    [20_800, 36_000, 60_000],
];

impl Default for Costs {
    fn default() -> Costs {
        Costs { call_ns: NS.map(|row| row[1]), allocate_ns_per_gib: 30_000, mapping_ns: 1_500 }
    }
}

impl Costs {
    /// The least that was seen.
    pub fn low() -> Costs {
        Costs { call_ns: NS.map(|row| row[0]), allocate_ns_per_gib: 0, mapping_ns: 0 }
    }

    /// The most that was usual.
    pub fn high() -> Costs {
        Costs { call_ns: NS.map(|row| row[2]), allocate_ns_per_gib: 30_000_000, mapping_ns: 36_000 }
    }

    /// The same table with another cost of `call`.
    pub fn with_call(mut self, call: Call, ns: u64) -> Costs {
        self.call_ns[call.index()] = ns;
        self
    }

    /// The same table with another cost of each GiB that is allocated.
    pub fn with_allocate_per_gib(mut self, ns: u64) -> Costs {
        self.allocate_ns_per_gib = ns;
        self
    }

    /// The same table with another cost of each mapping after the first that one unmap or set_access is
    /// about.
    pub fn with_mapping(mut self, ns: u64) -> Costs {
        self.mapping_ns = ns;
        self
    }

    /// What `call` costs, whatever its arguments.
    pub fn call_ns(&self, call: Call) -> u64 {
        self.call_ns[call.index()]
    }

    /// What allocating `bytes` costs on top.
    pub fn allocate_bytes_ns(&self, bytes: u64) -> u64 {
        let ns = (u128::from(bytes) * u128::from(self.allocate_ns_per_gib)) >> 30;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// What an unmap or a set_access of so many mappings costs on top.
    pub fn mappings_ns(&self, mappings: u64) -> u64 {
        self.mapping_ns.saturating_mul(mappings.saturating_sub(1))
    }
}

/// How often each call was made, up to some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    made: [u64; KINDS],
    failed: [u64; KINDS],
    /// Calls that found work not done and made the thread wait for it.
    pub host_waits: u64,
    /// Ticks that passed in these waits.
    pub host_wait_ticks: u64,
}

impl CallCounts {
    /// How often `call` was made, failed ones included.
    pub fn made(&self, call: Call) -> u64 {
        self.made[call.index()]
    }

    /// How often `call` failed.
    pub fn failed(&self, call: Call) -> u64 {
        self.failed[call.index()]
    }

    /// Calls of all kinds, failed ones included.
    pub fn total(&self) -> u64 {
        self.made.iter().sum()
    }

    /// Failed calls of all kinds.
    pub fn total_failed(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// Each kind of call and how often it was made.
    pub fn iter(&self) -> impl Iterator<Item = (Call, u64)> {
        Call::ALL.into_iter().zip(self.made)
    }

    /// What was counted after `earlier`, an older state of the same counts.
    ///
    /// # Panics
    /// If `earlier` is not older.
    pub fn since(&self, earlier: &CallCounts) -> CallCounts {
        let less = |now: u64, then: u64| now.checked_sub(then).expect("an older state counts less");
        CallCounts {
            made: std::array::from_fn(|i| less(self.made[i], earlier.made[i])),
            failed: std::array::from_fn(|i| less(self.failed[i], earlier.failed[i])),
            host_waits: less(self.host_waits, earlier.host_waits),
            host_wait_ticks: less(self.host_wait_ticks, earlier.host_wait_ticks),
        }
    }
}

/// The virtual clock of a device and its counts.
#[derive(Debug)]
pub(super) struct Clock {
    pub(super) costs: Costs,
    pub(super) counts: CallCounts,
    pub(super) ns: u64,
}

impl Clock {
    pub(super) fn new(costs: Costs) -> Clock {
        Clock { costs, counts: CallCounts::default(), ns: 0 }
    }

    pub(super) fn count_made(&mut self, call: Call) {
        self.counts.made[call.index()] += 1;
        self.spend(self.costs.call_ns(call));
    }

    pub(super) fn count_failed(&mut self, call: Call) {
        self.counts.failed[call.index()] += 1;
    }

    pub(super) fn spend(&mut self, ns: u64) {
        self.ns = self.ns.saturating_add(ns);
    }
}

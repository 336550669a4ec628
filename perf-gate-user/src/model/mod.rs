//! What a run found, as plain data: no handles, no I/O, nothing that knows how it was measured.
//!
//! `None` always means "could not be measured" and is reported as such, never as zero. Units are in
//! the names: `_ns`, `_bytes`; counts have none.

pub mod lane;
pub mod totals;

pub use lane::{Lane, LaneState};
pub use totals::Totals;

use std::{collections::BTreeMap, time::SystemTime};

/// Collections by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    pub scavenges: u64,
    pub minor_mark_sweeps: u64,
    pub mark_compacts: u64,
}

impl Kinds {
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.scavenges + self.minor_mark_sweeps + self.mark_compacts
    }
}

/// Observable pauses: entry of `GCTracer::StartObservablePause` to `StopObservablePause`, the same
/// interval that `--trace-gc` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    pub total_ns: u64,
    pub max_ns: u64,
    /// Upper bounds of histogram buckets (at most 12.5 % wide), clamped to `max_ns`; `None` without a pause.
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
}

/// One V8 isolate: the main one or a worker thread's.
#[derive(Clone, Debug, Default)]
pub struct Isolate {
    /// 0 = first of its process, in order of birth.
    pub index: u32,
    pub tid: u32,
    pub ended: bool,
    pub kinds: Kinds,
    pub forced: Kinds,
    /// V8's own words, e.g. `allocation failure`; per kind and summed.
    pub reasons: BTreeMap<String, u64>,
    pub scavenge_reasons: BTreeMap<String, u64>,
    pub mark_compact_reasons: BTreeMap<String, u64>,
    pub minor_mark_sweep_reasons: BTreeMap<String, u64>,
    pub incremental_starts: u64,
    pub minor_incremental_starts: u64,
    /// Collections begun but not finished when the process ended.
    pub unfinished: u64,
    pub pauses: Pauses,
    pub large_count: u64,
    pub large_bytes: u64,
    /// Bytes that its own thread allocated, by space (`large`: large objects); `None` when the books
    /// could not be closed at its end.
    pub allocated: Option<BTreeMap<String, u64>>,
    /// The same up to the last time the books were closed; at most a page short per space.
    pub allocated_at_least: BTreeMap<String, u64>,
    /// Bytes that background threads (concurrent compilers) allocated for it, up to their last refill.
    pub background_bytes: u64,
    /// Times that an allocation area was not where it had been left.
    pub breaks: u64,
    /// Pages handed to old space (each 262,144 bytes) and to every space, by name.
    pub old_pages: u64,
    pub pages: BTreeMap<String, u64>,
}

/// Backing stores (ArrayBuffers and the like) and external strings of a process, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct External {
    pub allocated_bytes: u64,
    pub freed_bytes: u64,
    /// Part of `allocated_bytes` that bypassed the allocator: resizable, growable, WebAssembly.
    pub reserved_allocated_bytes: u64,
    /// Part of `allocated_bytes` that are the characters of external strings.
    pub string_allocated_bytes: u64,
}

impl External {
    /// Memory still held; negative only if the lane lost something, which the lane then says.
    #[must_use]
    pub const fn live_bytes(&self) -> i64 {
        self.allocated_bytes as i64 - self.freed_bytes as i64
    }
}

/// Resident memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    pub peak_bytes: Option<u64>,
    /// `true`: the kernel's own high-water mark at exit; `false`: the last sample of it before exit.
    pub peak_exact: bool,
    /// Last sample before the end.
    pub end_bytes: Option<u64>,
    /// V8 pages and large objects, and external memory, at the highest sample.
    pub peak_v8_bytes: Option<u64>,
    pub peak_external_bytes: Option<u64>,
    /// The same at the last sample. External memory counts in full, though untouched pages of it
    /// are not resident: its part may exceed the whole.
    pub v8_bytes: Option<u64>,
    pub external_bytes: Option<u64>,
}

/// Kernel counters of a process over its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub page_faults: Option<u64>,
    pub context_switches: Option<u64>,
    pub task_clock_ns: Option<u64>,
    pub instructions: Option<u64>,
    pub cycles: Option<u64>,
    /// Why each `None` above is one: (field name as in the schema, reason).
    pub unmeasured: Vec<(String, String)>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Killed {
        signal: i32,
        core: bool,
    },
    /// It replaced itself by an exec; a later row has the same pid.
    Replaced,
    StillRunning,
    Unknown,
}

/// One process (one program image in it) of the tree.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    pub ppid: u32,
    pub exe: String,
    pub argv: Vec<String>,
    pub end: End,
    /// Present when V8 was found in it: what `node` and `v8` call themselves.
    pub runtime: Option<Runtime>,
    pub isolates: Vec<Isolate>,
    /// `None` when V8 was not found or not observed in it.
    pub external: Option<External>,
    pub rss: Rss,
    pub counters: Counters,
    pub wall_ns: Option<u64>,
    /// Probe hits in this process: what observing cost it.
    pub hits: u64,
    /// Lanes that are blind in this process's binary, and why.
    pub blind: Vec<(Lane, String)>,
}

impl Process {
    /// Whether V8 was found in it.
    #[must_use]
    pub const fn is_v8(&self) -> bool {
        self.runtime.is_some()
    }

    /// Why `lane` is blind in this process, if it is: its figures are then unknown, not zero.
    #[must_use]
    pub fn blind_in(&self, lane: Lane) -> Option<&str> {
        let found = self.blind.iter().find(|(l, _)| *l == lane);
        found.map(|(_, why)| why.as_str())
    }

    /// Why external memory cannot be told here, if it cannot.
    #[must_use]
    pub fn blind_in_external(&self) -> Option<&str> {
        Lane::EXTERNAL
            .into_iter()
            .find_map(|lane| self.blind_in(lane))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// e.g. `22.23.5`; `None` when the binary does not say.
    pub node: Option<String>,
    /// e.g. `12.4.254.21`.
    pub v8: Option<String>,
    /// Hex GNU build id, or empty.
    pub build_id: String,
}

/// A window that the program marked, all figures differences between its end and its begin.
#[derive(Clone, Debug, Default)]
pub struct Window {
    pub pid: u32,
    pub isolate: u32,
    /// As given by the program; 0 is kept for windows that measure the marker itself.
    pub id: u64,
    pub scale: u64,
    /// `false`: it was never ended, and its figures mean nothing.
    pub closed: bool,
    /// Bytes by space (`large`: large objects), the marker's own removed; summed in `bytes`.
    pub allocated: BTreeMap<String, u64>,
    pub bytes: u64,
    /// What an empty window of the same isolate read, that is, the marker's own bytes.
    pub marker_bytes: Option<u64>,
    pub large_count: u64,
    pub kinds: Kinds,
    pub incremental_starts: u64,
    pub pause_ns_total: u64,
    pub wall_ns: u64,
    /// External memory of the whole process meanwhile: by how much it grew, what was allocated whether or
    /// not it was freed again, and how much of that were external strings.
    pub external_delta_bytes: i64,
    pub external_allocated_bytes: u64,
    pub external_string_bytes: u64,
    /// Times that an allocation area was lost sight of in it; not 0: the bytes are not exact.
    pub breaks: u64,
}

/// One collection, for the timeline; never judged.
#[derive(Clone, Debug)]
pub struct GcEvent {
    /// Since the start of the run.
    pub t_ns: u64,
    pub pid: u32,
    pub isolate: u32,
    pub kind: &'static str,
    pub reason: String,
    pub forced: bool,
    pub pause_ns: u64,
    /// Bytes of the heap's objects, as V8 summed them up in the pause, and as `--trace-gc` prints them.
    pub heap_before_bytes: Option<u64>,
    pub heap_after_bytes: Option<u64>,
}

/// What the supervisor itself cost and lost.
#[derive(Clone, Debug, Default)]
pub struct Overhead {
    pub hits: u64,
    /// From the start of perf-gate to the release of the child.
    pub start_to_release_ns: u64,
    pub timeline_dropped: u64,
}

/// A complete run.
#[derive(Clone, Debug)]
pub struct Run {
    pub command: Vec<String>,
    pub started: SystemTime,
    pub kernel: String,
    pub arch: String,
    pub wall_ns: u64,
    pub processes: Vec<Process>,
    /// In order of their end, per isolate.
    pub windows: Vec<Window>,
    pub lanes: Vec<LaneState>,
    /// Everything that makes the run as a whole doubtful, in sentences. Empty in a sound run.
    pub doubts: Vec<String>,
    /// Collections in order; may be thinned.
    pub timeline: Vec<GcEvent>,
    pub overhead: Overhead,
    /// The direct child's end.
    pub end: End,
}

impl Run {
    /// The processes in which V8 was found.
    pub fn v8_processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|p| p.is_v8())
    }
}

//! Lanes: what is proven or not proven as one.

use perf_gate_ebpf::Op;

/// One kind of fact that is trusted or distrusted as a whole. A lane is *proven* when its probes are
/// attached and a control on the same binary read its known truth through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Births and ends of isolates.
    Isolate,
    /// Collections: kinds and reasons.
    Gc,
    /// Observable pauses.
    Pause,
    /// Starts of incremental marking.
    Incremental,
    /// Minor mark-sweep (`--minor-ms`) collections.
    Minor,
    /// ArrayBuffers through node's allocator.
    External,
    /// Backing stores beside the allocator: resizable, growable shared, WebAssembly.
    Store,
    /// External strings: characters that node keeps outside of the heap.
    Strings,
    /// Large objects.
    Large,
    /// V8 pages by space.
    Pages,
    /// Bytes allocated, by space.
    Bytes,
    /// Bytes of live objects, as V8 sums them up.
    Live,
    /// Marked windows.
    Window,
}

impl Lane {
    pub const ALL: [Self; 13] = [
        Self::Isolate,
        Self::Gc,
        Self::Pause,
        Self::Incremental,
        Self::Minor,
        Self::External,
        Self::Store,
        Self::Strings,
        Self::Large,
        Self::Pages,
        Self::Bytes,
        Self::Live,
        Self::Window,
    ];

    /// Those that make up external memory.
    pub const EXTERNAL: [Self; 3] = [Self::External, Self::Store, Self::Strings];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Isolate => "isolate",
            Self::Gc => "gc",
            Self::Pause => "pause",
            Self::Incremental => "incremental",
            Self::Minor => "minor",
            Self::External => "external",
            Self::Store => "store",
            Self::Strings => "strings",
            Self::Large => "large",
            Self::Pages => "pages",
            Self::Bytes => "bytes",
            Self::Live => "live",
            Self::Window => "window",
        }
    }

    /// Operations whose hits and losses make up this lane.
    #[must_use]
    pub const fn ops(self) -> &'static [Op] {
        match self {
            Self::Isolate => &[Op::HeapSetUp, Op::HeapTearDown],
            Self::Gc => &[Op::GcPrologue, Op::GcScavenge, Op::GcMarkCompact],
            Self::Pause => &[Op::PauseStart, Op::PauseStop],
            Self::Incremental => &[Op::IncrementalStart],
            Self::Minor => &[Op::GcMinor],
            Self::External => &[Op::BufferAlloc, Op::BufferFree, Op::BufferRealloc],
            Self::Store => &[
                Op::StoreReserve,
                Op::StoreResize,
                Op::WasmGrow,
                Op::StoreDestroy,
            ],
            Self::Strings => &[Op::StringAlloc, Op::StringFree],
            Self::Large => &[Op::LargeAdd, Op::LargePromote],
            Self::Pages => &[Op::PageAlloc, Op::PageFree],
            Self::Bytes => &[
                Op::LabOfNewSpace,
                Op::LabOfPagedSpace,
                Op::LabOfAllocator,
                Op::LabBoundary,
                Op::LocalHeapGone,
            ],
            Self::Live => &[Op::HeapSize],
            Self::Window => &[Op::Marker, Op::ProcessExit],
        }
    }
}

/// The state of a lane over all watched binaries of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneState {
    pub lane: Lane,
    /// Probe points that the table wants and that were attached, over all binaries.
    pub probes: u64,
    pub attached: u64,
    pub hits: u64,
    pub lost: u64,
    pub proven: bool,
    /// Why it is not proven, or where it is blind; empty when all is well.
    pub why: Vec<String>,
}

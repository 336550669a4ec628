//! The probe table: which functions of V8 and node tell what, by version.
//!
//! One [`Row`] is one function. Its [`Name`]s are tried in order and the first one that the binary
//! has is probed; a mangled name already tells most versions apart, because it carries the parameter
//! types. All rows were measured against `--trace-gc`, `perf_hooks` and `process.memoryUsage()` on
//! V8 10.2, 11.3, 12.4, 13.6, 14.1 and 14.6. Rejected on the way, because a symbol that exists need not
//! ever run: `Heap::PerformGarbageCollection` (18.20.8 runs a compiler's copy of it),
//! `IncrementalMarking::StartMarking*` (inlined into callers), `CallGCPrologueCallbacks` (inlined on
//! 18), `GarbageCollectionEpilogue` (its argument is dead on clang builds), the `ArrayBufferSweeper`
//! counters (inlined everywhere).

use super::{Version, external, labs};
use crate::model::Lane;
use perf_gate_ebpf::{NO_ARG, Op};

/// V8 versions (major, minor) that the table was measured on, first and last.
pub const MEASURED: ((u32, u32), (u32, u32)) = ((10, 2), (14, 6));

/// A range of V8 majors, both ends included.
pub type Majors = (u32, u32);
pub(super) const ALL: Majors = (0, u32::MAX);
/// Required nowhere: exists on no version.
pub(super) const OPTIONAL: Majors = (1, 0);

/// One mangled name of a function.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    pub mangled: &'static str,
    /// Argument slots of the operands a0 to a3 of the row's [`Op`].
    pub slots: [u8; 4],
    /// What the [`Op`] documents as its immediate.
    pub immediate: u8,
    /// Majors for which this entry holds, where the name itself does not tell.
    pub majors: Majors,
}

#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub op: Op,
    pub lane: Lane,
    /// For people.
    pub function: &'static str,
    pub names: &'static [Name],
    /// Whether a return probe is wanted besides the entry probe.
    pub ret: bool,
    /// Majors in which the lane is blind without this row; elsewhere the function may be missing.
    pub required: Majors,
    pub doc: &'static str,
}

pub(super) const fn name(mangled: &'static str, slots: [u8; 3]) -> Name {
    Name {
        mangled,
        slots: [slots[0], slots[1], slots[2], NO],
        immediate: 0,
        majors: ALL,
    }
}

pub(super) const RDI: u8 = 0;
pub(super) const RSI: u8 = 1;
pub(super) const RDX: u8 = 2;
pub(super) const RCX: u8 = 3;
pub(super) const NO: u8 = NO_ARG;
const NONE: [u8; 3] = [NO; 3];
pub(super) const THIS: [u8; 3] = [RDI, NO, NO];

pub const ROWS: &[Row] = &[
    Row {
        op: Op::HeapSetUp,
        lane: Lane::Isolate,
        function: "Heap::SetUp",
        names: &[name("_ZN2v88internal4Heap5SetUpEPNS0_9LocalHeapE", THIS)],
        ret: false,
        required: ALL,
        doc: "Once per isolate, on the thread that will run it.",
    },
    Row {
        op: Op::HeapTearDown,
        lane: Lane::Isolate,
        function: "Heap::TearDown",
        names: &[name("_ZN2v88internal4Heap8TearDownEv", THIS)],
        ret: false,
        required: ALL,
        doc: "Once per worker that ends; the main isolate's is skipped by process.exit().",
    },
    Row {
        op: Op::PauseStart,
        lane: Lane::Pause,
        function: "GCTracer::StartObservablePause",
        names: &[
            name(
                "_ZN2v88internal8GCTracer20StartObservablePauseENS_4base9TimeTicksE",
                NONE,
            ),
            name("_ZN2v88internal8GCTracer20StartObservablePauseEv", NONE),
        ],
        ret: false,
        required: ALL,
        doc: "With the stop: the interval --trace-gc prints, to 0.01 ms on average. V8 12 and 13 have \
              a leaf without a prologue here, which is single-stepped: 10 us a collection, inside the \
              interval.",
    },
    Row {
        op: Op::PauseStop,
        lane: Lane::Pause,
        function: "GCTracer::StopObservablePause",
        names: &[
            name(
                "_ZN2v88internal8GCTracer19StopObservablePauseENS0_16GarbageCollectorENS_4base9TimeTicksE",
                NONE,
            ),
            name("_ZN2v88internal8GCTracer19StopObservablePauseEv", NONE),
        ],
        ret: false,
        required: ALL,
        doc: "As often as --trace-gc prints a line.",
    },
    Row {
        op: Op::GcPrologue,
        lane: Lane::Gc,
        function: "Heap::GarbageCollectionPrologue",
        names: &[name(
            "_ZN2v88internal4Heap25GarbageCollectionPrologueENS0_23GarbageCollectionReasonENS_15GCCallbackFlagsE",
            [RDI, RSI, RDX],
        )],
        ret: false,
        required: ALL,
        doc: "Its reason is the one that --trace-gc prints (of the finalisation, not of the start of \
              marking).",
    },
    Row {
        op: Op::GcScavenge,
        lane: Lane::Gc,
        function: "Heap::Scavenge",
        names: &[name("_ZN2v88internal4Heap8ScavengeEv", THIS)],
        ret: false,
        required: ALL,
        doc: "Only called inside a collection of that kind.",
    },
    Row {
        op: Op::GcMarkCompact,
        lane: Lane::Gc,
        function: "Heap::MarkCompact",
        names: &[name("_ZN2v88internal4Heap11MarkCompactEv", THIS)],
        ret: false,
        required: ALL,
        doc: "Only called inside a collection of that kind.",
    },
    Row {
        op: Op::GcMinor,
        lane: Lane::Minor,
        function: "Heap::MinorMarkSweep",
        names: &[
            name("_ZN2v88internal4Heap14MinorMarkSweepEv", THIS),
            name("_ZN2v88internal4Heap16MinorMarkCompactEv", THIS),
        ],
        ret: false,
        required: ALL,
        doc: "Called MinorMarkCompact up to V8 11.",
    },
    Row {
        op: Op::IncrementalStart,
        lane: Lane::Incremental,
        function: "IncrementalMarking::Start",
        names: &[
            name(
                "_ZN2v88internal18IncrementalMarking5StartENS0_16GarbageCollectorENS0_23GarbageCollectionReasonEPKc",
                [RDI, RDX, RSI],
            ),
            name(
                "_ZN2v88internal18IncrementalMarking5StartENS0_16GarbageCollectorENS0_23GarbageCollectionReasonE",
                [RDI, RDX, RSI],
            ),
            name(
                "_ZN2v88internal18IncrementalMarking5StartENS0_23GarbageCollectionReasonE",
                [RDI, RSI, NO],
            ),
        ],
        ret: true,
        required: ALL,
        doc: "Once per cycle; a0 is IncrementalMarking*. V8 10 marks incrementally for mark-compacts \
              only and passes no collector.",
    },
    Row {
        op: Op::HeapSize,
        lane: Lane::Live,
        function: "Heap::SizeOfObjects",
        names: &[name("_ZN2v88internal4Heap13SizeOfObjectsEv", THIS)],
        ret: true,
        required: ALL,
        doc: "Called by Isolate::GetHeapStatistics (v8.getHeapStatistics, process.memoryUsage), which on \
              V8 12+ gives up the allocation areas first, and a few times a collection.",
    },
    Row {
        op: Op::LargeAdd,
        lane: Lane::Large,
        function: "LargeObjectSpace::AddPage",
        names: &[
            name(
                "_ZN2v88internal16LargeObjectSpace7AddPageEPNS0_9LargePageEm",
                [RDI, RSI, RDX],
            ),
            name(
                "_ZN2v88internal16LargeObjectSpace7AddPageEPNS0_17LargePageMetadataEm",
                [RDI, RSI, RDX],
            ),
        ],
        ret: false,
        required: ALL,
        doc: "Also for a page that moves from new to old space, right after the promotion below. The \
              override for machine code calls it on gcc builds; clang builds (V8 14) copy it there, so \
              that code objects above 128 KB are not seen. Single-stepped on V8 13 and 14.",
    },
    Row {
        op: Op::LargePromote,
        lane: Lane::Large,
        function: "OldLargeObjectSpace::PromoteNewLargeObject",
        names: &[
            name(
                "_ZN2v88internal19OldLargeObjectSpace21PromoteNewLargeObjectEPNS0_9LargePageE",
                NONE,
            ),
            name(
                "_ZN2v88internal19OldLargeObjectSpace21PromoteNewLargeObjectEPNS0_17LargePageMetadataE",
                NONE,
            ),
        ],
        ret: false,
        required: ALL,
        doc: "Calls AddPage for an object that was counted when it was new.",
    },
    Row {
        op: Op::PageAlloc,
        lane: Lane::Pages,
        function: "MemoryAllocator::AllocatePage",
        names: &[name(
            "_ZN2v88internal15MemoryAllocator12AllocatePageENS1_14AllocationModeEPNS0_5SpaceENS0_13ExecutabilityE",
            [RDX, NO, NO],
        )],
        ret: false,
        required: ALL,
        doc: "rsi is the mode. 262,144 bytes each; large pages come from elsewhere.",
    },
    Row {
        op: Op::PageFree,
        lane: Lane::Pages,
        function: "MemoryAllocator::Free",
        names: &[
            name(
                "_ZN2v88internal15MemoryAllocator4FreeENS1_8FreeModeEPNS0_11MutablePageE",
                [RDX, NO, NO],
            ),
            name(
                "_ZN2v88internal15MemoryAllocator4FreeENS1_8FreeModeEPNS0_19MutablePageMetadataE",
                [RDX, NO, NO],
            ),
            name(
                "_ZN2v88internal15MemoryAllocator4FreeENS1_8FreeModeEPNS0_11MemoryChunkE",
                [RDX, NO, NO],
            ),
        ],
        ret: false,
        required: ALL,
        doc: "rsi is the mode. Frees large pages as well, so it runs once for every AllocatePage and \
              once for every large page that was not promoted.",
    },
];

/// All rows that are looked for in the file that holds V8.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(external::ROWS).chain(labs::ROWS)
}

impl Row {
    /// Whether the lane is blind without this row. An unknown version does not miss what only some
    /// versions have.
    #[must_use]
    pub fn is_required(&self, version: Option<Version>) -> bool {
        holds(self.required, version)
    }
}

impl Name {
    #[must_use]
    pub fn fits(&self, version: Option<Version>) -> bool {
        holds(self.majors, version)
    }
}

/// An unknown version counts as newer than all.
fn holds((from, to): Majors, version: Option<Version>) -> bool {
    let major = version.map_or(u32::MAX, |v| v.major);
    (from..=to).contains(&major)
}

/// Fingerprint of the table, so that a cached plan ends with the table it was made from.
#[must_use]
pub fn fingerprint() -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for row in rows().chain(labs::LIBC_ROWS) {
        hash.update([row.op as u8, row.lane as u8, u8::from(row.ret)]);
        hash.update(format!("{:?}{:?}", row.required, row.names));
    }
    let digest = hash.finalize();
    digest.iter().take(8).fold(String::new(), |mut out, byte| {
        use std::fmt::Write as _;
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::{fingerprint, labs, rows};
    use crate::model::Lane;
    use perf_gate_ebpf::Op;
    use std::collections::BTreeSet;

    fn all() -> impl Iterator<Item = &'static super::Row> {
        rows().chain(labs::LIBC_ROWS)
    }

    #[test]
    fn every_op_has_a_row_in_its_lane() {
        for op in Op::ALL {
            assert!(all().any(|r| r.op == op), "{op:?} has no row");
        }
        for row in all() {
            assert!(row.lane.ops().contains(&row.op), "{}", row.function);
            assert!(!row.names.is_empty() && !row.doc.is_empty());
        }
        for lane in Lane::ALL {
            assert!(all().any(|r| r.lane == lane), "{lane:?} has no row");
        }
    }

    #[test]
    fn no_name_is_in_two_rows() {
        let mut seen = BTreeSet::new();
        for row in all() {
            let own: BTreeSet<_> = row.names.iter().map(|n| n.mangled).collect();
            for name in own {
                assert!(seen.insert(name), "{name} twice");
            }
        }
        assert_eq!(fingerprint().len(), 16);
    }
}

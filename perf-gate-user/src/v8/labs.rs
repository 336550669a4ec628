//! The rows of the byte accounting, and those of the C library.
//!
//! An isolate's allocation areas are learned where V8 builds what owns them: the spaces themselves in V8
//! 10 and 11, `MainAllocator` since 12. After that an area is replaced only inside the boundaries listed
//! here and during collections, which the pause rows bracket. Chosen are the policy-level functions that
//! replace an area and do nothing else: `AllocateRawSlow` also allocates the object it was called for,
//! `ResetLab` is inlined since V8 14, and `MainAllocator::FreeLinearAllocationArea` is single-stepped on
//! V8 12 and 13 and runs seventeen times a scavenge, where `HeapAllocator::FreeLinearAllocationAreas`
//! around it runs once.

use super::table::{ALL, Majors, NO, Name, OPTIONAL, RCX, RDI, RDX, RSI, Row};
use crate::model::Lane;
use perf_gate_ebpf::{Op, STACK_ARG};

const R8: u8 = 4;
const R9: u8 = 5;
const NONE: [u8; 4] = [NO; 4];
/// One class of area owners for every space.
const ALLOCATORS: Majors = (12, u32::MAX);

const fn name(mangled: &'static str, slots: [u8; 4], immediate: u8, majors: Majors) -> Name {
    Name {
        mangled,
        slots,
        immediate,
        majors,
    }
}

const fn boundary(
    function: &'static str,
    names: &'static [Name],
    required: Majors,
    doc: &'static str,
) -> Row {
    Row {
        op: Op::LabBoundary,
        lane: Lane::Bytes,
        function,
        names,
        ret: true,
        required,
        doc,
    }
}

const fn plain(mangled: &'static str) -> Name {
    name(mangled, NONE, 0, ALL)
}

pub const ROWS: &[Row] = &[
    Row {
        op: Op::LabOfNewSpace,
        lane: Lane::Bytes,
        function: "NewSpace::NewSpace",
        names: &[
            name(
                "_ZN2v88internal8NewSpaceC2EPNS0_4HeapEPNS_13PageAllocatorEmmPNS0_20LinearAllocationAreaE",
                [RSI, R9, NO, NO],
                7,
                (0, 10),
            ),
            name(
                "_ZN2v88internal17SemiSpaceNewSpaceC2EPNS0_4HeapEmmRNS0_20LinearAllocationAreaE",
                [RSI, R8, NO, NO],
                1,
                (11, 11),
            ),
        ],
        ret: false,
        required: (0, 11),
        doc: "The immediate is the new space's id. A paged new space (--minor-mc) comes through \
              PagedSpaceBase on V8 11.",
    },
    Row {
        op: Op::LabOfPagedSpace,
        lane: Lane::Bytes,
        function: "PagedSpace::PagedSpace",
        names: &[
            name(
                "_ZN2v88internal10PagedSpaceC2EPNS0_4HeapENS0_15AllocationSpaceENS0_13ExecutabilityEPNS0_8FreeListEPNS0_20LinearAllocationAreaENS0_19CompactionSpaceKindE",
                [RSI, R9, RDX, STACK_ARG],
                0,
                (0, 10),
            ),
            name(
                "_ZN2v88internal14PagedSpaceBaseC2EPNS0_4HeapENS0_15AllocationSpaceENS0_13ExecutabilityEPNS0_8FreeListERNS0_17AllocationCounterERNS0_20LinearAllocationAreaERNS0_22LinearAreaOriginalDataENS0_19CompactionSpaceKindE",
                [RSI, STACK_ARG, RDX, STACK_ARG + 2],
                0,
                (11, 11),
            ),
        ],
        ret: false,
        required: (0, 11),
        doc: "The last argument is the compaction kind: kNone (0) is a mutator's space.",
    },
    Row {
        op: Op::LabOfAllocator,
        lane: Lane::Bytes,
        function: "MainAllocator::MainAllocator",
        names: &[
            name(
                "_ZN2v88internal13MainAllocatorC2EPNS0_9LocalHeapEPNS0_19SpaceWithLinearAreaEPNS0_20LinearAllocationAreaE",
                [RDI, RSI, RDX, RCX],
                9,
                ALLOCATORS,
            ),
            name(
                "_ZN2v88internal13MainAllocatorC2EPNS0_9LocalHeapEPNS0_19SpaceWithLinearAreaENS1_15IsNewGenerationEPNS0_20LinearAllocationAreaE",
                [RDI, RSI, RDX, R8],
                9,
                (12, 13),
            ),
            name(
                "_ZN2v88internal13MainAllocatorC2EPNS0_9LocalHeapEPNS0_19SpaceWithLinearAreaENS1_15IsNewGenerationEPNS0_20LinearAllocationAreaE",
                [RDI, RSI, RDX, R8],
                8,
                (14, u32::MAX),
            ),
        ],
        ret: false,
        required: ALLOCATORS,
        doc: "The constructor that takes InGCTag is the collector's and is not probed. The immediate is \
              the offset of LocalHeap::is_main_thread_ (src/heap/local-heap.h), read from disassembly.",
    },
    boundary(
        "NewSpace::EnsureAllocation",
        &[
            plain(
                "_ZN2v88internal8NewSpace16EnsureAllocationEiNS0_19AllocationAlignmentENS0_16AllocationOriginEPi",
            ),
            plain(
                "_ZN2v88internal17SemiSpaceNewSpace16EnsureAllocationEiNS0_19AllocationAlignmentENS0_16AllocationOriginEPi",
            ),
            plain(
                "_ZN2v88internal32SemiSpaceNewSpaceAllocatorPolicy16EnsureAllocationEiNS0_19AllocationAlignmentENS0_16AllocationOriginE",
            ),
        ],
        ALL,
        "The next page of the semi-space, or a parked rest of one.",
    ),
    boundary(
        "PagedSpace::RefillLabMain",
        &[
            plain("_ZN2v88internal10PagedSpace13RefillLabMainEiNS0_16AllocationOriginE"),
            plain("_ZN2v88internal14PagedSpaceBase13RefillLabMainEiNS0_16AllocationOriginE"),
        ],
        (0, 11),
        "A chunk of the free list, or a new page. Its caller EnsureAllocation is inlined on V8 11, and on \
              V8 10 runs thirty times as often.",
    ),
    boundary(
        "PagedSpaceAllocatorPolicy::EnsureAllocation",
        &[plain(
            "_ZN2v88internal25PagedSpaceAllocatorPolicy16EnsureAllocationEiNS0_19AllocationAlignmentENS0_16AllocationOriginE",
        )],
        ALLOCATORS,
        "A chunk of the free list, or a new page.",
    ),
    boundary(
        "PagedNewSpace::EnsureAllocation",
        &[
            plain(
                "_ZN2v88internal13PagedNewSpace16EnsureAllocationEiNS0_19AllocationAlignmentENS0_16AllocationOriginEPi",
            ),
            plain(
                "_ZN2v88internal28PagedNewSpaceAllocatorPolicy16EnsureAllocationEiNS0_19AllocationAlignmentENS0_16AllocationOriginE",
            ),
        ],
        (11, u32::MAX),
        "New space under --minor-ms (--minor-mc on V8 11, where PagedSpaceForNewSpace's own is inlined in it).",
    ),
    boundary(
        "NewSpace::FreeLinearAllocationArea",
        &[
            plain("_ZN2v88internal8NewSpace24FreeLinearAllocationAreaEv"),
            plain("_ZN2v88internal17SemiSpaceNewSpace24FreeLinearAllocationAreaEv"),
        ],
        OPTIONAL,
        "V8 10 and 11.",
    ),
    boundary(
        "PagedSpace::FreeLinearAllocationArea",
        &[
            plain("_ZN2v88internal10PagedSpace24FreeLinearAllocationAreaEv"),
            plain("_ZN2v88internal14PagedSpaceBase24FreeLinearAllocationAreaEv"),
        ],
        (0, 11),
        "V8 10 and 11.",
    ),
    boundary(
        "PagedSpaceForNewSpace::FreeLinearAllocationArea",
        &[plain(
            "_ZN2v88internal21PagedSpaceForNewSpace24FreeLinearAllocationAreaEv",
        )],
        OPTIONAL,
        "V8 11 under --minor-mc.",
    ),
    boundary(
        "SemiSpaceNewSpaceAllocatorPolicy::FreeLinearAllocationArea",
        &[plain(
            "_ZN2v88internal32SemiSpaceNewSpaceAllocatorPolicy24FreeLinearAllocationAreaEv",
        )],
        ALLOCATORS,
        "Twice a scavenge, and outside of collections when the memory reducer shrinks the new space.",
    ),
    boundary(
        "HeapAllocator::FreeLinearAllocationAreas",
        &[plain(
            "_ZN2v88internal13HeapAllocator25FreeLinearAllocationAreasEv",
        )],
        ALLOCATORS,
        "All areas of a thread at once.",
    ),
    Row {
        op: Op::LocalHeapGone,
        lane: Lane::Bytes,
        function: "LocalHeap::~LocalHeap",
        names: &[name(
            "_ZN2v88internal9LocalHeapD1Ev",
            [RDI, NO, NO, NO],
            0,
            ALLOCATORS,
        )],
        ret: false,
        required: ALLOCATORS,
        doc: "A pool thread that compiled may sweep or evacuate next, through functions listed here.",
    },
];

/// Functions of the C library, whichever it is. Their names are not mangled.
pub const LIBC_ROWS: &[Row] = &[
    Row {
        op: Op::Marker,
        lane: Lane::Window,
        function: "futimens",
        names: &[name("futimens", [RDI, RSI, NO, NO], 0, ALL)],
        ret: false,
        required: ALL,
        doc: "What fs.futimesSync() ends in (libuv, uv__fs_futime).",
    },
    Row {
        op: Op::ProcessExit,
        lane: Lane::Window,
        function: "exit",
        names: &[plain("exit")],
        ret: false,
        required: ALL,
        doc: "process.exit() skips Heap::TearDown: the last chance to read the areas.",
    },
    Row {
        op: Op::ProcessExit,
        lane: Lane::Window,
        function: "_exit",
        names: &[plain("_exit")],
        ret: false,
        required: ALL,
        doc: "process.reallyExit() and the like.",
    },
];

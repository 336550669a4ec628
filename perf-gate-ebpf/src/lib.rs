//! The layout shared by the kernel programs and the supervisor.
//!
//! Every type here is `repr(C)`, padded by hand and size-checked, because both sides read the same
//! bytes: the kernel writes them into BPF maps, the supervisor copies them out. The supervisor's build
//! refuses an object that was not built from this very source (`perf-gate-user/build.rs`).
//!
//! Units: `*_ns` are nanoseconds of `CLOCK_MONOTONIC`, `*_bytes` are bytes, all else are counts.
#![no_std]

pub mod records;

pub use records::*;

/// What one probe hit means to the kernel side. The discriminant is the low byte of the attach
/// cookie, so that one entry program and one return program serve every probe of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Op {
    /// `a0` = `Heap*`: an isolate is born on this thread.
    HeapSetUp = 1,
    /// `a0` = `Heap*`: the isolate ends.
    HeapTearDown = 2,
    /// The observable pause begins on this thread.
    PauseStart = 3,
    /// The observable pause ends; the collection is counted here.
    PauseStop = 4,
    /// `a0` = `Heap*`, `a1` = reason, `a2` = GC callback flags.
    GcPrologue = 5,
    /// `a0` = `Heap*`.
    GcScavenge = 6,
    /// `a0` = `Heap*`.
    GcMarkCompact = 7,
    /// `a0` = `Heap*`.
    GcMinor = 8,
    /// Also a [`Op::LabBoundary`]: starting to mark gives up the new space's area on V8 12.
    /// `a1` = reason, `a2` = collector (absent on V8 10.2: slot [`NO_ARG`] reads as mark-compact).
    IncrementalStart = 9,
    /// `a0` = size in bytes; the return value tells whether it succeeded.
    BufferAlloc = 10,
    /// `a0` = size in bytes.
    BufferFree = 11,
    /// `a0` = old size, `a1` = new size; the return value tells whether it succeeded.
    BufferRealloc = 12,
    /// `a0` = address of the returned `unique_ptr<BackingStore>`, `a1` = length in bytes.
    StoreReserve = 13,
    /// `a0` = `BackingStore*`, `a1` = new length in bytes; returns 0 on success.
    StoreResize = 14,
    /// `a0` = `BackingStore*`, `a1` = delta in WebAssembly pages; returns `optional<size_t>` in rax:rdx,
    /// its flag in al when the slot of `a2` is [`GROW_FLAG_IN_RAX`], else in dl.
    WasmGrow = 15,
    /// `a0` = `BackingStore*`.
    StoreDestroy = 16,
    /// `a0` = `LargeObjectSpace*`, `a1` = page, `a2` = object size in bytes.
    LargeAdd = 17,
    /// A new-space large object is about to be re-homed: the next [`Op::LargeAdd`] is not an allocation.
    LargePromote = 18,
    /// `a0` = `Space*`.
    PageAlloc = 19,
    /// `a0` = page.
    PageFree = 20,
    /// The new space of V8 10-11 is built: `a0` = `Heap*`, `a1` = its allocation area, immediate = its
    /// space id.
    LabOfNewSpace = 21,
    /// A paged space of V8 10-11 is built: `a0` = `Heap*`, `a1` = its allocation area, `a2` = space id,
    /// `a3` = compaction kind (0: a mutator's space; others are the collector's own).
    LabOfPagedSpace = 22,
    /// A `MainAllocator` (V8 12+) is built: `a0` = this, `a1` = `LocalHeap*`, `a2` = `Space*`, `a3` = its
    /// allocation area, or null for one of its own; immediate = byte offset of `is_main_thread` in
    /// `LocalHeap`.
    LabOfAllocator = 23,
    /// A function inside which allocation areas may be replaced, at its entry and its return.
    LabBoundary = 24,
    /// `a0` = descriptor, `a1` = address of two `timespec`s: a window marker, or somebody's file times.
    Marker = 25,
    /// The process is about to end by its own call.
    ProcessExit = 26,
    /// `a0` = `LocalHeap*`, about to end.
    LocalHeapGone = 27,
    /// Returns the bytes of the live and not yet swept objects of this thread's isolate.
    HeapSize = 28,
    /// `a0` = `Isolate*`, `a1` = resource: a string gets its characters from it; returns null on failure.
    /// Immediate: byte offset of the resource's length, plus [`TWO_BYTE`].
    StringAlloc = 29,
    /// `a0` = resource, immediate as above: it ends. With immediate 0, `a1` = by how many bytes the memory
    /// that an embedder holds for an isolate has grown: minus those of the string that ends.
    StringFree = 30,
}

/// One more than the largest [`Op`].
pub const OPS: usize = 32;

impl Op {
    pub const ALL: [Self; 30] = [
        Self::HeapSetUp,
        Self::HeapTearDown,
        Self::PauseStart,
        Self::PauseStop,
        Self::GcPrologue,
        Self::GcScavenge,
        Self::GcMarkCompact,
        Self::GcMinor,
        Self::IncrementalStart,
        Self::BufferAlloc,
        Self::BufferFree,
        Self::BufferRealloc,
        Self::StoreReserve,
        Self::StoreResize,
        Self::WasmGrow,
        Self::StoreDestroy,
        Self::LargeAdd,
        Self::LargePromote,
        Self::PageAlloc,
        Self::PageFree,
        Self::LabOfNewSpace,
        Self::LabOfPagedSpace,
        Self::LabOfAllocator,
        Self::LabBoundary,
        Self::Marker,
        Self::ProcessExit,
        Self::LocalHeapGone,
        Self::HeapSize,
        Self::StringAlloc,
        Self::StringFree,
    ];
}

/// Argument slot of a probe that has no such argument; reads as 0.
pub const NO_ARG: u8 = 0xf;
/// Slot of `a2` of [`Op::WasmGrow`] on builds that return the flag in al.
pub const GROW_FLAG_IN_RAX: u8 = 0;
/// In the immediate of [`Op::StringAlloc`]: its characters are of two bytes.
pub const TWO_BYTE: u8 = 1;
/// First argument slot that lies on the stack: slot 6 is `*(u64*)(rsp + 8)` at function entry.
pub const STACK_ARG: u8 = 6;

/// The attach cookie: which [`Op`], and in which argument slots its operands lie.
///
/// bits 0-7 op, 8-11 slot of `a0`, 12-15 of `a1`, 16-19 of `a2`, 20-23 of `a3`, 24-31 an immediate,
/// bit 63 [`Cookie::WIDE`].
/// Slots 0-5 are rdi, rsi, rdx, rcx, r8, r9; from [`STACK_ARG`] on the stack; [`NO_ARG`] none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Set on links that see every process of the binary; such a hit is ignored in a process that
    /// also has a link of its own, or it would count twice.
    pub const WIDE: u64 = 1 << 63;

    #[must_use]
    pub const fn new(op: Op, slots: [u8; 4], immediate: u8) -> Self {
        Self(
            op as u64
                | ((slots[0] as u64 & 0xf) << 8)
                | ((slots[1] as u64 & 0xf) << 12)
                | ((slots[2] as u64 & 0xf) << 16)
                | ((slots[3] as u64 & 0xf) << 20)
                | ((immediate as u64) << 24),
        )
    }

    #[must_use]
    pub const fn immediate(self) -> u8 {
        (self.0 >> 24) as u8
    }

    #[must_use]
    pub const fn op(self) -> u8 {
        self.0 as u8
    }

    #[must_use]
    pub const fn slot(self, n: u32) -> u8 {
        ((self.0 >> (8 + 4 * n)) & 0xf) as u8
    }

    #[must_use]
    pub const fn wide(self) -> Self {
        Self(self.0 | Self::WIDE)
    }
}

/// Collection kinds, in the order of every per-kind array.
pub const KINDS: usize = 3;
pub const SCAVENGE: usize = 0;
pub const MARK_COMPACT: usize = 1;
pub const MINOR_MARK_SWEEP: usize = 2;

/// Reasons are V8's `GarbageCollectionReason` values (0-30 as of V8 14.6); larger ones share the last slot.
pub const REASONS: usize = 32;
/// V8's space ids are below this on every supported version (largest: 12).
pub const SPACES: usize = 16;
/// `kGCCallbackFlagForced` (include/v8-callbacks.h): `gc()` and its like.
pub const FLAG_FORCED: u64 = 1 << 2;

/// Allocation areas of one thread of an isolate: at most 6 spaces have one (V8 14).
pub const LABS: usize = 8;
/// A V8 page on x86-64 (`kRegularPageSize`, src/base/build_config.h): no allocation area crosses one.
pub const PAGE_BITS: u32 = 18;

/// The first time of a marker is below this (ids and tokens are below 2^28), a time after January 2004 is not:
/// a descriptor that was closed without our knowing may be another file's now.
pub const MARK_BELOW: u64 = 1 << 30;
/// What a marker asks for: the two lowest bits of the first time; the id is in the bits above.
pub const MARK_BEGIN: u64 = 0;
pub const MARK_END: u64 = 1;
/// The process introduces its descriptor: the second time must be [`Config::nonce`].
pub const MARK_HELLO: u64 = 2;
/// The isolate's books are to be closed, and the isolate goes by the given number from now on
/// ([`Iso::token`]), by which a process says which of its isolates it speaks for.
pub const MARK_ASK: u64 = 3;
/// Ids of windows from here on are perf-gate's own, opened by its harness; below, the program's.
pub const OWN_WINDOWS: u64 = 1 << 27;

/// Log histogram of pauses: 8 steps per power of two, so that a bucket is at most 12.5 % wide.
pub const HIST_STEPS_LOG2: u32 = 3;
pub const HIST: usize = 320;

/// Bucket of a pause of `ns` nanoseconds.
#[must_use]
pub const fn hist_bucket(ns: u64) -> usize {
    let steps = 1u64 << HIST_STEPS_LOG2;
    if ns < steps {
        return ns as usize;
    }
    let exp = 63 - ns.leading_zeros();
    let step = (ns >> (exp - HIST_STEPS_LOG2)) & (steps - 1);
    let index = ((exp - HIST_STEPS_LOG2 + 1) as usize) * (steps as usize) + step as usize;
    if index < HIST { index } else { HIST - 1 }
}

/// Smallest pause in nanoseconds that falls into `bucket`.
#[must_use]
pub const fn hist_floor(bucket: usize) -> u64 {
    let steps = 1u64 << HIST_STEPS_LOG2;
    let b = bucket as u64;
    if b < steps {
        return b;
    }
    let exp = b / steps - 1;
    (steps + b % steps) << exp
}

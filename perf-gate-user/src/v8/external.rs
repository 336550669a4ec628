//! The rows of memory beside V8's heap: backing stores and external strings.
//!
//! Backing stores of node's own allocator are counted at the allocator, because V8's sweeper frees them on
//! threads of its own; those that bypass it are followed one by one. A string of more than about a million
//! characters that node makes of bytes (`buffer.toString()`, `fs.readFileSync()` with an encoding) is
//! *external*: its characters are malloc'ed, V8 is handed a resource object that owns them. Node's built-in
//! sources are external strings too, but their characters lie in the binary: their resource does not name
//! an isolate where node's own for copied characters does, and so they are left alone.

use super::table::{ALL, NO, Name, OPTIONAL, RCX, RDI, RDX, RSI, Row, THIS, name};
use crate::model::Lane;
use perf_gate_ebpf::{GROW_FLAG_IN_RAX, Op, TWO_BYTE};

/// Where `ExternString` (src/string_bytes.cc) keeps its length: behind vtable, cached data, isolate and
/// data; since node 23 (V8 13) an accounter stands before the data.
const LENGTH: u8 = 0x20;
const LENGTH_13: u8 = 0x28;

const fn string(mangled: &'static str, slots: [u8; 3], two_byte: u8) -> [Name; 2] {
    let slots = [slots[0], slots[1], slots[2], NO];
    [
        Name {
            mangled,
            slots,
            immediate: LENGTH | two_byte,
            majors: (0, 12),
        },
        Name {
            mangled,
            slots,
            immediate: LENGTH_13 | two_byte,
            majors: (13, u32::MAX),
        },
    ]
}

const ONE_BYTE_GONE: [Name; 2] = string(
    "_ZN4node12_GLOBAL__N_112ExternStringIN2v86String29ExternalOneByteStringResourceEcED0Ev",
    [RDI, NO, NO],
    0,
);

pub const ROWS: &[Row] = &[
    Row {
        op: Op::BufferAlloc,
        lane: Lane::External,
        function: "NodeArrayBufferAllocator::Allocate",
        names: &[name(
            "_ZN4node24NodeArrayBufferAllocator8AllocateEm",
            [RSI, NO, NO],
        )],
        ret: true,
        required: ALL,
        doc: "Node 18 serves allocUnsafe through it as well.",
    },
    Row {
        op: Op::BufferAlloc,
        lane: Lane::External,
        function: "NodeArrayBufferAllocator::AllocateUninitialized",
        names: &[name(
            "_ZN4node24NodeArrayBufferAllocator21AllocateUninitializedEm",
            [RSI, NO, NO],
        )],
        ret: true,
        required: ALL,
        doc: "Neither of the two calls the other.",
    },
    Row {
        op: Op::BufferRealloc,
        lane: Lane::External,
        function: "NodeArrayBufferAllocator::Reallocate",
        names: &[name(
            "_ZN4node24NodeArrayBufferAllocator10ReallocateEPvmm",
            [RDX, RCX, NO],
        )],
        ret: true,
        required: (0, 10),
        doc: "V8's allocator interface lost it after V8 10.",
    },
    Row {
        op: Op::BufferFree,
        lane: Lane::External,
        function: "NodeArrayBufferAllocator::Free",
        names: &[name(
            "_ZN4node24NodeArrayBufferAllocator4FreeEPvm",
            [RDX, NO, NO],
        )],
        ret: false,
        required: ALL,
        doc: "Mostly on V8's sweeper threads. Begins with `lock sub` on gcc builds (Node 18 to 24), \
              where the second instruction is probed.",
    },
    Row {
        op: Op::StoreReserve,
        lane: Lane::Store,
        function: "BackingStore::TryAllocateAndPartiallyCommitMemory",
        names: &[
            name(
                "_ZN2v88internal12BackingStore35TryAllocateAndPartiallyCommitMemoryEPNS0_7IsolateEmmmmmNS0_14WasmMemoryFlagENS0_10SharedFlagEb",
                [RDI, RDX, NO],
            ),
            name(
                "_ZN2v88internal12BackingStore35TryAllocateAndPartiallyCommitMemoryEPNS0_7IsolateEmmmmmNS0_14WasmMemoryFlagENS0_10SharedFlagE",
                [RDI, RDX, NO],
            ),
            name(
                "_ZN2v88internal12BackingStore35TryAllocateAndPartiallyCommitMemoryEPNS0_7IsolateEmmmmmbNS0_10SharedFlagE",
                [RDI, RDX, NO],
            ),
        ],
        ret: true,
        required: ALL,
        doc: "Static and returns a struct: rdi is where to, rsi the isolate. Resizable buffers, \
              growable shared ones and WebAssembly memory.",
    },
    Row {
        op: Op::StoreResize,
        lane: Lane::Store,
        function: "BackingStore::ResizeInPlace",
        names: &[
            name(
                "_ZN2v88internal12BackingStore13ResizeInPlaceEPNS0_7IsolateEm",
                [RDI, RDX, NO],
            ),
            name(
                "_ZN2v88internal12BackingStore13ResizeInPlaceEPNS0_7IsolateEmm",
                [RDI, RDX, NO],
            ),
        ],
        ret: true,
        required: ALL,
        doc: "Resizable buffers.",
    },
    Row {
        op: Op::StoreResize,
        lane: Lane::Store,
        function: "BackingStore::GrowInPlace",
        names: &[
            name(
                "_ZN2v88internal12BackingStore11GrowInPlaceEPNS0_7IsolateEm",
                [RDI, RDX, NO],
            ),
            name(
                "_ZN2v88internal12BackingStore11GrowInPlaceEPNS0_7IsolateEmm",
                [RDI, RDX, NO],
            ),
        ],
        ret: true,
        required: ALL,
        doc: "Growable shared buffers.",
    },
    Row {
        op: Op::WasmGrow,
        lane: Lane::Store,
        function: "BackingStore::GrowWasmMemoryInPlace",
        names: &[
            Name {
                mangled: "_ZN2v88internal12BackingStore21GrowWasmMemoryInPlaceEPNS0_7IsolateEmm",
                slots: [RDI, RDX, GROW_FLAG_IN_RAX, NO],
                immediate: 0,
                majors: (0, 11),
            },
            Name {
                mangled: "_ZN2v88internal12BackingStore21GrowWasmMemoryInPlaceEPNS0_7IsolateEmm",
                slots: [RDI, RDX, NO, NO],
                immediate: 0,
                majors: (12, u32::MAX),
            },
        ],
        ret: true,
        required: ALL,
        doc: "Growing by 0 pages also succeeds. The language's optional returns its flag in dl, V8's own \
              base::Optional up to V8 11 in al, which a2 then says.",
    },
    Row {
        op: Op::StoreDestroy,
        lane: Lane::Store,
        function: "BackingStore::~BackingStore",
        names: &[
            name("_ZN2v88internal12BackingStoreD1Ev", THIS),
            name("_ZN2v88internal12BackingStoreD2Ev", THIS),
        ],
        ret: false,
        required: ALL,
        doc: "For every backing store, also those of the allocator. D1 and D2 are one function, or \
              D1 calls D2: one of them only.",
    },
    Row {
        op: Op::StringAlloc,
        lane: Lane::Strings,
        function: "String::NewExternalOneByte",
        names: &string(
            "_ZN2v86String18NewExternalOneByteEPNS_7IsolateEPNS0_29ExternalOneByteStringResourceE",
            [RDI, RSI, NO],
            0,
        ),
        ret: true,
        required: ALL,
        doc: "V8's interface, which node always calls.",
    },
    Row {
        op: Op::StringAlloc,
        lane: Lane::Strings,
        function: "String::NewExternalTwoByte",
        names: &string(
            "_ZN2v86String18NewExternalTwoByteEPNS_7IsolateEPNS0_22ExternalStringResourceE",
            [RDI, RSI, NO],
            TWO_BYTE,
        ),
        ret: true,
        required: ALL,
        doc: "As the one above.",
    },
    Row {
        op: Op::StringFree,
        lane: Lane::Strings,
        function: "ExternOneByteString::~ExternOneByteString",
        names: &[
            ONE_BYTE_GONE[0],
            ONE_BYTE_GONE[1],
            Name {
                mangled: "_ZN2v87Isolate37AdjustAmountOfExternalAllocatedMemoryEl",
                slots: [RDI, RSI, NO, NO],
                immediate: 0,
                majors: (0, 12),
            },
        ],
        ret: false,
        required: ALL,
        doc: "The deleting destructor, which V8 reaches through the resource's table of functions (Dispose() \
              is inlined there on gcc builds). A stripped library has no name for it: there it is told by \
              what both destructors call up to V8 12, Isolate::AdjustAmountOfExternalAllocatedMemory, with \
              minus the bytes of a string that lives.",
    },
    Row {
        op: Op::StringFree,
        lane: Lane::Strings,
        function: "ExternTwoByteString::~ExternTwoByteString",
        names: &string(
            "_ZN4node12_GLOBAL__N_112ExternStringIN2v86String22ExternalStringResourceEtED0Ev",
            [RDI, NO, NO],
            TWO_BYTE,
        ),
        ret: false,
        required: OPTIONAL,
        doc: "As the one above. Where it has no name, neither has the other.",
    },
];

//! One of each kind of thing that JavaScript makes, against V8's object layout.
//!
//! Node is built without pointer compression, so a word is 8 bytes and an object begins with its map;
//! every size is a whole number of words. The rows name the file of V8 that lays the object out. Under
//! `--jitless` a slope must be the size to the byte, in the main isolate and in a worker at the same time,
//! also while marking is under way all the time. Compiled code must show the same, less the mementos (only
//! unoptimised code leaves them) and what escape analysis removes; windows in which code was being made
//! are not the least of many, and an iteration that the compiler peels is in the intercept.

use crate::{least, sound};
use perf_gate_tests::{Node, Observed, Watch, fixture, on_each_node};

const fn words(n: u64) -> u64 {
    8 * n
}

const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(8)
}

/// Map, properties, elements (js-objects.tq).
const OBJECT: u64 = words(3);
/// The same and the length (js-array.tq).
const ARRAY: u64 = words(4);
/// Map and length (fixed-array.tq), of doubles and of bytes too.
const ELEMENTS: u64 = words(2);
/// Map and allocation site (allocation-site.tq), behind each object or array that a literal makes.
const MEMENTO: u64 = words(2);
/// Map, hash and length of 4 bytes each (string.tq).
const STRING: u64 = words(2);
/// And first and second, or parent and offset.
const CONS: u64 = STRING + words(2);
/// Map, properties, elements, shared function info, context, feedback cell, code or dispatch handle
/// (js-function.tq). One that can be constructed has a prototype too.
const ARROW: u64 = words(7);
/// Map, length, scope info, previous (contexts.tq).
const CONTEXT: u64 = words(4);
/// Map, then bit field and padding (bigint.tq); digits follow.
const BIGINT: u64 = words(2);
/// An object with reactions or result, flags (js-promise.tq), and one internal field: node's configure.py
/// sets `v8_promise_internal_field_count=1` for async hooks.
const PROMISE: u64 = OBJECT + words(3);
/// An object with function, context, receiver, input, resume mode, continuation, registers
/// (js-generator.tq).
const GENERATOR: u64 = OBJECT + words(7);
/// What the fixture's literal of one property takes.
const OF_ONE: u64 = OBJECT + words(1);

/// An ordered hash table (ordered-hash-table.h): number of elements, of deleted ones, of buckets; two
/// entries a bucket; an entry is `entry` words and the chain. It starts with 4 entries and doubles.
const fn table(capacity: u64, entry: u64) -> u64 {
    ELEMENTS + words(3 + capacity / 2 + capacity * (entry + 1))
}
const MAP_ENTRY: u64 = 2;
const SET_ENTRY: u64 = 1;
/// An object with its table (js-collection.tq).
const COLLECTION: u64 = OBJECT + words(1);

/// Internal fields of buffers and views (`V8_ARRAY_BUFFER_INTERNAL_FIELD_COUNT`, v8-array-buffer.h), and
/// since V8 13 a pointer to a wrapped C++ object (JSAPIObjectWithEmbedderSlots, js-objects.tq).
const fn embedder(v8: u32) -> u64 {
    words(2) + if v8 >= 13 { words(1) } else { 0 }
}

/// js-array-buffer.tq: length, greatest length, store, extension, bits; since V8 11 the detach key.
const fn buffer(v8: u32) -> u64 {
    OBJECT + words(5) + if v8 >= 11 { words(1) } else { 0 } + embedder(v8)
}

/// js-array-buffer.tq: buffer, bits, offset, length in bytes; length, external and base pointer.
const fn view(v8: u32) -> u64 {
    OBJECT + words(7) + embedder(v8)
}

/// A call of an async function without `await`, interpreted: promise, function object, register file. The
/// bytecode takes 5 registers, 4 since V8 13 (`--print-bytecode`); since V8 14 the object has room for two
/// closures to resume it (js-generator.tq).
const fn async_call(v8: u32) -> u64 {
    let registers = if v8 >= 13 { 4 } else { 5 };
    let closures = if v8 >= 14 { words(2) } else { 0 };
    PROMISE + GENERATOR + words(1) + closures + ELEMENTS + words(registers)
}

/// A call of an async function up to its first `await`, of a promise that is settled: the context that holds
/// the function's object, two closures to resume it, and the task (map, argument, context, handler, promise,
/// continuation data: promise.tq). Interpreted or compiled, it is the same.
const fn awaiting(v8: u32) -> u64 {
    async_call(v8) + CONTEXT + words(1) + 2 * ARROW + words(6)
}

/// Up to V8 13 what is no promise is wrapped in one.
const fn awaiting_null(v8: u32) -> u64 {
    awaiting(v8) + if v8 >= 14 { 0 } else { PROMISE }
}

/// A dictionary for no elements (number-dictionary.h): number of elements and of deleted ones, capacity,
/// largest key; four entries of key, value, details.
const DICTIONARY: u64 = ELEMENTS + words(4 + 4 * 3);

enum Size {
    /// Without and with mementos: of the one, how many more bytes in unoptimised code.
    Is(u64, u64),
    /// As much more than another kind: what the builtin itself allocates is its own business.
    Above(&'static str, u64, u64),
}
use Size::{Above, Is};

struct Kind {
    name: &'static str,
    size: Size,
}

#[rustfmt::skip]
fn sizes(v8: u32) -> Vec<Kind> {
    let literal = |bytes| Is(bytes, MEMENTO);
    let plain = |bytes| Is(bytes, 0);
    [
        ("integers", plain(0)),
        // The map of Object() has room for four properties (js-objects.h, kInitialGlobalObjectUnusedPropertiesCount).
        ("{}", plain(OBJECT + words(4))),
        ("{a..b}", literal(OBJECT + words(2))),
        ("{a..c}", literal(OBJECT + words(3))),
        ("{a..e}", literal(OBJECT + words(5))),
        ("{a..f}", literal(OBJECT + words(6))),
        ("{a..g}", literal(OBJECT + words(7))),
        // The elements are the one empty array.
        ("[]", literal(ARRAY)),
        ("[i]", literal(ARRAY + ELEMENTS + words(1))),
        ("[i, , i]", literal(ARRAY + ELEMENTS + words(3))),
        // Elements that are constant are shared until they are written to.
        ("[1, 2, 3]", literal(ARRAY)),
        // Doubles are not.
        ("[0.5, 1.5, 2.5]", literal(ARRAY + ELEMENTS + words(3))),
        ("function", plain(ARROW + words(1))),
        ("capturing arrow", plain(ARROW + CONTEXT + words(1))),
        // Slices are of 13 characters and more (string.h, SlicedString::kMinLength).
        ("short one-byte", plain(STRING + padded(5))),
        ("short two-byte", plain(STRING + padded(2 * 5))),
        ("sliced two-byte", plain(CONS)),
        ("cons two-byte", plain(CONS)),
        ("flattened one-byte", plain(CONS + STRING + padded(52))),
        ("flattened two-byte", plain(CONS + STRING + padded(2 * 52))),
        ("flattened large", plain(CONS + STRING + padded(200_000))),
        ("BigInt(i)", plain(BIGINT + words(1))),
        ("BigInt negated", plain(BIGINT + words(1))),
        // By two digits.
        ("BigInt shifted", plain(BIGINT + words(3))),
        ("new Map", plain(COLLECTION + table(4, MAP_ENTRY))),
        ("new Set", plain(COLLECTION + table(4, SET_ENTRY))),
        ("Map of 5", plain(COLLECTION + table(4, MAP_ENTRY) + table(8, MAP_ENTRY))),
        ("Map of 9", plain(COLLECTION + table(4, MAP_ENTRY) + table(8, MAP_ENTRY) + table(16, MAP_ENTRY))),
        ("Set of 9", plain(COLLECTION + table(4, SET_ENTRY) + table(8, SET_ENTRY) + table(16, SET_ENTRY))),
        // Up to 64 bytes lie in the heap (JSTypedArray::kMaxSizeInHeap).
        ("Float64Array(4)", plain(view(v8) + buffer(v8) + ELEMENTS + words(4))),
        ("Float64Array(6)", plain(view(v8) + buffer(v8) + ELEMENTS + words(6))),
        ("Uint8Array(1000)", plain(view(v8) + buffer(v8))),
        ("ArrayBuffer(1000)", plain(buffer(v8))),
        // An array of two with index, input, groups, names, and input and last index once more
        // (js-regexp.tq); the match is a string of two characters, the group a constant of one.
        ("exec", plain(ARRAY + words(6) + ELEMENTS + words(2) + STRING + padded(2))),
        ("promise", plain(PROMISE)),
        // Compiled, the call is inlined and nothing but the promise leaves it.
        ("async function", Is(PROMISE, async_call(v8) - PROMISE)),
        // Three registers.
        ("generator", plain(GENERATOR + ELEMENTS + words(3))),
        ("one private field", plain(OBJECT + words(1))),
        ("two private fields", plain(OBJECT + words(2))),
        ("derived instance", plain(OBJECT + words(2))),
        // js-weak-refs.tq: the target.
        ("WeakRef", plain(OBJECT + words(1))),
        ("in a vm context", literal(OBJECT + words(4))),
        ("map", plain(ARRAY + ELEMENTS + words(100))),
        ("map to objects", Is(ARRAY + ELEMENTS + words(100) + 100 * OF_ONE, 100 * MEMENTO)),
        // Ten that are in order take nine comparisons.
        ("sort, allocating", Above("sort", 9 * OF_ONE, 9 * MEMENTO)),
        ("replace, allocating", Above("replace", OF_ONE, MEMENTO)),
        // An array of no given length has room for four (js-array.h, kPreallocatedArrayElements).
        ("new Array()", literal(ARRAY + ELEMENTS + words(4))),
        ("new Array(0)", literal(ARRAY)),
        ("new Array(1)", literal(ARRAY + ELEMENTS + words(1))),
        ("new Array(16 or 32)", literal(ARRAY + ELEMENTS + words(24))),
        // Compilers leave what would fill a page to the runtime (JSArray::kInitialMaxFastElementArray),
        // which always adds a memento. 16382 elements are the most that fit (kMaxRegularHeapObjectSize,
        // half a page); one more and they are a large object. Beyond 2^25 they are a dictionary.
        ("new Array(16382)", plain(ARRAY + MEMENTO + ELEMENTS + words(16_382))),
        ("new Array(16383)", plain(ARRAY + MEMENTO + ELEMENTS + words(16_383))),
        ("new Array(2 ** 25 + 1)", plain(ARRAY + MEMENTO + DICTIONARY)),
        ("await null", plain(awaiting_null(v8))),
        ("await a promise", plain(awaiting(v8))),
        ("across a scavenge", literal(OBJECT + words(4))),
        ("across gc()", literal(OBJECT + words(4))),
    ]
    .map(|(name, size)| Kind { name, size })
    .into()
}

const fn v8_of(node: &Node) -> u32 {
    match node.major {
        18 => 10,
        20 => 11,
        22 => 12,
        24 => 13,
        _ => 14,
    }
}

fn run(node: &Node, flags: &[&str], worker: bool, rounds: u32, collect: bool) -> Observed {
    let mut command = vec![node.path.clone().into_os_string(), "--expose-gc".into()];
    command.extend(flags.iter().map(Into::into));
    command.push(fixture("bytes/layouts.mjs").into_os_string());
    if worker {
        command.push("--worker".into());
    }
    let mut watch = Watch::new().env("ROUNDS", rounds.to_string());
    if collect {
        watch = watch.env("COLLECT", "1");
    }
    let run = watch.run(command).expect_code(0);
    sound(&run);
    run
}

/// Which kinds read something else than their size by more than `tolerance` bytes each.
fn wrong(
    runs: &[Observed],
    isolate: u64,
    v8: u32,
    interpreted: bool,
    tolerance: f64,
) -> Vec<String> {
    let names: Vec<&str> = runs[0].stdout.lines().collect();
    let slope = |name: &str| {
        let kind = names.iter().position(|n| *n == name);
        let kind = kind.unwrap_or_else(|| panic!("the fixture has no {name}"));
        let (n, low) = least(runs, isolate, kind, true);
        let (m, high) = least(runs, isolate, kind, false);
        assert_eq!(m, 8 * n, "{name}");
        (high as f64 - low as f64) / (m - n) as f64
    };
    let mut wrong = Vec::new();
    for Kind { name, size } in sizes(v8) {
        let (bytes, more, below) = match size {
            Is(bytes, more) => (bytes, more, 0.0),
            Above(base, bytes, more) => (bytes, more, slope(base)),
        };
        let truth = (bytes + if interpreted { more } else { 0 }) as f64;
        let found = slope(name) - below;
        if (found - truth).abs() > tolerance {
            wrong.push(format!(
                "isolate {isolate}, {name}: {found} B, truth is {truth}"
            ));
        }
    }
    wrong
}

fn interpreted(node: &Node) {
    let runs = [run(node, &["--jitless"], true, 3, false)];
    for isolate in [0, 1] {
        let wrong = wrong(&runs, isolate, v8_of(node), true, 0.0);
        assert_eq!(wrong, Vec::<String>::new());
    }
}

/// What a mark-compact takes that only the program's memory of the past held (maps, bytecode, feedback) is
/// not made anew in windows: the fixture keeps what its kinds need. So no row depends on when V8 collects.
fn after_collections(node: &Node) {
    let runs = [run(node, &["--jitless"], false, 3, true)];
    let wrong = wrong(&runs, 0, v8_of(node), true, 0.0);
    assert_eq!(wrong, Vec::<String>::new());
}

fn compiled(node: &Node) {
    let mut runs = Vec::new();
    let mut last = Vec::new();
    for _ in 0..4 {
        runs.push(run(node, &[], false, 25, false));
        last = wrong(&runs, 0, v8_of(node), false, 0.001);
        if last.is_empty() {
            break;
        }
    }
    assert_eq!(last, Vec::<String>::new());
}

/// Marking starts again as soon as it has ended: objects are allocated black, and areas given up at each
/// start. So many mark-compacts would flush the bytecode of each kind before its turn comes again, and its
/// lower window would pay for compiling it.
fn while_marking(node: &Node) {
    let flags = [
        "--jitless",
        "--stress-incremental-marking",
        "--no-flush-bytecode",
    ];
    let runs = [run(node, &flags, true, 3, false)];
    let starts = runs[0]
        .of("window")
        .filter_map(|w| w["incremental_starts"].as_u64());
    assert!(starts.sum::<u64>() > 20, "marking in windows");
    for isolate in [0, 1] {
        let wrong = wrong(&runs, isolate, v8_of(node), true, 0.0);
        assert_eq!(wrong, Vec::<String>::new());
    }
}

on_each_node!(interpreted, after_collections, compiled, while_marking);

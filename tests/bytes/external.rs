//! Memory beside V8's heap in windows: what was allocated, also if it is gone again, and by how much it grew.
//! Each sort asks for a size; that is the truth. A string of more than a million characters that node makes
//! of bytes has them outside of the heap, one byte each or two.

use crate::sound;
use perf_gate_tests::{Node, Observed, Watch, fixture, on_each_node};
use serde_json::Value;

const WASM_PAGE: u64 = 65_536;
const MB: u64 = 1 << 20;

/// Of one: bytes, whether they are a string's, whether it lives to the end of the window.
struct Sort(&'static str, u64, bool, bool);

const SORTS: [Sort; 18] = [
    Sort("nothing", 0, false, true),
    Sort("ArrayBuffer", 10_001, false, true),
    Sort("ArrayBuffer, dropped", 10_001, false, false),
    Sort("Buffer", 65_536, false, true),
    Sort("Buffer, dropped", 65_536, false, false),
    // A whole pool for as many as fit into it.
    Sort("pool", 16, false, false),
    Sort("SharedArrayBuffer", 4321, false, true),
    Sort("WebAssembly", WASM_PAGE, false, true),
    Sort("WebAssembly grown", WASM_PAGE, false, true),
    Sort("external one-byte", 2 * MB, true, true),
    Sort("external one-byte, dropped", 2 * MB, true, false),
    // Two bytes make a character.
    Sort("external two-byte", 2 * MB, true, true),
    // Two characters for a byte.
    Sort("external hex, dropped", 4 * MB, true, false),
    Sort("sliced from outside", 0, false, true),
    Sort("resizable", 1000, false, true),
    Sort("resizable grown", 5000, false, true),
    Sort("growable shared", 1000, false, true),
    Sort("growable shared grown", 5000, false, true),
];

fn external(node: &Node) {
    let run = Watch::new()
        .run([
            node.path.as_os_str(),
            "--expose-gc".as_ref(),
            fixture("bytes/external.mjs").as_os_str(),
        ])
        .expect_code(0);
    sound(&run);
    let names: Vec<&str> = run.stdout.lines().collect();
    let Some((pool, names)) = names.split_last() else {
        panic!("the fixture says nothing");
    };
    let pool: Vec<u64> = pool
        .split(' ')
        .map(|n| n.parse().expect("a length"))
        .collect();
    assert_eq!(4096 * 16 % pool[0], 0, "windows of whole pools");
    let expected = if node.major < 20 { 14 } else { SORTS.len() };
    assert_eq!(names.len(), expected);
    let mut wrong = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let sort = SORTS.iter().find(|s| s.0 == *name);
        let Sort(_, size, string, kept) = sort.unwrap_or_else(|| panic!("what is {name}?"));
        for w in windows(&run, index) {
            let mut truth = size * w["scale"].as_u64().expect("scale");
            if *name == "pool" {
                truth = truth / pool[0] * pool[1];
            }
            let strings = if *string { truth } else { 0 };
            if w["external_allocated"] != truth
                || w["external_strings"] != strings
                || (*kept && w["external_delta"] != truth)
                || w["external_delta"].as_i64() > truth.try_into().ok()
            {
                wrong.push(format!("{name}, truth is {truth}: {w}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    for w in windows(&run, names.len()) {
        assert_eq!(w["external_strings"], 0, "node's own sources: {w}");
    }
    let process = run.node();
    assert_eq!(process["external_allocated"], process["external_freed"]);
    assert_eq!(process["external_live"], 0, "all is freed in the end");
}

fn windows(run: &Observed, index: usize) -> impl Iterator<Item = &Value> {
    let found: Vec<&Value> = run
        .of("window")
        .filter(|w| w["id"] == index as u64 + 1)
        .collect();
    assert!(!found.is_empty(), "no window {}", index + 1);
    found.into_iter()
}

on_each_node!(external);

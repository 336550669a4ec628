//! Bytes allocated, against sizes that follow from V8's object layout (src/objects/*.tq; no pointer
//! compression in node, so a word is 8 bytes). Never from a run of perf-gate.
//!
//! Windows are taken at N and 8N. What a window costs once (an iteration folded by the compiler, code made
//! while it ran) is in both or in one of many repeats, so the difference of the least of each is the size
//! times 7N. Under `--jitless` nothing is compiled and every slope must be that integer; each object or
//! array literal then carries an AllocationMemento (map and allocation site, 16 bytes).

mod external;
mod isolates;
mod layouts;
mod marks;
mod pretenured;
mod zero;

use perf_gate_tests::{Node, Observed, Watch, fixture, on_each_node};
use serde_json::Value;

const WORD: u64 = 8;
/// Map, properties, elements.
const OBJECT: u64 = 3 * WORD;
/// The same and the length.
const ARRAY: u64 = 4 * WORD;
/// Map and length.
const ELEMENTS: u64 = 2 * WORD;
const MEMENTO: u64 = 2 * WORD;

/// A kind of the fixture: its name, what one costs, and whether an interpreter adds a memento.
struct Kind(&'static str, u64, bool);

/// In the order of the fixture.
const KINDS: [Kind; 12] = [
    Kind("integers", 0, false),
    // Map and the double.
    Kind("heap number", 2 * WORD, false),
    Kind("{a}", OBJECT + WORD, true),
    Kind("{a..d}", OBJECT + 4 * WORD, true),
    Kind("{a..h}", OBJECT + 8 * WORD, true),
    Kind("[i, i, i]", ARRAY + ELEMENTS + 3 * WORD, true),
    Kind("new Array(100)", ARRAY + ELEMENTS + 100 * WORD, true),
    // Two properties in the object itself, once slack tracking has ended.
    Kind("new Point", OBJECT + 2 * WORD, false),
    // Map, properties, elements, shared info, context, feedback cell, code; arrows have no prototype slot.
    Kind("arrow", 7 * WORD, false),
    // Map, hash and length, parent, offset.
    Kind("sliced string", 4 * WORD, false),
    // Map, hash and length, first, second.
    Kind("cons string", 4 * WORD, false),
    // Elements beyond half a page are a large object, made by the runtime, which always adds a memento.
    Kind(
        "new Array(40000)",
        ARRAY + MEMENTO + ELEMENTS + 40_000 * WORD,
        false,
    ),
];

fn kinds(node: &Node, flags: &[&str], worker: bool, rounds: u32) -> Observed {
    let mut command = vec![node.path.clone().into_os_string()];
    command.extend(flags.iter().map(Into::into));
    command.push(fixture("bytes/kinds.mjs").into_os_string());
    if worker {
        command.push("--worker".into());
    }
    Watch::new()
        .env("ROUNDS", rounds.to_string())
        .run(command)
        .expect_code(0)
}

/// The least that windows of this kind and scale read in the isolate; panics on one that is not exact.
fn least(runs: &[Observed], isolate: u64, kind: usize, lower: bool) -> (u64, u64) {
    let id = kind as u64 + 1;
    let of = |w: &&Value| w["id"] == id && w["isolate"] == isolate;
    let windows: Vec<&Value> = runs
        .iter()
        .flat_map(|r| r.of("window").filter(of))
        .collect();
    let scales = windows.iter().map(|w| w["scale"].as_u64().expect("scale"));
    let scale = if lower { scales.min() } else { scales.max() }.expect("windows");
    let bytes = windows
        .iter()
        .filter(|w| w["scale"] == scale)
        .map(|w| {
            assert_eq!(w["breaks"], 0, "{w}");
            w["bytes"]
                .as_u64()
                .unwrap_or_else(|| panic!("not exact: {w}"))
        })
        .min()
        .expect("windows");
    (scale, bytes)
}

fn slopes(runs: &[Observed], isolate: u64) -> Vec<(f64, u64)> {
    (0..KINDS.len())
        .map(|kind| {
            let (n, low) = least(runs, isolate, kind, true);
            let (m, high) = least(runs, isolate, kind, false);
            assert_eq!(m, 8 * n);
            ((high as f64 - low as f64) / (m - n) as f64, low)
        })
        .collect()
}

/// Nothing was lost sight of, and windows are no more than the whole.
fn sound(run: &Observed) {
    run.expect_proven();
    for isolate in run.of("isolate") {
        assert_eq!(isolate["breaks"], 0, "{isolate}");
        let windows: u64 = run
            .of("window")
            .filter(|w| w["isolate"] == isolate["isolate"])
            .filter_map(|w| w["bytes"].as_u64())
            .sum();
        let total = isolate["allocated_bytes"].as_u64().expect("complete");
        assert!(windows <= total, "{windows} in windows of {isolate}");
    }
}

fn interpreted(node: &Node) {
    let run = kinds(node, &["--jitless"], true, 8);
    for kind in ["scavenges", "mark_compacts"] {
        let across = run.of("window").filter_map(|w| w[kind].as_u64());
        assert!(across.sum::<u64>() > 0, "no {kind} in any window");
    }
    exact(run, &[0, 1]);
}

/// What a mark-compact takes is not made anew in windows: no row depends on when V8 collects.
fn after_collections(node: &Node) {
    exact(kinds(node, &["--jitless", "--expose-gc"], false, 3), &[0]);
}

/// New space of pages instead of semi-spaces.
fn paged_new_space(node: &Node) {
    let flag = if node.major < 22 {
        "--minor-mc"
    } else {
        "--minor-ms"
    };
    exact(kinds(node, &["--jitless", flag], false, 8), &[0]);
}

fn exact(run: Observed, isolates: &[u64]) {
    sound(&run);
    let runs = [run];
    for &isolate in isolates {
        for (Kind(name, size, literal), (slope, _)) in KINDS.iter().zip(slopes(&runs, isolate)) {
            let truth = size + if *literal { MEMENTO } else { 0 };
            assert!(
                slope == truth as f64,
                "isolate {isolate}, {name}: {slope} B/op, truth is {truth}"
            );
        }
    }
}

fn compiled(node: &Node) {
    // Tiering up falls into some windows; more repeats leave one of each without it.
    let mut runs = Vec::new();
    let wrong = |runs: &[Observed]| -> Vec<String> {
        KINDS
            .iter()
            .zip(slopes(runs, 0))
            .filter(|(Kind(_, size, _), (slope, _))| (slope - *size as f64).abs() > 0.001)
            .map(|(Kind(name, size, _), (slope, _))| {
                format!("{name}: {slope} B/op, truth is {size}")
            })
            .collect()
    };
    for _ in 0..4 {
        let run = kinds(node, &[], false, 10);
        sound(&run);
        runs.push(run);
        if wrong(&runs).is_empty() {
            break;
        }
    }
    assert_eq!(wrong(&runs), Vec::<String>::new());
    let (_, least_bytes) = least(&runs, 0, 0, true);
    assert_eq!(least_bytes, 0, "an integer loop");
}

fn ends(node: &Node) {
    let run = |how: &str| {
        Watch::new().run([
            node.path.as_os_str(),
            fixture("bytes/ends.mjs").as_os_str(),
            how.as_ref(),
        ])
    };
    let kept = 1000 * (ARRAY + ELEMENTS + 100 * WORD);
    let isolate = |o: &Observed| o.of("isolate").next().expect("an isolate").clone();
    for how in ["natural", "exit"] {
        let whole = isolate(&run(how).expect_code(0));
        let bytes = whole["allocated_bytes"].as_u64().expect("complete");
        assert!(bytes > kept, "{how}: {bytes}");
    }
    let killed = isolate(&run("killed").expect_code(137));
    assert!(killed["allocated_bytes"].is_null(), "{killed}");
    assert!(
        killed["allocated_at_least"].as_u64() > Some(kept / 2),
        "{killed}"
    );
    let open = run("open").expect_code(0);
    let window = open.of("window").next().expect("a window");
    assert_eq!(window["closed"], false);
    assert!(window["bytes"].is_null());
    let nested = run("nested").expect_code(0);
    assert!(nested.stdout.contains("still open"), "{}", nested.stdout);
    assert_eq!(nested.of("window").count(), 1);
}

fn budget(node: &Node) {
    let run = |max: &str| {
        Watch::new().options(["--max-bytes", max]).run([
            node.path.as_os_str(),
            fixture("bytes/ends.mjs").as_os_str(),
            "exit".as_ref(),
        ])
    };
    let _ = run("800000").expect_code(1);
    let _ = run("800000000").expect_code(0);
}

on_each_node!(
    interpreted,
    after_collections,
    paged_new_space,
    compiled,
    ends,
    budget
);

//! The marking helper itself: it costs nothing in the heap, from the first window on and wherever it runs;
//! without perf-gate it does next to nothing, and throws only where it was told to.

use crate::{WORD, sound};
use perf_gate_tests::{Node, Observed, Watch, fixture, on_each_node};
use std::process::Command;

/// Objects that `fs.futimesSync()` makes on Node 18: measured by empty windows, and taken off.
const ON_18: u64 = 7 * WORD;

fn run(node: &Node, flags: &[&str], place: &str, count: u64) -> Observed {
    let mut command = vec![node.path.clone().into_os_string()];
    command.extend(flags.iter().map(Into::into));
    command.push(fixture("bytes/marks.mjs").into_os_string());
    let run = Watch::new()
        .env("WHERE", place)
        .env("COUNT", count.to_string())
        .run(command)
        .expect_code(0);
    sound(&run);
    run
}

/// Few enough that no compiler gets interested.
const EARLY: u64 = 50;

fn empty_windows(node: &Node) {
    for place in ["", "worker", "child", "test"] {
        let run = run(node, &[], place, EARLY);
        assert_eq!(run.of("window").count() as u64, EARLY, "{place}");
        for window in run.of("window") {
            assert_eq!(window["bytes"], 0, "{place}: {window}");
            let marker = if node.major == 18 { ON_18 } else { 0 };
            assert_eq!(window["marker_bytes"], marker, "{place}: {window}");
        }
    }
}

/// Between windows nothing is allocated either: thousands more of them, and as much in all.
fn calls_are_free(node: &Node) {
    let total = |count| {
        let run = run(node, &["--jitless"], "", count);
        let isolate = run.of("isolate").next().expect("an isolate").clone();
        isolate["allocated_bytes"].as_u64().expect("complete")
    };
    let (few, many) = (total(1000), total(5000));
    let calls = 2 * (5000 - 1000);
    let each = if node.major == 18 { ON_18 } else { 0 };
    let more = many.abs_diff(few + calls * each);
    // What starts and ends of a program differ by.
    assert!(more < 4096, "{more} B for {calls} calls");
}

/// File times of somebody's are no markers, whatever their descriptor was before.
fn descriptors_are_reused(node: &Node) {
    let run = Watch::new()
        .run([
            node.path.as_os_str(),
            fixture("bytes/descriptor.mjs").as_os_str(),
        ])
        .expect_code(0);
    sound(&run);
    assert_eq!(run.stdout.trim(), "reused");
    let mut windows: Vec<_> = run.of("window").collect();
    assert!(windows.iter().all(|w| w["closed"] == true), "{windows:?}");
    assert_eq!(windows.pop().map(|w| &w["id"]), Some(&2.into()));
    assert!(windows.iter().all(|w| w["id"] == 1), "{windows:?}");
}

fn alone(node: &Node) {
    let output = Command::new(&node.path)
        .arg(fixture("bytes/marks.mjs"))
        .env_remove("PERF_GATE_MARK")
        .output()
        .expect("node runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    for refusal in &lines[..2] {
        assert!(refusal.contains("sudo perf-gate watch"), "{refusal}");
    }
    let ns: f64 = lines[2].parse().expect("nanoseconds");
    // Some tens of instructions, on a machine that is busy with other things.
    assert!(ns < 500.0, "{ns} ns a call");
}

on_each_node!(empty_windows, calls_are_free, descriptors_are_reused, alone);

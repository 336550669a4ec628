//! Several isolates at the same time: each keeps books of its own, on its own thread.
//!
//! What objects add to an isolate's windows and to its total is told by their number and the size of one.
//! What else there is (being an isolate, feedback and boilerplate of the literal) is taken from the same
//! program with a thousand objects in each window: it is the same in windows to the byte, and in totals to
//! some hundred bytes if workers start one after another (see the fixture). All is interpreted: until a
//! loop has been compiled each object carries a memento, and when that is depends on who gets a processor.
//! PERF_GATE_SOAK=1 makes it 20 GB.

use crate::sound;
use perf_gate_tests::{Node, Observed, Watch, fixture, on_each_node};
use serde_json::Value;
use std::{env, time::Duration};

/// Map, properties, elements, four properties; a memento of two words.
const OBJECT: u64 = 8 * (3 + 4) + 8 * 2;
/// Enough for all feedback that comes with running hot.
const FEW: u64 = 1000;
/// Starts and ends of an isolate: messages, timers and their closures, a few more or less.
const STIR: u64 = 4096;

/// `{}`: map, properties, elements, room for four properties.
const TASK: u64 = 8 * (3 + 4);

fn run(node: &Node, flags: &[&str], numbers: [u64; 3], how: &str) -> Observed {
    let mut command = vec![node.path.clone().into_os_string()];
    command.extend(flags.iter().map(Into::into));
    command.push(fixture("bytes/isolates.mjs").into_os_string());
    command.extend(numbers.map(|n| n.to_string().into()));
    command.push(how.into());
    let run = Watch::new()
        .patience(Duration::from_secs(600))
        .run(command)
        .expect_code(0);
    sound(&run);
    run
}

fn totals(run: &Observed) -> Vec<u64> {
    let total = |i: &Value| i["allocated_bytes"].as_u64().expect("complete");
    run.of("isolate").map(total).collect()
}

/// `workers` and the main isolate, each with `windows` of `objects`.
fn together(node: &Node, workers: u64, windows: u64, objects: u64) {
    let run = |n| run(node, &["--jitless"], [workers, windows, n], "");
    let (few, many) = (run(FEW), run(objects));
    let isolates = workers as usize + 1;
    let (few_bytes, many_bytes) = (totals(&few), totals(&many));
    assert_eq!((few_bytes.len(), many_bytes.len()), (isolates, isolates));
    let more = (objects - FEW) * OBJECT;
    for isolate in 0..isolates {
        let of = |run: &Observed| -> Vec<u64> {
            run.of("window")
                .filter(|w| w["isolate"] == isolate)
                .map(|w| w["bytes"].as_u64().expect("complete"))
                .collect()
        };
        let added: Vec<u64> = of(&many).iter().zip(of(&few)).map(|(m, f)| m - f).collect();
        assert_eq!(added, vec![more; windows as usize], "isolate {isolate}");
        let found = many_bytes[isolate] - few_bytes[isolate];
        let truth = windows * more;
        // A collection may post a task to its thread, and around each task node's platform makes an empty
        // object (src/node_platform.cc, RunForegroundTask): after the windows, where the loop turns.
        let tasks = TASK * scavenges(&many, isolate).saturating_sub(scavenges(&few, isolate));
        assert!(
            (truth - STIR..truth + STIR + tasks).contains(&found),
            "isolate {isolate}: {found} B in all, truth is {truth}"
        );
    }
}

fn scavenges(run: &Observed, isolate: usize) -> u64 {
    let of = run.of("isolate").nth(isolate);
    of.and_then(|i| i["scavenges"].as_u64()).expect("scavenges")
}

fn each_isolate(node: &Node) {
    together(node, 2, 1, 250_000);
}

/// 9 x 4 M x 72 B = 2.6 GB, or 9 x 31 M x 72 B = 20 GB.
fn eight_workers(node: &Node) {
    let soak = env::var_os("PERF_GATE_SOAK").is_some();
    together(node, 8, if soak { 31 } else { 4 }, 1_000_000);
}

/// worker.terminate() in the middle of a window: the isolate's books are closed all the same.
fn terminated(node: &Node) {
    let run = run(node, &[], [2, 1, 100_000], "terminate");
    assert_eq!(run.of("isolate").count(), 3);
    let open: Vec<_> = run.of("window").filter(|w| w["id"] == 200).collect();
    assert_eq!(open.len(), 2);
    for window in open {
        assert_eq!(window["closed"], false, "{window}");
        assert!(window["bytes"].is_null(), "{window}");
    }
}

on_each_node!(each_isolate, eight_workers, terminated);

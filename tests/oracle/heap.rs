//! Large objects against the sizes that the program asks for, old-space pages against
//! `v8.getHeapSpaceStatistics()`.

use perf_gate_tests::{Node, Observed, Watch, fixture, on_each_node};
use serde_json::Value;

on_each_node!(large_objects, old_pages);

fn run(node: &Node, flags: &[&str], script: &str, argument: &str, code: i32) -> Observed {
    let mut command = vec![node.path.clone().into_os_string()];
    command.extend(flags.iter().map(Into::into));
    command.extend([fixture(script).into_os_string(), argument.into()]);
    let seen = Watch::new().run(command).expect_code(code);
    seen.expect_proven();
    seen
}

/// A figure of the only isolate.
fn figure(seen: &Observed, field: &str) -> u64 {
    let isolates: Vec<&Value> = seen.of("isolate").collect();
    assert_eq!(isolates.len(), 1, "isolates");
    let value = isolates[0][field].as_u64();
    value.unwrap_or_else(|| panic!("{field} of {}", isolates[0]))
}

fn large_objects(node: &Node) {
    // Header and hash, length, characters, rounded up to whole words.
    const STRING: u64 = 16 + 600_000;
    let script = "oracle/large.cjs";
    // The same program with strings that are no large objects: what node itself makes of them.
    let without = run(node, &[], script, "600", 0);
    let with = run(node, &[], script, "600000", 0);
    let more = |field| figure(&with, field) - figure(&without, field);
    assert_eq!(more("large_count"), 2000);
    assert_eq!(more("large_bytes"), 2000 * STRING);
}

fn old_pages(node: &Node) {
    const PAGE: u64 = 262_144;
    // A collection by marking may turn whole young pages into old ones, which allocates none; with
    // little young space everything gets old by scavenges.
    let measure = |count| {
        let flags = ["--max-semi-space-size=2"];
        let seen = run(node, &flags, "oracle/old.cjs", count, 128 + 9);
        assert_eq!(figure(&seen, "mark_compacts"), 0);
        let words = seen.stdout.split_whitespace();
        let sizes: Vec<u64> = words.map(|w| w.parse().expect("a number")).collect();
        let pages = figure(&seen, "old_pages");
        (pages, pages * PAGE - sizes[0])
    };
    let (before, cut) = measure("0");
    let (after, cut_again) = measure("50000");
    // Every page has the same size but the one that V8 cuts after its snapshot, always at the same place.
    assert!(cut < PAGE, "{before} pages and a space {cut} bytes smaller");
    assert_eq!(cut_again, cut, "from {before} to {after} pages");
    assert!(after - before > 10, "from {before} to {after} pages");
}

//! Budgets on a program whose figures are known to lie on one side, and what becomes of the exit code.

use perf_gate_tests::{Node, Observed, Watch, fixture, on_each_node, skip_unless_root};

on_each_node!(exceeded, kept);

const BUDGETS: [&str; 5] = [
    "--max-scavenges",
    "--max-old-gen",
    "--max-external-kb",
    "--max-rss-kb",
    "--max-pause-ms",
];

/// Allocates, holds external memory, collects; ends with `code`, nothing freed.
fn run(node: &Node, options: &[&str], code: i32) -> Observed {
    let end = format!(
        "globalThis.held = Buffer.alloc(3 << 20); require({:?}); process.reallyExit({code})",
        fixture("oracle/leaf.cjs")
    );
    let command = [
        node.path.as_os_str(),
        "--expose-gc".as_ref(),
        "-e".as_ref(),
        end.as_ref(),
    ];
    Watch::new().options(options).run(command)
}

fn exceeded(node: &Node) {
    for budget in BUDGETS {
        let seen = run(node, &[budget, "0"], 0).expect_code(1);
        let verdict = seen.verdict();
        assert_eq!(verdict["decided_by"], "budgets", "{budget}: {verdict}");
        assert_eq!(
            (&verdict["pass"], &verdict["code"]),
            (&false.into(), &1.into())
        );
        let reasons = verdict["reasons"].as_array().map_or(0, Vec::len);
        assert_eq!(reasons, 1, "{budget}: {verdict}");
        let reason = verdict["reasons"][0].as_str().unwrap_or_default();
        assert!(reason.contains("> max 0"), "{budget}: {reason}");
        assert!(seen.stderr.contains(reason), "{budget}: {}", seen.stderr);
    }
    // All at once: each with its reason, and more weighty than the command's own code.
    let all: Vec<&str> = BUDGETS.iter().flat_map(|b| [*b, "0"]).collect();
    let seen = run(node, &all, 7).expect_code(1);
    let reasons = seen.verdict()["reasons"].as_array().map_or(0, Vec::len);
    assert_eq!(reasons, BUDGETS.len(), "{}", seen.verdict());
}

fn kept(node: &Node) {
    let all: Vec<&str> = BUDGETS.iter().flat_map(|b| [*b, "99999999"]).collect();
    for code in [0, 7] {
        let seen = run(node, &all, code).expect_code(code);
        assert_eq!(seen.verdict()["decided_by"], "command");
        assert_eq!(seen.verdict()["pass"], code == 0);
    }
    // A limit is what is still allowed: the counts that this program was seen to have are.
    let seen = run(node, &[], 0).expect_code(0);
    let isolate = seen.of("isolate").next().expect("an isolate");
    let old = isolate["mark_compacts"]
        .as_u64()
        .zip(isolate["incremental_starts"].as_u64());
    let (compacts, starts) = old.expect("counts");
    let old = (compacts + starts).to_string();
    assert_eq!(old, "2");
    let live = seen.node()["external_live"].as_u64().expect("a figure");
    assert!(live >= 3 << 20);
    let _ = run(node, &["--max-old-gen", &old], 0).expect_code(0);
    let _ = run(node, &["--max-old-gen", "1"], 0).expect_code(1);
}

/// Nothing with V8 in it: a budget would be held against nothing.
#[test]
fn no_node() {
    skip_unless_root!();
    for budget in BUDGETS {
        let seen = Watch::new()
            .options([budget, "99999999"])
            .run(["true"])
            .expect_code(2);
        assert_eq!(seen.verdict()["decided_by"], "detector");
        assert!(seen.stderr.contains("V8"), "{}", seen.stderr);
    }
    let seen = Watch::new().run(["true"]).expect_code(0);
    assert_eq!(seen.verdict()["pass"], true);
    let _ = Watch::new().run(["false"]).expect_code(1);
}

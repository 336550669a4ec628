//! Proofs: every lane of every build is proven by its control; a build without the symbols is blind in the
//! lanes that need them, says so, and can carry no budget on them.

use perf_gate_tests::{Node, Watch, on, on_each_node, say_skipped};
use serde_json::Value;
use std::{path::PathBuf, process::Command};
use tempfile::TempDir;

on_each_node!(all_lanes);

const LANES: [&str; 13] = [
    "isolate",
    "gc",
    "pause",
    "incremental",
    "minor",
    "external",
    "store",
    "strings",
    "large",
    "pages",
    "bytes",
    "live",
    "window",
];
const PROGRAM: [&str; 2] = [
    "-e",
    "let a = []; for (let i = 0; i < 3e5; i++) a.push({ i });",
];

fn all_lanes(node: &Node) {
    let command = [
        node.path.to_str().expect("a plain path"),
        PROGRAM[0],
        PROGRAM[1],
    ];
    let seen = Watch::new()
        .options(["--prove"])
        .run(command)
        .expect_code(0);
    seen.expect_proven();
    for name in LANES {
        let lane = seen.lane(name);
        assert!(lane["probes"].as_u64() > Some(0), "{lane}");
        assert_eq!(lane["probes"], lane["attached"], "{lane}");
    }
    assert_eq!(seen.of("lane").count(), LANES.len());
    assert!(seen.lane("gc")["hits"].as_u64() > Some(0));
    assert_eq!(seen.node()["blind"], serde_json::json!([]));
}

/// A copy without symbol table, as distributions ship binaries; gone with the folder.
fn stripped(node: &Node) -> Option<(TempDir, PathBuf)> {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let copy = dir.path().join("node");
    let strip = Command::new("strip")
        .arg("-o")
        .arg(&copy)
        .arg(&node.path)
        .status();
    if !strip.is_ok_and(|s| s.success()) {
        say_skipped("no strip here");
        return None;
    }
    Some((dir, copy))
}

/// Up to Node 22 the dynamic symbols are enough.
#[test]
fn stripped_22() {
    on("22.23.5", |node| {
        let Some((_dir, copy)) = stripped(node) else {
            return;
        };
        let command = [copy.to_str().expect("a plain path"), PROGRAM[0], PROGRAM[1]];
        let budget = ["--max-scavenges", "1000000"];
        let seen = Watch::new().options(budget).run(command).expect_code(0);
        seen.expect_proven();
        assert!(seen.lane("gc")["hits"].as_u64() > Some(0));
    });
}

/// Since Node 24 V8's own functions are hidden, and a stripped binary has nothing to find them by.
#[test]
fn stripped_24() {
    on("24.22.3", |node| {
        let Some((_dir, copy)) = stripped(node) else {
            return;
        };
        let program = |code: u8| {
            let text = format!("{} process.exitCode = {code};", PROGRAM[1]);
            [
                copy.to_str().expect("a plain path").to_owned(),
                PROGRAM[0].to_owned(),
                text,
            ]
        };
        for code in [0, 9] {
            let seen = Watch::new().run(program(code)).expect_code(code.into());
            assert_eq!(seen.verdict()["decided_by"], "command");
            for name in [
                "isolate",
                "gc",
                "pause",
                "incremental",
                "minor",
                "large",
                "pages",
            ] {
                let lane = seen.lane(name);
                assert_eq!(lane["proven"], false, "{lane}");
                assert_ne!(lane["why"], serde_json::json!([]), "{lane}");
            }
            // What is not seen is no zero.
            for field in ["scavenges", "mark_compacts", "pause_ns_total"] {
                assert!(seen.of("isolate").all(|i| i[field].is_null()), "{field}");
            }
            let process = seen.node();
            let blind = process["blind"].as_array().into_iter().flatten();
            let blind: Vec<&Value> = blind.map(|b| &b["lane"]).collect();
            assert!(blind.contains(&&"gc".into()), "{process}");
            // Node's own allocator is still named.
            assert_eq!(
                seen.lane("external")["proven"],
                true,
                "{}",
                seen.lane("external")
            );
            assert!(process["page_faults"].as_u64() > Some(0));
        }
        for (budget, lane) in [
            ("--max-scavenges", "gc"),
            ("--max-old-gen", "incremental"),
            ("--max-pause-ms", "pause"),
        ] {
            let seen = Watch::new()
                .options([budget, "1000000"])
                .run(program(0))
                .expect_code(2);
            assert_eq!(seen.verdict()["decided_by"], "detector");
            let reasons = seen.verdict()["reasons"].to_string();
            assert!(
                reasons.contains(&format!("lane {lane} ")),
                "{budget}: {reasons}"
            );
            assert!(
                seen.stderr.contains(&format!("lane {lane} ")),
                "{}",
                seen.stderr
            );
        }
        let rss = ["--max-rss-kb", "10000000"];
        let _ = Watch::new().options(rss).run(program(0)).expect_code(0);
    });
}

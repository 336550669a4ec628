//! `doctor`: its exit codes, and that every row that is not well says what to do.

use crate::{perf_gate, run};
use perf_gate_tests::{Node, is_root, skip, skip_unless_root};
use serde_json::Value;
use std::process::Command;

fn rows(out: &str) -> Vec<Value> {
    let lines = out.lines().map(|l| serde_json::from_str(l).expect("JSON"));
    lines.filter(|r: &Value| r["type"] == "check").collect()
}

#[test]
fn well_for_root_and_a_node() {
    skip_unless_root!();
    let Some(node) = Node::or_skip("22.23.5") else {
        return;
    };
    let node = node.path.display().to_string();
    let ran = run(&["doctor", "--node", &node]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for word in [
        "kernel",
        "lockdown",
        "perf_event_paranoid",
        "12.4.254.21",
        "lane pages",
    ] {
        assert!(ran.out.contains(word), "{word}: {ran:?}");
    }
    let ran = run(&["doctor", "--quiet", "--node", &node]);
    assert_eq!((ran.code, ran.out + &ran.err), (0, String::new()));
}

#[test]
fn rows_that_are_not_well_say_what_to_do() {
    let mut command = perf_gate(&["doctor", "--quiet", "--ndjson", "-"]);
    if is_root() {
        // Without any right, most rows fail.
        let mut bare = Command::new("setpriv");
        bare.args(["--bounding-set=-all", "--inh-caps=-all"]);
        bare.arg(command.get_program()).args(command.get_args());
        command = bare;
    }
    let Ok(output) = command.output() else {
        skip!("no setpriv here");
    };
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(2), "{out}");
    let rows = rows(&out);
    assert!(rows.len() > 8, "{out}");
    let mut bad = 0;
    for row in &rows {
        if row["status"] != "ok" {
            bad += 1;
            assert!(row["todo"].as_str().is_some_and(|t| !t.is_empty()), "{row}");
        }
    }
    assert!(bad > 2, "{out}");
}

#[test]
fn a_bad_node_is_66_and_one_line() {
    for path in ["/no/such", "/", "/dev/null", "/dev/zero", "/etc/passwd"] {
        let ran = run(&["doctor", "--node", path]);
        assert_eq!(ran.code, 66, "{path}: {ran:?}");
        assert!(
            ran.out.is_empty() && ran.err.lines().count() == 1,
            "{path}: {ran:?}"
        );
    }
}

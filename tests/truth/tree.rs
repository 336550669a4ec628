//! The process tree: whatever way a node is started below the command, each of its collections is counted,
//! once, and nobody else's is.
//!
//! The nodes of a tree run with `--trace-gc` and write to one pipe; `stdbuf` makes each of their lines one
//! write, or they would be cut where a buffer happens to be full. V8 says the number that a process has in
//! its own PID namespace, so isolates are compared by what they did and not by that number.

use perf_gate_tests::{Node, Observed, Watch, fixture, on_each_node, skip, trace_gc};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
};

on_each_node!(
    shell,
    forks,
    cluster,
    test_runner,
    exec,
    package_script,
    pid_namespace,
    strangers,
);

/// Collections of one isolate, by kind and reason.
type Counts = BTreeMap<(String, String), u64>;

fn by_v8(seen: &Observed) -> Vec<Counts> {
    let mut all = Vec::new();
    for collections in trace_gc::by_isolate(&trace_gc::collections(&seen.stdout)).values() {
        let mut counts = Counts::new();
        for c in collections {
            let key = (c.kind.to_owned(), c.reason.clone());
            *counts.entry(key).or_default() += 1;
        }
        all.push(counts);
    }
    all.sort();
    all
}

/// Of the processes that run with `--trace-gc`.
fn by_perf_gate(seen: &Observed) -> Vec<Counts> {
    let pids: Vec<&Value> = traced(seen).iter().map(|p| &p["pid"]).collect();
    let mut all = Vec::new();
    for isolate in seen.of("isolate").filter(|i| pids.contains(&&i["pid"])) {
        let mut counts = Counts::new();
        for (kind, field) in [
            ("scavenge", "scavenge_reasons"),
            ("mark-compact", "mark_compact_reasons"),
            ("minor-mark-sweep", "minor_mark_sweep_reasons"),
        ] {
            for (reason, n) in isolate[field].as_object().into_iter().flatten() {
                let n = n.as_u64().expect("a count");
                counts.insert((kind.to_owned(), reason.clone()), n);
            }
        }
        if !counts.is_empty() {
            all.push(counts);
        }
    }
    all.sort();
    all
}

fn traced(seen: &Observed) -> Vec<&Value> {
    let mut nodes = seen.nodes();
    nodes.retain(|p| {
        p["argv"]
            .as_array()
            .is_some_and(|a| a.contains(&"--trace-gc".into()))
    });
    nodes
}

/// Runs `command` under `stdbuf`, with the node first in PATH, and compares; `nodes` is how many processes
/// of it run with `--trace-gc`.
fn check(watch: Watch, node: &Node, command: &[&str], nodes: usize) -> Observed {
    let bin = node.path.parent().expect("a node lies in a folder");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display());
    let seen = watch
        .env("PATH", path)
        .env("LEAF", fixture("oracle/leaf.cjs"))
        .env("STEM", fixture("oracle/stem.cjs"))
        .run(["stdbuf", "-oL"].iter().chain(command))
        .expect_code(0);
    seen.expect_proven();
    assert_eq!(traced(&seen).len(), nodes, "processes: {:?}", lines(&seen));
    let v8 = by_v8(&seen);
    assert!(v8.len() >= nodes, "isolates that collected: {v8:?}");
    assert_eq!(by_perf_gate(&seen), v8);
    seen
}

fn lines(seen: &Observed) -> Vec<String> {
    let processes = seen.of("process");
    processes
        .map(|p| format!("{} {} {}", p["pid"], p["ppid"], p["argv"]))
        .collect()
}

const ONE: &str = "node --trace-gc --expose-gc \"$LEAF\"";

fn shell(node: &Node) {
    let script = format!("{ONE} & {ONE} & wait");
    check(Watch::new(), node, &["sh", "-c", &script], 2);
}

/// Two deep, each with a worker thread.
fn forks(node: &Node) {
    let script = "node --trace-gc --expose-gc \"$STEM\" fork 2";
    check(Watch::new(), node, &["sh", "-c", script], 3);
}

fn cluster(node: &Node) {
    let script = "node --trace-gc --expose-gc \"$STEM\" cluster";
    check(Watch::new(), node, &["sh", "-c", script], 3);
}

fn test_runner(node: &Node) {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    for name in ["a", "b", "c"] {
        let test = dir.path().join(format!("{name}.test.cjs"));
        std::fs::write(
            test,
            "require('node:test')('collects', () => require(process.env.LEAF));",
        )
        .expect("the test can be written");
    }
    let command = ["node", "--trace-gc", "--expose-gc", "--test"];
    check(Watch::new().cwd(dir.path()), node, &command, 4);
}

/// A shell that becomes a node, and where it can, a node that becomes another.
fn exec(node: &Node) {
    check(Watch::new(), node, &["sh", "-c", &format!("exec {ONE}")], 1);
    if node.major >= 24 {
        let script = "node --trace-gc --expose-gc \"$STEM\" execve";
        let seen = check(Watch::new(), node, &["sh", "-c", script], 2);
        let ends: Vec<_> = traced(&seen).iter().map(|p| p["end"].clone()).collect();
        assert_eq!(ends, ["replaced", "exited"]);
    }
}

fn package_script(node: &Node) {
    if !Path::new("/usr/bin/npm").exists() {
        skip!("no npm here");
    }
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let package = serde_json::json!({"name": "p", "version": "1.0.0", "scripts": {"test": ONE}});
    std::fs::write(dir.path().join("package.json"), package.to_string())
        .expect("it can be written");
    let watch = Watch::new()
        .cwd(dir.path())
        .env("npm_config_cache", dir.path().join("cache"))
        .env("npm_config_update_notifier", "false");
    let seen = check(watch, node, &["npm", "test"], 1);
    assert!(
        seen.nodes().len() >= 2,
        "npm is a node too: {:?}",
        lines(&seen)
    );
}

fn pid_namespace(node: &Node) {
    let unshare = || {
        Command::new("unshare")
            .args(["--pid", "--fork", "true"])
            .status()
    };
    if !unshare().is_ok_and(|s| s.success()) {
        skip!("no unshare here, or it may not make a PID namespace");
    }
    let script = format!("{ONE}; {ONE}");
    let command = ["unshare", "--pid", "--fork", "sh", "-c", &script];
    check(Watch::new(), node, &command, 2);
}

/// Another node of the same binary that collects all the time, before, during and after.
fn strangers(node: &Node) {
    let mut stranger = Command::new(&node.path)
        .args(["-e", "for (;;) new Array(100).fill({});"])
        .stdout(Stdio::null())
        .spawn()
        .expect("a node starts");
    let script = format!("{ONE}; {ONE}");
    let seen = std::panic::catch_unwind(|| check(Watch::new(), node, &["sh", "-c", &script], 2));
    let _ = stranger.kill();
    let _ = stranger.wait();
    let seen = seen.unwrap_or_else(|why| std::panic::resume_unwind(why));
    assert_eq!(seen.nodes().len(), 2, "{:?}", lines(&seen));
    assert!(seen.of("process").all(|p| p["pid"] != stranger.id()));
    assert!(seen.of("gc").all(|gc| gc["pid"] != stranger.id()));
}

/// Two versions at once, each with a plan of its own.
#[test]
fn two_versions() {
    perf_gate_tests::on("18.20.8", |old| {
        let Some(new) = Node::or_skip("26.12.1") else {
            return;
        };
        let script = format!(
            "{ONE} & {} --trace-gc --expose-gc \"$LEAF\" & wait",
            new.path.display()
        );
        let seen = check(Watch::new(), old, &["sh", "-c", &script], 2);
        let mut versions: Vec<_> = seen.nodes().iter().map(|p| p["node"].clone()).collect();
        versions.sort_by_key(Value::to_string);
        assert_eq!(versions, ["18.20.8", "26.12.1"]);
    });
}

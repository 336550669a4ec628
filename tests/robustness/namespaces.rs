//! PID namespaces above and below perf-gate, other roots, other file systems.

use crate::support::{have, node, run, shell};
use perf_gate_tests::{Observed, Watch};
use std::{ffi::OsStr, fs, path::Path, process::Command};

const COLLECTS: &str = "--expose-gc -e 'gc()'";

fn counted(run: &Observed) -> Vec<u64> {
    run.of("isolate")
        .filter_map(|i| i["mark_compacts"].as_u64())
        .collect()
}

fn watch(script: &str, args: &[&Path]) -> Observed {
    let mut words: Vec<&OsStr> = ["sh", "-c", script].map(OsStr::new).into();
    words.extend(args.iter().map(|a| a.as_os_str()));
    let run = Watch::new().run(words).expect_code(0);
    run.expect_proven();
    run
}

/// Whether this machine lets us make namespaces.
fn namespaces() -> bool {
    let made = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--mount-proc", "true"])
        .status()
        .is_ok_and(|s| s.success());
    if !made {
        perf_gate_tests::say_skipped("no namespaces can be made here");
    }
    made
}

#[test]
fn a_pid_namespace_below() {
    let Some(node) = node() else { return };
    if namespaces() {
        let script = format!("unshare --pid --fork --mount-proc \"$0\" {COLLECTS}");
        assert_eq!(counted(&watch(&script, &[&node.path])), [1]);
    }
}

#[test]
fn perf_gate_in_a_pid_namespace_and_others_below_it() {
    let Some(node) = node() else { return };
    if !namespaces() {
        return;
    }
    let script = "unshare --pid --fork --mount-proc \"$1\" watch --quiet --ndjson - -- sh -c '
        unshare --pid --fork --mount-proc sh -c \"$0 --expose-gc -e gc\\(\\); $0 --expose-gc -e gc\\(\\)\" &
        unshare --pid --fork --mount-proc \"$0\" --expose-gc -e \"gc()\" &
        \"$0\" --expose-gc -e \"gc()\"; wait' \"$2\"";
    let ran = run(shell(script, &node));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let isolates = ran
        .out
        .lines()
        .filter(|l| l.contains("\"type\":\"isolate\""));
    let isolates: Vec<_> = isolates.collect();
    assert_eq!(isolates.len(), 4, "{}\n{}", ran.out, ran.err);
    assert!(isolates.iter().all(|l| l.contains("\"mark_compacts\":1,")));
}

#[test]
fn the_proc_of_another_namespace_is_refused() {
    let Some(node) = node() else { return };
    if !namespaces() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let ran_mark = dir.path().join("ran");
    let script = format!(
        "unshare --pid --fork \"$1\" watch -- touch {}",
        ran_mark.display()
    );
    let ran = run(shell(&script, &node));
    assert_eq!((ran.code, ran.err.lines().count()), (2, 1), "{}", ran.err);
    assert!(
        ran.err.contains("/proc") && !ran_mark.exists(),
        "{}",
        ran.err
    );
}

#[test]
fn another_root() {
    let Some(node) = node() else { return };
    if !have("chroot") || !have("ldd") {
        return;
    }
    let root = tempfile::tempdir().expect("a temporary folder can be made");
    let libraries = Command::new("ldd")
        .arg(&node.path)
        .output()
        .expect("ldd runs");
    let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
    for library in libraries.split_whitespace().filter(|w| w.starts_with('/')) {
        let to = root.path().join(library.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("it has one")).expect("a folder");
        fs::copy(library, to).expect("a copy");
    }
    fs::copy(&node.path, root.path().join("program")).expect("a copy");
    let script = format!("chroot \"$0\" /program {COLLECTS}");
    assert_eq!(counted(&watch(&script, &[root.path()])), [1]);
}

#[test]
fn file_systems_that_only_the_program_sees() {
    let Some(node) = node() else { return };
    if !namespaces() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let script = format!(
        "unshare --mount sh -ec 'mount -t tmpfs none \"$1\"; cd \"$1\"; mkdir l u w m; cp \"$0\" l/program;
        l/program {0}; mount -t overlay overlay -o lowerdir=l,upperdir=u,workdir=w m; m/program {0}' \"$0\" \"$1\"",
        "--expose-gc -e \"gc()\""
    );
    assert_eq!(counted(&watch(&script, &[&node.path, dir.path()])), [1, 1]);
}

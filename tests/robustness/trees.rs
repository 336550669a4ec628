//! Trees of odd shapes: hundreds of short nodes, programs that replace themselves, nodes that come by
//! unusual ways.

use crate::{
    fixtures,
    support::{PATIENCE, node},
};
use perf_gate_tests::{Observed, Watch};

fn sh(script: &str, args: &[&std::path::Path]) -> Observed {
    let mut words: Vec<std::ffi::OsString> = ["sh", "-c", script].map(Into::into).into();
    words.extend(args.iter().map(|a| a.as_os_str().to_owned()));
    Watch::new().patience(PATIENCE * 2).run(words)
}

/// Collections over the whole run.
fn mark_compacts(run: &Observed) -> u64 {
    run.of("isolate")
        .filter_map(|i| i["mark_compacts"].as_u64())
        .sum()
}

#[test]
fn hundreds_of_short_nodes_are_all_counted() {
    let Some(node) = node() else { return };
    let run = sh(
        "seq 500 | xargs -P 4 -I{} \"$0\" --expose-gc -e 'gc()'",
        &[&node.path],
    );
    let run = run.expect_code(0);
    run.expect_proven();
    assert_eq!(run.nodes().len(), 500);
    assert_eq!((run.of("isolate").count(), mark_compacts(&run)), (500, 500));
    assert!(run.nodes().iter().all(|p| p["exit_code"] == 0));
}

#[test]
fn a_program_that_execs_over_itself() {
    let Some(node) = node() else { return };
    let run = sh(
        "exec sh -c 'exec \"$0\" --expose-gc -e \"gc(); process.exit(3)\"' \"$0\"",
        &[&node.path],
    );
    let run = run.expect_code(3);
    run.expect_proven();
    assert_eq!((run.of("isolate").count(), mark_compacts(&run)), (1, 1));
    let ends: Vec<_> = run.of("process").map(|p| p["exit_code"].clone()).collect();
    assert_eq!(ends.iter().filter(|e| **e == 3).count(), 1, "{ends:?}");
}

#[test]
fn a_tree_that_never_starts_node_is_no_failure_but_has_no_budget() {
    let Some(_) = node() else { return };
    let run = Watch::new().run(["sh", "-c", "exit 3"]).expect_code(3);
    assert_eq!(run.nodes().len(), 0);
    let run = Watch::new()
        .options(["--max-scavenges", "0"])
        .run(["true"])
        .expect_code(2);
    assert!(run.stderr.contains("ran V8"), "{}", run.stderr);
}

#[test]
fn an_exec_from_another_thread_and_of_a_memfd() {
    let Some(node) = node() else { return };
    for fixture in ["exec_from_a_thread", "exec_of_a_memfd"] {
        let run = Watch::new()
            .run(fixtures::command(fixture, &node))
            .expect_code(0);
        assert_eq!(
            (run.of("isolate").count(), mark_compacts(&run)),
            (1, 1),
            "{fixture}"
        );
        run.expect_proven();
    }
}

#[test]
fn a_binary_that_is_deleted_or_copied_meanwhile() {
    let Some(node) = node() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let copy = dir.path().join("copy");
    let run = sh(
        "cp \"$0\" \"$1\"; \"$1\" --expose-gc -e 'fs.unlinkSync(process.execPath); gc()' && test ! -e \"$1\" && \"$0\" --expose-gc -e 'gc()'",
        &[&node.path, &copy],
    );
    let run = run.expect_code(0);
    run.expect_proven();
    assert_eq!(mark_compacts(&run), 2);
}

#[test]
fn two_perf_gates_on_one_binary_count_their_own() {
    let Some(node) = node() else { return };
    let of = |n: u32| {
        let script = format!(
            "setTimeout(() => {{ for (let i = 0; i < {n}; i++) gc() }}, 400); setTimeout(() => {{}}, 900)"
        );
        let words = [
            node.path.clone().into_os_string(),
            "--expose-gc".into(),
            "-e".into(),
            script.into(),
        ];
        std::thread::spawn(move || Watch::new().run(words).expect_code(0))
    };
    let runs: Vec<_> = [2, 5].map(of).into();
    let counts: Vec<_> = runs
        .into_iter()
        .map(|r| mark_compacts(&r.join().expect("it ran")))
        .collect();
    assert_eq!(counts, [2, 5]);
}

#[test]
fn arguments_of_any_kind_and_length() {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};
    let Some(node) = node() else { return };
    let mut words: Vec<OsString> = vec![node.path.clone().into(), "-e".into(), "0".into()];
    words.push(OsString::from_vec(b"\xff\xfe\x1b[31m\nline".to_vec()));
    words.extend((0..8).map(|_| OsString::from("x".repeat(100_000))));
    let run = Watch::new()
        .env("BIG", "y".repeat(100_000))
        .run(words)
        .expect_code(0);
    let argv = run.node()["argv"].as_array().expect("a list").clone();
    assert_eq!(argv.len(), 12);
    assert!(!run.stderr.contains('\x1b') && run.stderr.lines().all(|l| l.len() < 1000));
}

//! Many isolates in one process, and ends in the middle of a collection.

use crate::support::node;
use perf_gate_tests::Watch;

#[test]
fn two_hundred_workers_at_once() {
    let Some(node) = node() else { return };
    let script = "const { Worker } = require('worker_threads');
        for (let i = 0; i < 200; i++) new Worker('gc()', { eval: true })";
    let run = Watch::new().run([
        node.path.as_os_str(),
        "--expose-gc".as_ref(),
        "-e".as_ref(),
        script.as_ref(),
    ]);
    let run = run.expect_code(0);
    run.expect_proven();
    assert_eq!(run.of("isolate").count(), 201);
    // Node collects nothing by force when a worker ends, so the forced ones are the workers' own.
    let collected = run
        .of("isolate")
        .filter(|i| i["isolate"] != 0 && i["mark_compacts"].as_u64() >= Some(1));
    assert_eq!(collected.count(), 200);
}

/// Heaps come and go at the same addresses.
#[test]
fn workers_one_after_another() {
    let Some(node) = node() else { return };
    let script = "const { Worker } = require('worker_threads');
        (async () => { for (let i = 0; i < 300; i++)
            await new Promise(done => new Worker('gc(); gc()', { eval: true }).on('exit', done)) })()";
    let run = Watch::new().run([
        node.path.as_os_str(),
        "--expose-gc".as_ref(),
        "-e".as_ref(),
        script.as_ref(),
    ]);
    let run = run.expect_code(0);
    run.expect_proven();
    assert_eq!(run.of("isolate").count(), 301);
    let all_two = run
        .of("isolate")
        .filter(|i| i["isolate"] != 0)
        .all(|i| i["mark_compacts"].as_u64() >= Some(2));
    assert!(all_two);
}

#[test]
fn an_end_in_the_middle_of_a_collection() {
    let Some(node) = node() else { return };
    for (end, code) in [
        ("process.exit(5)", 5),
        ("process.kill(process.pid, 'SIGKILL')", 137),
    ] {
        let script = format!(
            "const {{ Worker }} = require('worker_threads');
            new Worker('const a = []; for (;;) a.push({{ x: a.length }})', {{ eval: true }});
            setTimeout(() => {{ {end} }}, 500)"
        );
        let run = Watch::new().run([node.path.as_os_str(), "-e".as_ref(), script.as_ref()]);
        let run = run.expect_code(code);
        run.expect_proven();
        assert_eq!(run.of("isolate").count(), 2);
    }
}

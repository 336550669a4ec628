//! External memory against `process.memoryUsage().arrayBuffers`, and against the sizes asked for where node
//! has no figure of its own (resizable buffers, growable shared ones, WebAssembly memory).

use perf_gate_tests::{Node, Watch, fixture, on_each_node};

on_each_node!(live, bypassing_the_allocator);

const KILLED: i32 = 128 + 9;

fn live(node: &Node) {
    for sort in [
        "nothing", "buffers", "churn", "pool", "shared", "transfer", "refused",
    ] {
        equal(node, sort);
    }
}

fn bypassing_the_allocator(node: &Node) {
    let reserved = equal(node, "wasm");
    assert!(reserved > 0, "nothing bypassed the allocator");
    if node.major >= 20 {
        equal(node, "resizable");
        equal(node, "growable");
    }
}

/// Compares one sort; returns what bypassed the allocator.
fn equal(node: &Node, sort: &str) -> u64 {
    let script = fixture("oracle/external.cjs");
    let command = [
        node.path.as_os_str(),
        "--expose-gc".as_ref(),
        script.as_os_str(),
        sort.as_ref(),
    ];
    let seen = Watch::new().run(command).expect_code(KILLED);
    seen.expect_proven();
    let mut words = seen.stdout.split_whitespace().map(|word| {
        let number = word.parse::<i64>();
        number.unwrap_or_else(|_| panic!("{sort} says: {}", seen.stdout))
    });
    let (counted, elsewhere) = (words.next().unwrap_or(-1), words.next().unwrap_or(-1));
    let process = seen.node();
    assert_eq!(
        process["external_live"],
        counted + elsewhere,
        "live bytes of {sort}: node counts {counted}, and {elsewhere} it does not; {process}"
    );
    let allocated = process["external_allocated"].as_i64();
    let freed = process["external_freed"].as_i64();
    assert_eq!(
        allocated.zip(freed).map(|(a, f)| a - f),
        process["external_live"].as_i64()
    );
    process["external_reserved"].as_u64().unwrap_or_default()
}

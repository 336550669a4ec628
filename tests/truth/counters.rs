//! Page faults, context switches and task clock against rusage: what `wait4` gives a parent of the node,
//! and what the node says of itself when it is the command.
//!
//! perf's task clock stops while the kernel switches to another task and rusage's does not: about 5 us a
//! switch. The program therefore works for a millisecond and more between two; one that switches a
//! thousand times in half a second of work is 1 % off.
//!
//! The parent is this very test executable, started again under perf-gate with the node's command line in
//! its environment: no tool that every machine has prints a child's rusage in full.

use perf_gate_tests::{Node, Watch, fixture, on_each_node};
use serde_json::Value;
use std::{env, fs, mem, process::Command};

on_each_node!(as_a_child, as_the_command);

const NODE: &str = "PERF_GATE_TEST_NODE";
const SCRIPT: &str = "PERF_GATE_TEST_SCRIPT";
const RESULT: &str = "PERF_GATE_TEST_RESULT";

/// Not a test of its own: the parent, when it is started as such.
#[test]
#[expect(
    clippy::zombie_processes,
    reason = "wait4 reaps it, for the sake of its rusage"
)]
fn parent() {
    let (Some(node), Some(script), Some(result)) =
        (env::var_os(NODE), env::var_os(SCRIPT), env::var_os(RESULT))
    else {
        return;
    };
    let child = Command::new(node)
        .arg(script)
        .spawn()
        .expect("the node starts");
    let pid = child.id().cast_signed();
    // SAFETY: an rusage of zeros is one.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    let mut status = 0;
    // SAFETY: both pointers are to live values of the right types.
    let reaped = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    assert_eq!(reaped, pid);
    let us = |t: libc::timeval| t.tv_sec * 1_000_000 + t.tv_usec;
    let figures = serde_json::json!({
        "userCPUTime": us(usage.ru_utime),
        "systemCPUTime": us(usage.ru_stime),
        "minorPageFault": usage.ru_minflt,
        "majorPageFault": usage.ru_majflt,
        "voluntaryContextSwitches": usage.ru_nvcsw,
        "involuntaryContextSwitches": usage.ru_nivcsw,
    });
    fs::write(result, figures.to_string()).expect("the figures can be written");
}

/// What the end of a process of this size takes, on a machine that is busy: page faults, context switches,
/// nanoseconds.
const END: [f64; 3] = [100.0, 100.0, 50e6];

/// `usage` has the names of `process.resourceUsage()`; `rest` is what may have come after it was asked for.
fn compare(process: &Value, usage: &Value, rest: [f64; 3]) {
    let sum = |names: [&str; 2]| -> f64 {
        let figures = names.map(|n| {
            usage[n]
                .as_f64()
                .unwrap_or_else(|| panic!("{n} of {usage}"))
        });
        figures.iter().sum()
    };
    for ((field, expected), rest) in [
        ("page_faults", sum(["minorPageFault", "majorPageFault"])),
        (
            "context_switches",
            sum(["voluntaryContextSwitches", "involuntaryContextSwitches"]),
        ),
        (
            "task_clock_ns",
            sum(["userCPUTime", "systemCPUTime"]) * 1000.0,
        ),
    ]
    .into_iter()
    .zip(rest)
    {
        let found = process[field]
            .as_f64()
            .unwrap_or_else(|| panic!("{field} of {process}"));
        assert!(
            (expected * 0.99..=expected * 1.01 + rest).contains(&found),
            "{field}: {found}, rusage says {expected}, {:+.2} %",
            (found / expected - 1.0) * 100.0
        );
        assert!(
            expected > 300.0,
            "too little to compare: {field} {expected}"
        );
    }
}

fn as_a_child(node: &Node) {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let result = dir.path().join("rusage.json");
    let parent = env::current_exe().expect("the test knows its own path");
    let seen = Watch::new()
        .env(NODE, &node.path)
        .env(SCRIPT, fixture("oracle/busy.cjs"))
        .env(RESULT, &result)
        .run([
            parent.as_os_str(),
            "--exact".as_ref(),
            "counters::parent".as_ref(),
        ])
        .expect_code(0);
    let usage = fs::read(&result).expect("the parent tells");
    let usage = serde_json::from_slice(&usage).expect("it tells in JSON");
    compare(seen.node(), &usage, [0.0; 3]);
}

/// Nobody but perf-gate can wait for it, so it has to tell its own rusage, in which its end is missing.
fn as_the_command(node: &Node) {
    let script = fixture("oracle/busy.cjs");
    let command = [node.path.as_os_str(), script.as_os_str(), "kill".as_ref()];
    let seen = Watch::new().run(command).expect_code(128 + 9);
    let usage = serde_json::from_str(&seen.stdout).expect("the program tells in JSON");
    compare(seen.node(), &usage, END);
}

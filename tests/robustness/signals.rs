//! Signals to perf-gate, and the codes that ends come out as.

use crate::support::{Ran, expect_gone, finish, node, perf_gate, run, until};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use perf_gate_tests::Node;
use std::{fs, process::Child};

/// Starts a node that says in a file that it is up.
fn start(node: &Node, script: &str, mark: &str) -> Child {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let up = dir.path().join("up");
    let script = format!(
        "{script}; require('fs').writeFileSync('{}', '')",
        up.display()
    );
    let mut command = perf_gate(["watch", "--quiet", "--"]);
    command.arg(&node.path).args(["-e", &script, mark]);
    let child = command.spawn().expect("perf-gate starts");
    let patience = crate::support::PATIENCE;
    until(patience, || up.exists().then_some(())).expect("node comes up");
    child
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).expect("perf-gate is there");
}

fn end(child: Child) -> Ran {
    finish(child, "a signalled run")
}

#[test]
fn a_signal_ends_the_program_and_its_number_comes_out() {
    let Some(node) = node() else { return };
    for (signal, code) in [
        (Signal::SIGHUP, 129),
        (Signal::SIGINT, 130),
        (Signal::SIGQUIT, 131),
        (Signal::SIGUSR2, 140),
        (Signal::SIGTERM, 143),
    ] {
        let mark = format!("mark-of-{signal}");
        let child = start(&node, "setInterval(() => {}, 1e3)", &mark);
        send(&child, signal);
        let ran = end(child);
        assert_eq!(ran.code, code, "{signal}: {}", ran.err);
        expect_gone(&mark);
    }
}

#[test]
fn a_program_may_handle_them() {
    let Some(node) = node() else { return };
    let script = "let n = 0; for (const s of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGWINCH', 'SIGUSR2'])
        process.on(s, () => { console.log(s); if (++n == 5) process.exit(9) }); setInterval(() => {}, 1e3)";
    let child = start(&node, script, "mark-of-handlers");
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGWINCH,
        Signal::SIGUSR2,
    ] {
        send(&child, signal);
    }
    let ran = end(child);
    assert_eq!((ran.code, ran.out.lines().count()), (9, 5), "{ran:?}");
}

#[test]
fn a_program_that_ends_itself_hard() {
    let Some(node) = node() else { return };
    for (script, code) in [
        ("process.kill(process.pid, 'SIGKILL')", 137),
        ("process.abort()", 134),
        ("process.exit(255)", 255),
        (
            "for (let i = 0; i < 64; i++) try { require('fs').closeSync(i) } catch {}; process.kill(process.pid, 'SIGTERM')",
            143,
        ),
    ] {
        let mut command = perf_gate(["watch", "--quiet", "--", "sh", "-c"]);
        command
            .args(["ulimit -c 0; exec \"$0\" -e \"$1\""])
            .arg(&node.path)
            .arg(script);
        let ran = run(command);
        assert_eq!(ran.code, code, "{script}: {}", ran.err);
    }
}

/// The memory of perf-gate itself, in KiB, while it watches.
#[test]
fn perf_gate_itself_stays_small() {
    let Some(node) = node() else { return };
    let child = start(&node, "setInterval(() => {}, 1e3)", "mark-of-memory");
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    send(&child, Signal::SIGTERM);
    assert_eq!(end(child).code, 143);
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let peak = peak.expect("the kernel says");
    assert!(peak < 25 * 1024, "{peak} KiB");
}

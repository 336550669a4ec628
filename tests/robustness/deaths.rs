//! The end of perf-gate itself, at any moment: the program goes with it, nothing stays stopped or held,
//! and what it left running elsewhere lives on undisturbed.

use crate::support::{alive, expect_gone, node, perf_gate, run, shell, state, until};
use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

#[test]
fn the_program_dies_with_perf_gate() {
    let Some(node) = node() else { return };
    let mark = "mark-of-the-orphan";
    let mut command = perf_gate(["watch", "--quiet", "--"]);
    command
        .arg(&node.path)
        .args(["-e", "setInterval(() => {}, 1e3)", mark]);
    let mut gate = command.spawn().expect("perf-gate starts");
    let two = || (alive(mark).len() >= 2).then_some(());
    until(crate::support::PATIENCE, two).expect("node comes up");
    gate.kill().expect("it is ours");
    let killed = Instant::now();
    gate.wait().expect("it is ours");
    expect_gone(mark);
    assert!(
        killed.elapsed() < Duration::from_secs(2),
        "{:?}",
        killed.elapsed()
    );
}

#[test]
fn killed_at_any_moment_it_leaves_nothing() {
    let Some(node) = node() else { return };
    let mark = "mark-of-any-moment";
    // Warm, so that no moment falls into the control's run only.
    run(shell("exec \"$1\" watch --quiet -- \"$2\" -e 0", &node));
    let temporary = tempfile::tempdir().expect("a temporary folder can be made");
    for i in 0..40 {
        let mut command = perf_gate(["watch", "--quiet", "--", "sh", "-c"]);
        command.env("TMPDIR", temporary.path());
        command.args(["\"$0\" -e 0 $1; \"$0\" -e 0 $1; true"]);
        command.arg(&node.path).arg(mark);
        let mut gate = command.spawn().expect("perf-gate starts");
        thread::sleep(Duration::from_micros(2500 * i));
        let _ = gate.kill();
        gate.wait().expect("it is ours");
    }
    expect_gone(mark);
    let left: Vec<_> = fs::read_dir(temporary.path()).expect("a folder").collect();
    // Between making its temporary file and the birth of the guard that would remove it lies a millisecond.
    assert!(left.len() <= 2, "{left:?}");
}

/// The daemon goes on to start programs after perf-gate is gone, which must work as ever.
#[test]
fn daemons_outlive_a_killed_perf_gate() {
    let Some(node) = node() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let log = dir.path().join("log");
    let mut command = perf_gate(["watch", "--quiet", "--", "sh", "-c"]);
    command.arg("setsid sh -c 'for i in 1 2 3 4 5 6; do sleep 0.2; /bin/echo $i >> \"$0\"; done; \"$1\" -p 7 >> \"$0\"' \"$0\" \"$1\" & exec sleep 60");
    command.arg(&log).arg(&node.path);
    let mut gate = command.spawn().expect("perf-gate starts");
    let read = || fs::read_to_string(&log).unwrap_or_default();
    let begun = || read().contains('1').then_some(());
    until(crate::support::PATIENCE, begun).expect("the daemon begins");
    gate.kill().expect("it is ours");
    gate.wait().expect("it is ours");
    let done = || read().contains('7').then_some(());
    until(crate::support::PATIENCE, done).unwrap_or_else(|| panic!("stuck at: {}", read()));
    assert_eq!(
        read().split_whitespace().collect::<Vec<_>>(),
        ["1", "2", "3", "4", "5", "6", "7"]
    );
    expect_gone(&dir.path().display().to_string());
}

#[test]
fn daemons_are_waited_for_or_left_in_peace() {
    let Some(node) = node() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    for (option, left) in [("--no-wait-tree", true), ("--quiet", false)] {
        let log = dir.path().join(option);
        let mut command = perf_gate(["watch", option, "--", "sh", "-c"]);
        command.arg("setsid sh -c 'sleep 1; /bin/true && \"$1\" -p 7 > \"$0\"' \"$0\" \"$1\" > /dev/null 2>&1 & exit 4");
        command.arg(&log).arg(&node.path);
        let ran = run(command);
        assert_eq!(ran.code, 4, "{}", ran.err);
        let read = || fs::read_to_string(&log).unwrap_or_default();
        assert_eq!(read().is_empty(), left, "{option}");
        let done = || read().contains('7').then_some(());
        until(crate::support::PATIENCE, done).expect("the daemon can still start programs");
    }
    expect_gone(&dir.path().display().to_string());
}

#[test]
fn nothing_is_stopped_for_good() {
    let Some(node) = node() else { return };
    let mark = "mark-of-a-stop";
    let mut command = perf_gate(["watch", "--quiet", "--", "sh", "-c"]);
    command.arg("for i in 1 2 3; do \"$0\" -e 'setTimeout(() => {}, 400)' $1 & done; wait");
    command.arg(&node.path).arg(mark);
    let mut gate = command.spawn().expect("perf-gate starts");
    let up = || (alive(mark).len() >= 5).then_some(());
    until(crate::support::PATIENCE, up).expect("they come up");
    let stopped = |(pid, _): &(i32, String)| matches!(state(*pid), Some('T' | 't'));
    assert!(!alive(mark).iter().any(stopped));
    assert!(gate.wait().expect("it is ours").success());
    expect_gone(mark);
}

/// A terminal's end of file must not wait for a process that perf-gate left behind.
#[test]
fn readers_of_the_output_are_not_kept_waiting() {
    let Some(node) = node() else { return };
    let script = "\"$1\" watch --quiet --no-wait-tree -- sh -c 'setsid sleep 5 >/dev/null 2>&1 & exit 0' | cat";
    let mut command: Command = shell(script, &node);
    let begun = Instant::now();
    let status = command.status().expect("it runs");
    assert!(status.success());
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
}

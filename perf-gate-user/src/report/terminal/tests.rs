use super::*;
use crate::judge::DecidedBy;
use crate::{
    model::{End, Lane},
    report::sample,
};

fn shown(run: &Run, verdict: &Verdict, width: usize) -> String {
    let mut out = Vec::new();
    let terminal = Terminal {
        width,
        color: false,
        verbose: false,
    };
    terminal.write(run, verdict, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Compares with a file beside this one; `UPDATE_GOLDEN=1` rewrites it.
fn golden(name: &str, found: &str) {
    let path = format!(
        "{}/src/report/terminal/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        found, expected,
        "{name} differs; UPDATE_GOLDEN=1 rewrites it"
    );
}

#[test]
fn wide() {
    golden("wide", &shown(&sample::run(), &sample::pass(), 150));
}

#[test]
fn narrow() {
    let found = shown(&sample::run(), &sample::pass(), 80);
    golden("narrow", &found);
    for line in found.lines() {
        assert!(line.chars().count() <= 80, "too wide: {line}");
    }
}

#[test]
fn a_doubtful_run_says_so() {
    let mut run = sample::run();
    run.processes[1].blind = vec![(
        Lane::Large,
        "no symbol for LargeObjectSpace::AddPage".into(),
    )];
    run.processes[1].external = None;
    run.processes[1].end = End::Killed {
        signal: 6,
        core: true,
    };
    run.processes[1].rss.peak_exact = false;
    run.processes[1].isolates[0].unfinished = 1;
    let mut lanes = run.lanes.iter_mut();
    let lane = lanes.find(|l| l.lane == Lane::Large).expect("every lane");
    (lane.proven, lane.attached) = (false, 0);
    lane.why
        .push("blind in /usr/bin/node: no symbol for LargeObjectSpace::AddPage".into());
    run.doubts
        .push("3 control records were lost: a process may have run unobserved".into());
    run.overhead.timeline_dropped = 7;
    let verdict = Verdict {
        pass: false,
        code: 2,
        decided_by: DecidedBy::Detector,
        reasons: vec![
            "--max-external-kb cannot be judged: external memory of process 4242 was not measured"
                .into(),
        ],
    };
    golden("doubtful", &shown(&run, &verdict, 150));
}

#[test]
fn hundreds_of_processes_stay_readable() {
    let mut run = sample::run();
    run.processes.clear();
    for n in 0..500u32 {
        let mut node = sample::node(10_000 + n);
        node.counters.task_clock_ns = Some(u64::from(n % 250) * 1_000_000);
        run.processes.push(node);
        run.processes.push(sample::shell(20_000 + n));
    }
    let found = shown(&run, &sample::pass(), 150);
    // Fourteen lines a block at the most.
    assert!(found.lines().count() < 145, "{found}");
    assert!(
        found.contains("all 500 processes with V8 (the 490 lightest are not shown"),
        "{found}"
    );
    assert!(found.contains("500 other processes: dash ×500"), "{found}");
    assert!(found.contains("7,500"), "the sum of scavenges: {found}");
}

#[test]
fn hundreds_of_workers_stay_readable() {
    let mut run = sample::run();
    let worker = run.processes[1].isolates[1].clone();
    for n in 2..300 {
        run.processes[1].isolates.push(crate::model::Isolate {
            index: n,
            ..worker.clone()
        });
    }
    let found = shown(&run, &sample::pass(), 150);
    assert!(found.lines().count() < 40, "{found}");
    assert!(found.contains("sum (and 290 more)"), "{found}");
}

#[test]
fn colour_only_when_told_and_no_escapes_from_the_outside() {
    let mut run = sample::run();
    run.command = vec!["sh".into(), "\x1b]0;title\x07".into()];
    run.processes[1].argv = vec!["\x1b[2J".into()];
    assert!(!shown(&run, &sample::pass(), 100).contains('\x1b'));
    let mut out = Vec::new();
    let terminal = Terminal {
        width: 100,
        color: true,
        verbose: true,
    };
    terminal.write(&run, &sample::pass(), &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("\x1b[1m"));
}

#[test]
fn a_run_without_v8() {
    let mut run = sample::run();
    run.processes.truncate(1);
    run.lanes.clear();
    golden("no_v8", &shown(&run, &sample::pass(), 100));
}

#![expect(
    clippy::needless_pass_by_value,
    reason = "json!() at the place of the call reads best"
)]

use super::*;
use crate::scenario::protocol::Begin;
use perf_gate_ebpf::SPACES;

fn spec(more: serde_json::Value) -> Spec {
    let mut all = serde_json::json!({ "name": "s", "N": 1000, "k": 8, "flushMs": 10 });
    for (key, value) in more.as_object().unwrap() {
        all[key] = value.clone();
    }
    let begin: Begin = serde_json::from_value(all).unwrap();
    begin.spec
}

/// A program that does as it is told.
struct Program {
    /// Bytes of a window of so many iterations, by attempt.
    bytes: fn(u32, u64) -> u64,
    ns_per_op: u64,
    /// Kept by a call of so many iterations, and allocated later.
    kept: fn(u64) -> i64,
    later: fn(u64) -> u64,
    /// Timers that a call leaves, and how many of them a flush sees the end of.
    timers: u64,
    ending: bool,
    attempt: u32,
    live: i64,
    pending: u64,
    pending_bytes: u64,
    steps: Vec<Step>,
}

impl Program {
    fn zero() -> Self {
        Self {
            bytes: |_, _| 0,
            ns_per_op: 1,
            kept: |_| 0,
            later: |_| 0,
            timers: 0,
            ending: true,
            attempt: 0,
            live: 1 << 20,
            pending: 0,
            pending_bytes: 0,
            steps: Vec::new(),
        }
    }

    fn win(id: u64, scale: u64, bytes: u64, wall_ns: u64) -> Win {
        let mut spaces = [0; SPACES];
        spaces[0] = bytes;
        Win {
            id,
            scale,
            spaces,
            wall_ns,
            ..Win::default()
        }
    }

    fn leave(&mut self, n: u64) {
        self.pending += self.timers;
        self.pending_bytes += (self.later)(n);
    }

    fn run(&mut self, spec: Spec) -> Measuring {
        let mut measuring = Measuring::new(spec);
        let mut step = measuring.begin();
        loop {
            assert!(self.steps.len() < 5000, "it does not end");
            self.steps.push(step.clone());
            let mut seen = Seen {
                live_bytes: self.live,
                resources: Some(3 + self.pending),
                ..Seen::default()
            };
            match step {
                Step::Done | Step::Failed => return measuring,
                Step::Call { id, n, times, .. } => {
                    for _ in 0..times {
                        self.leave(n);
                        self.live += (self.kept)(n);
                        let bytes = (self.bytes)(self.attempt, n);
                        seen.windows
                            .push(Self::win(id, n, bytes, n * self.ns_per_op));
                    }
                }
                Step::Bare { n } => {
                    self.leave(n);
                    self.live += (self.kept)(n);
                }
                Step::Flush { id, .. } => {
                    let bytes = if self.ending {
                        self.pending = 0;
                        std::mem::take(&mut self.pending_bytes)
                    } else {
                        0
                    };
                    seen.windows.push(Self::win(id, 0, bytes, 10_000_000));
                }
                Step::Sleep { .. } => self.attempt += 1,
                Step::Setup | Step::Settle { .. } | Step::Teardown => {}
            }
            seen.live_bytes = self.live;
            seen.resources = Some(3 + self.pending);
            step = measuring.next(&seen);
        }
    }

    fn count(&self, what: fn(&Step) -> bool) -> usize {
        self.steps.iter().filter(|s| what(s)).count()
    }

    fn setups(&self) -> usize {
        self.count(|s| matches!(s, Step::Setup))
    }
}

fn none() -> serde_json::Value {
    serde_json::json!({})
}

#[test]
fn what_allocates_nothing_is_measured_once() {
    let mut program = Program::zero();
    let out = program.run(spec(none())).outcome();
    assert_eq!(program.setups(), 2);
    assert_eq!(program.count(|s| matches!(s, Step::Teardown)), 2);
    assert_eq!(out.bytes_per_op, Some(0.0));
    assert_eq!(out.retained_per_op, Some(0.0));
    assert_eq!(out.deferred_per_op, Some(0.0));
    assert!(out.doubts.is_empty() && out.lo.agreed && out.hi.agreed);
}

#[test]
fn a_settling_collection_is_never_in_a_window() {
    let mut program = Program::zero();
    program.run(spec(none()));
    // Windows are steps of their own; the call between two collections is not one of them.
    for pair in program.steps.windows(3) {
        if let [Step::Settle { .. }, call, _] = pair {
            assert!(!matches!(call, Step::Call { .. }), "{pair:?}");
        }
    }
}

#[test]
fn slope_and_fixed_part_are_told_apart() {
    let mut program = Program::zero();
    program.bytes = |_, n| 320 + 56 * n;
    let out = program.run(spec(none())).outcome();
    assert_eq!(out.bytes_per_op, Some(56.0));
    assert_eq!(out.bytes_fixed, Some(320.0));
    // It reads the same again, so there is no third attempt.
    assert_eq!(program.setups(), 4);
}

#[test]
fn a_tier_that_boxes_is_waited_out() {
    let mut program = Program::zero();
    program.bytes = |attempt, n| match attempt {
        0 => 16 * n,
        1 => 4 * n,
        _ => 0,
    };
    let out = program.run(spec(none())).outcome();
    assert_eq!(program.setups(), 6);
    assert_eq!(out.bytes_per_op, Some(0.0));
}

#[test]
fn what_is_expected_is_no_reason_to_look_again() {
    let mut program = Program::zero();
    program.bytes = |_, n| 56 * n;
    program.run(spec(serde_json::json!({ "expected": 56 })));
    assert_eq!(program.setups(), 2);
    let mut program = Program::zero();
    program.bytes = |_, n| 17 * n;
    program.run(spec(serde_json::json!({ "expected": null })));
    assert_eq!(program.setups(), 2);
}

#[test]
fn slow_scenarios_are_called_no_more_than_needed() {
    let mut program = Program::zero();
    program.ns_per_op = 1_000_000;
    program.bytes = |_, n| 600_000 * n;
    let out = program.run(spec(none())).outcome();
    assert_eq!(out.bytes_per_op, Some(600_000.0));
    let full = |s: &Step| matches!(s, Step::Call { n: 8000, .. } | Step::Bare { n: 8000 });
    assert_eq!(program.count(full), 2);
    assert_eq!(program.setups(), 2);
}

#[test]
fn repeats_that_are_asked_for_are_made() {
    let mut program = Program::zero();
    let out = program
        .run(spec(serde_json::json!({ "repeat": 5 })))
        .outcome();
    assert_eq!((out.lo.readings.len(), out.hi.readings.len()), (5, 5));
}

#[test]
fn a_leak_is_a_slope() {
    let mut program = Program::zero();
    program.kept = |n| (n * 8) as i64;
    let out = program.run(spec(none())).outcome();
    assert_eq!(out.retained_per_op, Some(8.0));
    // What is set free, or no more than V8's own feedback, is none.
    let mut program = Program::zero();
    program.kept = |n| if n == 1000 { -60_000 } else { -10_000 };
    assert_eq!(
        program.run(spec(none())).outcome().retained_per_op,
        Some(0.0)
    );
    let mut program = Program::zero();
    program.kept = |n| (n / 2) as i64;
    assert_eq!(
        program.run(spec(none())).outcome().retained_per_op,
        Some(0.0)
    );
}

#[test]
fn later_work_is_of_the_call_that_left_it() {
    let mut program = Program::zero();
    program.timers = 1;
    program.later = |n| 56 * n;
    let out = program.run(spec(none())).outcome();
    assert_eq!(out.deferred_per_op, Some(56.0));
    assert!(out.left_behind && !out.unfinished && out.doubts.is_empty());
    // A few hundred bytes are what a turn of the event loop takes.
    let mut program = Program::zero();
    program.later = |n| n / 4;
    assert_eq!(
        program.run(spec(none())).outcome().deferred_per_op,
        Some(0.0)
    );
}

#[test]
fn later_work_that_does_not_end_is_a_doubt() {
    let mut program = Program::zero();
    program.timers = 1;
    program.ending = false;
    let out = program.run(spec(none())).outcome();
    assert!(out.unfinished);
    assert!(out.doubts[0].contains("not done"), "{:?}", out.doubts);
}

#[test]
fn a_hook_that_throws_is_torn_down_once() {
    let mut measuring = Measuring::new(spec(none()));
    measuring.begin();
    measuring.next(&Seen::default());
    let step = measuring.fail("hot".into(), "Error: no".into(), false);
    assert_eq!(step, Step::Teardown);
    assert_eq!(measuring.next(&Seen::default()), Step::Failed);
    let mut measuring = Measuring::new(spec(none()));
    measuring.begin();
    let step = measuring.fail("setup".into(), "Error: no".into(), true);
    assert_eq!(step, Step::Failed);
    assert_eq!(measuring.failed, Some(("setup".into(), "Error: no".into())));
}

#[test]
fn lost_hits_are_a_doubt_however_late() {
    let mut measuring = Measuring::new(spec(none()));
    measuring.begin();
    for lost in [5, 5, 7, 9] {
        measuring.next(&Seen {
            lost,
            ..Seen::default()
        });
    }
    assert_eq!(measuring.doubts, ["4 hits of probes were lost meanwhile"]);
}

proptest::proptest! {
    /// Every program comes to an end, whatever it shows.
    #[test]
    fn it_ends(
        n in 1u64..1 << 40,
        k in 2u64..1 << 20,
        bytes: u64,
        wall_ns: u64,
        resources: Option<u64>,
        live: i32,
    ) {
        let mut measuring = Measuring::new(spec(serde_json::json!({ "N": n, "k": k })));
        let mut step = measuring.begin();
        let mut steps = 0;
        while step != Step::Done {
            let windows = match step {
                Step::Call { times, n, id, .. } => vec![
                    Program::win(id, n, bytes % (1 << 50), wall_ns % (1 << 40));
                    times as usize
                ],
                _ => Vec::new(),
            };
            step = measuring.next(&Seen {
                windows,
                resources,
                live_bytes: i64::from(live) * steps,
                ..Seen::default()
            });
            steps += 1;
            proptest::prop_assert!(steps < 5000);
        }
        let _ = measuring.outcome().to_json(None, |i| i.to_string());
    }
}

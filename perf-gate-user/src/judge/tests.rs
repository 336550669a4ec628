use super::*;
use crate::report::sample;

/// Limits that the sample run keeps exactly.
const KEPT: Budgets = Budgets {
    max_scavenges: Some(15),
    max_old_gen: Some(3),
    max_external_kb: Some(2048.0),
    max_rss_kb: Some(86_016.0),
    max_pause_ms: Some(5.12),
    max_bytes: Some(13_028_016),
};

fn only(lane: Lane, change: impl Fn(&mut crate::model::LaneState)) -> Run {
    let mut run = sample::run();
    let state = run.lanes.iter_mut().find(|s| s.lane == lane).unwrap();
    change(state);
    run
}

#[test]
fn no_budget_leaves_the_code_to_the_command() {
    let mut run = sample::run();
    run.lanes.clear();
    run.doubts.push("something".into());
    for (end, code) in [
        (End::Exited(0), 0),
        (End::Exited(3), 3),
        (
            End::Killed {
                signal: 9,
                core: false,
            },
            137,
        ),
        (
            End::Killed {
                signal: 11,
                core: true,
            },
            139,
        ),
        (End::Unknown, 2),
    ] {
        run.end = end;
        let verdict = verdict(&run, &Budgets::default());
        assert_eq!((verdict.code, verdict.pass), (code, code == 0), "{end:?}");
        assert_eq!(verdict.reasons.is_empty(), code == 0);
    }
}

#[test]
fn a_limit_that_is_met_is_kept() {
    let found = verdict(&sample::run(), &KEPT);
    assert_eq!(
        found,
        Verdict {
            pass: true,
            code: 0,
            decided_by: DecidedBy::Command,
            reasons: vec![]
        }
    );
}

#[test]
fn each_limit_fails_alone() {
    let none = Budgets::default();
    for (budgets, reason) in [
        (
            Budgets {
                max_scavenges: Some(14),
                ..none
            },
            "scavenges 15 > max 14",
        ),
        (
            Budgets {
                max_old_gen: Some(2),
                ..none
            },
            "old-generation collections and marking starts 3 > max 2",
        ),
        (
            Budgets {
                max_external_kb: Some(2047.5),
                ..none
            },
            "live external memory 2048.0 KiB > max 2047.5 KiB",
        ),
        (
            Budgets {
                max_rss_kb: Some(86_015.0),
                ..none
            },
            "peak RSS 86016 KiB > max 86015 KiB (process 4242)",
        ),
        (
            Budgets {
                max_pause_ms: Some(5.119),
                ..none
            },
            "longest pause 5.120 ms > max 5.119 ms",
        ),
    ] {
        let found = verdict(&sample::run(), &budgets);
        assert_eq!(
            found,
            Verdict {
                pass: false,
                code: 1,
                decided_by: DecidedBy::Budgets,
                reasons: vec![reason.into()]
            }
        );
    }
}

#[test]
fn a_failed_budget_outweighs_the_commands_code() {
    let mut run = sample::run();
    run.end = End::Exited(7);
    let budgets = Budgets {
        max_scavenges: Some(0),
        ..Budgets::default()
    };
    assert_eq!(verdict(&run, &budgets).code, 1);
    assert_eq!(verdict(&run, &KEPT).code, 7);
}

#[test]
fn a_lane_that_is_not_sound_cannot_vouch() {
    for lane in Lane::ALL {
        // Not needed by any budget; the minor lane only when something minor was seen.
        let needed = !matches!(lane, Lane::Minor | Lane::Pages | Lane::Live | Lane::Window);
        let code = if needed { 2 } else { 0 };
        let unproven = only(lane, |s| s.proven = false);
        assert_eq!(verdict(&unproven, &KEPT).code, code, "{lane:?} unproven");
        let lossy = only(lane, |s| s.lost = 1);
        assert_eq!(verdict(&lossy, &KEPT).code, code, "{lane:?} lossy");
        let mut absent = sample::run();
        absent.lanes.retain(|s| s.lane != lane);
        assert_eq!(verdict(&absent, &KEPT).code, code, "{lane:?} absent");
        let mut blind = sample::run();
        blind.processes[1].blind.push((lane, "no symbols".into()));
        assert_eq!(verdict(&blind, &KEPT).code, code, "{lane:?} blind");
    }
}

#[test]
fn not_vouching_outweighs_failing_and_says_both() {
    let run = only(Lane::Gc, |s| s.proven = false);
    let budgets = Budgets {
        max_scavenges: Some(0),
        ..Budgets::default()
    };
    let found = verdict(&run, &budgets);
    assert_eq!(found.code, 2);
    assert_eq!(
        found.reasons,
        [
            "--max-scavenges cannot be judged: lane gc is not proven",
            "scavenges 15 > max 0"
        ]
    );
}

#[test]
fn blind_elsewhere_does_not_touch_an_unrelated_budget() {
    let run = only(Lane::External, |s| s.proven = false);
    let budgets = Budgets {
        max_scavenges: Some(15),
        ..Budgets::default()
    };
    assert_eq!(verdict(&run, &budgets).code, 0);
}

#[test]
fn minor_collections_need_their_lane_once_seen() {
    let mut run = only(Lane::Minor, |s| s.proven = false);
    run.processes[1].isolates[0].kinds.minor_mark_sweeps = 1;
    let budgets = Budgets {
        max_scavenges: Some(100),
        ..Budgets::default()
    };
    assert_eq!(verdict(&run, &budgets).code, 2);
}

#[test]
fn without_v8_there_is_nothing_to_judge() {
    let mut run = sample::run();
    run.processes.truncate(1);
    assert_eq!(verdict(&run, &Budgets::default()).code, 0);
    assert_eq!(verdict(&run, &KEPT).code, 2);
}

#[test]
fn unmeasured_is_never_a_pass() {
    let external = Budgets {
        max_external_kb: Some(1e9),
        ..Budgets::default()
    };
    let rss = Budgets {
        max_rss_kb: Some(1e9),
        ..Budgets::default()
    };
    let mut run = sample::run();
    run.processes[1].external = None;
    run.processes[1].rss.peak_bytes = None;
    assert_eq!(verdict(&run, &external).code, 2);
    assert_eq!(verdict(&run, &rss).code, 2);
}

#[test]
fn a_sampled_peak_proves_a_failure_but_no_pass() {
    let mut run = sample::run();
    run.processes[1].rss.peak_exact = false;
    let limit = |kb| Budgets {
        max_rss_kb: Some(kb),
        ..Budgets::default()
    };
    assert_eq!(verdict(&run, &limit(1.0)).code, 1);
    assert_eq!(verdict(&run, &limit(1e9)).code, 2);
}

#[test]
fn negative_live_memory_is_a_doubt() {
    let mut run = sample::run();
    run.processes[1].external.as_mut().unwrap().freed_bytes = u64::MAX / 4;
    let budgets = Budgets {
        max_external_kb: Some(0.0),
        ..Budgets::default()
    };
    assert_eq!(verdict(&run, &budgets).code, 2);
}

#[test]
fn a_collection_cut_off_matters_only_at_the_limit() {
    let mut run = sample::run();
    run.processes[1].isolates[0].unfinished = 1;
    let limit = |n| Budgets {
        max_scavenges: Some(n),
        ..Budgets::default()
    };
    assert_eq!(verdict(&run, &limit(14)).code, 1);
    assert_eq!(verdict(&run, &limit(15)).code, 2);
    assert_eq!(verdict(&run, &limit(16)).code, 0);
}

#[test]
fn doubts_about_the_run_count_once_a_budget_is_set() {
    let mut run = sample::run();
    run.doubts.push("a process may have run unobserved".into());
    let found = verdict(&run, &KEPT);
    assert_eq!((found.code, found.reasons), (2, run.doubts));
}

proptest::proptest! {
    /// Raising a limit never turns a better verdict into a worse one.
    #[test]
    fn more_room_is_never_worse(a in 0u64..40, b in 0u64..40, cut in 0u64..3) {
        let mut run = sample::run();
        run.processes[1].isolates[0].unfinished = cut;
        let (low, high) = (a.min(b), a.max(b));
        let limit = |n| Budgets { max_scavenges: Some(n), ..Budgets::default() };
        let passes = |n| verdict(&run, &limit(n)).pass;
        proptest::prop_assert!(!passes(low) || passes(high));
    }
}

#[test]
fn bytes_need_every_end_to_pass_but_not_to_fail() {
    let budget = |max| Budgets {
        max_bytes: Some(max),
        ..Budgets::default()
    };
    let mut run = sample::run();
    assert_eq!(verdict(&run, &budget(13_028_016)).code, 0);
    let failed = verdict(&run, &budget(13_028_015));
    assert_eq!((failed.code, failed.reasons.len()), (1, 1));
    // Killed: what it allocated since its last refill is unknown.
    run.processes[1].isolates[1].allocated = None;
    let open = verdict(&run, &budget(13_028_016));
    assert_eq!(open.code, CANNOT_VOUCH);
    assert!(open.reasons[0].contains("end of 1 isolates"), "{open:?}");
    assert_eq!(verdict(&run, &budget(13_028_015)).code, 1);
}

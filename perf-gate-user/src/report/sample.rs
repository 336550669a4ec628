//! Runs made by hand, for the tests of the judge and of the reports.

use std::{
    collections::BTreeMap,
    time::{Duration, UNIX_EPOCH},
};

use crate::judge::{DecidedBy, Verdict};
use crate::model::{
    Counters, End, External, GcEvent, Isolate, Kinds, Lane, LaneState, Overhead, Pauses, Process,
    Rss, Run, Runtime,
};

/// A sound run: `npm test` in a shell, one node with a worker.
pub fn run() -> Run {
    Run {
        command: vec!["npm".into(), "test".into()],
        started: UNIX_EPOCH + Duration::from_millis(1_795_000_000_250),
        kernel: "6.18.5".into(),
        arch: "x86_64".into(),
        wall_ns: 1_234_567_890,
        processes: vec![shell(4241), node(4242)],
        windows: Vec::new(),
        lanes: Lane::ALL.into_iter().map(proven).collect(),
        doubts: Vec::new(),
        timeline: vec![GcEvent {
            t_ns: 5,
            pid: 4242,
            isolate: 0,
            kind: "scavenge",
            reason: "allocation failure".into(),
            forced: false,
            pause_ns: 700_000,
            heap_before_bytes: Some(9_000_000),
            heap_after_bytes: None,
        }],
        overhead: Overhead {
            hits: 5_321,
            start_to_release_ns: 21_400_000,
            timeline_dropped: 0,
        },
        end: End::Exited(0),
    }
}

pub fn proven(lane: Lane) -> LaneState {
    let probes = lane.ops().len() as u64;
    LaneState {
        lane,
        probes,
        attached: probes,
        hits: if lane == Lane::Minor { 0 } else { 42 },
        lost: 0,
        proven: true,
        why: Vec::new(),
    }
}

pub fn shell(pid: u32) -> Process {
    Process {
        pid,
        ppid: 4240,
        exe: "/usr/bin/dash".into(),
        argv: vec!["sh".into(), "-c".into(), "node test.mjs".into()],
        end: End::Exited(0),
        runtime: None,
        isolates: Vec::new(),
        external: None,
        rss: Rss {
            peak_bytes: Some(2 << 20),
            ..Rss::default()
        },
        counters: Counters::default(),
        wall_ns: Some(1_200_000_000),
        hits: 0,
        blind: Vec::new(),
    }
}

pub fn node(pid: u32) -> Process {
    Process {
        pid,
        ppid: 4241,
        exe: "/usr/bin/node".into(),
        argv: vec!["node".into(), "test.mjs".into()],
        end: End::Exited(0),
        runtime: Some(Runtime {
            node: Some("22.23.5".into()),
            v8: Some("12.4.254.21".into()),
            build_id: "00ff".into(),
        }),
        isolates: vec![main_isolate(), worker()],
        external: Some(External {
            allocated_bytes: 12_582_912,
            freed_bytes: 10_485_760,
            reserved_allocated_bytes: 1_048_576,
            string_allocated_bytes: 0,
        }),
        rss: Rss {
            peak_bytes: Some(88_080_384),
            peak_exact: true,
            end_bytes: Some(83_886_080),
            v8_bytes: Some(20_971_520),
            external_bytes: Some(2_097_152),
            peak_v8_bytes: Some(22_020_096),
            peak_external_bytes: Some(8_388_608),
        },
        counters: Counters {
            page_faults: Some(21_255),
            context_switches: Some(717),
            task_clock_ns: Some(1_210_000_000),
            instructions: None,
            cycles: None,
            unmeasured: vec![
                (
                    "instructions".into(),
                    "no such counter here (ENOENT)".into(),
                ),
                ("cycles".into(), "no such counter here (ENOENT)".into()),
            ],
        },
        wall_ns: Some(1_150_000_000),
        hits: 5_321,
        blind: Vec::new(),
    }
}

fn main_isolate() -> Isolate {
    let reasons = |list: &[(&str, u64)]| -> BTreeMap<String, u64> {
        list.iter().map(|(r, n)| ((*r).to_owned(), *n)).collect()
    };
    Isolate {
        index: 0,
        tid: 4242,
        ended: true,
        kinds: Kinds {
            scavenges: 12,
            minor_mark_sweeps: 0,
            mark_compacts: 2,
        },
        forced: Kinds {
            mark_compacts: 1,
            ..Kinds::default()
        },
        reasons: reasons(&[
            ("allocation failure", 12),
            ("finalize incremental marking via stack guard", 1),
            ("testing", 1),
        ]),
        scavenge_reasons: reasons(&[("allocation failure", 12)]),
        mark_compact_reasons: reasons(&[
            ("finalize incremental marking via stack guard", 1),
            ("testing", 1),
        ]),
        minor_mark_sweep_reasons: BTreeMap::new(),
        incremental_starts: 1,
        minor_incremental_starts: 0,
        unfinished: 0,
        allocated: Some(allocated()),
        allocated_at_least: allocated(),
        background_bytes: 20_480,
        breaks: 0,
        pauses: Pauses {
            total_ns: 18_250_000,
            max_ns: 5_120_000,
            p50_ns: Some(720_000),
            p99_ns: Some(5_120_000),
        },
        large_count: 3,
        large_bytes: 1_887_436,
        old_pages: 14,
        pages: [("old_space".to_owned(), 14), ("new_space".to_owned(), 32)].into(),
    }
}

fn allocated() -> BTreeMap<String, u64> {
    [("new", 12_000_000), ("old", 700_000), ("large", 320_016)]
        .map(|(space, bytes)| (space.to_owned(), bytes))
        .into()
}

fn worker() -> Isolate {
    Isolate {
        index: 1,
        tid: 4250,
        ended: true,
        kinds: Kinds {
            scavenges: 3,
            ..Kinds::default()
        },
        reasons: [("allocation failure".to_owned(), 3)].into(),
        scavenge_reasons: [("allocation failure".to_owned(), 3)].into(),
        allocated: Some([("new".to_owned(), 8_000)].into()),
        allocated_at_least: [("new".to_owned(), 8_000)].into(),
        pauses: Pauses {
            total_ns: 900_000,
            max_ns: 400_000,
            p50_ns: Some(300_000),
            p99_ns: Some(400_000),
        },
        ..Isolate::default()
    }
}

/// The verdict on a sound run without budgets.
pub fn pass() -> Verdict {
    Verdict {
        pass: true,
        code: 0,
        decided_by: DecidedBy::Command,
        reasons: Vec::new(),
    }
}

//! Lines of the machine output, schema 1: one struct a line type, its fields in the order in which
//! they are printed. The names are a contract; `schema1.json` beside this file says what each means.
//!
//! A figure that could not be measured is `None`, printed as `null` and named in `unmeasured`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::Kinds;

pub const SCHEMA: u32 = 1;

#[derive(Serialize)]
pub struct Unmeasured<'a> {
    pub field: &'a str,
    pub why: &'a str,
}

#[derive(Serialize)]
pub struct RunLine<'a> {
    pub r#type: &'static str,
    pub schema: u32,
    pub version: &'static str,
    pub command: &'a [String],
    pub kernel: &'a str,
    pub arch: &'a str,
    pub started: String,
}

#[derive(Serialize)]
pub struct GcLine<'a> {
    pub r#type: &'static str,
    pub t_ns: u64,
    pub pid: u32,
    pub isolate: u32,
    pub kind: &'static str,
    pub reason: &'a str,
    pub forced: bool,
    pub pause_ns: u64,
    pub heap_before: Option<u64>,
    pub heap_after: Option<u64>,
    pub unmeasured: Vec<Unmeasured<'a>>,
}

#[derive(Serialize)]
pub struct KindCounts {
    pub scavenges: Option<u64>,
    pub minor_mark_sweeps: Option<u64>,
    pub mark_compacts: Option<u64>,
}

impl KindCounts {
    pub const fn new(kinds: &Kinds, gc: bool, minor: bool) -> Self {
        Self {
            scavenges: if gc { Some(kinds.scavenges) } else { None },
            minor_mark_sweeps: if minor {
                Some(kinds.minor_mark_sweeps)
            } else {
                None
            },
            mark_compacts: if gc { Some(kinds.mark_compacts) } else { None },
        }
    }
}

type Counts<'a> = Option<&'a BTreeMap<String, u64>>;

#[derive(Serialize)]
pub struct IsolateLine<'a> {
    pub r#type: &'static str,
    pub pid: u32,
    pub tid: u32,
    pub isolate: u32,
    pub node: Option<&'a str>,
    pub v8: Option<&'a str>,
    pub ended: bool,
    #[serde(flatten)]
    pub kinds: KindCounts,
    pub incremental_starts: Option<u64>,
    pub minor_incremental_starts: Option<u64>,
    pub forced: KindCounts,
    pub unfinished: Option<u64>,
    pub reasons: Counts<'a>,
    pub scavenge_reasons: Counts<'a>,
    pub minor_mark_sweep_reasons: Counts<'a>,
    pub mark_compact_reasons: Counts<'a>,
    pub pause_ns_total: Option<u64>,
    pub pause_ns_max: Option<u64>,
    pub pause_ns_p50: Option<u64>,
    pub pause_ns_p99: Option<u64>,
    pub allocated_bytes: Option<u64>,
    pub allocated: Counts<'a>,
    pub allocated_at_least: Option<u64>,
    pub background_bytes: Option<u64>,
    pub breaks: Option<u64>,
    pub large_count: Option<u64>,
    pub large_bytes: Option<u64>,
    pub old_pages: Option<u64>,
    pub pages: Counts<'a>,
    pub unmeasured: Vec<Unmeasured<'a>>,
}

#[derive(Serialize)]
pub struct WindowLine<'a> {
    pub r#type: &'static str,
    pub pid: u32,
    pub isolate: u32,
    pub id: u64,
    pub scale: u64,
    pub closed: bool,
    pub bytes: Option<u64>,
    pub allocated: Counts<'a>,
    pub marker_bytes: Option<u64>,
    pub large_count: u64,
    pub scavenges: u64,
    pub minor_mark_sweeps: u64,
    pub mark_compacts: u64,
    pub incremental_starts: u64,
    pub external_delta: Option<i64>,
    pub external_allocated: Option<u64>,
    pub external_strings: Option<u64>,
    pub rss_delta: Option<i64>,
    pub pause_ns_total: u64,
    pub wall_ns: u64,
    pub breaks: u64,
    pub unmeasured: Vec<Unmeasured<'a>>,
}

#[derive(Serialize)]
pub struct BlindLane<'a> {
    pub lane: &'static str,
    pub why: &'a str,
}

#[derive(Serialize)]
pub struct ProcessLine<'a> {
    pub r#type: &'static str,
    pub pid: u32,
    pub ppid: u32,
    pub exe: &'a str,
    pub argv: &'a [String],
    pub node: Option<&'a str>,
    pub v8: Option<&'a str>,
    pub build_id: Option<&'a str>,
    pub end: &'static str,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub core_dumped: bool,
    pub wall_ns: Option<u64>,
    pub rss_peak: Option<u64>,
    pub rss_peak_exact: Option<bool>,
    pub rss_end: Option<u64>,
    pub rss_v8: Option<u64>,
    pub rss_external: Option<u64>,
    pub rss_peak_v8: Option<u64>,
    pub rss_peak_external: Option<u64>,
    pub external_allocated: Option<u64>,
    pub external_freed: Option<u64>,
    pub external_live: Option<i64>,
    pub external_reserved: Option<u64>,
    pub external_strings: Option<u64>,
    pub page_faults: Option<u64>,
    pub context_switches: Option<u64>,
    pub task_clock_ns: Option<u64>,
    pub instructions: Option<u64>,
    pub cycles: Option<u64>,
    pub hits: u64,
    pub blind: Vec<BlindLane<'a>>,
    pub unmeasured: Vec<Unmeasured<'a>>,
}

#[derive(Serialize)]
pub struct LaneLine<'a> {
    pub r#type: &'static str,
    pub lane: &'static str,
    pub probes: u64,
    pub attached: u64,
    pub hits: u64,
    pub proven: bool,
    pub lost: u64,
    pub why: &'a [String],
}

#[derive(Serialize)]
pub struct OverheadLine {
    pub r#type: &'static str,
    pub hits: u64,
    pub start_to_release_ns: u64,
    pub wall_ns: u64,
    pub timeline_dropped: u64,
}

#[derive(Serialize)]
pub struct VerdictLine<'a> {
    pub r#type: &'static str,
    pub pass: bool,
    pub code: u8,
    pub decided_by: &'static str,
    pub reasons: &'a [String],
    pub doubts: &'a [String],
}

#[derive(Serialize)]
pub struct CheckLine<'a> {
    pub r#type: &'static str,
    pub about: &'a str,
    pub name: &'a str,
    pub status: &'static str,
    pub found: &'a str,
    pub todo: Option<&'a str>,
}

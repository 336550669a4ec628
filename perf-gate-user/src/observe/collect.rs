//! From the kernel side's records to plain data. No I/O: every input is passed in.

use super::{
    images::{Images, NodeImage},
    tree::{Tree, Watched},
};
use crate::{
    model::{self, External, Isolate, Kinds, Lane, LaneState, Pauses, Process, Runtime},
    v8::{Version, reasons, spaces},
};
use perf_gate_ebpf::{
    GcEvent, HIST, Iso, Losses, MARK_COMPACT, MINOR_MARK_SWEEP, OPS, OpCount, PROC_ROOT, Proc,
    REASONS, SCAVENGE, SPACES, hist_floor,
};
use std::collections::{BTreeMap, HashMap};

/// Names of collection kinds in machine output, by kind + 1.
const KIND_NAMES: [&str; 4] = ["unknown", "scavenge", "mark-compact", "minor-mark-sweep"];

pub fn kinds(by_kind: &[u64]) -> Kinds {
    Kinds {
        scavenges: by_kind[SCAVENGE],
        mark_compacts: by_kind[MARK_COMPACT],
        minor_mark_sweeps: by_kind[MINOR_MARK_SWEEP],
    }
}

fn quantile(hist: &[u32; HIST], total: u64, per_mille: u64, max_ns: u64) -> Option<u64> {
    if total == 0 {
        return None;
    }
    let rank = (total * per_mille).div_ceil(1000).max(1);
    let mut seen = 0;
    for (bucket, &n) in hist.iter().enumerate() {
        seen += u64::from(n);
        if seen >= rank {
            return Some((hist_floor(bucket + 1).saturating_sub(1)).min(max_ns));
        }
    }
    Some(max_ns)
}

fn isolate(iso: &Iso, index: u32, v8: Option<Version>) -> Isolate {
    let mut out = Isolate {
        index,
        tid: iso.tid,
        ended: iso.gone_ns != 0,
        kinds: kinds(&iso.gcs),
        forced: kinds(&iso.forced),
        incremental_starts: iso.incremental_starts,
        minor_incremental_starts: iso.minor_incremental_starts,
        pauses: Pauses {
            total_ns: iso.pause_ns_total,
            max_ns: iso.pause_ns_max,
            p50_ns: quantile(&iso.pause_hist, iso.pauses, 500, iso.pause_ns_max),
            p99_ns: quantile(&iso.pause_hist, iso.pauses, 990, iso.pause_ns_max),
        },
        large_count: iso.large_count,
        large_bytes: iso.large_bytes,
        ..Isolate::default()
    };
    for lab in iso.set.labs.iter().take(iso.set.count as usize) {
        *out.allocated_at_least
            .entry(short_name(v8, lab.space))
            .or_default() += lab.total;
    }
    out.allocated_at_least
        .insert("large".to_owned(), iso.large_bytes);
    out.allocated = (iso.complete != 0).then(|| out.allocated_at_least.clone());
    out.background_bytes = iso.background_bytes;
    out.breaks = iso.set.breaks;
    out.unfinished = iso.begun.saturating_sub(iso.pauses);
    for (kind, to) in [
        (SCAVENGE, &mut out.scavenge_reasons),
        (MARK_COMPACT, &mut out.mark_compact_reasons),
        (MINOR_MARK_SWEEP, &mut out.minor_mark_sweep_reasons),
    ] {
        for reason in 0..REASONS {
            let n = iso.reasons[kind][reason];
            if n != 0 {
                let text = reasons::text(v8, reason as u32).into_owned();
                *to.entry(text.clone()).or_default() += n;
                *out.reasons.entry(text).or_default() += n;
            }
        }
    }
    for id in 0..SPACES {
        if iso.pages[id] != 0 {
            let name = space_name(v8, id as u32);
            *out.pages.entry(name).or_default() += iso.pages[id];
        }
    }
    out.old_pages = iso.pages[spaces::old_space_id(v8) as usize % SPACES];
    out
}

pub fn space_name(v8: Option<Version>, id: u32) -> String {
    spaces::name(v8, id).map_or_else(|| format!("space {id}"), str::to_owned)
}

/// As bytes are reported: `new`, `old`, `code`, ...
pub fn short_name(v8: Option<Version>, id: u32) -> String {
    let name = space_name(v8, id);
    name.strip_suffix("_space").unwrap_or(&name).to_owned()
}

fn external(p: &Proc) -> External {
    External {
        allocated_bytes: p.external_allocated(),
        freed_bytes: p.external_freed(),
        reserved_allocated_bytes: p.store_alloc_bytes,
        string_allocated_bytes: p.string_alloc_bytes,
    }
}

/// Where an isolate's records belong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner {
    pub pid: u32,
    /// Its number in the process.
    pub isolate: u32,
    pub v8: Option<Version>,
}

/// By [`Iso::seq`].
pub type Owners = HashMap<u64, Owner>;

/// Everything that turns into a [`model::Run`]'s processes, lanes and doubts.
pub struct Collected {
    pub processes: Vec<Process>,
    pub windows: Vec<model::Window>,
    pub lanes: Vec<LaneState>,
    pub doubts: Vec<String>,
    pub timeline: Vec<model::GcEvent>,
    pub hits: u64,
}

/// Folds the records.
#[must_use]
pub fn collect(
    tree: &Tree,
    images: &Images,
    ops: &[OpCount; OPS],
    losses: Losses,
    events: &[GcEvent],
    began_ns: u64,
) -> Collected {
    let mut doubts = tree.doubts.clone();
    doubts.extend(loss_doubts(losses));
    let pids: HashMap<u32, u32> = tree.all.iter().map(|w| (w.tgid, w.pid)).collect();
    let mut owners: Owners = HashMap::new();
    let mut processes = Vec::new();
    for w in &tree.all {
        let image = w.node.map(|id| images.node(id));
        let isos = tree.isolates.get(&w.proc_id).map_or(&[][..], |v| v);
        for (index, iso) in isos.iter().enumerate() {
            let owner = Owner {
                pid: w.pid,
                isolate: index as u32,
                v8: image.and_then(|i| i.plan.version()),
            };
            owners.insert(iso.seq, owner);
            let sum: u64 = iso.gcs.iter().sum();
            // One may be cut off between its prologue and its collector when the process dies.
            if sum > iso.begun || iso.begun - sum > u64::from(iso.gone_ns == 0) {
                doubts.push(format!(
                    "process {}: isolate {index} began {} collections but ran {sum} collectors",
                    w.pid, iso.begun
                ));
            }
        }
        if let Some(why) = &w.trouble {
            doubts.push(format!("process {} ({}): {why}", w.pid, w.exe));
        }
        processes.push(process(w, image, isos, &pids));
    }
    let lanes = lanes(images, ops, &processes);
    let windows = super::windows::collect(tree, &owners);
    let hits = ops.iter().map(|o| o.hits).sum();
    let timeline = events
        .iter()
        .map(|e| gc_event(e, &owners, began_ns))
        .collect();
    Collected {
        processes,
        windows,
        lanes,
        doubts,
        timeline,
        hits,
    }
}

fn process(
    w: &Watched,
    image: Option<&NodeImage>,
    isos: &[Box<Iso>],
    pids: &HashMap<u32, u32>,
) -> Process {
    let v8 = image.and_then(|i| i.plan.version());
    let observed = image.is_some() && w.trouble.is_none();
    let ppid = match &w.last {
        Some(p) if p.flags & PROC_ROOT != 0 => std::process::id(),
        _ => pids.get(&w.parent_tgid).copied().unwrap_or(w.parent_tgid),
    };
    Process {
        pid: w.pid,
        ppid,
        exe: w.exe.clone(),
        argv: w.argv.clone(),
        end: w.end,
        runtime: image.map(|i| Runtime {
            node: i.plan.node_version.clone(),
            v8: i.plan.v8_version.clone(),
            build_id: i.plan.build_id.clone(),
        }),
        isolates: isos
            .iter()
            .enumerate()
            .map(|(index, iso)| isolate(iso, index as u32, v8))
            .collect(),
        external: w.last.as_ref().filter(|_| observed).map(external),
        rss: w.rss.finish(),
        counters: w.counted.clone().unwrap_or_default(),
        wall_ns: w
            .last
            .filter(|p| p.gone_ns != 0)
            .map(|p| p.gone_ns - p.born_ns),
        hits: w.last.map_or(0, |p| p.hits),
        blind: match (image, &w.trouble) {
            (Some(_), Some(why)) => Lane::ALL.into_iter().map(|l| (l, why.clone())).collect(),
            (Some(i), None) => i.plan.blind.iter().chain(&i.plan.doubts).cloned().collect(),
            (None, _) => Vec::new(),
        },
    }
}

fn lanes(images: &Images, ops: &[OpCount; OPS], processes: &[Process]) -> Vec<LaneState> {
    Lane::ALL
        .into_iter()
        .map(|lane| {
            let mut state = LaneState {
                lane,
                probes: 0,
                attached: 0,
                hits: 0,
                lost: 0,
                proven: !images.nodes().is_empty(),
                why: Vec::new(),
            };
            for op in lane.ops() {
                state.hits += ops[*op as usize].hits;
                state.lost += ops[*op as usize].lost;
            }
            for image in images.nodes() {
                let points = image.points(lane);
                state.probes += points;
                if image.attached {
                    state.attached += points;
                }
                let unproven = match image.proof.lanes.get(&lane) {
                    Some(Ok(())) => None,
                    Some(Err(why)) => Some(why.clone()),
                    None => Some("no control has proven it".to_owned()),
                };
                if let Some(why) = unproven {
                    state.proven = false;
                    note(&mut state.why, why);
                }
            }
            for (blind, why) in processes.iter().flat_map(|p| &p.blind) {
                if *blind == lane {
                    state.proven = false;
                    note(&mut state.why, why.clone());
                }
            }
            if lane == Lane::Bytes {
                let breaks: u64 = processes
                    .iter()
                    .flat_map(|p| &p.isolates)
                    .map(|i| i.breaks)
                    .sum();
                if breaks != 0 {
                    state.proven = false;
                    let why = format!("allocation areas were lost sight of {breaks} times");
                    note(&mut state.why, why);
                }
            }
            if state.lost != 0 {
                state.proven = false;
                note(&mut state.why, format!("{} hits were lost", state.lost));
            }
            if images.nodes().is_empty() {
                note(&mut state.why, "no process with V8 was seen".to_owned());
            }
            state
        })
        .collect()
}

fn note(to: &mut Vec<String>, why: String) {
    if !to.contains(&why) {
        to.push(why);
    }
}

fn loss_doubts(l: Losses) -> Vec<String> {
    let rows: [(u64, &str); 4] = [
        (
            l.procs,
            "processes did not fit the process map and were not watched",
        ),
        (
            l.control,
            "changes of the process tree were lost: a program may have run unobserved",
        ),
        (
            l.graves,
            "ended processes or isolates did not fit their map: their figures are missing",
        ),
        (
            l.tasks,
            "forks could not be followed (the kernel's BTF does not give task_struct.pid)",
        ),
    ];
    rows.into_iter()
        .filter(|(n, _)| *n != 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect()
}

fn gc_event(e: &GcEvent, owners: &Owners, began_ns: u64) -> model::GcEvent {
    let unknown = Owner {
        pid: e.tgid,
        ..Owner::default()
    };
    let owner = owners.get(&e.iso_seq).copied().unwrap_or(unknown);
    model::GcEvent {
        t_ns: e.t_ns.saturating_sub(began_ns),
        pid: owner.pid,
        isolate: owner.isolate,
        kind: KIND_NAMES[(e.kind as usize).min(KIND_NAMES.len() - 1)],
        reason: reasons::text(owner.v8, e.reason).into_owned(),
        forced: u64::from(e.flags) & perf_gate_ebpf::FLAG_FORCED != 0,
        pause_ns: e.pause_ns,
        heap_before_bytes: Some(e.heap_before).filter(|b| *b != 0),
        heap_after_bytes: Some(e.heap_after).filter(|b| *b != 0),
    }
}

/// Isolates of each process, in order of birth.
pub type Isolates = BTreeMap<u64, Vec<Box<Iso>>>;

/// Adds one record to its process's isolates.
pub fn file_isolate(all: &mut Isolates, iso: Iso) {
    let list = all.entry(iso.proc_id).or_default();
    let at = list.partition_point(|i| i.seq < iso.seq);
    list.insert(at, Box::new(iso));
}

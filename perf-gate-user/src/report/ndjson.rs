//! Machine output: one JSON object a line, schema 1.
//!
//! The `run` line is written before the command starts, so that a full disk or a closed pipe shows
//! while nothing has been done yet; all else comes from the finished run. The `verdict` line is the
//! last one: a reader that does not find it holds an incomplete record.

use std::{io, path::Path, time::SystemTime};

use serde::Serialize;

use super::{
    output::{Output, OutputError},
    schema::{
        BlindLane, CheckLine, GcLine, IsolateLine, KindCounts, LaneLine, OverheadLine, ProcessLine,
        RunLine, SCHEMA, Unmeasured, VerdictLine, WindowLine,
    },
};
use crate::{
    judge::Verdict,
    kernel::Check,
    model::{End, GcEvent, Isolate, Lane, LaneState, Process, Run, Runtime, Window},
};

const NOT_SUMMED: &str = "V8 did not sum up its objects in this pause";
const SAMPLED: &str = "resident memory is sampled from outside, not read at markers";
const NO_V8: &str = "no V8 was found in this process";
const NOT_SAMPLED: &str = "the process ended before it could be sampled";

/// What is known before the command starts.
pub struct Header<'a> {
    pub command: &'a [String],
    pub kernel: &'a str,
    pub arch: &'a str,
    pub started: SystemTime,
}

/// A record being written.
pub struct Record {
    out: Output,
}

impl Record {
    /// Opens `path` (`-` for standard output) and writes the `run` line.
    pub fn begin(
        path: &Path,
        owner: Option<(u32, u32)>,
        head: &Header,
    ) -> Result<Self, OutputError> {
        let out = Output::open(path)?;
        if let Some((uid, gid)) = owner {
            out.set_owner(uid, gid);
        }
        let mut record = Self { out };
        record.line(&RunLine {
            r#type: "run",
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            command: head.command,
            kernel: head.kernel,
            arch: head.arch,
            started: timestamp(head.started),
        });
        record.out.check()?;
        Ok(record)
    }

    fn gc(&mut self, event: &GcEvent) {
        self.line(&GcLine {
            r#type: "gc",
            t_ns: event.t_ns,
            pid: event.pid,
            isolate: event.isolate,
            kind: event.kind,
            reason: &event.reason,
            forced: event.forced,
            pause_ns: event.pause_ns,
            heap_before: event.heap_before_bytes,
            heap_after: event.heap_after_bytes,
            unmeasured: [
                ("heap_before", event.heap_before_bytes),
                ("heap_after", event.heap_after_bytes),
            ]
            .into_iter()
            .filter(|(_, value)| value.is_none())
            .map(|(field, _)| because(field, NOT_SUMMED))
            .collect(),
        });
    }

    /// Writes what the finished run found and makes the record appear under its name.
    pub fn finish(mut self, run: &Run, verdict: &Verdict) -> Result<(), OutputError> {
        for event in &run.timeline {
            self.gc(event);
        }
        for process in &run.processes {
            for isolate in &process.isolates {
                self.line(&isolate_line(process, isolate));
            }
            self.line(&process_line(process));
        }
        for window in &run.windows {
            self.line(&window_line(run, window));
        }
        for lane in &run.lanes {
            self.line(&lane_line(lane));
        }
        self.line(&OverheadLine {
            r#type: "overhead",
            hits: run.overhead.hits,
            start_to_release_ns: run.overhead.start_to_release_ns,
            wall_ns: run.wall_ns,
            timeline_dropped: run.overhead.timeline_dropped,
        });
        self.close(verdict, &run.doubts)
    }

    /// One finding of `doctor`.
    pub fn check(&mut self, about: &str, check: &Check) {
        self.line(&CheckLine {
            r#type: "check",
            about,
            name: check.name,
            status: check.status.name(),
            found: &check.found,
            todo: check.todo.as_deref(),
        });
    }

    /// Writes the last line and makes the record appear under its name.
    pub fn close(mut self, verdict: &Verdict, doubts: &[String]) -> Result<(), OutputError> {
        self.line(&VerdictLine {
            r#type: "verdict",
            pass: verdict.pass,
            code: verdict.code,
            decided_by: verdict.decided_by.name(),
            reasons: &verdict.reasons,
            doubts,
        });
        self.out.commit()
    }

    fn line(&mut self, line: &impl Serialize) {
        self.out.put(|mut to| {
            serde_json::to_writer(&mut to, line).map_err(io::Error::from)?;
            to.write_all(b"\n")
        });
    }
}

fn because<'a>(field: &'a str, why: &'a str) -> Unmeasured<'a> {
    Unmeasured { field, why }
}

/// RFC 3339 in UTC with milliseconds.
fn timestamp(at: SystemTime) -> String {
    match jiff::Timestamp::try_from(at) {
        Ok(at) => format!("{at:.3}"),
        // A clock outside the years that RFC 3339 can say.
        Err(_) => "1970-01-01T00:00:00.000Z".to_owned(),
    }
}

/// Collects which fields are null because of what.
struct Gaps<'a> {
    process: &'a Process,
    unmeasured: Vec<Unmeasured<'a>>,
}

impl<'a> Gaps<'a> {
    const fn new(process: &'a Process) -> Self {
        Self {
            process,
            unmeasured: Vec::new(),
        }
    }

    fn note(&mut self, fields: &[&'a str], why: &'a str) {
        self.unmeasured
            .extend(fields.iter().map(|f| because(f, why)));
    }

    /// Whether `lane` sees this process; if not, `fields` are unmeasured.
    fn sees(&mut self, lane: Lane, fields: &[&'a str]) -> bool {
        match self.process.blind_in(lane) {
            None => true,
            Some(why) => {
                self.note(fields, why);
                false
            }
        }
    }

    fn some<T>(&mut self, value: Option<T>, field: &'a str, why: &'a str) -> Option<T> {
        if value.is_none() {
            self.note(&[field], why);
        }
        value
    }
}

fn isolate_line<'a>(process: &'a Process, i: &'a Isolate) -> IsolateLine<'a> {
    let mut gaps = Gaps::new(process);
    let (node, v8) = versions(&mut gaps, process.runtime.as_ref());
    let gc = gaps.sees(
        Lane::Gc,
        &[
            "scavenges",
            "mark_compacts",
            "unfinished",
            "reasons",
            "scavenge_reasons",
            "mark_compact_reasons",
            "forced.scavenges",
            "forced.mark_compacts",
        ],
    );
    let minor = gaps.sees(
        Lane::Minor,
        &[
            "minor_mark_sweeps",
            "minor_mark_sweep_reasons",
            "forced.minor_mark_sweeps",
        ],
    );
    let incremental = gaps.sees(
        Lane::Incremental,
        &["incremental_starts", "minor_incremental_starts"],
    );
    let pause = gaps.sees(
        Lane::Pause,
        &[
            "pause_ns_total",
            "pause_ns_max",
            "pause_ns_p50",
            "pause_ns_p99",
        ],
    );
    if pause && i.pauses.p50_ns.is_none() {
        gaps.note(&["pause_ns_p50", "pause_ns_p99"], "there was no pause");
    }
    let large = gaps.sees(Lane::Large, &["large_count", "large_bytes"]);
    let pages = gaps.sees(Lane::Pages, &["old_pages", "pages"]);
    let bytes = gaps.sees(
        Lane::Bytes,
        &[
            "allocated_bytes",
            "allocated",
            "allocated_at_least",
            "background_bytes",
            "breaks",
        ],
    );
    if bytes && large && i.allocated.is_none() {
        gaps.note(
            &["allocated_bytes", "allocated"],
            "its end was not seen: up to one page a space is missing from allocated_at_least",
        );
    }
    if bytes && !large {
        gaps.note(
            &["allocated_bytes", "allocated"],
            "large objects were not seen",
        );
    }
    let allocated = i.allocated.as_ref().filter(|_| bytes && large);
    IsolateLine {
        r#type: "isolate",
        pid: process.pid,
        tid: i.tid,
        isolate: i.index,
        node,
        v8,
        ended: i.ended,
        kinds: KindCounts::new(&i.kinds, gc, minor),
        incremental_starts: incremental.then_some(i.incremental_starts),
        minor_incremental_starts: incremental.then_some(i.minor_incremental_starts),
        forced: KindCounts::new(&i.forced, gc, minor),
        unfinished: gc.then_some(i.unfinished),
        reasons: gc.then_some(&i.reasons),
        scavenge_reasons: gc.then_some(&i.scavenge_reasons),
        minor_mark_sweep_reasons: minor.then_some(&i.minor_mark_sweep_reasons),
        mark_compact_reasons: gc.then_some(&i.mark_compact_reasons),
        pause_ns_total: pause.then_some(i.pauses.total_ns),
        pause_ns_max: pause.then_some(i.pauses.max_ns),
        pause_ns_p50: i.pauses.p50_ns.filter(|_| pause),
        pause_ns_p99: i.pauses.p99_ns.filter(|_| pause),
        allocated_bytes: allocated.map(|a| a.values().sum()),
        allocated,
        allocated_at_least: bytes.then(|| i.allocated_at_least.values().sum()),
        background_bytes: bytes.then_some(i.background_bytes),
        breaks: bytes.then_some(i.breaks),
        large_count: large.then_some(i.large_count),
        large_bytes: large.then_some(i.large_bytes),
        old_pages: pages.then_some(i.old_pages),
        pages: pages.then_some(&i.pages),
        unmeasured: gaps.unmeasured,
    }
}

fn window_line<'a>(run: &Run, w: &'a Window) -> WindowLine<'a> {
    let doubtful = |lanes: &[Lane]| {
        let mut states = run.lanes.iter().filter(|s| lanes.contains(&s.lane));
        states.any(|s| !s.proven)
    };
    let mut unmeasured = vec![because("rss_delta", SAMPLED)];
    let why = if !w.closed {
        Some("the window was never ended")
    } else if w.breaks != 0 {
        Some("an allocation area was lost sight of")
    } else if w.marker_bytes.is_none() {
        Some("no empty window measured the marker")
    } else if doubtful(&[Lane::Bytes, Lane::Window]) {
        Some("the lane is not proven")
    } else {
        None
    };
    let bytes = why.is_none();
    if let Some(why) = why {
        unmeasured.push(because("bytes", why));
        unmeasured.push(because("allocated", why));
    }
    let why = if !w.closed {
        Some("the window was never ended")
    } else if doubtful(&[Lane::Window]) || doubtful(&Lane::EXTERNAL) {
        Some("a lane of external memory is not proven")
    } else {
        None
    };
    let external = why.is_none();
    if let Some(why) = why {
        let fields = ["external_delta", "external_allocated", "external_strings"];
        unmeasured.extend(fields.map(|f| because(f, why)));
    }
    WindowLine {
        r#type: "window",
        pid: w.pid,
        isolate: w.isolate,
        id: w.id,
        scale: w.scale,
        closed: w.closed,
        bytes: bytes.then_some(w.bytes),
        allocated: bytes.then_some(&w.allocated),
        marker_bytes: w.marker_bytes,
        large_count: w.large_count,
        scavenges: w.kinds.scavenges,
        minor_mark_sweeps: w.kinds.minor_mark_sweeps,
        mark_compacts: w.kinds.mark_compacts,
        incremental_starts: w.incremental_starts,
        external_delta: external.then_some(w.external_delta_bytes),
        external_allocated: external.then_some(w.external_allocated_bytes),
        external_strings: external.then_some(w.external_string_bytes),
        rss_delta: None,
        pause_ns_total: w.pause_ns_total,
        wall_ns: w.wall_ns,
        breaks: w.breaks,
        unmeasured,
    }
}

fn versions<'a>(
    gaps: &mut Gaps<'a>,
    runtime: Option<&'a Runtime>,
) -> (Option<&'a str>, Option<&'a str>) {
    let Some(runtime) = runtime else {
        gaps.note(&["node", "v8"], NO_V8);
        return (None, None);
    };
    let silent = "the binary does not say";
    (
        gaps.some(runtime.node.as_deref(), "node", silent),
        gaps.some(runtime.v8.as_deref(), "v8", silent),
    )
}

fn process_line(p: &Process) -> ProcessLine<'_> {
    let mut gaps = Gaps::new(p);
    let (node, v8) = versions(&mut gaps, p.runtime.as_ref());
    let (end, exit_code, signal, core_dumped) = match p.end {
        End::Exited(code) => ("exited", Some(code), None, false),
        End::Killed { signal, core } => ("killed", None, Some(signal), core),
        End::Replaced => ("replaced", None, None, false),
        End::StillRunning => ("running", None, None, false),
        End::Unknown => {
            gaps.note(&["exit_code", "signal"], "its end was not seen");
            ("unknown", None, None, false)
        }
    };
    let no_external = match p.is_v8() {
        true => p.blind_in_external().unwrap_or(NOT_SAMPLED),
        false => NO_V8,
    };
    let external = p.external.filter(|_| p.blind_in_external().is_none());
    if external.is_none() {
        gaps.note(
            &[
                "external_allocated",
                "external_freed",
                "external_live",
                "external_reserved",
                "external_strings",
            ],
            no_external,
        );
    }
    let wall_ns = gaps.some(p.wall_ns, "wall_ns", NOT_SAMPLED);
    let rss_peak = gaps.some(p.rss.peak_bytes, "rss_peak", NOT_SAMPLED);
    let rss_end = gaps.some(p.rss.end_bytes, "rss_end", NOT_SAMPLED);
    let no_split = if p.is_v8() {
        p.blind_in(Lane::Pages).unwrap_or(NOT_SAMPLED)
    } else {
        NO_V8
    };
    let rss_v8 = gaps.some(p.rss.v8_bytes, "rss_v8", no_split);
    let rss_peak_v8 = gaps.some(p.rss.peak_v8_bytes, "rss_peak_v8", no_split);
    let rss_external = gaps.some(p.rss.external_bytes, "rss_external", no_external);
    let rss_peak_external = gaps.some(p.rss.peak_external_bytes, "rss_peak_external", no_external);
    let c = &p.counters;
    let mut counter = |value: Option<u64>, field: &'static str| {
        let why = c.unmeasured.iter().find(|(f, _)| f == field);
        gaps.some(
            value,
            field,
            why.map_or(NOT_SAMPLED, |(_, why)| why.as_str()),
        )
    };
    ProcessLine {
        r#type: "process",
        pid: p.pid,
        ppid: p.ppid,
        exe: &p.exe,
        argv: &p.argv,
        node,
        v8,
        build_id: p
            .runtime
            .as_ref()
            .map(|r| r.build_id.as_str())
            .filter(|id| !id.is_empty()),
        end,
        exit_code,
        signal,
        core_dumped,
        wall_ns,
        rss_peak,
        rss_peak_exact: p.rss.peak_bytes.map(|_| p.rss.peak_exact),
        rss_end,
        rss_v8,
        rss_external,
        rss_peak_v8,
        rss_peak_external,
        external_allocated: external.map(|e| e.allocated_bytes),
        external_freed: external.map(|e| e.freed_bytes),
        external_live: external.map(|e| e.live_bytes()),
        external_reserved: external.map(|e| e.reserved_allocated_bytes),
        external_strings: external.map(|e| e.string_allocated_bytes),
        page_faults: counter(c.page_faults, "page_faults"),
        context_switches: counter(c.context_switches, "context_switches"),
        task_clock_ns: counter(c.task_clock_ns, "task_clock_ns"),
        instructions: counter(c.instructions, "instructions"),
        cycles: counter(c.cycles, "cycles"),
        hits: p.hits,
        blind: p
            .blind
            .iter()
            .map(|(lane, why)| BlindLane {
                lane: lane.name(),
                why,
            })
            .collect(),
        unmeasured: gaps.unmeasured,
    }
}

fn lane_line(state: &LaneState) -> LaneLine<'_> {
    LaneLine {
        r#type: "lane",
        lane: state.lane.name(),
        probes: state.probes,
        attached: state.attached,
        hits: state.hits,
        proven: state.proven,
        lost: state.lost,
        why: &state.why,
    }
}

#[cfg(test)]
mod tests;
